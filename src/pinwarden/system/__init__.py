"""This machine and the network: files, processes, sandbox, HTTP client, databases, secret masking.

Start with ``files.py`` (bounded reads, atomic writes), ``net/fetch.py`` (HTTP), ``sandbox.py`` (bubblewrap) and
``transactions.py`` (SQLite and PostgreSQL). Pure: ``masking.py``, ``hosts.py``, ``key_forms.py``, ``plain_words.py``,
``unseen.py``, ``redirecting_variables.py``, ``command_words.py`` and ``target.py``. Imports only ``core``.
"""
