"""Reads a local export of an OSV database: a folder or a ZIP file with JSON records."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from pinwarden.artifacts.osv import LIMITS, OsvRecord, parse_osv
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.system.files import open_regular, read_file


class ExportLimits(Record):
    """Limits for one export."""

    records: int = 1_000_000
    """The complete database has several hundred thousand records, most of them about malicious npm packages."""
    total_bytes: int = 16 * 1024 * 1024 * 1024


EXPORT_LIMITS = ExportLimits()


def read_osv_export(path: Path, *, limits: ExportLimits = EXPORT_LIMITS) -> Iterator[OsvRecord]:
    """Yield every record of an export. Raises ``OSV_INVALID`` for an invalid record, as it may hide a vulnerability."""
    documents = _read_folder(path) if path.is_dir() else _read_zip(path, limits)
    count = size = 0
    for name, data in documents:
        count += 1
        size += len(data)
        if count > limits.records or size > limits.total_bytes:
            raise PinwardenError("OSV_INVALID", f"{path} has too many records")
        try:
            yield parse_osv(data)
        except PinwardenError as err:
            raise PinwardenError("OSV_INVALID", f"{path}: {name[:200]!a}: {err.message}", data=err.data) from err
    if count == 0:
        raise PinwardenError("OSV_INVALID", f"{path} contains no OSV records")


def _read_folder(folder: Path) -> Iterator[tuple[str, bytes]]:
    def raise_unreadable(err: OSError) -> None:
        raise PinwardenError("FILE_UNREADABLE", f"cannot read {err.filename}: {err.strerror or err}") from err

    for directory, folders, names in os.walk(folder, onerror=raise_unreadable, followlinks=False):
        folders.sort()
        for name in sorted(names):
            if name.endswith(".json"):
                path = Path(directory) / name
                yield str(path.relative_to(folder)), read_file(path, LIMITS.max_bytes)


def _read_zip(path: Path, limits: ExportLimits) -> Iterator[tuple[str, bytes]]:
    decode_errors = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
    with open_regular(path) as stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                members = [member for member in archive.infolist() if member.filename.endswith(".json")]
                if len(members) > limits.records:
                    raise PinwardenError("OSV_INVALID", f"{path} has too many records")
                for member in members:
                    with archive.open(member) as text:
                        data = text.read(LIMITS.max_bytes + 1)  # the stated size is not trusted
                    yield member.filename, data
        except decode_errors as err:
            raise PinwardenError("OSV_INVALID", f"{path} is a damaged ZIP file: {type(err).__name__}") from err
