"""An abstract interpreter for Python source. Start with ``engine.py``."""
