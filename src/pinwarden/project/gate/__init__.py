"""``pinwarden ci``: is everything still as it was approved? Start with ``check.py``."""
