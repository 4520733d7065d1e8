-- Locks that were published for gateways, each with its policy, its signature and the files that it pins. The newest
-- one of a name applies. A row is never changed.
CREATE TABLE published_lock (
    name TEXT NOT NULL,
    sequence BIGINT NOT NULL,
    content BYTEA NOT NULL,
    policy BYTEA,
    signature BYTEA,
    published TEXT NOT NULL,
    published_by TEXT NOT NULL,
    PRIMARY KEY (name, sequence)
);

CREATE TABLE published_lock_file (
    name TEXT NOT NULL,
    sequence BIGINT NOT NULL,
    path TEXT NOT NULL,
    content BYTEA NOT NULL,
    PRIMARY KEY (name, sequence, path)
);
