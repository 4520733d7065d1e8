-- The tokens of the gateway's clients: only their hashes are kept.
CREATE TABLE token (
    digest TEXT PRIMARY KEY,
    client TEXT NOT NULL,
    servers TEXT NOT NULL,
    made_at TEXT NOT NULL,
    revoked_at TEXT
);
