"""The order of JavaScript's ``String.prototype.localeCompare`` in the locale en-US.

Foreign lockfiles hash lists that were sorted with it, so their digests depend on a collation table. For ASCII names
the table is below and the order is exact, whatever the machine. For other names the order is asked of ICU if the
package PyICU is installed, with the locale named and never taken from the environment. Without it, the order is an
approximation and says so: accents count after letters and case after accents as in ICU, but letters that are not
ASCII are taken in code point order, and nothing is known of expansions (ß as ss) or of the order of accents.

No dependency is added for it: pyuca rests since 2017 and has the table of Unicode 10 without CLDR's changes, icu4py
has no collation, and PyICU has to be compiled against the system's ICU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

_Item = TypeVar("_Item")

# CLDR root, the primary weights of ASCII. Letters of both cases share one; other control characters have none.
_ASCII_ORDER = "\t\n\v\f\r _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$0123456789abcdefghijklmnopqrstuvwxyz"
_PRIMARY = {character: weight for weight, character in enumerate(_ASCII_ORDER)} | {
    character.upper(): weight for weight, character in enumerate(_ASCII_ORDER)
}
_BEFORE_DIGITS = _PRIMARY["$"]
_AFTER_LETTERS = _PRIMARY["z"]

_Key = tuple[tuple[tuple[int, int], ...], tuple[str, ...], tuple[bool, ...]]


def locale_sorted(items: Iterable[_Item], name: Callable[[_Item], str]) -> tuple[list[_Item], bool]:
    """The items in that order of their names, equal names as they came; and whether the order is exact."""
    listed = list(items)
    if len(listed) < 2 or all(name(item).isascii() for item in listed):
        return sorted(listed, key=lambda item: _key(name(item))), True
    collator = _icu_collator()
    if collator is None:
        return sorted(listed, key=lambda item: _key(name(item))), False
    return sorted(listed, key=lambda item: bytes(collator.getSortKey(name(item)))), True


def _key(name: str) -> _Key:
    """Three levels, each counting only where all before it are equal: letters, then accents, then case."""
    if not name.isascii():
        from unicodedata import normalize

        name = normalize("NFD", name)
    letters = [character for character in name if _has_weight(character)]
    accents: list[str] = []
    for character in name:
        if _has_weight(character):
            accents.append("")
        elif accents and not character.isascii():
            accents[-1] += character
    return tuple(map(_primary, letters)), tuple(accents), tuple(letter.isupper() for letter in letters)


def _has_weight(character: str) -> bool:
    if character.isascii():
        return character in _PRIMARY
    from unicodedata import category

    return category(character) not in ("Mn", "Me", "Cc", "Cf")


def _primary(character: str) -> tuple[int, int]:
    if character.isascii():
        return _PRIMARY[character], 0
    after = _AFTER_LETTERS if character.isalnum() else _BEFORE_DIGITS
    return after, ord(character.lower()[0])


def _icu_collator() -> Any:
    """ICU's collator as JavaScript engines set it up, or None where PyICU is not installed."""
    from importlib import import_module

    try:
        icu = import_module("icu")
    except ImportError:
        return None
    collator = icu.Collator.createInstance(icu.Locale("en_US"))
    # ECMA-402: canonically equivalent strings compare as equal.
    collator.setAttribute(icu.UCollAttribute.NORMALIZATION_MODE, icu.UCollAttributeValue.ON)
    return collator
