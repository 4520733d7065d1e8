-- The audit log. An entry is a line of canonical JSON; it names the SHA-256 of the entry before it, so that only the
-- entries themselves are kept and no hash that could disagree with them. Source and place are in the entry too; here
-- they keep what was written from being written twice.
CREATE TABLE audit_entry (
    number BIGINT PRIMARY KEY,
    source TEXT NOT NULL,
    nth BIGINT NOT NULL,
    entry TEXT NOT NULL
);
CREATE UNIQUE INDEX audit_entry_source ON audit_entry (source, nth);
