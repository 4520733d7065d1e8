"""Client configurations held against the lock."""
