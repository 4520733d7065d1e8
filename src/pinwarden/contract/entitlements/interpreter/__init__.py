"""An abstract interpreter for Python source. Start with ``interpreter.py``."""
