"""Finds configurations in the repository that no lock covers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.core.report import COULD_NOT_CHECK, FindingKinds, Row, build_kind_table, is_failing
from pinwarden.project.gate.gate_report import GateResult, add_locations, build_unchecked_result
from pinwarden.system.repository import LineFinder

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfigFile
    from pinwarden.project.project import Policies, Project

UNCOVERED, NOT_CHECKED = "config_uncovered", "project_not_checked"
COVERAGE_KINDS: FindingKinds = build_kind_table(
    critical=((UNCOVERED, "MCP servers are configured in a folder of this repository that no lock covers."),),
    info=((NOT_CHECKED, "A folder of this repository has its own lock, which this run does not check completely."),),
)


def add_coverage(checked: GateResult, rows: Iterable[Row]) -> GateResult:
    """Add findings about folders of the repository outside all checked projects."""
    rows = list(rows)
    if not rows:
        return checked
    rows_by_check = {**checked.rows_by_check, "configs": [*checked.rows_by_check.get("configs", ()), *rows]}
    return replace(
        checked,
        rows_by_check=rows_by_check,
        checks_not_done={name: state for name, state in checked.checks_not_done.items() if name != "configs"},
    )


def check_coverage(root: Path, projects: Sequence[Project], policies: Policies) -> Iterator[Row]:
    """Find servers in folders of the repository that this run does not check as projects.

    Also reports risky settings in those folders, such as hooks, or settings that start servers without asking.
    """
    from pinwarden.clients.files import discover_project_configs, list_project_names
    from pinwarden.clients.findings import check_file
    from pinwarden.project.configs import build_waivable_row
    from pinwarden.system.repository import find_folders_containing

    checked = {project.root.resolve() for project in projects}
    first = projects[0]
    try:
        for folder in find_folders_containing(root, list_project_names()):
            if folder not in checked:
                nested = replace(first, root=folder, lock=folder / first.lock.name)
                if nested.lock.exists() or nested.lock.is_symlink():
                    yield from _check_nested_project(root, nested)
                for file in discover_project_configs(folder, first.system):
                    if file.servers or file.fault:
                        yield _build_coverage_row(root, folder, file, first.lock.name, policies)
                    if not file.fault:  # settings are reported even where a lock covers the servers
                        shown = Path(file.path).relative_to(root).as_posix()
                        yield from (build_waivable_row(finding, shown, policies) for finding in check_file(file))
    except PinwardenError as err:
        message = f"the repository was not searched for configurations: {err.message}"
        yield Row(code=COULD_NOT_CHECK, severity="critical", entity="repository", name="", path="", message=message)


def _check_nested_project(root: Path, project: Project) -> Iterator[Row]:
    """Yield the failures of a project that this run was not asked to check.

    Checks the project offline and without starting servers. Otherwise a pull request could hide a malicious
    configuration by adding a lock next to it.
    """
    from pinwarden.project.gate.check import GateOptions, check_project
    from pinwarden.project.project import load_policies
    from pinwarden.system.clock import now

    try:
        checked = check_project(project, load_policies(project), GateOptions(now=now()))
    except PinwardenError as err:
        checked = build_unchecked_result(project, err)
    yield from filter(is_failing, add_locations(project, checked, root, alone=False).rows)


def _build_coverage_row(root: Path, folder: Path, file: ConfigFile, lock: str, policies: Policies) -> Row:
    shown = folder.relative_to(root).as_posix()
    names = ", ".join(server.name for server in file.servers)[:200] or (file.problem or "")[:200]
    if (folder / lock).is_file():
        code, message = NOT_CHECKED, f"{names}: {shown} has its own {lock}; check it with --project {quote(shown)}"
    else:
        code = UNCOVERED
        message = (
            f"{names}: no lock covers {shown}; create one with: pinwarden init --scope project --project {quote(shown)}"
        )
    row = Row(
        code=code,
        severity=COVERAGE_KINDS[code].severity,
        entity="config",
        name=shown,
        path="",
        message=message,
        file=Path(file.path).relative_to(root).as_posix(),
        line=LineFinder(root).find_line(Path(file.path), [server.name for server in file.servers[:1]]),
    )
    if code != UNCOVERED or policies.own is None:
        return row
    from pinwarden.lock.policy_rules import apply_waivers

    finding = apply_waivers(policies.own, row.file or "", code, message, policies.today)
    return replace(row, severity=row.severity if finding.refuses else "info", message=finding.full_message)
