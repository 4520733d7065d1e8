"""Bytes and values: strict JSON, canonical forms, digests, CIDs, keys, signatures, Merkle logs, errors, reports.

Start with ``errors.py`` (the one exception type), ``record.py`` (immutable values), ``strict_json.py`` (parsing) and
``canonical.py`` (canonical forms). ``keys.py`` signs and verifies. ``tlog.py`` and ``signed_note.py`` are the
arithmetic and the documents of transparency logs. ``report.py`` is what every command returns.

Everything here is pure: no clock, environment, randomness, network or disk. ``core`` imports no other package.
"""
