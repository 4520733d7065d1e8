-- The audit log. An event is a line of canonical JSON, which contains the SHA-256 of the previous event. Source and place
-- are in the event too; their columns prevent the same event from being written twice.
CREATE TABLE audit_entry (
    number BIGINT PRIMARY KEY,
    source TEXT NOT NULL,
    nth BIGINT NOT NULL,
    entry TEXT NOT NULL
);
CREATE UNIQUE INDEX audit_entry_source ON audit_entry (source, nth);
