-- The first of two approvals that the policy demands for a pending review. The identity is what the issuer stated.
CREATE TABLE first_approval (
    name TEXT PRIMARY KEY,
    identity TEXT NOT NULL,
    approved_by TEXT NOT NULL,
    why TEXT NOT NULL,
    approved TEXT NOT NULL
);
