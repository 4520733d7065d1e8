"""A lockfile in the other of its two formats, and what that format could not express."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.finding_kinds import Kinds, kind_table, reasons_of
from pinwarden.core.record import Record, field
from pinwarden.core.report import Report, Row
from pinwarden.lock import conversion as lock_conversion
from pinwarden.lock import lockfile, mcp_lock_1
from pinwarden.lock.lockfile import Lock
from pinwarden.lock.verification import refuse_if_tampered
from pinwarden.project.lock_documents import digest_of, read_lock

Format = Literal["v2", "mcp-lock/1"]
FORMATS: tuple[Format, ...] = ("v2", "mcp-lock/1")


CONVERSION_KINDS: Kinds = kind_table(
    warning=(("set_aside", "The other format has no way to say what this entry says."),)
)


class Converted(Record):
    """The file in the other format, and the report about it."""

    data: bytes = field(repr=False)
    report: Report


def convert_lock(path: Path, to: Format) -> Converted:
    """The report and the bytes of ``pinwarden lock convert``. A lock that is not whole is refused; nothing is lost."""
    document = read_lock(path)
    refuse_if_tampered(problem for problem in document.problems if problem.code != "no_entries")
    if isinstance(document.lock, Lock) == (to == "v2"):
        raise PinwardenError("USAGE", f"{path.name} is {to} already")
    if isinstance(document.lock, Lock):
        neutral = lock_conversion.to_neutral(document.lock)
        data, aside, kept = mcp_lock_1.to_bytes(neutral), lock_conversion.set_aside(neutral), len(neutral.entries)
        digest = digest_of(neutral)
    else:
        lock = lock_conversion.from_neutral(document.lock)
        data, aside, kept = lockfile.to_bytes(lock), lock_conversion.set_aside(lock), len(lock.entries)
        digest = digest_of(lock)
    return Converted(data=data, report=_report(path, to, digest, kept, aside))


def _report(path: Path, to: Format, digest: str | None, kept: int, aside: tuple[str, ...]) -> Report:
    message = f"{to} cannot express this entry; it is carried along, enforced by nobody, and restored on the way back"
    left = f", {len(aside)} set aside" if aside else ""
    return Report(
        command="lock convert",
        subject=path.name,
        summary=f"{path.name} as {to}: {kept} entr{'y' if kept == 1 else 'ies'}{left}",
        exit_code=EXIT_CLEAN,
        rows=tuple(
            Row(
                code="set_aside",
                level=CONVERSION_KINDS["set_aside"].severity,
                entity="server",
                name=key,
                path="",
                message=message,
            )
            for key in aside
        ),
        facts={"to": to, "entries": kept, "digest": digest, "set_aside": list(aside)},
        rule_texts=reasons_of(CONVERSION_KINDS),
    )
