"""Analyse JavaScript and TypeScript servers for the entitlements of their handlers. Start with ``analysis.py``. Pure."""
