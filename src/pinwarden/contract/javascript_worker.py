"""A program that analyses a JavaScript server in a process of its own.

    python -m pinwarden.contract.javascript_worker REQUEST RESULT

Parsing hostile source can take long and cannot be interrupted, so the parent process sets a time limit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pinwarden.contract.entitlements.javascript.analysis import analyse_javascript
from pinwarden.contract.entitlements.javascript.syntax import UnreadableSourceError
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, as_dict
from pinwarden.core.strict_json import encode_json_file, parse_json
from pinwarden.system.files import read_file

MAX_FILE_BYTES = 16 << 20
"""The largest published server of a sample of 106 has 12 MB of code in one file."""
MAX_TOTAL_BYTES = 64 << 20
_MAX_MEMORY = 4 << 30
_MAX_RECURSION = 20_000


class SourceFiles(Mapping[str, str]):
    """The files below a folder by relative path, read when they are needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._known: dict[str, bool] = {}
        self._texts: dict[str, str] = {}
        self._read_bytes = 0

    def __contains__(self, path: object) -> bool:
        name = str(path)
        if name not in self._known:
            try:
                file = (self._folder / name).resolve()
                self._known[name] = self._folder in file.parents and file.is_file()
            except (OSError, ValueError, RuntimeError):
                self._known[name] = False
        return self._known[name]

    def __getitem__(self, path: str) -> str:
        if path not in self:
            raise KeyError(path)
        if path not in self._texts:
            try:
                data = read_file(self._folder / path, MAX_FILE_BYTES)
                text = data.decode("utf-8")
            except (PinwardenError, UnicodeDecodeError) as err:
                raise UnreadableSourceError("a file that is too large or is not text") from err
            self._read_bytes += len(data)
            if self._read_bytes > MAX_TOTAL_BYTES:
                raise UnreadableSourceError("more code than Pinwarden reads")
            self._texts[path] = text
        return self._texts[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def main(arguments: list[str]) -> int:
    """Analyse the server that the request names, and write the result to a file."""
    _limit_memory()
    sys.setrecursionlimit(_MAX_RECURSION)
    request = parse_json(Path(arguments[0]).read_bytes())
    analysis = analyse_javascript(
        SourceFiles(Path(request["folder"])),
        request["entries"],
        request["names"],
        scan_packages=request["scanPackages"],
    )
    Path(arguments[1]).write_bytes(encode_json_file(analysis_to_json(analysis)))
    return 0


def analysis_to_json(value: Any) -> Any:
    """Return records, mappings and tuples as JSON."""
    if isinstance(value, Record):
        return {name: analysis_to_json(member) for name, member in as_dict(value).items()}
    if isinstance(value, Mapping):
        return {name: analysis_to_json(member) for name, member in value.items()}
    return [analysis_to_json(member) for member in value] if isinstance(value, tuple) else value


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
