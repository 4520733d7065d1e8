"""Durable state. The same SQL goes to a SQLite file and to PostgreSQL; its tables are in ``schemas/*.sql``."""
