"""Frozen values: ``parse(bytes) -> value -> bytes``. Unknown members survive."""
