"""Everything that reads or writes the lock."""
