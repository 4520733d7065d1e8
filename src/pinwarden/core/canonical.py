"""Canonical JSON, in six named profiles.

There is no single canonical JSON. Six forms are in use among MCP tools. They differ on real input, so digests of
different profiles cannot be compared:

==============  ===========================  =====================  ==============================================
profile         members sorted by            numbers                what else
==============  ===========================  =====================  ==============================================
``jcs``         UTF-16 code units            ECMAScript             RFC 8785; our own default
``rulebook``    code points                  ECMAScript, read back  verifier rulebook v0.1.1, section 1
``toolpin``     array indexes, then UTF-16   ECMAScript, doubles    names in NFC; overflow becomes null
``fusion``      array indexes, then UTF-16   ECMAScript, doubles    ``__proto__`` vanishes; overflow becomes null
``hangar-1.2``  code points                  Python's ``repr``      ASCII only; NaN and Infinity allowed
``hangar``      UTF-16 code units            ECMAScript, doubles    Hangar since 1.2.1 (the ``jcs`` package)
==============  ===========================  =====================  ==============================================

Almost no real value contains a floating-point number. For values without one, orjson mostly writes the same bytes as
the exact path, in a tenth of the time; ``Profile.matches_orjson`` detects the other cases. The exact path below defines
the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from math import isfinite, isnan
from sys import modules
from typing import Any, NoReturn

from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.strict_json import DEFAULT_LIMITS, Limits

_DIGITS_TO_ZERO = bytes.maketrans(b"0123456789", b"0000000000")
_TO_SHAPE = bytes.maketrans(b"0123456789,[-", b"0000000000:::")
"""Maps digits to 0, and the characters before a number's digits to a colon, so that one search finds all of them."""
_MAX_ARRAY_INDEX = 2**32 - 2  # ECMAScript lists names that are array indexes before all others


class Profile(Record):
    """One canonical form: how its text is parsed and how its values are written."""

    name: str
    parse: Callable[[bytes, Limits], Any]
    sort_members: Callable[[dict[str, Any]], Iterable[tuple[str, Any]]]
    format_integer: Callable[[int], str]
    format_double: Callable[[float], str]
    surrogate_errors: str
    """The ``errors`` argument of the final UTF-8 encoding, which decides how lone surrogates are written."""
    ascii_only: bool = False
    matches_orjson: Callable[[bytes], bool]
    """Whether orjson's sorted output for a value without floats is byte for byte the canonical form."""


def canonicalize(data: Any, profile: str = "jcs", limits: Limits = DEFAULT_LIMITS) -> bytes:
    """Return the canonical bytes of a value, or of JSON text if ``data`` is ``bytes``."""
    form = get_profile(profile)
    value = form.parse(data, limits) if type(data) is bytes else data
    plain = encode_without_floats(value) if _is_orjson_worth_loading(value) else None
    canonical = plain[0] if plain is not None and form.matches_orjson(plain[0]) else _encode_exactly(value, form)
    if len(canonical) > limits.max_bytes:
        _refuse(f"the canonical form has {len(canonical)} bytes; the limit is {limits.max_bytes}")
    return canonical


def get_profile(name: str) -> Profile:
    """Return the profile with this name. Raises PROFILE_UNKNOWN."""
    try:
        return PROFILES[name]
    except (KeyError, TypeError):
        known = ", ".join(PROFILES)
        raise PinwardenError("PROFILE_UNKNOWN", f"unknown canonical form {name!a}; known: {known}") from None


def encode_without_floats(value: Any) -> tuple[bytes, bytes] | None:
    """Encode a value as sorted JSON and DAG-CBOR; None if it may contain a float, or if an encoder refuses it.

    Encoders write floats differently. In DAG-CBOR, a float begins with the byte FB. UTF-8 text cannot contain this
    byte, but a length or an integer can, so the JSON text is then searched for a float. orjson refuses integers beyond
    53 bits, and runs first because it limits the depth.
    """
    dumps, options, encode_dag_cbor = _load_encoders()
    try:
        text = dumps(value, None, options)
        cbor = encode_dag_cbor(value)
    except (TypeError, ValueError):
        return None
    return None if b"\xfb" in cbor and _may_contain_float(text) else (text, cbor)


def _is_orjson_worth_loading(value: Any) -> bool:
    """Whether orjson is loaded already, or the value is so large that importing orjson saves time."""
    if "orjson" in modules:
        return True
    pending, left = [value], _MAX_EXACT_VALUES
    while pending and left > 0:
        item = pending.pop()
        left -= 1
        if type(item) is dict:
            pending.extend(item.values())
        elif type(item) is list:
            pending.extend(item)
    _values_written[0] += _MAX_EXACT_VALUES - left
    return bool(pending) or _values_written[0] > _MAX_EXACT_VALUES


_MAX_EXACT_VALUES = 4000  # writing this many values takes about 15 ms, as long as importing orjson
_values_written = [0]


def _may_contain_float(text: bytes) -> bool:
    """Whether compact JSON may contain a number with a fraction or exponent. Strings can cause false positives."""
    text = b":" + text
    if b":." in text.translate(_TO_SHAPE, b"0123456789"):
        return True
    return b":0e" in text.translate(_TO_SHAPE)  # a mantissa without a point has one digit


@cache
def _load_encoders() -> tuple[Callable[..., bytes], int, Callable[[Any], bytes]]:
    # Imported here, because orjson loads a dozen modules that most commands do not need.
    import libipld
    import orjson

    options = (
        orjson.OPT_SORT_KEYS
        | orjson.OPT_STRICT_INTEGER
        | orjson.OPT_PASSTHROUGH_DATACLASS
        | orjson.OPT_PASSTHROUGH_DATETIME
        | orjson.OPT_PASSTHROUGH_SUBCLASS
    )
    return orjson.dumps, options, libipld.encode_dag_cbor


# The exact path


def _encode_exactly(value: Any, form: Profile) -> bytes:
    from json.encoder import encode_basestring, encode_basestring_ascii

    quote = encode_basestring_ascii if form.ascii_only else encode_basestring
    parts: list[str] = []
    put = parts.append

    def write(item: Any, depth: int) -> None:
        kind = type(item)
        if kind is str:
            put(quote(item))
        elif item is None:
            put("null")
        elif item is True:
            put("true")
        elif item is False:
            put("false")
        elif kind is int:
            put(form.format_integer(item))
        elif kind is float:
            put(form.format_double(item))
        elif depth == 0:
            _refuse(f"nested more than {strict_json.JITER_DEPTH} levels deep")
        elif kind is dict:
            mark = "{"
            for name, member in form.sort_members(_check_member_names(item)):
                put(mark + quote(name) + ":")
                write(member, depth - 1)
                mark = ","
            put("}" if mark == "," else "{}")
        elif kind is list or kind is tuple:
            mark = "["
            for element in item:
                put(mark)
                write(element, depth - 1)
                mark = ","
            put("]" if mark == "," else "[]")
        else:
            _refuse(f"{kind.__name__} is not a JSON value")

    try:
        write(value, strict_json.JITER_DEPTH)
        return "".join(parts).encode("utf-8", form.surrogate_errors)
    except UnicodeEncodeError as err:
        _refuse(f"a string contains the lone surrogate {err.object[err.start]!a}", err)
    except RecursionError as err:
        _refuse("the value is nested too deeply", err)


def _check_member_names(item: dict[Any, Any]) -> dict[str, Any]:
    for name in item:
        if type(name) is not str:
            _refuse(f"a member name is {type(name).__name__}, not a string")
    return item


# Order of members


def _sort_by_code_point(item: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    return sorted(item.items(), key=_name_key)


def _sort_by_utf16(item: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    return sorted(item.items(), key=_utf16_key)


def _sort_like_javascript(item: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    return sorted(item.items(), key=_javascript_key)


def _sort_like_fusion(item: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    # Fusion copies members to a new object, where assigning to this name sets the prototype.
    return _sort_like_javascript({name: member for name, member in item.items() if name != "__proto__"})


def _sort_like_toolpin(item: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    from unicodedata import normalize

    normal: dict[str, Any] = {}
    for name, member in item.items():
        nfc = normalize("NFC", name)
        if nfc in normal:
            _refuse(f"member {nfc[:80]!a} occurs twice after Unicode normalisation (NFC)")
        normal[nfc] = member
    return _sort_like_javascript(normal)


def _name_key(member: tuple[str, Any]) -> str:
    return member[0]


def _utf16_key(member: tuple[str, Any]) -> bytes:
    return member[0].encode("utf-16-be", "surrogatepass")


def _javascript_key(member: tuple[str, Any]) -> tuple[int, bytes]:
    name = member[0]
    if name.isascii() and name.isdigit() and len(name) <= 10 and (name == "0" or name[0] != "0"):
        index = int(name)
        if index <= _MAX_ARRAY_INDEX:
            return index, b""
    return _MAX_ARRAY_INDEX + 1, _utf16_key(member)


# Numbers


def _format_jcs_integer(value: int) -> str:
    """Format an integer. Raises if it is beyond 53 bits and a double cannot represent it exactly."""
    if -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
        return str(value)
    if abs(value) < 10**21:  # from here on ECMAScript prints an exponent
        text = str(value)
        if format_ecmascript_number(float(value)) == text:
            return text
    _refuse("an integer is beyond 2^53-1, and a double cannot represent it exactly")


def _format_rulebook_integer(value: int) -> str:
    if -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
        return str(value)
    _refuse("an integer is beyond 2^53-1")


def _format_rulebook_double(value: float) -> str:
    text = _format_finite_double(value)
    if abs(value) > MAX_SAFE_INTEGER and "e" not in text:
        _refuse(f"the number {text} would be read back as an integer beyond 2^53-1")
    return text


def _format_finite_double(value: float) -> str:
    if not isfinite(value):
        _refuse("NaN and infinities have no canonical form")
    return format_ecmascript_number(value)


def _format_integer_as_double(value: int) -> str:
    try:
        return format_ecmascript_number(float(value))
    except OverflowError as err:
        _refuse("an integer is too large for a double", err)


def _format_javascript_integer(value: int) -> str:
    try:
        return format_ecmascript_number(float(value))
    except OverflowError:
        return "null"


def _format_javascript_double(value: float) -> str:
    return format_ecmascript_number(value) if isfinite(value) else "null"


def _format_python_double(value: float) -> str:
    if isfinite(value):
        return repr(value)
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


# Conditions under which the output of orjson is canonical


def _is_always_canonical(_: bytes) -> bool:
    return True


def _is_printable_ascii(text: bytes) -> bool:
    return text.isascii() and b"\x7f" not in text  # Python escapes DEL, orjson does not


def _has_no_astral_character(text: bytes) -> bool:
    """Whether all characters are below U+10000, so that sorting by UTF-16 and by code point is the same."""
    return text.isascii() or not any(head in text for head in (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4"))


def _is_in_javascript_order(text: bytes) -> bool:
    """Whether JavaScript would keep the order of members: only ASCII, no array index as a name, no ``__proto__``."""
    if not text.isascii() or b'"__proto__"' in text:
        return False
    shape = text.translate(_DIGITS_TO_ZERO)
    return b'{"0' not in shape and b',"0' not in shape


# Parsers


def _parse_like_javascript(data: bytes, limits: Limits) -> Any:
    return strict_json.parse_last_wins(data, limits)


def _parse_like_python(data: bytes, limits: Limits) -> Any:
    return strict_json.parse_last_wins(data, limits, constants=True)


def _refuse(message: str, cause: Exception | None = None) -> NoReturn:
    raise PinwardenError("JSON_CANONICALIZATION_ERROR", message) from cause


PROFILES: dict[str, Profile] = {
    form.name: form
    for form in (
        Profile(
            name="jcs",
            parse=strict_json.parse_json,
            sort_members=_sort_by_utf16,
            format_integer=_format_jcs_integer,
            format_double=_format_finite_double,
            surrogate_errors="strict",
            matches_orjson=_has_no_astral_character,
        ),
        Profile(
            name="rulebook",
            parse=strict_json.parse_json,
            sort_members=_sort_by_code_point,
            format_integer=_format_rulebook_integer,
            format_double=_format_rulebook_double,
            surrogate_errors="strict",
            matches_orjson=_is_always_canonical,
        ),
        Profile(
            name="toolpin",
            parse=_parse_like_javascript,
            sort_members=_sort_like_toolpin,
            format_integer=_format_javascript_integer,
            format_double=_format_javascript_double,
            surrogate_errors="backslashreplace",
            matches_orjson=_is_in_javascript_order,
        ),
        Profile(
            name="fusion",
            parse=_parse_like_javascript,
            sort_members=_sort_like_fusion,
            format_integer=_format_javascript_integer,
            format_double=_format_javascript_double,
            surrogate_errors="backslashreplace",
            matches_orjson=_is_in_javascript_order,
        ),
        Profile(
            name="hangar-1.2",
            parse=_parse_like_python,
            sort_members=_sort_by_code_point,
            format_integer=str,
            format_double=_format_python_double,
            surrogate_errors="strict",
            ascii_only=True,
            matches_orjson=_is_printable_ascii,
        ),
        Profile(
            name="hangar",
            parse=_parse_like_python,
            sort_members=_sort_by_utf16,
            format_integer=_format_integer_as_double,
            format_double=_format_finite_double,
            surrogate_errors="strict",
            matches_orjson=_has_no_astral_character,
        ),
    )
}


MAX_SAFE_INTEGER = 2**53 - 1


def is_number(value: object) -> bool:
    """Whether a value is a JSON number. Python's booleans are not."""
    return type(value) is int or type(value) is float


def format_ecmascript_number(value: float) -> str:
    """Return a finite double as ECMAScript prints it (RFC 8785 section 3.2.2.3).

    Python's ``repr`` finds the same shortest digits; only the layout differs.
    """
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
