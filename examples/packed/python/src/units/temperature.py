"""Temperatures."""


def to_fahrenheit(celsius: float) -> float:
    """Convert a temperature."""
    return celsius * 9 / 5 + 32
