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

Almost no real value has a floating-point number. For those without, orjson writes the same bytes as the exact path in a
tenth of the time; ``encode_without_floats`` detects them. The exact path below defines the result.
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
_MAX_ARRAY_INDEX = 2**32 - 2  # ECMAScript lists names that are array indexes before all others


class Profile(Record):
    """One canonical form: how its text is parsed and how its values are written."""

    name: str
    read: Callable[[bytes, Limits], Any]
    members: Callable[[dict[str, Any]], Iterable[tuple[str, Any]]]
    integer: Callable[[int], str]
    double: Callable[[float], str]
    surrogates: str
    """Error handler of the final UTF-8 encoding, which decides about lone surrogates."""
    ascii_only: bool = False
    plain_if: Callable[[bytes], bool]
    """Whether orjson's sorted output for a value without floats is this form, byte for byte."""


def canonicalize(data: Any, profile: str = "jcs", limits: Limits = DEFAULT_LIMITS) -> bytes:
    """The canonical bytes of a value, or of JSON text if ``data`` is ``bytes``."""
    form = get_profile(profile)
    value = form.read(data, limits) if type(data) is bytes else data
    plain = encode_without_floats(value) if _is_orjson_worth_loading(value) else None
    canonical = plain[0] if plain is not None and form.plain_if(plain[0]) else _encode_exactly(value, form)
    if len(canonical) > limits.max_bytes:
        _refuse(f"the canonical form has {len(canonical)} bytes; the limit is {limits.max_bytes}")
    return canonical


def get_profile(name: str) -> Profile:
    """The profile with this name. Raises PROFILE_UNKNOWN."""
    try:
        return PROFILES[name]
    except (KeyError, TypeError):
        known = ", ".join(PROFILES)
        raise PinwardenError("PROFILE_UNKNOWN", f"unknown canonical form {name!a}; known: {known}") from None


def encode_without_floats(value: Any) -> tuple[bytes, bytes] | None:
    """Sorted JSON and DAG-CBOR of a value that all encoders write alike, else None.

    That excludes floats, whose text differs between encoders and their releases, and integers beyond 53 bits, which
    orjson refuses here. A float is detected in the DAG-CBOR: its head byte is FB, which UTF-8 text cannot contain. A
    length or an integer can contain it; then the JSON text decides. orjson runs first because it limits the depth.
    """
    dumps, options, encode_dag_cbor = _load_encoders()
    try:
        text = dumps(value, None, options)
        cbor = encode_dag_cbor(value)
    except (TypeError, ValueError):
        return None
    return None if b"\xfb" in cbor and _may_contain_float(text) else (text, cbor)


def _is_orjson_worth_loading(value: Any) -> bool:
    """Importing orjson takes as long as writing some thousand values exactly, so a short run does without it."""
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


_MAX_EXACT_VALUES = 4000  # values; about the fifteen milliseconds that orjson takes to load
_values_written = [0]


def _may_contain_float(text: bytes) -> bool:
    """Whether compact JSON may contain a number with a fraction or exponent. Strings can cause false positives."""
    text = b":" + text
    without_digits = text.translate(None, b"0123456789")
    if any(mark in without_digits for mark in (b":.", b",.", b"[.", b"-.")):
        return True
    shape = text.translate(_DIGITS_TO_ZERO)  # a mantissa without a point has one digit
    return any(mark in shape for mark in (b":0e", b",0e", b"[0e", b"-0e"))


@cache
def _load_encoders() -> tuple[Callable[..., bytes], int, Callable[[Any], bytes]]:
    # Lazy: orjson imports a dozen modules that light commands do not need.
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
            put(form.integer(item))
        elif kind is float:
            put(form.double(item))
        elif depth == 0:
            _refuse(f"nested more than {strict_json.JITER_DEPTH} levels deep")
        elif kind is dict:
            mark = "{"
            for name, member in form.members(_check_member_names(item)):
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
        return "".join(parts).encode("utf-8", form.surrogates)
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
    # Fusion assigns members to a fresh object, where this name sets the prototype instead.
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
    """Beyond 53 bits, only integers that ECMAScript prints exactly, so that no two integers share a text."""
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


# When orjson's bytes are the canonical ones


def _is_any_text(_: bytes) -> bool:
    return True


def _is_printable_ascii(text: bytes) -> bool:
    return text.isascii() and b"\x7f" not in text  # Python escapes DEL, orjson does not


def _has_no_astral_character(text: bytes) -> bool:
    """UTF-16 and code point order differ only from U+10000 on, where UTF-8 has a head byte from F0 to F4."""
    return text.isascii() or not any(head in text for head in (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4"))


def _is_in_javascript_order(text: bytes) -> bool:
    """Whether JavaScript's order is code point order: only ASCII, no array index as a name, no ``__proto__``."""
    if not text.isascii() or b'"__proto__"' in text:
        return False
    shape = text.translate(_DIGITS_TO_ZERO)
    return b'{"0' not in shape and b',"0' not in shape


# Readers


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
            read=strict_json.parse_json,
            members=_sort_by_utf16,
            integer=_format_jcs_integer,
            double=_format_finite_double,
            surrogates="strict",
            plain_if=_has_no_astral_character,
        ),
        Profile(
            name="rulebook",
            read=strict_json.parse_json,
            members=_sort_by_code_point,
            integer=_format_rulebook_integer,
            double=_format_rulebook_double,
            surrogates="strict",
            plain_if=_is_any_text,
        ),
        Profile(
            name="toolpin",
            read=_parse_like_javascript,
            members=_sort_like_toolpin,
            integer=_format_javascript_integer,
            double=_format_javascript_double,
            surrogates="backslashreplace",
            plain_if=_is_in_javascript_order,
        ),
        Profile(
            name="fusion",
            read=_parse_like_javascript,
            members=_sort_like_fusion,
            integer=_format_javascript_integer,
            double=_format_javascript_double,
            surrogates="backslashreplace",
            plain_if=_is_in_javascript_order,
        ),
        Profile(
            name="hangar-1.2",
            read=_parse_like_python,
            members=_sort_by_code_point,
            integer=str,
            double=_format_python_double,
            surrogates="strict",
            ascii_only=True,
            plain_if=_is_printable_ascii,
        ),
        Profile(
            name="hangar",
            read=_parse_like_python,
            members=_sort_by_utf16,
            integer=_format_integer_as_double,
            double=_format_finite_double,
            surrogates="strict",
            plain_if=_has_no_astral_character,
        ),
    )
}


MAX_SAFE_INTEGER = 2**53 - 1


def is_number(value: object) -> bool:
    """Whether a value is a JSON number. Python's booleans are not."""
    return type(value) is int or type(value) is float


def format_ecmascript_number(value: float) -> str:
    """A finite double as ECMAScript prints it (RFC 8785 section 3.2.2.3).

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
