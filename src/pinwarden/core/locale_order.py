"""The order of JavaScript's ``String.prototype.localeCompare`` in the locale en-US.

Foreign lockfiles hash lists that were sorted with it, so their digests depend on a collation table. For names in
ASCII, in Latin letters with the usual accents, in Greek, Russian, Korean and Chinese the table is below and the order
is exact, whatever the machine. For other names the order is asked of ICU if the package PyICU is installed, with the
locale named and never taken from the environment. Without it, the order is an approximation and says so: other
letters are taken in code point order.

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

# Accents from the lightest to the heaviest; the last is that of letters that are written as one.
_JOINED = "\U000f0000"
_OVERLAY = "\u0338"
_ACCENTS = (
    "\u0301\u0300\u0306\u0302\u030c\u030a\u0308\u030b\u0303\u0307\u0338\u0327\u0328\u0304\u0309\u030f\u0311\u031b\u0323"
    "\u0326\u032d\u0330\u0331" + _JOINED
)
_ACCENT = {mark: weight for weight, mark in enumerate(_ACCENTS)}
_TAKEN_APART = str.maketrans(
    {
        "\u00df": f"s{_JOINED}s",
        "\u00e6": f"a{_JOINED}e",
        "\u00c6": f"A{_JOINED}E",
        "\u0153": f"o{_JOINED}e",
        "\u0152": f"O{_JOINED}E",
        "\u00f8": f"o{_OVERLAY}",
        "\u00d8": f"O{_OVERLAY}",
        "\u0111": f"d{_OVERLAY}",
        "\u0110": f"D{_OVERLAY}",
        "\u0142": f"l{_OVERLAY}",
        "\u0141": f"L{_OVERLAY}",
    }
)
_KEPT_WHOLE = (("\u0438\u0306", "\u0439"), ("\u0418\u0306", "\u0419"))  # a letter of its own, not an accented one
# Greek without the final sigma, Russian, the parts of Korean syllables, Chinese: in the order of their code points.
_KNOWN_LETTERS = (
    (0x0391, 0x03A1),
    (0x03A3, 0x03A9),
    (0x03B1, 0x03C1),
    (0x03C3, 0x03C9),
    (0x0410, 0x044F),
    (0x1100, 0x1112),
    (0x1161, 0x1175),
    (0x11A8, 0x11C2),
    (0x4E00, 0x9FA5),
)

_Key = tuple[tuple[tuple[int, int], ...], tuple[tuple[tuple[int, int], ...], ...], tuple[bool, ...]]


def locale_sorted(items: Iterable[_Item], name: Callable[[_Item], str]) -> tuple[list[_Item], bool]:
    """The items in that order of their names, equal names as they came; and whether the order is exact."""
    listed = list(items)
    if len(listed) < 2 or all(_is_known(name(item)) for item in listed):
        return sorted(listed, key=lambda item: _key(name(item))), True
    collator = _icu_collator()
    if collator is None:
        return sorted(listed, key=lambda item: _key(name(item))), False
    return sorted(listed, key=lambda item: bytes(collator.getSortKey(name(item)))), True


def _key(name: str) -> _Key:
    """Three levels, each counting only where all before it are equal: letters, then accents, then case."""
    name = _taken_apart(name)
    letters = [character for character in name if _has_weight(character)]
    accents: list[tuple[tuple[int, int], ...]] = []
    for character in name:
        if _has_weight(character):
            accents.append(())
        elif accents and not character.isascii():
            accents[-1] += ((_ACCENT.get(character, len(_ACCENT)), ord(character)),)
    return tuple(map(_primary, letters)), tuple(accents), tuple(letter.isupper() for letter in letters)


def _taken_apart(name: str) -> str:
    """A name as letters and the accents that follow them."""
    if name.isascii():
        return name
    from unicodedata import normalize

    parted = normalize("NFD", name).translate(_TAKEN_APART)
    for accented, whole in _KEPT_WHOLE:
        parted = parted.replace(accented, whole)
    return parted


def _is_known(name: str) -> bool:
    """Whether the table knows every letter and accent of a name."""
    return all(
        character.isascii()
        or character in _ACCENT
        or any(first <= ord(character) <= last for first, last in _KNOWN_LETTERS)
        for character in _taken_apart(name)
    )


def _has_weight(character: str) -> bool:
    if character.isascii():
        return character in _PRIMARY
    if character == _JOINED:
        return False
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
