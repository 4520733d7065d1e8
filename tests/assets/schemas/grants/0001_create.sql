-- The permissions of people for Pinwarden to use remote servers. Their tokens are encrypted.
CREATE TABLE remote_grant (
    id TEXT PRIMARY KEY,
    owner_issuer TEXT NOT NULL,
    owner_subject TEXT NOT NULL,
    server TEXT NOT NULL,
    address TEXT NOT NULL,
    issuer TEXT NOT NULL,
    client_id TEXT NOT NULL,
    resource TEXT NOT NULL,
    redirect_uri TEXT NOT NULL,
    scopes TEXT NOT NULL,
    wanted TEXT NOT NULL,
    expires_at BIGINT NOT NULL,
    connected_at TEXT NOT NULL,
    connected_by TEXT NOT NULL,
    problem TEXT NOT NULL,
    revision BIGINT NOT NULL,
    refreshing_until BIGINT NOT NULL,
    sealed BYTEA NOT NULL
);
CREATE UNIQUE INDEX remote_grant_of_owner ON remote_grant (owner_issuer, owner_subject, server, address);
