"""What the live servers say, held against what was approved: the text that we keep, or the hashes that ToolPin keeps.

An entry that has both is held against the text, which holds more than the hashes and says what changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import UNCHECKED, Row
from pinwarden.lock.record import extension_of
from pinwarden.lock.toolpin_pins import compare_pins, has_pins
from pinwarden.project.gate.unreviewed import unpinned_rows
from pinwarden.project.server_start import PreparedProbe, ask_all, prepare_locked_probe
from pinwarden.surface.drift.surface import compare
from pinwarden.surface.rows import last_words, row_of
from pinwarden.surface.surface import TOOL, Surface, parse

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.project import Project
    from pinwarden.surface.probe.probe import ProbeOptions


class _Question(Record):
    """One entry whose server is asked, and the text that was approved; None where only ToolPin's hashes were."""

    entry: Entry
    asked: PreparedProbe
    approved: Surface | None


_NOTHING_PINNED = (
    "there is nothing to compare the live servers with: no entry has an approved surface; "
    "approve what a server says now with pinwarden approve NAME, or with pinwarden init --allow-execute"
)


def live_rows(
    project: Project,
    lock: Lock,
    texts: Mapping[str, bytes],
    options: ProbeOptions,
    held: Mapping[str, str],
) -> Iterator[Row]:
    """Ask every server of which something live was approved, all at once, and tell what is different.

    ``held`` are the names of those that must not be asked, with the reason.
    """
    if lock.entries and not any(map(_has_pin, lock.entries)):
        yield Row(code=UNCHECKED, level="review", entity="lock", name="", path="", message=_NOTHING_PINNED)
    yield from unpinned_rows(lock, _has_pin)
    questions: list[_Question] = []
    files = project.configs()
    for entry in lock.entries:
        if entry.name in held:
            if _has_pin(entry):
                yield _unchecked(entry, f"was not asked: {held[entry.name]}")
            continue
        try:
            question = _question(entry, texts, lambda one: prepare_locked_probe(project, one, files, options))
        except PinwardenError as err:
            yield _unchecked(entry, f"could not be asked: {err.message}")
            continue
        if question is not None:
            questions.append(question)
    outcomes = ask_all([question.asked for question in questions])
    for question, seen in zip(questions, outcomes, strict=True):
        if isinstance(seen, PinwardenError) and seen.code == "SECRET_REPEATED":
            yield _row(question.entry, "secret_repeated", seen.message)
        elif isinstance(seen, PinwardenError):
            how = " (--allow-execute)" if seen.code == "CONSENT_REQUIRED" else ""
            yield replace(
                _unchecked(question.entry, f"could not be asked: {seen.message}{how}"), excerpt=last_words(seen)
            )
        elif question.approved is not None:
            yield from _text_rows(question.entry, question.approved, seen)
        else:
            yield from _hash_rows(question.entry, seen)


def _has_pin(entry: Entry) -> bool:
    extension = extension_of(entry)
    return has_pins(entry.manifest) or (extension is not None and extension.surface is not None)


def _question(entry: Entry, texts: Mapping[str, bytes], start: Callable[[Entry], PreparedProbe]) -> _Question | None:
    extension = extension_of(entry)
    pin = extension.surface if extension else None
    if pin is not None:
        if pin.path not in texts:
            return None  # a missing text is a finding about the lock
        return _Question(entry=entry, asked=start(entry), approved=parse(texts[pin.path]))
    if not has_pins(entry.manifest):
        return None
    return _Question(entry=entry, asked=start(entry), approved=None)


def _text_rows(entry: Entry, approved: Surface, seen: Surface) -> Iterator[Row]:
    for change in compare(approved, seen):
        row = row_of(change)
        yield replace(row, entity=f"{entry.name}: {row.entity}")


def _hash_rows(entry: Entry, seen: Surface) -> Iterator[Row]:
    tools: list[Any] = []
    for item in seen.list_of(TOOL):
        if item.digest is None:
            message = f"{item.key[:120]!a} has no single meaning, so nobody can have approved it: {item.problem}"
            yield _row(entry, "tool_undigestable", message)
            return
        tools.append(item.value)
    try:
        findings = compare_pins(entry.manifest, tools)
    except PinwardenError as err:
        yield _row(entry, "tool_undigestable", err.message)
        return
    for finding in findings:
        if finding.decided:
            yield _row(entry, finding.code, f"{finding.message}; only a hash was approved, so no more can be shown")
        else:
            yield _unchecked(entry, f"could not be compared: {finding.message}")


def _row(entry: Entry, code: str, message: str) -> Row:
    return Row(code=code, level="critical", entity="server", name=entry.name, path="", message=message)


def _unchecked(entry: Entry, why: str) -> Row:
    return Row(code=UNCHECKED, level="review", entity="server", name=entry.name, path="", message=why)
