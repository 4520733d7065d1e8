"""The manifest of a server's source folder (``server.json``): name, version, runtime, entry point.

The format is that of the first generation of Agent Facets, as strict JSON. Unknown members are kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn

from pinwarden.artifacts.archives.rules import check_portable
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.strict_json import Limits

MANIFEST_NAME = "server.json"
RUNTIMES = ("bun", "node", "deno", "python", "native")
"""The supported runtimes. Agent Facets started with bun alone and leaves the list open."""
LIMITS = Limits(max_bytes=1024 * 1024, max_depth=50)
_NAME = re.compile(r"(?:@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*")
_MAX_NAME = 214
_VERSION = re.compile(
    r"(?:0|[1-9]\d{0,15})\.(?:0|[1-9]\d{0,15})\.(?:0|[1-9]\d{0,15})"
    r"(?:-(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*))*)?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)
_MAX_VERSION = 256
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class ServerManifest(Record):
    """A server as its author describes it."""

    name: str
    version: str
    runtime: str
    entry: str
    """Relative to the root of the archive, and inside it."""
    description: str | None
    author: str | None
    document: Mapping[str, Any] = field(repr=False)
    """The whole document, including members that Pinwarden does not know."""


def parse(data: bytes) -> ServerManifest:
    """Parse a manifest. Raises SERVER_ENTRY_INVALID with the member's name if it is invalid or ambiguous."""
    try:
        document = strict_json.parse_json(data, LIMITS)
    except PinwardenError as err:
        raise PinwardenError("SERVER_ENTRY_INVALID", f"{MANIFEST_NAME} cannot be read: {err.message}") from err
    if not isinstance(document, dict):
        _invalid(MANIFEST_NAME, "is not an object")
    name, version = _text(document, "name"), _text(document, "version")
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        _invalid("name", f"is not a valid server name: {name[:80]!a}")
    if len(version) > _MAX_VERSION or not _VERSION.fullmatch(version):
        _invalid("version", f"is not an exact version: {version[:80]!a}")
    runtime = _text(document, "runtime")
    if runtime not in RUNTIMES:
        _invalid("runtime", f"is not one of {', '.join(RUNTIMES)}: {runtime[:80]!a}")
    return ServerManifest(
        name=name,
        version=version,
        runtime=runtime,
        entry=_entry(_text(document, "entry")),
        description=_text(document, "description") if "description" in document else None,
        author=_text(document, "author") if "author" in document else None,
        document=document,
    )


def _entry(path: str) -> str:
    try:
        return check_portable(path.removeprefix("./"))
    except PinwardenError as err:
        raise PinwardenError(
            "SERVER_ENTRY_INVALID",
            f"{MANIFEST_NAME}: entry is not a portable path inside the bundle: {path[:80]!a}",
            data={"member": "entry"},
        ) from err


def _text(document: Mapping[str, Any], member: str) -> str:
    value = document.get(member)
    if not isinstance(value, str) or _CONTROL.search(value):
        _invalid(member, "is missing, not a string, or contains control characters")
    return value


def _invalid(member: str, why: str) -> NoReturn:
    raise PinwardenError("SERVER_ENTRY_INVALID", f"{MANIFEST_NAME}: {member} {why}", data={"member": member})
