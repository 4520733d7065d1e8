"""The gateway over Streamable HTTP. Start with ``gateway.py`` and ``endpoint.py``."""
