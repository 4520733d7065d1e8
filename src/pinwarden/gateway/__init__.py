"""The enforcing proxy between MCP clients and servers, on stdio and HTTP.

Start with ``session.py``: it decides about every message without any I/O. ``gates/`` holds the decisions,
``stdio.py`` and ``http/`` are the transports, ``audit/`` is the hash-chained log, ``store/`` the tables for reviews,
tokens and observed definitions. ``session.py``, ``gates/`` and message parsing are pure.
"""
