"""Compare two surfaces: every change, with its kind and severity. Start with ``compare.py`` and ``changes.py``."""
