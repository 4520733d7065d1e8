"""What the handlers of a Python server can reach, from source. Start with ``analysis.py``. Pure."""
