"""This machine and the network: files, processes, sandbox, HTTP client, databases, secret masking.

Start with ``files.py`` (bounded reads, atomic writes), ``processes.py``, ``net/fetch.py`` (HTTP), ``sandbox.py``
(bubblewrap) and ``database.py`` (SQLite and PostgreSQL). ``exec_guard.py`` and ``write_guard.py`` are stand-alone
programs of the sandbox. ``masking.py`` masks secrets for output, ``redaction.py`` for locks.

Pure: ``environment_variables.py``, ``masking.py``, ``redaction.py``, ``target.py``.
Imports only ``core``.
"""
