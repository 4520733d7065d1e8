"""Check client configurations against the lock, for risky settings, and for programs missing on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.clients.command_line import PROGRAM
from pinwarden.clients.config import parse_configured_server
from pinwarden.clients.drift import CONFIG_KINDS
from pinwarden.clients.findings import FINDING_KINDS, ConfigFinding, check_files
from pinwarden.clients.table import get_client
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED
from pinwarden.core.record import Record, replace
from pinwarden.core.report import (
    FindingKinds,
    Report,
    Row,
    build_kind_table,
    collect_kind_reasons,
    is_failing,
    severity_rank,
)
from pinwarden.core.text import plural
from pinwarden.lock.lockfile import PROBLEMS
from pinwarden.project.config_secrets import audit_inputs, audit_servers
from pinwarden.project.configs import (
    ConfigView,
    build_finding_row,
    find_config_issues,
    find_unknown_servers,
    find_unresolved_starts,
    read_config_view,
)
from pinwarden.project.configured_servers import ConfigIssue, IssueKind, UnknownServer
from pinwarden.project.enforced_entry import describe_unfound_program
from pinwarden.project.lock_documents import build_problem_rows, problems_to_json
from pinwarden.project.missing_programs import find_missing_programs
from pinwarden.project.next_step import SET_UP, choose_after_finding, quote_name
from pinwarden.project.scopes import report_in_scopes
from pinwarden.project.secrets_audit import SECRET_KINDS, build_secret_row, secret_to_json
from pinwarden.surface.drift.changes import build_change_row
from pinwarden.system.files import find_program, find_relative_search_folders
from pinwarden.system.program_installers import describe_installation
from pinwarden.system.target import StdioTarget, program_name

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfigFile
    from pinwarden.project.project import Project

RUNNERS = ("npx", "node", "uvx", "python", "docker")
"""Programs that commonly start servers. The report always says whether they are installed."""

ISSUE_KINDS: FindingKinds = build_kind_table(
    critical=(("config_unreadable", "A configuration could not be read, so its servers are unknown."),),
    review=(
        ("config_missing", "A locked server is not configured where it was approved."),
        ("config_drift", "A configured server is not as it was approved."),
        ("config_invalid", "The lock has no configuration that could be compared."),
    ),
)
_ISSUE_CODES: Mapping[IssueKind, str] = {
    "unreadable": "config_unreadable",
    "missing": "config_missing",
    "drift": "config_drift",
    "invalid": "config_invalid",
}
PROGRAM_KINDS: FindingKinds = build_kind_table(
    warning=(
        ("program_missing", "A server is started with a program that is not on the search path."),
        ("program_in_project", "A server is started with a program inside the project."),
        ("locked_files_missing", "The locked files of a server are not in the store of this machine."),
        ("search_path_relative", "Which program a command starts depends on the client's working directory."),
    )
)

_AFTER_NO_FINDINGS = ("pinwarden ci", "pinwarden fetch")
_KINDS = (FINDING_KINDS, CONFIG_KINDS, ISSUE_KINDS, SECRET_KINDS, PROGRAM_KINDS)


class Program(Record):
    """A program, its path, and the names of the servers that it starts. The path is None if it is not installed."""

    name: str
    path: Path | None
    needed_by: tuple[str, ...]


def check_installations(scopes: Sequence[tuple[Project, tuple[str, ...]]]) -> Report:
    """Build the report of ``pinwarden doctor`` about several scopes. Programs are reported once for all scopes."""
    report = report_in_scopes(scopes, lambda project, _: check_installation(project))
    programs: dict[str, dict[str, Any]] = {}
    for program in report.facts["programs"]:
        known = programs.setdefault(program["name"], {**program, "needed_by": []})
        known["needed_by"] += [name for name in program["needed_by"] if name not in known["needed_by"]]
    facts = {**report.facts, "programs": list(programs.values())}
    notes = (*report.notes, _describe_programs(programs.values()))
    # A secret is moved by hand, so its scope has no next command, and that of a scope without findings misleads.
    misleads = report.exit_code != EXIT_CLEAN and report.next_command in _AFTER_NO_FINDINGS
    return replace(report, facts=facts, notes=notes, next_command=None if misleads else report.next_command)


def check_installation(project: Project) -> Report:
    """Compare one scope with its lock.

    1. Verify the lock.
    2. Compare every locked server with the file of its client.
    3. Find configured servers that are not in the lock.
    4. Find risky settings in the files, and servers that ``pinwarden run`` would refuse to start.
    5. Find secrets in plain text.
    6. Find the programs that servers are started with, and locked files that are not on this machine.
    """
    view = read_config_view(project)
    issues = find_config_issues(project, view)
    unknown = find_unknown_servers(project, view)
    findings = (*check_files(view.files), *_find_unresolved(project, view))
    secrets = (*audit_servers(view.servers).findings, *audit_inputs(view.files))
    programs = _find_programs(project, view)
    search_path = project.variables.get("PATH", "")
    rows = [
        *(build_problem_rows(view.document) if view.document else ()),
        *(row for issue in issues for row in _build_issue_rows(project, issue)),
        *(
            replace(build_change_row(unknown_server.change), file=project.display_path(unknown_server.configured.path))
            for unknown_server in unknown
        ),
        *(build_finding_row(project, finding) for finding in findings),
        *(build_secret_row(project, finding) for finding in secrets),
        *_check_programs(project, programs, find_relative_search_folders(search_path)),
        *_find_missing_files(project, view),
    ]
    ok = not issues and not any(map(is_failing, rows))
    return Report(
        command="doctor",
        subject=project.lock.name,
        summary=_summarize(view, rows, ok),
        exit_code=EXIT_CLEAN if ok else EXIT_REFUSED,
        rows=tuple(sorted(rows, key=severity_rank)),
        notes=tuple(_build_notes(project, view)),
        next_command=_choose_next_command(view, rows, ok),
        facts={
            "ok": ok,
            "checked": len(view.locked),
            "issues": [_issue_to_json(project, issue) for issue in issues],
            "unknownServers": [_unknown_server_to_json(project, unknown_server) for unknown_server in unknown],
            "findings": [_finding_to_json(project, finding) for finding in findings],
            "secrets": [secret_to_json(project, finding) for finding in secrets],
            "files": [_file_to_json(project, file) for file in view.files],
            "programs": [_program_to_json(project, program) for program in programs],
            "lock": {
                "found": view.document is not None,
                "problems": problems_to_json(view.document.problems if view.document else ()),
            },
        },
        rule_texts={**PROBLEMS, **collect_kind_reasons(*_KINDS)},
    )


def _find_unresolved(project: Project, view: ConfigView) -> Iterator[ConfigFinding]:
    """Find servers that ``pinwarden run`` would refuse to start. Without a lock there are none."""
    if view.document is None:
        return
    from pinwarden.lock import lock_store

    lock = lock_store.read(project.lock)
    yield from find_unresolved_starts(project, lock.entries if lock is not None else (), view.servers)


# 6. Programs


def _find_programs(project: Project, view: ConfigView) -> tuple[Program, ...]:
    search_path = project.variables.get("PATH", "")
    needed: dict[str, dict[str, None]] = {name: {} for name in RUNNERS}
    for server, program in _list_started_programs(view):
        needed.setdefault(program, {})[server] = None
    return tuple(
        Program(name=name, path=_find_program(name, search_path), needed_by=tuple(servers))
        for name, servers in needed.items()
    )


def _list_started_programs(view: ConfigView) -> Iterator[tuple[str, str]]:
    """Yield the name and the program of every server whose command is a program name without a path."""
    approved = (
        parse_configured_server(locked.name, locked.approved, get_client(locked.config_client))
        for locked in view.locked
    )
    for server in (*approved, *view.servers):
        if isinstance(server.target, StdioTarget) and not server.disabled:
            word = server.target.command[0]
            if program_name(word) == word.lower().removesuffix(".exe") and " " not in word:
                yield server.name, word


def _find_program(name: str, search_path: str) -> Path | None:
    program = find_program(name, search_path)
    return find_program("python3", search_path) if program is None and name == "python" else program


def _check_programs(project: Project, programs: Iterable[Program], relative: list[str]) -> Iterator[Row]:
    if relative:
        message = "the search path has relative folders, so a command may start a different program in another folder"
        yield _build_program_row("search_path_relative", "PATH", message)
    without_launcher: set[str] = set()
    for program in programs:
        servers = ", ".join(program.needed_by)
        if program.needed_by and program.path is None:
            without_launcher.update(program.needed_by)
            way = describe_installation(program.name, project.variables)
            message = f"not on the search path, but it starts: {servers}"
            yield _build_program_row(
                "program_missing", program.name, f"{message}. To install it: {way}" if way else message
            )
        elif program.needed_by and program.path and _is_inside(program.path, project.root):
            message = (
                f"it is inside the project, so anyone who can change the repository can change it; it starts: {servers}"
            )
            yield _build_program_row("program_in_project", program.name, message)
    for missing in find_missing_programs((project,)):
        if not without_launcher.issuperset(missing.servers):
            yield _build_program_row("program_missing", missing.name, missing.describe())


def _find_missing_files(project: Project, view: ConfigView) -> Iterator[Row]:
    from pinwarden.project.status import server_statuses

    for server in server_statuses((project,), views={project.lock: view}):
        if server.next_step == "fetch":
            message = f"its locked files are not in the store of this machine. To download them: {server.next_command}"
            yield replace(_build_program_row("locked_files_missing", server.name, message), entity="server")


def _is_inside(path: Path, folder: Path) -> bool:
    return path.absolute().is_relative_to(folder.absolute())


def _build_program_row(code: str, name: str, message: str) -> Row:
    return Row(code=code, severity=PROGRAM_KINDS[code].severity, entity="program", name=name, path="", message=message)


# Rows and facts


def _build_issue_rows(project: Project, issue: ConfigIssue) -> Iterator[Row]:
    file = project.display_path(issue.file) if issue.file and ", " not in issue.file else None
    rows = [replace(build_change_row(change), file=file) for change in issue.changes]
    yield from rows
    if not any(map(is_failing, rows)):
        code = _ISSUE_CODES[issue.kind]
        yield Row(
            code=code,
            severity=ISSUE_KINDS[code].severity,
            entity="config",
            name=issue.name,
            path="",
            message=issue.message,
            file=file,
        )


def _issue_to_json(project: Project, issue: ConfigIssue) -> dict[str, Any]:
    """Return the issue as JSON: the members of ToolPin's ``doctor``, and the changes."""
    facts = issue.to_json()
    facts["file"] = ", ".join(project.display_path(path) for path in issue.file.split(", ")) if issue.file else ""
    return {**facts, "changes": [change.to_json() for change in issue.changes]}


def _unknown_server_to_json(project: Project, unknown: UnknownServer) -> dict[str, Any]:
    return {
        "server": unknown.configured.name,
        "client": unknown.configured.client,
        "scope": unknown.configured.scope,
        "file": project.display_path(unknown.configured.path),
        "pointer": unknown.configured.pointer,
        "code": unknown.change.kind,
        "severity": unknown.change.severity,
        "message": unknown.change.reason,
    }


def _finding_to_json(project: Project, finding: ConfigFinding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "severity": finding.severity,
        "client": finding.client,
        "scope": finding.scope,
        "file": project.display_path(finding.file),
        "server": finding.name,
        "pointer": finding.pointer,
        "message": finding.message,
    }


def _file_to_json(project: Project, file: ConfigFile) -> dict[str, Any]:
    return {
        "client": file.client,
        "scope": file.scope,
        "path": project.display_path(file.path),
        "servers": len(file.servers),
        "fault": file.fault,
    }


def _program_to_json(project: Project, program: Program) -> dict[str, Any]:
    shown = str(program.path) if program.path else None
    if program.path and _is_inside(program.path, project.root):
        shown = program.path.absolute().relative_to(project.root.absolute()).as_posix()
    return {"name": program.name, "path": shown, "needed_by": list(program.needed_by)}


def _build_notes(project: Project, view: ConfigView) -> Iterator[str]:
    if view.document is None:
        yield f"there is no {project.lock.name}, so no configured server is approved; create it with pinwarden setup"
    started = (server.target.command[0] for server in view.servers if isinstance(server.target, StdioTarget))
    unfound = describe_unfound_program(project) if PROGRAM in started else None
    if unfound is not None:
        yield unfound


def _describe_programs(programs: Iterable[Mapping[str, Any]]) -> str:
    listed = tuple(programs)
    present = [program["name"] for program in listed if program["path"]]
    missing = [program["name"] for program in listed if not program["path"]]
    return f"on the search path: {', '.join(present) or 'no runner'}" + (
        f"; not there: {', '.join(missing)}" if missing else ""
    )


def _choose_next_command(view: ConfigView, rows: Sequence[Row], ok: bool) -> str | None:
    if view.document is None:
        unlockable = {row.name for row in rows if row.code in SECRET_KINDS and row.message.startswith(("args", "url"))}
        return SET_UP if any(server.name not in unlockable for server in view.servers) else None
    if ok:
        return _AFTER_NO_FINDINGS[any(row.code == "locked_files_missing" for row in rows)]
    first = min(filter(is_failing, rows), key=severity_rank, default=None)
    if first is not None and first.code in ("rogue_entry", "look_alike_entry"):
        return f"pinwarden explain {quote_name(first.name)}"
    if first is not None and first.code in SECRET_KINDS:
        return None  # the finding says what to write
    command = choose_after_finding(rows, {server.name for server in view.servers})
    return None if command == "pinwarden doctor" else command


def _summarize(view: ConfigView, rows: Iterable[Row], ok: bool) -> str:
    configured = plural(len(view.servers), "configured entry", "configured entries")
    checked = f"{len(view.locked)} locked and {configured} in {plural(len(view.files), 'file')}"
    if ok:
        return f"{checked}: everything is configured as approved" if view.locked else f"{checked}: no findings"
    failing = sum(map(is_failing, rows))
    return f"{checked}: {failing} finding{'' if failing == 1 else 's'}"
