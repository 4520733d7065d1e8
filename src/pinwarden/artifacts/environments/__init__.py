"""Environments built from verified files, audited before every start. Start with ``store.py`` and ``tree.py``."""
