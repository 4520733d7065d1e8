"""``pinwarden ci``: is everything still as approved? Start with ``check.py``, which lists the checks in order."""
