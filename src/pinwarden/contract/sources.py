"""The text of a server's own modules, and of installed packages on request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pinwarden.contract.entitlements.values import Source
from pinwarden.core.errors import PinwardenError
from pinwarden.system.files import read_file

_MOST_MODULES = 5000
_FOREIGN = frozenset({"site-packages", "dist-packages", "node_modules"})
_MOST_BYTES = 4 << 20  # of one module; nobody writes more by hand


def read_modules(modules: Mapping[str, str], folder: Path) -> dict[str, Source]:
    """The source of each module by its dotted name. What cannot be read is an error: it would be taken for harmless.

    The server's process names the files, and it may name any; only those in the server's folder are its modules.
    """
    root = folder.resolve()
    for path in modules.values():
        if root not in Path(path).resolve().parents:
            raise PinwardenError(
                "SERVER_IMPORT_FAILED", f"the server names a module outside its folder: {path[:200]!a}"
            )
    return {name: _source(Path(path), folder) for name, path in sorted(modules.items())}


def read_folder(folder: Path) -> dict[str, Source]:
    """The source of every module below a folder. A package is named by its folder."""
    if not folder.is_dir():
        raise PinwardenError("USAGE", f"{str(folder)[:200]!a} is not a folder", hint="Give the folder of the package.")
    folder = folder.resolve()
    root = folder
    while (root / "__init__.py").is_file():
        root = root.parent
    found: dict[str, Source] = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if _FOREIGN.isdisjoint(parts) and all(part.isidentifier() for part in parts):
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = _source(path, root)
        if len(found) > _MOST_MODULES:
            raise PinwardenError("USAGE", f"{folder.name[:120]!a} holds more than {_MOST_MODULES} modules")
    return found


def _source(path: Path, folder: Path) -> Source:
    import tokenize

    data = read_file(path, _MOST_BYTES)
    try:
        encoding, _ = tokenize.detect_encoding(iter(data.splitlines(keepends=True)).__next__)
        text = data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as err:
        raise PinwardenError("FILE_UNREADABLE", f"{path.name[:120]} is not Python source: {err}") from err
    try:
        shown = path.relative_to(folder.resolve()).as_posix()
    except ValueError:
        shown = path.name
    return Source(path=shown, text=text, package=path.name == "__init__.py")


class InstalledPackages(Mapping[str, Source]):
    """Modules of the packages that an interpreter can import, each read when it is asked for."""

    def __init__(self, places: list[Path]) -> None:
        self._places = places
        self._read: dict[str, Source | None] = {}

    def __getitem__(self, name: str) -> Source:
        if name not in self._read:
            self._read[name] = self._find(name)
        found = self._read[name]
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return (name for name, source in self._read.items() if source is not None)

    def __len__(self) -> int:
        return sum(source is not None for source in self._read.values())

    def _find(self, name: str) -> Source | None:
        parts = name.split(".")
        if not all(part.isidentifier() for part in parts):
            return None
        for place in self._places:
            whole = place.joinpath(*parts)
            for path in (whole / "__init__.py", whole.with_suffix(".py")):
                if path.is_file() and path.stat().st_size <= _MOST_BYTES:
                    return _source(path, place)
        return None
