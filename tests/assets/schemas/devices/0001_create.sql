-- Machines whose gateways follow this one over HTTPS. Of a token only its hash is kept. "seen" is in seconds since 1970, 0
-- for never. "installation" is the one state folder that uses the token.
CREATE TABLE device (
    id TEXT PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL UNIQUE,
    team TEXT NOT NULL,
    made_at TEXT NOT NULL,
    revoked_at TEXT,
    installation TEXT NOT NULL,
    host TEXT NOT NULL,
    program TEXT NOT NULL,
    policy TEXT NOT NULL,
    seen BIGINT NOT NULL
);

-- The servers that a machine started through its gateway.
CREATE TABLE device_server (
    device TEXT NOT NULL REFERENCES device (id),
    place TEXT NOT NULL,
    server TEXT NOT NULL,
    client TEXT NOT NULL,
    version TEXT NOT NULL,
    surface TEXT NOT NULL,
    waiting BIGINT NOT NULL,
    started TEXT NOT NULL,
    PRIMARY KEY (device, place, server, client)
);

-- What servers on a machine served. Not among the gateways' own sightings, because a machine may report anything.
CREATE TABLE device_sighting (
    device TEXT NOT NULL REFERENCES device (id),
    server TEXT NOT NULL,
    entity TEXT NOT NULL,
    item TEXT NOT NULL,
    digest TEXT NOT NULL,
    definition TEXT NOT NULL,
    action TEXT NOT NULL,
    first_seen TEXT NOT NULL,
    last_seen TEXT NOT NULL,
    PRIMARY KEY (device, server, entity, item, digest)
);
