"""The ``package.json`` of an npm tarball, read without unpacking anything."""

from __future__ import annotations

from typing import IO, Any

from pinwarden.adapters.artifacts.tarball_files import DEFAULT_LIMITS, TarballLimits, read_files
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

_NAMES = frozenset({"package.json", "binding.gyp"})


class TarballManifest(Record):
    """What npm finds when it has unpacked the tarball."""

    document: Any
    has_gyp: bool
    """There is a ``binding.gyp``, which npm builds on installation unless told otherwise."""


def read_manifest(stream: IO[bytes], limits: TarballLimits = DEFAULT_LIMITS) -> TarballManifest:
    """The manifest. One that is not there, or could be read in two ways, makes the tarball unusable."""
    files = read_files(stream, _NAMES, limits)
    if "package.json" not in files:
        raise PinwardenError("ARCHIVE_UNSAFE", "the tarball has no package.json")
    try:
        # As npm reads it: without a byte order mark, and the last of repeated members counts. Real packages have some.
        document = strict_json.parse_last_wins(files["package.json"].removeprefix(b"\xef\xbb\xbf"))
    except PinwardenError as err:
        raise PinwardenError("ARCHIVE_UNSAFE", f"the tarball's package.json cannot be read: {err}") from err
    return TarballManifest(document=document, has_gyp="binding.gyp" in files)
