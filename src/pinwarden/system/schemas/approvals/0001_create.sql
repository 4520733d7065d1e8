-- Approvals that apply to every gateway that uses this database, whatever its lock says. The name of a row is a digest
-- over the name and identity of the server, the item, and the digest of its definition. The newest decision counts.
CREATE TABLE approval (
    name TEXT PRIMARY KEY,
    sequence BIGINT NOT NULL,
    server TEXT NOT NULL,
    identity TEXT NOT NULL,
    entity TEXT NOT NULL,
    item TEXT NOT NULL,
    digest TEXT NOT NULL,
    expected TEXT NOT NULL,
    definition TEXT NOT NULL,
    place TEXT NOT NULL,
    state TEXT NOT NULL,
    decided TEXT NOT NULL,
    decided_by TEXT NOT NULL,
    why TEXT NOT NULL
);
CREATE INDEX approval_server ON approval (server, sequence);

-- The gateways that use the database, by host and lock, and how far each of them has followed the approvals.
CREATE TABLE approval_follower (
    place TEXT NOT NULL,
    server TEXT NOT NULL,
    identity TEXT NOT NULL,
    sequence BIGINT NOT NULL,
    refused TEXT NOT NULL,
    seen BIGINT NOT NULL,
    PRIMARY KEY (place, server)
);
