"""The registry's HTTP server. Start with ``app.py``."""
