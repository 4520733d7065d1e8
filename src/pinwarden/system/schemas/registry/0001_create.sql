-- What a registry knows. Moments are text in UTC where documents show them, and milliseconds since 1970 where they are
-- only compared.

-- One row: who this registry is. Every replica must hold the key of this row.
CREATE TABLE identity (
    id BIGINT PRIMARY KEY,
    name TEXT NOT NULL,
    log_id TEXT NOT NULL,
    key_id TEXT NOT NULL
);

-- One row: the head of the log. The edge is all that an append has to read.
CREATE TABLE log_head (
    id BIGINT PRIMARY KEY,
    size BIGINT NOT NULL,
    edge BYTEA NOT NULL,
    note BYTEA NOT NULL
);

-- The leaves; the hashes of 256 neighbours are a tile of level 0.
CREATE TABLE log_entries (
    seq BIGINT PRIMARY KEY,
    tool TEXT NOT NULL,
    channel TEXT NOT NULL,
    leaf BYTEA NOT NULL,
    entry BYTEA NOT NULL
);
CREATE INDEX log_entries_by_tool ON log_entries (tool, channel, seq);

-- The nodes of the higher levels of tiles, one for 256 below it.
CREATE TABLE log_nodes (
    level BIGINT NOT NULL,
    position BIGINT NOT NULL,
    hash BYTEA NOT NULL,
    PRIMARY KEY (level, position)
);

-- Lines that witnesses wrote under the checkpoint of a size.
CREATE TABLE log_cosignatures (
    size BIGINT NOT NULL,
    witness TEXT NOT NULL,
    line TEXT NOT NULL,
    PRIMARY KEY (size, witness)
);

-- Descriptors, attestations and surfaces by their CID.
CREATE TABLE documents (
    cid TEXT PRIMARY KEY,
    body BYTEA NOT NULL
);

-- A root CID leaves out what the manifest is linked to, so both name it.
CREATE TABLE manifests (
    root_cid TEXT NOT NULL,
    descriptor_cid TEXT NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (root_cid, descriptor_cid)
);

CREATE TABLE versions (
    tool TEXT NOT NULL,
    version TEXT NOT NULL,
    namespace TEXT NOT NULL,
    description TEXT NOT NULL,
    root_cid TEXT NOT NULL,
    descriptor_cid TEXT NOT NULL,
    archive_cid TEXT NOT NULL,
    archive_size BIGINT NOT NULL,
    media_type TEXT NOT NULL,
    content_hash TEXT NOT NULL,
    api_surface TEXT,
    surface_cid TEXT,
    surface_problem TEXT,
    published_at TEXT NOT NULL,
    published_by TEXT NOT NULL,
    seq BIGINT NOT NULL,
    yanked TEXT,
    PRIMARY KEY (tool, version)
);

CREATE TABLE attestations (
    root_cid TEXT NOT NULL,
    descriptor_cid TEXT NOT NULL,
    cid TEXT NOT NULL REFERENCES documents (cid),
    PRIMARY KEY (root_cid, descriptor_cid, cid)
);

-- Where each channel of a tool points, and the signed document that says so. Without a document it points nowhere.
CREATE TABLE channels (
    tool TEXT NOT NULL,
    channel TEXT NOT NULL,
    version TEXT,
    root_cid TEXT,
    seq BIGINT NOT NULL,
    pointer BYTEA,
    PRIMARY KEY (tool, channel)
);

CREATE TABLE namespaces (
    name TEXT PRIMARY KEY,
    created_at TEXT NOT NULL
);

CREATE TABLE namespace_keys (
    namespace TEXT NOT NULL REFERENCES namespaces (name),
    key_id TEXT NOT NULL,
    role TEXT NOT NULL,
    added_at TEXT NOT NULL,
    PRIMARY KEY (namespace, key_id)
);

-- Of a token only its digest is kept.
CREATE TABLE tokens (
    id TEXT PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    namespace TEXT NOT NULL REFERENCES namespaces (name),
    label TEXT NOT NULL,
    created_at TEXT NOT NULL,
    expires BIGINT NOT NULL,
    revoked BIGINT
);

-- Signed requests that were carried out. None is carried out twice.
CREATE TABLE statements (
    digest TEXT PRIMARY KEY,
    moment BIGINT NOT NULL
);

CREATE TABLE audit (
    id TEXT PRIMARY KEY,
    moment BIGINT NOT NULL,
    action TEXT NOT NULL,
    namespace TEXT NOT NULL,
    token TEXT,
    key_id TEXT,
    subject TEXT NOT NULL,
    outcome TEXT NOT NULL,
    size BIGINT NOT NULL
);
CREATE INDEX audit_by_token ON audit (token, moment);
