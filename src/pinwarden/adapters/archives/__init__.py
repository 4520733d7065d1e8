"""Archives from strangers, read member by member."""
