"""What a Python index says of one file, and how each of its words is read.

Everything here was written by an index or an uploader. What two installers could read differently is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn
from urllib.parse import unquote, urljoin, urlsplit

from pinwarden.artifacts.python_package import is_safe_file_name
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.limits import Limits
from pinwarden.core.record import Record

DOCUMENT_LIMITS = Limits(max_bytes=64 * 1024 * 1024)
"""The largest project documents of public indexes have some twenty megabytes."""
MAX_FILES = 100_000
"""Projects with nightly builds list about ten thousand."""
MAX_URL = 8192
MAX_NOTE = 500

_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
)
_ALGORITHMS = ("sha256", "sha384", "sha512")


class ReleaseFile(Record):
    """One file as an index lists it. All of it is a claim."""

    name: str
    url: str
    """Absolute, without fragment."""
    claims: tuple[Digest, ...] = ()
    size: int | None = None
    uploaded_at: str | None = None
    requires_python: str | None = None
    yanked: str | None = None
    """The reason, ``yanked`` where none is given; None if it is not withdrawn."""
    provenance: str | None = None
    """The address of the PEP 740 document."""

    def claim(self, algorithm: str) -> Digest | None:
        """What the index says the bytes are, by one algorithm."""
        return next((each for each in self.claims if each.algorithm == algorithm), None)


def distinct_files(files: Iterable[ReleaseFile]) -> tuple[tuple[ReleaseFile, ...], tuple[str, ...]]:
    """Each file once, and the names under which different bytes are claimed."""
    kept: dict[str, ReleaseFile] = {}
    torn: list[str] = []
    for file in files:
        first = kept.setdefault(file.name, file)
        if first is not file and disagree(first.claims, file.claims) and file.name not in torn:
            torn.append(file.name)
    return tuple(kept.values()), tuple(torn)


def disagree(one: Sequence[Digest], other: Sequence[Digest]) -> bool:
    """Whether two claims about one file cannot both be true."""
    named = {each.algorithm: each for each in one}
    return any(each.algorithm in named and named[each.algorithm] != each for each in other)


def claimed_digests(value: Any) -> tuple[Digest, ...]:
    """The digests that an index claims for a file, of the kinds that are strong enough."""
    found = object_of(value, "hashes")
    claims = []
    for algorithm in _ALGORITHMS:
        text = found.get(algorithm)
        if text is None or text == "":
            continue
        try:
            claims.append(Digest.parse(f"{algorithm}:{text}"))
        except PinwardenError as err:
            raise protocol_error(f"a file has a {algorithm} that is not one") from err
    return tuple(claims)


def file_address(text: str, base: str) -> str:
    """The address of a file, absolute and without fragment."""
    if len(text) > MAX_URL:
        malformed("the address of a file is too long")
    try:
        url = urljoin(base, text.partition("#")[0])
        parts = urlsplit(url)
    except ValueError as err:
        raise protocol_error("the address of a file is malformed") from err
    if parts.scheme not in ("http", "https") or "@" in parts.netloc:
        malformed("a file is at something that is not a plain web address")
    return url


def optional_address(value: Any, base: str) -> str | None:
    """The address of the provenance, if one is named."""
    return None if value is None else file_address(text_of(value, "provenance"), base)


def last_segment(url: str) -> str:
    """The last step of an address, by which installers name a file."""
    return unquote(urlsplit(url).path.rpartition("/")[2])


def safe_file_name(name: str) -> str:
    """A name that can stand in a path."""
    if not is_safe_file_name(name):
        malformed(f"a file is called {name[:120]!a}")
    return name


def byte_count(value: Any) -> int | None:
    """The size of a file, if there is one."""
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 1 << 50:
        malformed("the size of a file is not a number of bytes")
    return value


def moment(value: Any) -> str | None:
    """A point in time in UTC; the JSON API's oldest spelling has no zone and means UTC."""
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        return None
    return value if value[-1] == "Z" or value[-6:-5] in ("+", "-") else f"{value}Z"


def yank_reason(value: Any) -> str | None:
    """Why a file was withdrawn; None if it was not."""
    if value is None or value is False:
        return None
    return value[:MAX_NOTE] if isinstance(value, str) and value.strip() else "yanked"


def note(value: Any) -> str | None:
    """A short text, if there is one."""
    return value[:MAX_NOTE] if isinstance(value, str) and value else None


def text_of(value: Any, what: str) -> str:
    """A text that has to be there."""
    return value if isinstance(value, str) else malformed(f"an index has no text as {what}")


def object_of(value: Any, what: str) -> Mapping[str, Any]:
    """An object that has to be there."""
    return value if isinstance(value, dict) else malformed(f"an index has no object as {what}")


def rows_of(value: Any, what: str) -> list[Any]:
    """A list that has to be there."""
    if not isinstance(value, list) or len(value) > MAX_FILES:
        malformed(f"an index has no list of a sensible length as {what}")
    return value


def protocol_error(why: str) -> PinwardenError:
    """An index that does not keep to its protocol."""
    return PinwardenError("FETCH_FAILED", why, data={"reason": "protocol"})


def malformed(why: str) -> NoReturn:
    """Refuse what an index said."""
    raise protocol_error(why)
