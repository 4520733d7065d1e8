"""Judging what passes the gateway: one listed item, one whole list, one call, what a server says of itself."""
