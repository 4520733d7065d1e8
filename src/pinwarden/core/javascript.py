"""JavaScript's behaviour where files must equal those of ToolPin: JSON text, sorting by locale, and hosts of URLs.

JSON text is exactly what ``JSON.stringify(value, null, 2)`` writes. Members keep their order, except that array indexes
come first, as in every JavaScript object. Invisible characters are not escaped, unlike in Pinwarden's own files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import unquote

from pinwarden.core.canonical import encode_without_floats, format_ecmascript_number
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.text import lazy_pattern

# A member name at the start of a line. No JSON string contains a line feed, so this never matches inside a string.
_INDEX_NAME = lazy_pattern(rb'\n *"(?:0|[1-9][0-9]{0,9})": ')
_MAX_INDEX = 2**32 - 2


def encode_javascript_json(value: Any) -> bytes:
    """Encode a value as the text of a JSON file, indented by two spaces and with a final line feed."""
    if encode_without_floats(value) is not None:  # no floating-point numbers: orjson writes the same bytes
        import orjson

        text = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        if not _INDEX_NAME.search(text):
            return text
    return ("".join(_encode_pieces(value, "\n")) + "\n").encode(
        "utf-8", "backslashreplace"
    )  # a lone surrogate is escaped


def _encode_pieces(value: Any, newline: str) -> list[str]:
    from json.encoder import encode_basestring

    if isinstance(value, str):
        return [encode_basestring(value)]
    if value is None:
        return ["null"]
    if isinstance(value, bool):
        return ["true" if value else "false"]
    if isinstance(value, int | float):
        return [_format_number(value)]
    inner = newline + "  "
    pieces: list[str] = []
    if isinstance(value, dict):
        for name, member in list_in_property_order(value):
            pieces += [",", inner, encode_basestring(name), ": ", *_encode_pieces(member, inner)]
        return ["{", *pieces[1:], newline, "}"] if pieces else ["{}"]
    if isinstance(value, list | tuple):
        for element in value:
            pieces += [",", inner, *_encode_pieces(element, inner)]
        return ["[", *pieces[1:], newline, "]"] if pieces else ["[]"]
    raise PinwardenError("JSON_CANONICALIZATION_ERROR", f"{type(value).__name__} is not a JSON value")


def _format_number(value: float) -> str:
    try:
        return format_ecmascript_number(float(value))
    except (OverflowError, ValueError):  # JavaScript writes null for NaN and infinities
        return "null"


def list_in_property_order(value: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the members of an object in JavaScript's order: array indexes by number, then the others as they are."""
    indexes = {name: int(name) for name in value if _is_index(name)}
    if not indexes:
        return list(value.items())
    first = sorted(indexes, key=indexes.__getitem__)
    return [(name, value[name]) for name in (*first, *(name for name in value if name not in indexes))]


def _is_index(name: str) -> bool:
    plain = name.isascii() and name.isdigit() and len(name) <= 10 and (name == "0" or name[0] != "0")
    return plain and int(name) <= _MAX_INDEX


_Item = TypeVar("_Item")

# The order of ASCII characters in the CLDR root collation. Upper and lower case letters have the same weight.
_ASCII_ORDER = "\t\n\v\f\r _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$0123456789abcdefghijklmnopqrstuvwxyz"
_PRIMARY_WEIGHTS = {character: weight for weight, character in enumerate(_ASCII_ORDER)} | {
    character.upper(): weight for weight, character in enumerate(_ASCII_ORDER)
}
_BEFORE_DIGITS = _PRIMARY_WEIGHTS["$"]
_AFTER_LETTERS = _PRIMARY_WEIGHTS["z"]

# Accents by increasing weight. The last one, `_JOINED`, marks two letters that are written as one.
_JOINED = "\U000f0000"
_OVERLAY = "\u0338"
_ACCENTS = (
    "\u0301\u0300\u0306\u0302\u030c\u030a\u0308\u030b\u0303\u0307\u0338\u0327\u0328\u0304\u0309\u030f\u0311\u031b\u0323"
    "\u0326\u032d\u0330\u0331" + _JOINED
)
_ACCENT_WEIGHTS = {mark: weight for weight, mark in enumerate(_ACCENTS)}
_DECOMPOSED = str.maketrans(
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
_RECOMPOSED = (
    ("\u0438\u0306", "\u0439"),
    ("\u0418\u0306", "\u0419"),
)  # separate letters, without an accent
# Ranges that sort by code point: Greek without the final sigma, Russian, parts of Korean syllables, Chinese.
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

_CollationKey = tuple[tuple[tuple[int, int], ...], tuple[tuple[tuple[int, int], ...], ...], tuple[bool, ...]]


def sort_by_locale(items: Iterable[_Item], name: Callable[[_Item], str]) -> tuple[list[_Item], bool]:
    """Sort items by name like ``localeCompare``, and say whether the order is certainly the same as JavaScript's."""
    listed = list(items)
    if len(listed) < 2 or all(_has_known_collation(name(item)) for item in listed):
        return sorted(listed, key=lambda item: _collation_key(name(item))), True
    collator = _load_icu_collator()
    if collator is None:
        return sorted(listed, key=lambda item: _collation_key(name(item))), False
    return sorted(listed, key=lambda item: bytes(collator.getSortKey(name(item)))), True


def _collation_key(name: str) -> _CollationKey:
    """Return the sort key of a name: first its letters, then its accents, then upper and lower case."""
    name = _decompose(name)
    letters = [character for character in name if _has_weight(character)]
    accents: list[tuple[tuple[int, int], ...]] = []
    for character in name:
        if _has_weight(character):
            accents.append(())
        elif accents and not character.isascii():
            accents[-1] += ((_ACCENT_WEIGHTS.get(character, len(_ACCENT_WEIGHTS)), ord(character)),)
    return tuple(map(_primary_weight, letters)), tuple(accents), tuple(letter.isupper() for letter in letters)


def _decompose(name: str) -> str:
    """Split accented letters into a letter and its accents."""
    if name.isascii():
        return name
    from unicodedata import normalize

    decomposed = normalize("NFD", name).translate(_DECOMPOSED)
    for accented, letter in _RECOMPOSED:
        decomposed = decomposed.replace(accented, letter)
    return decomposed


def _has_known_collation(name: str) -> bool:
    """Whether the tables above contain every letter and accent of a name."""
    return all(
        character.isascii()
        or character in _ACCENT_WEIGHTS
        or any(first <= ord(character) <= last for first, last in _KNOWN_LETTERS)
        for character in _decompose(name)
    )


def _has_weight(character: str) -> bool:
    if character.isascii():
        return character in _PRIMARY_WEIGHTS
    if character == _JOINED:
        return False
    from unicodedata import category

    return category(character) not in ("Mn", "Me", "Cc", "Cf")


def _primary_weight(character: str) -> tuple[int, int]:
    if character.isascii():
        return _PRIMARY_WEIGHTS[character], 0
    after = _AFTER_LETTERS if character.isalnum() else _BEFORE_DIGITS
    return after, ord(character.lower()[0])


def _load_icu_collator() -> Any:
    """Load ICU's collator, configured as in JavaScript engines. Returns None if PyICU is not installed."""
    from importlib import import_module

    try:
        icu = import_module("icu")
    except ImportError:
        return None
    collator = icu.Collator.createInstance(icu.Locale("en_US"))
    # ECMA-402: canonically equivalent strings compare as equal.
    collator.setAttribute(icu.UCollAttribute.NORMALIZATION_MODE, icu.UCollAttributeValue.ON)
    return collator


_DEFAULT_PORTS = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21"}
_URL_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(.*)", re.DOTALL)
_FORBIDDEN_IN_HOST = re.compile(r"[\x00-\x20#/:<>?@\[\\\]^|%\x7f]")
_IPV6 = re.compile(r"\[[0-9A-Fa-f:.]+\]")
_IPV4_PART = re.compile(r"0[xX][0-9A-Fa-f]*|[0-9]+")


class RemoteHost(Record):
    """Scheme and host of a URL. The host includes the port, unless it is the default port of the scheme."""

    scheme: str
    host: str


def parse_whatwg_host(url: str) -> RemoteHost | None:
    """Parse scheme and host of a URL as browsers do (WHATWG); None if the URL is invalid."""
    text = re.sub(r"[\t\n\r]", "", url.strip("".join(map(chr, range(0x21)))))
    match = _URL_SCHEME.fullmatch(text)
    if match is None:
        return None
    scheme, rest = match[1].lower(), match[2]
    if scheme not in _DEFAULT_PORTS:
        authority = re.match(r"//([^/?#]*)", rest)
        return RemoteHost(scheme=scheme, host=authority[1].rpartition("@")[2] if authority else "")
    authority_text = re.split(r"[/\\?#]", rest.lstrip("/\\"), maxsplit=1)[0].rpartition("@")[2]
    host = _normalize_host_and_port(authority_text, _DEFAULT_PORTS[scheme])
    return None if host is None else RemoteHost(scheme=scheme, host=host)


def _normalize_host_and_port(text: str, default_port: str) -> str | None:
    bracketed = _IPV6.match(text)
    if bracketed:
        name, rest = bracketed[0], text[bracketed.end() :]
        if rest and not rest.startswith(":"):
            return None
        port = rest[1:]
    else:
        name, _, port = text.partition(":")
    if port and (not port.isascii() or not port.isdigit() or int(port) > 65535):
        return None
    host = _normalize_ipv6(name) if bracketed else _normalize_domain(name)
    if host is None:
        return None
    plain = str(int(port)) if port else ""
    return host if plain in ("", default_port) else f"{host}:{plain}"


def _normalize_domain(name: str) -> str | None:
    decoded = unquote(name)
    if not decoded.isascii():
        try:
            decoded = decoded.encode("idna").decode("ascii")
        except UnicodeError:
            return None
    host = decoded.lower()
    if not host or _FORBIDDEN_IN_HOST.search(host):
        return None
    labels = host.removesuffix(".").split(".")
    return _normalize_ipv4(labels) if _IPV4_PART.fullmatch(labels[-1]) else host


def _normalize_ipv4(labels: list[str]) -> str | None:
    """Normalize an IPv4 address with up to four parts in decimal, octal or hexadecimal: 127.1 is 127.0.0.1."""
    if len(labels) > 4 or not all(_IPV4_PART.fullmatch(label) for label in labels):
        return None
    try:
        numbers = [_parse_ipv4_number(label) for label in labels]
    except ValueError:
        return None
    last = 256 ** (5 - len(numbers))
    if any(number > 255 for number in numbers[:-1]) or numbers[-1] >= last:
        return None
    value = numbers[-1] + sum(number * 256 ** (3 - index) for index, number in enumerate(numbers[:-1]))
    return ".".join(str(value >> shift & 255) for shift in (24, 16, 8, 0))


def _parse_ipv4_number(label: str) -> int:
    if label[:2] in ("0x", "0X"):
        return int(label[2:] or "0", 16)
    return int(label, 8 if len(label) > 1 and label[0] == "0" else 10)


def _normalize_ipv6(bracketed: str) -> str | None:
    from ipaddress import AddressValueError, IPv6Address

    try:
        return f"[{IPv6Address(bracketed[1:-1])}]"
    except AddressValueError:
        return None
