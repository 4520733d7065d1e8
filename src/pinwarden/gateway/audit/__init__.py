"""The audit log: events go to a journal file first and then into a hash chain in the database. Start with `log.py`."""
