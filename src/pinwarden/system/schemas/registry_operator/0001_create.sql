-- What the operator of a registry decided. Each row is also an entry of the log, at "seq".

-- A version that was taken down; an empty version stands for the whole bundle.
CREATE TABLE takedowns (
    tool TEXT NOT NULL,
    version TEXT NOT NULL,
    reason TEXT NOT NULL,
    seq BIGINT NOT NULL,
    PRIMARY KEY (tool, version)
);

-- A namespace that gets a new owner when "due" (milliseconds since 1970) has passed and no member objected.
CREATE TABLE recoveries (
    namespace TEXT PRIMARY KEY,
    key_id TEXT NOT NULL,
    due BIGINT NOT NULL,
    seq BIGINT NOT NULL
);

-- What the pointers of a namespace or bundle require; an empty channel stands for all channels.
CREATE TABLE requirements (
    name TEXT NOT NULL,
    channel TEXT NOT NULL,
    body TEXT NOT NULL,
    seq BIGINT NOT NULL,
    PRIMARY KEY (name, channel)
);
