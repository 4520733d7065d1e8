"""The report of ``pinwarden ci``. A check that was not done is reported as skipped and never counts as ok."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from pinwarden.clients.table import list_client_titles
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED, PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.core.report import (
    COULD_NOT_CHECK,
    Report,
    Row,
    is_failing,
    row_to_json,
    severity_rank,
)
from pinwarden.core.text import plural
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import has_approved_tools, read_extension
from pinwarden.lock.locked_config import NON_REGISTRY_SOURCES
from pinwarden.lock.lockfile import Lock, read_skills_pin
from pinwarden.project.gate.integrity import OUTDATED_SURFACE, UNPINNED
from pinwarden.project.gate.rule_texts import RULE_TEXTS
from pinwarden.system.repository import LineFinder

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfigFile
    from pinwarden.project.gate.check import GateOptions
    from pinwarden.project.project import Policies, Project


CHECKS = ("integrity", "signature", "configs", "skills", "policy", "registry", "bytes", "scripts", "advisories", "live")


class GateResult(Record):
    """The outcome of the checks in one project."""

    subject: str
    """The path of the lock, relative to the repository's root."""
    entries: int = 0
    unconfigured: bool = False
    """Whether there is neither a lock nor a configured server."""
    rows_by_check: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    """The rows of each check in ``CHECKS``."""
    checks_not_done: Mapping[str, str] = field(default_factory=dict)
    """The checks that were ``skipped``, and those for which there was ``none`` to check."""
    entry_counts: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    servers: frozenset[str] = frozenset()
    """The names of the locked servers."""
    without_tools: bool = False
    """Whether a locked server has no approved surface, or one for another release."""
    skills: Mapping[str, int] = field(default_factory=dict)
    """How many approved skills and instruction files were compared with those on disk, by what they are called."""

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all checks."""
        return tuple(row for group in self.rows_by_check.values() for row in group)


def build_gate_result(  # noqa: PLR0913
    project: Project,
    lock: Lock,
    config_files: Sequence[ConfigFile],
    rows_by_check: Mapping[str, Sequence[Row]],
    *,
    options: GateOptions,
    policies: Policies,
) -> GateResult:
    """Return the outcome for a project that has a lock."""
    failed_names = {
        name: {row.name for row in group if row.code == COULD_NOT_CHECK} for name, group in rows_by_check.items()
    }
    return GateResult(
        subject=project.display_path(project.lock),
        entries=len(lock.entries),
        rows_by_check=rows_by_check,
        checks_not_done=_list_checks_not_done(lock, options, policies),
        entry_counts=_count_entries(lock, options),
        notes=(*_describe_scope(project, config_files, options), *_describe_coverage(lock, options, failed_names)),
        servers=frozenset(entry.name for entry in lock.entries),
        without_tools=not all(map(has_approved_tools, lock.entries)),
    )


def build_gate_report(projects: Sequence[GateResult]) -> Report:
    """Return the report of all checks, in one project or several."""
    rows = [row for checked in projects for row in checked.rows]
    unchecked = [row for row in rows if row.code == COULD_NOT_CHECK]
    drift = [row for row in rows if is_failing(row) and row.code != COULD_NOT_CHECK]
    exit_code = EXIT_REFUSED if drift else EXIT_UNCHECKED if unchecked else EXIT_CLEAN
    notes = tuple(dict.fromkeys(note for checked in projects for note in (*checked.notes, *_describe_way_out(checked))))
    return Report(
        command="ci",
        subject=", ".join(checked.subject for checked in projects),
        summary=_summarize(projects, drift, unchecked, rows),
        exit_code=exit_code,
        rows=tuple(sorted(rows, key=severity_rank)),
        notes=notes,
        next_command=_choose_next_command(projects, rows),
        file=projects[0].subject,
        facts={
            "ok": exit_code == EXIT_CLEAN,
            "checkedEntries": sum(checked.entries for checked in projects),
            "checks": {
                name: _choose_worst_state(_find_state(checked, name) for checked in projects) for name in CHECKS
            },
            "requested": {
                name: sum(project.entry_counts.get(name, 0) for project in projects)
                for name in ("registry", "bytes", "live")
            },
            "failures": [row_to_json(row) for row in drift],
            "unchecked": [row_to_json(row) for row in unchecked],
            "remarks": [row_to_json(row) for row in rows if row.severity in ("warning", "info")],
            "notes": list(notes),
            "clientsLookedFor": list(list_client_titles()),
            "projects": [
                {
                    "lock": checked.subject,
                    "checkedEntries": checked.entries,
                    "checks": {name: _find_state(checked, name) for name in CHECKS},
                }
                for checked in projects
            ],
        },
        rule_texts=RULE_TEXTS,
    )


def _choose_next_command(projects: Sequence[GateResult], rows: Sequence[Row]) -> str | None:
    """Return the command that fixes the most severe finding or, without findings, runs a check that was skipped."""
    from pinwarden.project.next_step import APPROVE_ALL, CHECK_LIVE, choose_after_finding

    if any(map(is_failing, rows)):
        return choose_after_finding(rows, frozenset().union(*(checked.servers for checked in projects)))
    if any(checked.without_tools for checked in projects):
        return APPROVE_ALL
    live_skipped = any(checked.checks_not_done.get("live") == "skipped" for checked in projects)
    return CHECK_LIVE if live_skipped else None


def _describe_way_out(checked: GateResult) -> Iterator[str]:
    """Say what to consider before approving a critical finding, and how, if the next command only shows it."""
    critical = [
        check
        for check in ("configs", "live")
        for row in checked.rows_by_check.get(check, ())
        if row.severity == "critical"
    ]
    if "configs" in critical:
        yield "a critical finding may be an attack; if it is intended, approve the server: pinwarden approve NAME"
    elif critical:
        yield "a critical finding may be an attack: approve it only if it is intended"


def has_closures(lock: Lock) -> bool:
    """Whether the dependencies of any entry are locked."""
    return any((known := read_extension(entry)) is not None and known.closure is not None for entry in lock.entries)


def build_nothing_to_check_row(check: str, why: str) -> Row:
    """Build the row for a check that was requested but has nothing to check."""
    return Row(code=COULD_NOT_CHECK, severity="review", entity="lock", name="", path="", message=f"{check}: {why}")


def _choose_worst_state(states: Iterable[str]) -> str:
    """Return the state of a check over several projects: failed if it failed in one, else ok if it was done in one."""
    known = set(states)
    return next(state for state in ("failed", "ok", "none", "skipped") if state in known)


def _find_state(checked: GateResult, name: str) -> str:
    failing = [row for row in checked.rows_by_check.get(name, ()) if is_failing(row)]
    nothing = checked.checks_not_done.get(name)
    if failing and not (nothing == "none" and all(row.code == COULD_NOT_CHECK for row in failing)):
        return "failed"
    return nothing or "ok"


def _list_checks_not_done(lock: Lock, options: GateOptions, policies: Policies) -> dict[str, str]:
    """Return the state of checks that were not done: ``skipped``, or ``none`` if there was nothing to check."""
    off = {
        "signature": options.signatures is None,
        "configs": not options.configs,
        "registry": options.registries is None,
        "bytes": options.fetch_context is None,
        "advisories": options.osv is None,
        "live": options.probe is None,
    }
    empty = {
        "policy": not policies.has_policy,
        "skills": read_skills_pin(lock) is None,
        "scripts": not has_closures(lock),
        **{name: count == 0 for name, count in _count_entries(lock, options).items()},
    }
    return {name: "none" for name, nothing in empty.items() if nothing} | {
        name: "skipped" for name, skipped in off.items() if skipped
    }


_NamesByCheck = Mapping[str, Collection[str]]


def _count_entries(lock: Lock, options: GateOptions, without: _NamesByCheck = MappingProxyType({})) -> dict[str, int]:
    """Count the entries that each online check covers, except entries named in ``without``."""

    def count(kind: str, is_on: bool, fits: Callable[[Entry], bool]) -> int:
        return sum(fits(entry) and entry.name not in without.get(kind, ()) for entry in lock.entries) if is_on else 0

    return {
        "registry": count(
            "registry", options.registries is not None, lambda entry: entry.source not in NON_REGISTRY_SOURCES
        ),
        "bytes": count("bytes", options.fetch_context is not None, _has_bytes),
        "live": count("live", options.probe is not None, has_approved_tools),
    }


def _has_bytes(entry: Entry) -> bool:
    from pinwarden.project.locked_servers import has_pinned_bytes

    return has_pinned_bytes(entry)


def _describe_scope(project: Project, config_files: Sequence[ConfigFile], options: GateOptions) -> Iterator[str]:
    """Say how many servers are enforced, and that servers of the user are not part of the check."""
    if not options.configs or project.scope != "project":
        return
    from pinwarden.project.configs import describe_enforcement
    from pinwarden.project.project import SCOPES, project_in_scope

    enforcement = describe_enforcement(config_files)
    if enforcement is not None:
        yield enforcement
    own = sum(len(project_in_scope(project, scope).find_servers()) for scope in SCOPES if scope != "project")
    if own:
        yield f"{plural(own, 'server')} of your own not checked: ci is about the project (--scope user checks yours)"


def _describe_coverage(lock: Lock, options: GateOptions, failed_names: _NamesByCheck) -> Iterator[str]:
    """Describe what was checked. ``failed_names`` has, for each check, the servers that could not be checked."""
    if options.configs:
        yield f"searched the configuration files of {len(list_client_titles())} clients (--format json lists them)"
    unpinned = hashed = 0
    for entry in lock.entries:
        extension = read_extension(entry)
        if extension is None or extension.surface is None:
            hashed, unpinned = hashed + entry.has_tool_hashes, unpinned + (not entry.has_tool_hashes)
    entries = len(lock.entries)
    if unpinned:
        yield f"{unpinned} of {entries} entries have no approved surface: changes of their tools are not detected"
    if hashed:
        yield f"{hashed} of {entries} entries have only ToolPin's tool hashes, which cover just a part of each tool"
    yield from _describe_unchecked_members(lock)
    covered = _count_entries(lock, options, failed_names)
    # --live includes the registry lookup; do not mention it for a lock without registry entries.
    if options.registries is not None and (options.registry_requested or covered["registry"]):
        option = "--registry" if options.registry_requested else "--live"
        yield f"{option} looked up {covered['registry']} of {plural(entries, 'entry', 'entries')}"
    if options.fetch_context is not None:
        yield f"--bytes downloaded and hashed the artifacts of {covered['bytes']} of {entries} entries"
    if options.probe is None:
        yield "live servers were not checked (--live)"
    else:
        yield f"--live checked the servers of {covered['live']} of {plural(entries, 'entry', 'entries')}"


def _describe_unchecked_members(lock: Lock) -> Iterator[str]:
    from pinwarden.lock.locked_config import describe_uncovered_members, read_locked_config
    from pinwarden.system.redaction import list_redacted_members

    for entry in lock.entries:
        unseen = list_redacted_members(read_locked_config(entry.key, entry.document).approved)
        if unseen:
            yield describe_uncovered_members(entry.name, unseen)


def _summarize(
    projects: Sequence[GateResult], drift: Sequence[Row], unchecked: Sequence[Row], rows: Sequence[Row]
) -> str:
    if all(checked.unconfigured for checked in projects) and not (drift or unchecked):
        return "No MCP servers are configured here: nothing to check"
    counts: Counter[str] = Counter()
    for checked in projects:
        counts.update(checked.skills)
    compared = [plural(sum(checked.entries for checked in projects), "entry", "entries")]
    compared += (plural(counts[noun], noun) for noun in sorted(counts, reverse=True))
    entries = f"{' and '.join(filter(None, (', '.join(compared[:-1]), compared[-1])))} checked"
    if len(projects) > 1:
        entries = f"{len(projects)} projects, {entries}"
    if drift:
        critical = sum(row.severity == "critical" for row in drift)
        return f"{entries}: {plural(len(drift), 'finding')}, {critical} of them critical"
    if unchecked:
        return f"{entries}: {len(unchecked)} could not be checked"
    noted = f", {plural(len(rows), 'remark')}" if rows else ""
    unread = sum(row.code == OUTDATED_SURFACE for row in rows)
    if unread:
        outdated = f"{plural(unread, 'server')} changed version or configuration since approval"
        return f"{entries}: {outdated}; everything else is as approved{noted}"
    pinned = "everything that is pinned" if any(row.code == UNPINNED for row in rows) else "everything"
    return f"{entries}: {pinned} is as approved{noted}"


def build_unchecked_result(project: Project, err: PinwardenError) -> GateResult:
    """Return the result for a project that could not be checked, so that other projects are still reported."""
    lock, root = project.lock, project.root
    # The path is not resolved, so that the report names a symbolic link instead of its target.
    file = lock.relative_to(root).as_posix() if lock.is_relative_to(root) else project.display_path(lock)
    row = Row(
        code=COULD_NOT_CHECK,
        severity="critical",
        entity="project",
        name=root.name,
        path="",
        message=f"{err.message} [{err.code}]; {err.hint}",
        file=file,
    )
    return GateResult(subject=file, rows_by_check={"integrity": [row]})


# Where the findings are


def add_locations(project: Project, checked: GateResult, root: Path | None, *, alone: bool) -> GateResult:
    """Give the findings line numbers and paths relative to the repository's root, as pull request viewers need.

    A row without a file is about the lock. Such a row gets the lock's path, unless the report is about one project.
    """
    prefix = _find_prefix(project.root, root)
    lines = LineFinder(project.root)
    lock = project.display_path(project.lock)

    def locate(row: Row) -> Row:
        file = row.file or lock
        line = row.line
        if line is None and not file.startswith("~/"):
            line = lines.find_line(Path(file), [row.name])
        return replace(row, file=None if alone and row.file is None else _add_prefix(file, prefix), line=line)

    rows_by_check = {name: [locate(row) for row in rows] for name, rows in checked.rows_by_check.items()}
    return replace(checked, subject=_add_prefix(checked.subject, prefix), rows_by_check=rows_by_check)


def _find_prefix(folder: Path, root: Path | None) -> str:
    """Return the path from the repository's root to a project with a trailing slash; empty for the root itself."""
    try:
        prefix = folder.resolve().relative_to(root).as_posix() if root is not None else "."
    except (OSError, RuntimeError, ValueError):
        return ""
    return "" if prefix == "." else f"{prefix}/"


def _add_prefix(file: str, prefix: str) -> str:
    return file if file.startswith(("~/", "/")) or file[1:3] == ":/" or file[1:3] == ":\\" else prefix + file
