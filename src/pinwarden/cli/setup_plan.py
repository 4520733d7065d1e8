"""The plan of ``setup``: one screen that says what would be written, started and edited, and one question about it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pinwarden.cli.questions import QUIT, ask
from pinwarden.cli.render.text import wrap
from pinwarden.cli.setup_steps import QuitSetup, Setup
from pinwarden.core.record import Record, replace
from pinwarden.core.report import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinwarden.project.status import ServerStatus


class SetupPlan(Record):
    """What the steps would do."""

    pinned_files: int
    """How many files would get exact releases."""
    diff: str
    """The edits that write these releases, as a unified diff."""
    commands: tuple[str, ...]
    """The servers that would be started, with their commands."""
    addresses: tuple[str, ...]
    """The addresses that would be contacted."""
    unverified: int
    """How many packages would be downloaded and hashed."""
    files: tuple[tuple[str, tuple[str, ...]], ...]
    """The files whose servers would be enforced, with the names of these servers."""

    @property
    def has_several_steps(self) -> bool:
        """Whether more than one step needs consent. One step alone asks for itself."""
        return sum(map(bool, (self.pinned_files, self.commands or self.addresses, self.files))) > 1


def agree_to_plan(setup: Setup) -> Setup:
    """Show the plan and ask about it. The answer ``choose`` leaves it to each step to ask.

    Raises QuitSetup.
    """
    plan = _build_plan(setup)
    if not setup.asks or not plan.has_several_steps:
        return setup
    sys.stdout.write("\nPlan\n" + "".join(wrap(line, label="- ") for line in _describe_plan(plan)) + plan.diff)
    while (answer := ask("Go ahead with this plan?", ("yes", "show", "choose", QUIT), "yes")) == "show":
        sys.stdout.write("".join(wrap(line, label="- ") for line in _describe_in_full(plan)))
    if answer == QUIT:
        raise QuitSetup
    return replace(setup, plan_agreed=answer == "yes")


def _build_plan(setup: Setup) -> SetupPlan:
    from pinwarden.cli.setup_review import find_unapproved, prepare_servers
    from pinwarden.project.pin import build_diff, list_file_edits

    prepared = [server for _, server in prepare_servers(setup, find_unapproved(setup), silent=True)]
    servers = setup.statuses()
    return SetupPlan(
        pinned_files=len(list_file_edits(setup.pins)),
        diff=build_diff(setup.pins),
        commands=tuple(server.description for server in prepared if server.is_started),
        addresses=tuple(server.description for server in prepared if not server.is_started),
        unverified=sum(server.verified in ("no", "partly") for server in servers),
        files=tuple(_list_files_to_enforce(servers)),
    )


def _list_files_to_enforce(servers: tuple[ServerStatus, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    left = [server for server in servers if server.enforced in ("no", "partly") and not server.disabled]
    for file in dict.fromkeys(file for server in left for file in server.files):
        yield file, tuple(dict.fromkeys(server.name for server in left if file in server.files))


def _describe_plan(plan: SetupPlan) -> Iterator[str]:
    """Yield one line for each step that has something to do."""
    if plan.pinned_files:
        yield f"Pin: write exact releases into {plural(plan.pinned_files, 'file')}, as shown below."
    if plan.unverified:
        packages = plural(plan.unverified, "package")
        yield f"Verify: download and hash {packages} with all dependencies. This runs no code of them."
    actions = [f"start {plural(len(plan.commands), 'server')} once"] if plan.commands else []
    actions += [f"connect to {', '.join(plan.addresses)}"] if plan.addresses else []
    if actions:
        yield f"Review: {' and '.join(actions)}, to read the tools. Then you decide about each server."
    if plan.files:
        yield (
            f"Enforce: edit {plural(len(plan.files), 'file')}, so that the clients start the servers that you approve "
            "through pinwarden run, which blocks changes. Each edit is shown, each file is backed up, and "
            "pinwarden enforce --undo restores it."
        )


def _describe_in_full(plan: SetupPlan) -> Iterator[str]:
    """Yield every command, address and file of the plan."""
    yield from (f"start: {command}" for command in plan.commands)
    yield from (f"connect to: {address}" for address in plan.addresses)
    for file, names in plan.files:
        yield f"edit {file}: the command of {', '.join(names)} becomes pinwarden run NAME, with options"
