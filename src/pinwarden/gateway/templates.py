"""Whether an address was made from a URI template (RFC 6570)."""

from __future__ import annotations

from pinwarden.core.lazy_regex import pattern

_EXPRESSION = pattern(r"\{[^{}]*\}")


def template_fits(template: str, uri: str) -> bool:
    """Whether an address can come from a template: what stands between its expressions occurs in that order.

    Expressions are taken to stand for anything, so that an address is rather held against a template too many.
    """
    first, *others = _EXPRESSION.split(template)
    if not others:
        return uri == template
    last = others.pop()
    if not uri.startswith(first) or not uri.endswith(last) or len(uri) < len(first) + len(last):
        return False
    place, end = len(first), len(uri) - len(last)
    for literal in others:
        found = uri.find(literal, place, end)
        if found < 0:
            return False
        place = found + len(literal)
    return True
