"""Analyse the source of a server for the entitlements of its handlers. Start with ``analysis.py``. Pure."""
