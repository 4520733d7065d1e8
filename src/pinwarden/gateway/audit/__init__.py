"""The audit log: entries, the hash chain, the journal in front of the database, verification and export."""
