"""Archives from untrusted sources, read member by member with limits."""
