"""A Python server by its source: imported in a process of its own, asked there, and asked as a client would.

1. The module that the path names is found, and the interpreter that has its packages.
2. That interpreter runs ``introspector.py``, which imports the server, writes down what only its process knows, and
   serves it on its standard streams.
3. The probe asks it for its surface like any other server. The facts are read after that.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pinwarden.adapters.files import read_file
from pinwarden.adapters.probe.probe import ProbeOptions, probe
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.documents.surface import Surface
from pinwarden.documents.target import StdioTarget

_INTROSPECTOR = Path(__file__).with_name("introspector.py")
_FAILURES = {
    "no-server": "SERVER_OBJECT_UNKNOWN",
    "exited": "SERVER_IMPORT_FAILED",
    "import-failed": "SERVER_IMPORT_FAILED",
}


class PythonServer(Record):
    """A server as its author names it: ``path/to/server.py[:object]``."""

    folder: Path
    """What is on the import path."""
    module: str
    name: str | None = None
    """The object in the module; None if there is only one server in it."""


class Introspected(Record):
    """What the server's process knows, and what a client sees of it."""

    surface: Surface
    facts: Mapping[str, Any] = field(default_factory=dict)


def python_server(text: str) -> PythonServer:
    """Read ``path/to/server.py[:object]``. A file inside a package is imported as a part of that package."""
    path_text, mark, name = text.partition(":") if not _has_drive(text) else (text, "", "")
    path = Path(path_text)
    if path.is_dir() and (path / "__init__.py").is_file():
        path = path / "__init__.py"
    if not path.is_file():
        raise PinwardenError("SERVER_OBJECT_UNKNOWN", f"there is no file {path_text[:200]!a}")
    if path.suffix != ".py" or (mark and not all(part.isidentifier() for part in name.split("."))):
        raise PinwardenError("USAGE", "--server takes path/to/server.py or path/to/server.py:object")
    path = path.resolve()
    parts = [] if path.stem == "__init__" else [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    if not all(part.isidentifier() for part in parts):
        raise PinwardenError("USAGE", f"{path.name[:200]!a} has no name that Python could import")
    return PythonServer(folder=folder, module=".".join(parts), name=name or None)


def _has_drive(text: str) -> bool:
    return text[1:3] in (":\\", ":/")


def interpreter_for(server: PythonServer, variables: Mapping[str, str], named: str | None = None) -> str:
    """The Python that has the server's packages: the named one, the active environment's, the project's, or this."""
    if named is not None:
        return named
    places = [Path(variables["VIRTUAL_ENV"])] if variables.get("VIRTUAL_ENV") else []
    places += [folder / ".venv" for folder in (server.folder, *server.folder.parents[:3])]
    for place in places:
        for program in (place / "bin" / "python", place / "Scripts" / "python.exe"):
            if program.is_file():
                return str(program)
    return sys.executable


def introspect(server: PythonServer, python: str, options: ProbeOptions) -> Introspected:
    """Import the server and ask it. Naming its file is the consent to run it."""
    with tempfile.TemporaryDirectory(prefix="pinwarden-") as folder:
        facts = Path(folder) / "facts.json"
        named = () if server.name is None else (server.name,)
        command = (python, str(_INTROSPECTOR), str(facts), str(server.folder), server.module, *named)
        try:
            surface = probe(StdioTarget(command=command), replace(options, allow_execute=True))
        except PinwardenError as err:
            raise _told(err, facts, server) from err
        return Introspected(surface=surface, facts=_read(facts))


def _told(err: PinwardenError, facts: Path, server: PythonServer) -> PinwardenError:
    """What the introspector says of the failure, which is more than that nobody answered."""
    data = dict(err.data or {})
    if not facts.is_file():
        if err.code == "CONSENT_REQUIRED" or data.get("reason") == "not_started":
            return err
        return PinwardenError(
            "SERVER_IMPORT_FAILED",
            f"{server.module} did not end its import, or its process ended before ({err.message})",
            data=data,
        )
    failed = _read(facts).get("failed")
    if not isinstance(failed, dict):
        return err
    code = _FAILURES.get(str(failed.get("reason")), "SERVER_IMPORT_FAILED")
    return PinwardenError(code, f"{server.module} cannot be imported: {str(failed.get('message'))[:500]}", data=data)


def _read(path: Path) -> Mapping[str, Any]:
    facts = strict_json.parse(read_file(path))
    if not isinstance(facts, dict):
        raise PinwardenError("SERVER_IMPORT_FAILED", "what the server's process wrote down is not readable")
    return facts
