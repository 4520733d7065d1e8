"""What is different between two dependency closures of one package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args
from urllib.parse import urlsplit

from pinwarden.core.record import Record
from pinwarden.lock.closure import Closure, ClosurePackage

Kind = Literal["bytes", "scripts", "version", "files", "place", "added", "removed"]
_ORDER: tuple[Kind, ...] = get_args(Kind)


class ClosureChange(Record):
    """One package that came, went, or is not what it was."""

    kind: Kind
    name: str
    place: str
    before: ClosurePackage | None
    after: ClosurePackage | None

    @property
    def message(self) -> str:
        """The change in words."""
        old = self.before.version if self.before else ""
        new = self.after.version if self.after else ""
        match self.kind:
            case "added":
                return f"{self.name} {new} is new"
            case "removed":
                return f"{self.name} {old} is gone"
            case "version":
                was = old if self.before is None or self.before.name == self.name else f"{self.before.name} {old}"
                return f"{self.name} is {new} instead of {was}{self._moved}"
            case "bytes":
                return f"{self.name} {new} has other bytes under the same version"
            case "scripts":
                return f"{self.name} {new} now has scripts that a package client would run on installation{self._moved}"
            case "files":
                return f"{self.name} {new} has other files under the same version: {self._files}"
            case "place":
                return f"{self.name} {new} comes from {_hosts(self.after)} instead of {_hosts(self.before)}"

    @property
    def _moved(self) -> str:
        return "" if _hosts(self.before) == _hosts(self.after) else f", and comes from {_hosts(self.after)}"

    @property
    def _files(self) -> str:
        old, new = ({file.name for file in each.files} if each else set() for each in (self.before, self.after))
        told = [f"{name} is new" for name in sorted(new - old)] + [f"{name} is gone" for name in sorted(old - new)]
        return ", ".join(told[:5]) + (f", and {len(told) - 5} more" if len(told) > 5 else "")


def compare_closures(before: Closure, after: Closure) -> tuple[ClosureChange, ...]:
    """Every difference, the gravest first: other bytes, then scripts, versions, files, what is new, what is gone."""
    return tuple(sorted(_changes(before, after), key=lambda change: (_ORDER.index(change.kind), change.name)))


def _changes(before: Closure, after: Closure) -> Iterator[ClosureChange]:
    old, new = ({_place(package): package for package in closure.packages} for closure in (before, after))
    for place in {**old, **new}:
        was, is_now = old.get(place), new.get(place)
        name = (is_now or was or after.root).name
        shown = place[0]
        if was is None:
            yield ClosureChange(kind="added", name=name, place=shown, before=None, after=is_now)
        elif is_now is None:
            yield ClosureChange(kind="removed", name=name, place=shown, before=was, after=None)
        else:
            kind = _kind(was, is_now)
            if kind is not None:
                yield ClosureChange(kind=kind, name=name, place=shown, before=was, after=is_now)


def _place(package: ClosurePackage) -> tuple[str, str]:
    return package.path or package.name, package.marker


def _kind(was: ClosurePackage, is_now: ClosurePackage) -> Kind | None:
    same = (was.name, was.version) == (is_now.name, is_now.version)
    known = {file.name: file.digest for file in was.files}
    if same and any(known.get(file.name, file.digest) != file.digest for file in is_now.files):
        return "bytes"
    if is_now.install_scripts and not was.install_scripts:
        return "scripts"
    if not same:
        return "version"
    if known.keys() != {file.name for file in is_now.files}:
        return "files"
    return None if _hosts(was) == _hosts(is_now) else "place"


def _hosts(package: ClosurePackage | None) -> str:
    """Where the files of a package lie; never with the credential that an address may hold."""
    files = package.files if package else ()
    return ", ".join(sorted({urlsplit(file.url).netloc.rpartition("@")[2] for file in files}))
