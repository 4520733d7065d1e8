-- What search and pages read. All of it except READMEs is derived from the tables of a registry, which fills it again
-- when it opens a database of an earlier release.

-- One row for each bundle. "version" is the latest version; if all versions are yanked, it is the last one.
CREATE TABLE packages (
    tool TEXT PRIMARY KEY,
    namespace TEXT NOT NULL,
    version TEXT NOT NULL,
    is_yanked BIGINT NOT NULL,
    versions BIGINT NOT NULL,
    description TEXT NOT NULL,
    published_at TEXT NOT NULL
);
CREATE INDEX packages_by_namespace ON packages (namespace, tool);

-- The words of the latest version of each bundle. A term is UTF-8, so that both databases sort it by its bytes.
CREATE TABLE search_terms (
    term BYTEA NOT NULL,
    tool TEXT NOT NULL,
    weight BIGINT NOT NULL,
    PRIMARY KEY (term, tool, weight)
);
CREATE INDEX search_terms_by_tool ON search_terms (tool);

-- The README of a bundle's content, with its path in the bundle.
CREATE TABLE readmes (
    root_cid TEXT PRIMARY KEY,
    path TEXT NOT NULL,
    body BYTEA NOT NULL
);

-- Indexes for lookups by CID, and for the entry that published a version.
CREATE INDEX versions_by_root ON versions (root_cid);
CREATE INDEX versions_by_descriptor ON versions (descriptor_cid);
CREATE INDEX versions_by_archive ON versions (archive_cid);
CREATE INDEX versions_by_surface ON versions (surface_cid);
