"""The registry over HTTP. Start with ``app.py``."""
