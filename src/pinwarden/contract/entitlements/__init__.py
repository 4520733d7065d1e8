"""Analyse the source of a Python server for the entitlements of its handlers. Start with ``analysis.py``. Pure."""
