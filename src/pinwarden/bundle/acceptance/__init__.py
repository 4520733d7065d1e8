"""The nine steps that decide whether a bundle is accepted. Start with ``plan.py``. Pure."""
