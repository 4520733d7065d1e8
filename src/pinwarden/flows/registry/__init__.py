"""A registry: what is published in it, who may, and its log."""
