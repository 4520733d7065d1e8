"""Where the user's own package clients would go: their settings, and without any, their built-in defaults."""
