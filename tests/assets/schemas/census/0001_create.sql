-- What a census found out about servers, run after run. A text is stored once for all servers that send it.

-- A source of servers, and the time from which its next listing needs changes only.
CREATE TABLE census_sources (
    source TEXT PRIMARY KEY,
    updated_since TEXT NOT NULL
);

-- A server of a source. "spec" is how it is configured, without secrets; "folder" is where a local command starts.
-- "memory" is what the next run compares with: fingerprint, registry responses, and pins of the last observation.
CREATE TABLE census_servers (
    server TEXT PRIMARY KEY,
    source TEXT NOT NULL,
    name TEXT NOT NULL,
    folder TEXT NOT NULL,
    spec TEXT NOT NULL,
    memory TEXT NOT NULL,
    added_at TEXT NOT NULL
);
CREATE INDEX census_servers_by_source ON census_servers (source);

CREATE TABLE census_runs (
    run BIGINT PRIMARY KEY,
    source TEXT NOT NULL,
    refresh BIGINT NOT NULL,
    servers BIGINT NOT NULL,
    started_at TEXT NOT NULL,
    finished_at TEXT NOT NULL
);

-- Exactly one row for each server of a run. An unchanged server has the run of its last observation in "observed_run",
-- and its other columns are those of that row.
CREATE TABLE census_results (
    run BIGINT NOT NULL,
    server TEXT NOT NULL,
    state TEXT NOT NULL,
    observed_run BIGINT NOT NULL,
    code TEXT NOT NULL,
    reason TEXT NOT NULL,
    message TEXT NOT NULL,
    version TEXT NOT NULL,
    artifact TEXT NOT NULL,
    publisher TEXT NOT NULL,
    provenance TEXT NOT NULL,
    surface TEXT NOT NULL,
    tools BIGINT NOT NULL,
    tokens BIGINT NOT NULL,
    attempts BIGINT NOT NULL,
    milliseconds BIGINT NOT NULL,
    checked_at TEXT NOT NULL,
    PRIMARY KEY (run, server)
);
CREATE INDEX census_results_by_server ON census_results (server, run);
CREATE INDEX census_results_by_surface ON census_results (surface);

CREATE TABLE census_findings (
    run BIGINT NOT NULL,
    server TEXT NOT NULL,
    position BIGINT NOT NULL,
    origin TEXT NOT NULL,
    severity TEXT NOT NULL,
    code TEXT NOT NULL,
    entity TEXT NOT NULL,
    name TEXT NOT NULL,
    message TEXT NOT NULL,
    PRIMARY KEY (run, server, position)
);

-- A tool, prompt, resource, template or server description, as canonical JSON. "likeness" is the digest of its text
-- without names, case, blanks and hidden characters.
CREATE TABLE census_texts (
    digest TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    body TEXT NOT NULL,
    likeness TEXT NOT NULL,
    first_run BIGINT NOT NULL
);
CREATE INDEX census_texts_by_likeness ON census_texts (likeness);
CREATE INDEX census_texts_by_name ON census_texts (kind, name);

CREATE TABLE census_items (
    surface TEXT NOT NULL,
    position BIGINT NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (surface, position)
);
CREATE INDEX census_items_by_text ON census_items (text);

-- When the next request may be sent to a host, in milliseconds since 1970, for all workers together.
CREATE TABLE census_hosts (
    host TEXT PRIMARY KEY,
    due BIGINT NOT NULL
);

-- The queue of a census without a database server. With PostgreSQL, procrastinate has its own tables.
CREATE TABLE census_jobs (
    run BIGINT NOT NULL,
    server TEXT NOT NULL,
    attempts BIGINT NOT NULL,
    due BIGINT NOT NULL,
    worker TEXT NOT NULL,
    PRIMARY KEY (run, server)
);
CREATE INDEX census_jobs_by_due ON census_jobs (run, due);
