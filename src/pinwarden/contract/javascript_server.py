"""Find the source of a JavaScript or TypeScript server, and analyse it in a separate process."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pinwarden.contract.entitlements.values import (
    Analysis,
    EntitlementFinding,
    Entitlements,
    Step,
    UnfollowedCode,
)
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.strict_json import Limits, encode_json_file, parse_json, parse_last_wins
from pinwarden.system.bounded_task import BoundedTask, run_bounded
from pinwarden.system.files import read_file

SOURCE_ENDINGS = (".js", ".mjs", ".cjs", ".ts", ".mts", ".cts")
_LAUNCHERS = ("node", "nodejs", "tsx", "bun", "ts-node", "deno")
_TIMEOUT_SECONDS = 60.0
_RESULT_LIMITS = Limits(max_bytes=64 << 20)
NOT_ANALYSED = "the analysis stopped before its end"
_MODULES = ("tree_sitter", "tree_sitter_javascript", "tree_sitter_typescript")


class JavaScriptSource(Record):
    """The folder of a server's package, and the files that it is started with."""

    folder: Path
    entries: tuple[str, ...]
    """Paths from the folder, with forward slashes."""


def can_analyse_javascript() -> bool:
    """Whether the extra ``javascript`` is installed."""
    return all(importlib.util.find_spec(name) is not None for name in _MODULES)


def find_source_of_command(command: Iterable[str]) -> JavaScriptSource | None:
    """Return the source of a server that ``node FILE`` or a similar command starts; None for other commands."""
    program, *arguments = command
    if Path(program).name.removesuffix(".exe") not in _LAUNCHERS:
        return None
    for argument in arguments:
        path = Path(argument)
        if path.suffix in SOURCE_ENDINGS and path.is_file():
            return _locate(path.resolve())
    return None


def _locate(file: Path) -> JavaScriptSource:
    """Return the source of a file, from the folder of its package on."""
    folder = next((parent for parent in file.parents if (parent / "package.json").is_file()), file.parent)
    return JavaScriptSource(folder=folder, entries=(file.relative_to(folder).as_posix(),))


def find_source_in_folder(folder: Path, command: Iterable[str] = ()) -> JavaScriptSource | None:
    """Return the source of the package in a folder; None if the folder has no ``package.json``.

    The command decides which file starts the server; otherwise ``bin`` or ``main`` of ``package.json`` does.
    """
    manifest = folder / "package.json"
    if not manifest.is_file():
        return None
    folder = folder.resolve()
    words = tuple(command)
    started = find_source_of_command(words) if words else None
    if started is not None:
        file = (started.folder / started.entries[0]).resolve()
        if folder in file.parents:
            return JavaScriptSource(folder=folder, entries=(file.relative_to(folder).as_posix(),))
    value = parse_last_wins(read_file(manifest))
    entries = _list_entries(value if isinstance(value, dict) else {}, folder)
    if not entries:
        raise PinwardenError(
            "USAGE",
            f"{folder.name[:120]!a}: package.json names no file that starts the server",
            hint="Start the server with --command -- node FILE.",
        )
    return JavaScriptSource(folder=folder, entries=entries)


def _list_entries(manifest: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
    programs = manifest.get("bin")
    stated = list(programs.values()) if isinstance(programs, dict) else [programs]
    candidates = [name for name in (*stated, manifest.get("main"), "index.js") if isinstance(name, str)]
    files = [os.path.normpath(name).replace(os.sep, "/") for name in candidates]
    present = [name for name in dict.fromkeys(files) if not name.startswith("..") and (folder / name).is_file()]
    programs_present = [name for name in present if name in files[: len(stated)]]
    return tuple(programs_present or present[:1])


def analyse_server(
    source: JavaScriptSource, names: Mapping[str, Iterable[str]], *, scan_packages: bool = False
) -> Analysis:
    """Analyse the code of each tool, prompt and resource. What cannot be analysed is unknown, never an error."""
    wanted = {kind: sorted(values) for kind, values in names.items()}
    with tempfile.TemporaryDirectory(prefix="pinwarden-") as folder:
        request, result = Path(folder) / "request.json", Path(folder) / "result.json"
        document = {
            "folder": str(source.folder),
            "entries": list(source.entries),
            "names": wanted,
            "scanPackages": scan_packages,
        }
        request.write_bytes(encode_json_file(document))
        command = (sys.executable, "-m", "pinwarden.contract.javascript_worker", str(request), str(result))
        task = BoundedTask(
            name="the analysis of JavaScript", error_code="ANALYSIS_FAILED", timeout_seconds=_TIMEOUT_SECONDS
        )
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
        try:
            run_bounded(command, Path(folder), environment, task)
            return _parse_analysis(parse_json(read_file(result, _RESULT_LIMITS.max_bytes), _RESULT_LIMITS))
        except PinwardenError:
            return _build_unknown_analysis(wanted)


def _build_unknown_analysis(names: Mapping[str, Iterable[str]]) -> Analysis:
    note = UnfollowedCode(reason=NOT_ANALYSED, path="", line=0, what="", evidence="", call_path=())
    unknown = Entitlements(unknown=(note,))
    return Analysis(
        handlers=dict.fromkeys(names.get("tool", ()), unknown),
        prompts=dict.fromkeys(names.get("prompt", ()), unknown),
        resources=dict.fromkeys(names.get("resource", ()), unknown),
        startup=unknown,
    )


def _parse_analysis(value: Any) -> Analysis:
    return Analysis(
        startup=_parse_entitlements(value["startup"]),
        **{
            member: {name: _parse_entitlements(entry) for name, entry in value[member].items()}
            for member in ("handlers", "prompts", "resources")
        },
    )


def _parse_entitlements(value: Mapping[str, Any]) -> Entitlements:
    return Entitlements(
        kinds=tuple(value["kinds"]),
        findings=tuple(EntitlementFinding(**_with_steps(finding)) for finding in value["findings"]),
        unknown=tuple(UnfollowedCode(**_with_steps(unknown)) for unknown in value["unknown"]),
    )


def _with_steps(value: Mapping[str, Any]) -> dict[str, Any]:
    return {**value, "call_path": tuple(Step(**step) for step in value["call_path"])}
