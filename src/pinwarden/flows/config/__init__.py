"""Everything that looks at the clients' configurations."""
