"""The author's lock: made, checked, explained, compared."""
