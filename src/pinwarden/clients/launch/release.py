"""Naming another release in a command: the one word that says which release is started, spelled as it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pinwarden.clients.launch.launched import what_runs
from pinwarden.clients.launch.values import Launched
from pinwarden.core.record import replace
from pinwarden.system.target import StdioTarget


class _NotOneError(Exception):
    """Nothing in an entry is the word, or several things are."""


def other_release(target: StdioTarget, version: str, digest: str | None) -> tuple[str, str] | None:
    """The word that names the release, and the same word for another release; None if no single word does.

    A word is taken only if the command with the new one starts the very same thing at the other release: nobody
    guesses here which of several numbers in a line is the version.
    """
    runs = what_runs(target)
    wanted = _at(runs, version, digest)
    found: list[tuple[str, str]] = []
    for place, word in enumerate(target.command):
        for spelled in _spellings(word, runs.via or runs, version, digest):
            words = (*target.command[:place], spelled, *target.command[place + 1 :])
            if what_runs(replace(target, command=words)) == wanted:
                found.append((word, spelled))
                break
    return found[0] if len(found) == 1 else None


def with_word(entry: Any, old: str, new: str) -> dict[str, Any] | None:
    """A client's entry with one word of its command exchanged; None if that is not exactly one word of it."""
    if not isinstance(entry, dict):
        return None
    command = entry.get("command")
    try:
        if isinstance(command, list) and "args" not in entry:
            return {**entry, "command": _exchanged(command, old, new)}
        if isinstance(command, dict):
            return {**entry, "command": {**command, "args": _exchanged(command.get("args"), old, new)}}
        return {**entry, "args": _exchanged(entry.get("args"), old, new)}
    except _NotOneError:
        return None


def _at(runs: Launched, version: str, digest: str | None) -> Launched:
    if runs.via is not None:
        return replace(runs, via=_at(runs.via, version, digest))
    return replace(runs, version=version, digest=digest if runs.digest else None)


def _spellings(word: str, package: Launched, version: str, digest: str | None) -> Iterator[str]:
    before = package.version or ""
    if package.digest:
        old, new = f":{before}@{package.digest}", f":{version}@{digest}"
    else:
        old, new = before, version
    if before and word.endswith(old):
        yield word.removesuffix(old) + new


def _exchanged(words: Any, old: str, new: str) -> Sequence[Any]:
    if not isinstance(words, list) or words.count(old) != 1:
        raise _NotOneError
    return [new if word == old else word for word in words]
