"""The registry and its log."""
