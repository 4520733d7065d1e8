-- What people wrote about a review: comments, and questions to other reviewers. They decide nothing.
CREATE TABLE review_comment (
    name TEXT NOT NULL,
    position BIGINT NOT NULL,
    written_by TEXT NOT NULL,
    written TEXT NOT NULL,
    kind TEXT NOT NULL,
    content TEXT NOT NULL,
    PRIMARY KEY (name, position)
);
