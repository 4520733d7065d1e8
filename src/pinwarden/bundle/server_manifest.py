"""The manifest of a server's source folder (``server.json``): name, version, runtime, entry point.

The format is that of the first generation of Agent Facets, as strict JSON. Unknown members are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pinwarden.artifacts.archives.rules import check_portable
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.strict_json import Limits
from pinwarden.core.text import lazy_pattern
from pinwarden.core.typed_json import JsonObject

MANIFEST_NAME = "server.json"
RUNTIMES = ("bun", "node", "deno", "python", "native")
"""The supported runtimes. Agent Facets started with bun alone and leaves the list open."""
LIMITS = Limits(max_bytes=1024 * 1024, max_depth=50)
PLATFORMS = ("linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64", "windows/arm64")
"""The platforms that a bundle with native code can be for, named as those of container images."""
_PYTHON_VERSION = lazy_pattern(r"3\.[1-9][0-9]?")
_NAME = lazy_pattern(r"(?:@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*")
_MAX_NAME = 214
_VERSION = lazy_pattern(
    r"(?:0|[1-9]\d{0,15})\.(?:0|[1-9]\d{0,15})\.(?:0|[1-9]\d{0,15})"
    r"(?:-(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*))*)?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)
_MAX_VERSION = 256
_TEXT = lazy_pattern(r"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*")


class ServerManifest(Record):
    """A server as its author describes it."""

    name: str
    version: str
    runtime: str
    entry: str
    """The path of the entry point, relative to the root of the archive."""
    description: str | None
    author: str | None
    platforms: tuple[str, ...] = ()
    """The platforms that the server is packed for; empty if the author did not state any."""
    python: tuple[str, ...] = ()
    """The versions of Python that the server is packed for, such as ``3.12``."""
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The whole document, including members that Pinwarden does not know."""


def parse_server_manifest(data: bytes) -> ServerManifest:
    """Parse a ``server.json``. Raises SERVER_ENTRY_INVALID, which names the invalid member."""
    try:
        document = strict_json.parse_json(data, LIMITS)
    except PinwardenError as err:
        raise PinwardenError("SERVER_ENTRY_INVALID", f"{MANIFEST_NAME} cannot be read: {err.message}") from err
    manifest = JsonObject(document, "", _build_manifest_error)
    name, version = _read_text(manifest, "name"), _read_text(manifest, "version")
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        manifest.fail("name", f"is not a valid server name: {name[:80]!a}")
    if len(version) > _MAX_VERSION or not _VERSION.fullmatch(version):
        manifest.fail("version", f"is not an exact version: {version[:80]!a}")
    return ServerManifest(
        name=name,
        version=version,
        runtime=manifest.one_of("runtime", RUNTIMES),
        entry=_check_entry(_read_text(manifest, "entry")),
        description=_read_text(manifest, "description") if "description" in manifest else None,
        author=_read_text(manifest, "author") if "author" in manifest else None,
        platforms=_read_list(manifest, "platforms", PLATFORMS.__contains__, f"a list of: {', '.join(PLATFORMS)}"),
        python=_read_list(manifest, "python", _is_python_version, 'a list of versions such as "3.12"'),
        document=document,
    )


def _read_list(manifest: JsonObject, name: str, is_valid: Callable[[str], object], what: str) -> tuple[str, ...]:
    values = manifest.strings(name, default=[])
    if len(set(values)) != len(values) or not all(map(is_valid, values)):
        manifest.fail(name, f"is not {what}")
    return values


def _is_python_version(text: str) -> bool:
    return _PYTHON_VERSION.fullmatch(text) is not None


def _check_entry(path: str) -> str:
    try:
        return check_portable(path.removeprefix("./"))
    except PinwardenError as err:
        raise _build_manifest_error("entry", f"is not a portable path inside the bundle: {path[:80]!a}") from err


def _read_text(manifest: JsonObject, name: str) -> str:
    return manifest.string(name, _TEXT, kind="a string without control characters")


def _build_manifest_error(path: str, problem: str) -> PinwardenError:
    member = path or MANIFEST_NAME
    return PinwardenError("SERVER_ENTRY_INVALID", f"{MANIFEST_NAME}: {member} {problem}", data={"member": member})
