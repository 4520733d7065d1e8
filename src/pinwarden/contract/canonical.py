"""JSON and order as the original has them: the bytes that its digests are made of, and the text of its file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

from pinwarden.core.canonical import canonicalize
from pinwarden.core.javascript import encode_javascript_json
from pinwarden.core.limits import DEFAULT_LIMITS, Limits
from pinwarden.core.record import replace

_SURROGATE = re.compile("[\ud800-\udfff]")
_PROTO = "__proto__"

LOCKFILE_LIMITS: Limits = replace(DEFAULT_LIMITS, max_bytes=128 * 1024 * 1024)
"""A lockfile of ten thousand tools with their schemas is some tens of megabytes."""


def hex_of(value: Any) -> str:
    """SHA-256, in bare hex, over the original's canonical JSON of a value."""
    return sha256(canonicalize(value, "fusion", LOCKFILE_LIMITS)).hexdigest()


def hex_of_text(text: str) -> str:
    """SHA-256 over text as JavaScript encodes it: a lone surrogate becomes U+FFFD."""
    try:
        return sha256(text.encode()).hexdigest()
    except UnicodeEncodeError:
        return sha256(_SURROGATE.sub("\ufffd", text).encode()).hexdigest()


def utf16_sorted(names: Iterable[str]) -> list[str]:
    """Names in the order of ``Array.prototype.sort``: UTF-16 code units."""
    listed = list(names)
    if all(name.isascii() for name in listed):
        return sorted(listed)
    return sorted(listed, key=lambda name: name.encode("utf-16-be", "surrogatepass"))


def to_sorted_file(document: Any, *, keep_proto: bool = True) -> bytes:
    """The text of a file with members sorted at every level, two spaces and a final newline.

    The original loses a member named ``__proto__``. A reviewer has to see it, so it is kept unless asked otherwise.
    """
    return encode_javascript_json(_sorted(document, keep_proto=keep_proto))


def _sorted(value: Any, *, keep_proto: bool) -> Any:
    if isinstance(value, dict):
        names = [name for name in utf16_sorted(value) if keep_proto or name != _PROTO]
        return {name: _sorted(value[name], keep_proto=keep_proto) for name in names}
    if isinstance(value, list | tuple):
        return [_sorted(each, keep_proto=keep_proto) for each in value]
    return value
