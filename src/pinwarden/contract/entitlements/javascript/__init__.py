"""Analyse JavaScript and TypeScript for the entitlements of handlers. Start with ``analysis.py``. Pure."""
