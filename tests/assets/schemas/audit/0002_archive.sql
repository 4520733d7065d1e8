-- Where the log begins after its oldest entries were archived: the number and hash of the last archived entry, in one row.
CREATE TABLE audit_start (
    number BIGINT PRIMARY KEY,
    hash TEXT NOT NULL
);

-- How many events of each gateway run were archived.
CREATE TABLE audit_archived_source (
    source TEXT PRIMARY KEY,
    nth BIGINT NOT NULL
);
