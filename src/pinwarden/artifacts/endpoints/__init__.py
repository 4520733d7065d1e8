"""The registries that the user's package clients are configured for, with credentials, read from their own settings."""
