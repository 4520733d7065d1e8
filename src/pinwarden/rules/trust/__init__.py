"""How far a server can be trusted, by what is known of it, and why."""
