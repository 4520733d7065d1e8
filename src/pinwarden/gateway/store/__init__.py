"""Tables in the gateway's database: approvals, reviews with observed definitions, and client tokens."""
