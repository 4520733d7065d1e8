"""Everything that reads or writes the policy."""
