"""Compare two surfaces: every change, with its kind and severity. Start with ``surface.py`` and ``changes.py``."""
