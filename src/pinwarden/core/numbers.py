"""Numbers as ECMAScript prints them (ECMA-262, Number::toString with radix 10; RFC 8785 section 3.2.2.3)."""

from __future__ import annotations

MAX_SAFE_INTEGER = 2**53 - 1


def is_number(value: object) -> bool:
    """Whether a value is a JSON number; Python counts true and false among them."""
    return type(value) is int or type(value) is float


def ecmascript_number(value: float) -> str:
    """The text of a finite double. Python's ``repr`` finds the same shortest digits; only the layout differs."""
    if value == 0:
        return "0"  # also for minus zero
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = whole + fraction
    point = len(whole) + int(exponent or "0")  # the value is 0.DIGITS times ten to the power of point
    significant = digits.lstrip("0")
    point -= len(digits) - len(significant)
    significant = significant.rstrip("0")
    count = len(significant)
    if count <= point <= 21:
        return sign + significant + "0" * (point - count)
    if 0 < point <= 21:
        return sign + significant[:point] + "." + significant[point:]
    if -6 < point <= 0:
        return sign + "0." + "0" * -point + significant
    tail = f"e{point - 1:+d}"
    if count == 1:
        return sign + significant + tail
    return sign + significant[0] + "." + significant[1:] + tail
