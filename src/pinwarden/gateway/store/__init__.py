"""The gateway's tables: reviews, client tokens, observed definitions, first-use approvals."""
