"""The audit log: the hash-chained record of what a gateway allowed and refused.

An event takes three steps. `log.AuditLog.record` appends it to the journal file (`journal.py`) and returns. A thread
adds the events of the journal to the hash chain in the database (`chain.py`), many in one commit. After the commit, it
removes them from the journal. Start reading with `log.py`.

`event.py` defines events, entries and their hashes, and verifies a chain. `report.py` reads the log for
``pinwarden audit``. Only `event.py` is pure. Only `archive.py` removes entries, after it moved
them into a file: the head of that file stays in the database, so that the chain has a beginning that can be verified.
"""
