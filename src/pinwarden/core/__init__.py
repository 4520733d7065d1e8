"""Bytes and values: strict JSON, canonical forms, digests, CIDs, keys, signatures, Merkle logs, errors, reports.

Start with ``errors.py`` (every error code), ``record.py`` (immutable values), ``strict_json.py`` and ``canonical.py``.
Everything here is pure: no clock, environment, randomness, network or disk. ``core`` imports no other package.
"""
