-- What all gateways together have left of the limits of clients for tools. The name is a digest of what is counted.
CREATE TABLE call_budget (
    name TEXT PRIMARY KEY,
    remaining BIGINT NOT NULL,
    since BIGINT NOT NULL
);
CREATE INDEX call_budget_since ON call_budget (since);
