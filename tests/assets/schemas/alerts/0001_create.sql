-- Alerts to send, one row for each destination. Payloads contain no secrets; addresses are only in the configuration.
CREATE TABLE alert (
    id TEXT PRIMARY KEY,
    destination TEXT NOT NULL,
    source TEXT NOT NULL,
    subject TEXT NOT NULL,
    topic TEXT NOT NULL,
    created BIGINT NOT NULL,
    alert TEXT NOT NULL,
    state TEXT NOT NULL,
    attempts BIGINT NOT NULL,
    due BIGINT NOT NULL,
    problem TEXT NOT NULL
);
CREATE INDEX alert_due ON alert (state, due);
CREATE INDEX alert_subject ON alert (source, subject, created);

-- What alerts were made about, so that nothing is reported twice.
CREATE TABLE alert_reported (
    source TEXT NOT NULL,
    item TEXT NOT NULL,
    reported BIGINT NOT NULL,
    PRIMARY KEY (source, item)
);

-- How far each source was read, for those that are read in order.
CREATE TABLE alert_position (
    source TEXT PRIMARY KEY,
    position BIGINT NOT NULL
);
