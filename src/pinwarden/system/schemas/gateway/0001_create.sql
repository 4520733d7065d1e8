-- Sightings, pending reviews and trusted surfaces of a gateway. Definitions are stored as canonical JSON.

-- Every definition ever served, approved or not.
CREATE TABLE sighting (
    server TEXT NOT NULL,
    entity TEXT NOT NULL,
    item TEXT NOT NULL,
    digest TEXT NOT NULL,
    definition TEXT NOT NULL,
    action TEXT NOT NULL,
    first_seen TEXT NOT NULL,
    last_seen TEXT NOT NULL,
    sessions BIGINT NOT NULL,
    PRIMARY KEY (server, entity, item, digest)
);

-- Changes that are or were pending review, with the decisions. The name of a row is a digest of the change.
CREATE TABLE review (
    name TEXT PRIMARY KEY,
    server TEXT NOT NULL,
    baseline TEXT NOT NULL,
    entity TEXT NOT NULL,
    item TEXT NOT NULL,
    digest TEXT NOT NULL,
    expected TEXT NOT NULL,
    definition TEXT NOT NULL,
    level TEXT NOT NULL,
    code TEXT NOT NULL,
    reason TEXT NOT NULL,
    opened TEXT NOT NULL,
    last_seen TEXT NOT NULL,
    state TEXT NOT NULL,
    decided TEXT NOT NULL,
    decided_by TEXT NOT NULL,
    why TEXT NOT NULL
);
CREATE INDEX review_item ON review (server, baseline, entity, item);

-- Surfaces that the gateway trusted on first use, because it had never seen their server before.
CREATE TABLE trusted (
    server TEXT PRIMARY KEY,
    generation BIGINT NOT NULL,
    surface TEXT NOT NULL,
    since TEXT NOT NULL,
    changed TEXT NOT NULL,
    changed_by TEXT NOT NULL,
    why TEXT NOT NULL
);
