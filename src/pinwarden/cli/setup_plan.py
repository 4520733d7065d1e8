"""The plan of ``setup``: one screen that says what would be written, started and edited, and one question about it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pinwarden.cli.questions import QUIT, ask, quote_server, show_in_pages
from pinwarden.cli.render.text import wrap
from pinwarden.cli.setup_steps import QuitSetup, Setup
from pinwarden.clients.table import get_client
from pinwarden.core.record import Record, replace
from pinwarden.core.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pinwarden.project.approve import PreparedServer
    from pinwarden.project.enforcement_preview import EnforcementPreview
    from pinwarden.project.servers_to_approve import ServerToApprove


_ABOUT_EDITS = (
    "The answer show prints every edit as a diff. Each file is backed up first; pinwarden enforce --undo restores it."
)


class SetupPlan(Record):
    """What the steps would do."""

    pinned_files: int
    """How many files would get exact releases."""
    diff: str
    """The edits that write these releases, as a unified diff."""
    new_servers: tuple[str, ...]
    """The servers that would be locked next to those of an earlier lock, with their clients."""
    commands: tuple[str, ...]
    """The servers that would be started, with the commands after pinning."""
    addresses: tuple[str, ...]
    """The addresses that would be contacted."""
    unverified: tuple[str, ...]
    """The servers whose package would be downloaded and hashed: scope and name, once for each configured release."""
    preview: EnforcementPreview
    """The edits that would let the clients start the servers through ``pinwarden run``."""

    @property
    def needs_question(self) -> bool:
        """Whether more than one step needs consent, or a server is new. Otherwise the step asks for itself."""
        steps = (self.pinned_files, self.unverified, self.commands or self.addresses, self.preview.diffs)
        return bool(self.new_servers) or sum(map(bool, steps)) > 1


def agree_to_plan(setup: Setup) -> Setup:
    """Show the plan and ask about it. The answer ``choose`` leaves it to each step to ask.

    Raises QuitSetup.
    """
    if not setup.asks:
        return setup
    plan = _build_plan(setup)
    if not plan.needs_question:
        return setup
    sys.stdout.write("\nPlan\n" + "".join(wrap(line, label="- ") for line in _describe_plan(plan)))
    if plan.diff or plan.preview.diffs:
        sys.stdout.write(wrap(_ABOUT_EDITS))
    while (answer := ask("Go ahead with this plan?", ("yes", "show", "choose", QUIT), "yes")) == "show":
        if show_in_pages(_render_in_full(plan), can_go_back=True) == QUIT:
            raise QuitSetup
    if answer == QUIT:
        raise QuitSetup
    return replace(setup, preview=plan.preview, plan_agreed=answer == "yes")


def _build_plan(setup: Setup) -> SetupPlan:
    from pinwarden.cli.setup_review import find_unapproved, prepare_servers
    from pinwarden.project.enforcement_preview import preview_enforcement
    from pinwarden.project.pin import build_diff, list_file_edits

    unapproved = find_unapproved(setup)
    prepared = list(prepare_servers(setup, unapproved, silent=True))
    unverified = [f"{server.scope} {server.name}" for server in setup.statuses() if server.verified in ("no", "partly")]
    refused = {
        (configured.configured.path, configured.configured.pointer)
        for server in unapproved
        if server.problem is not None
        for part in server.parts
        for configured in part.configured
    }
    preview = preview_enforcement(
        setup.projects,
        setup.pins,
        lambda project, server: (
            not (setup.leaves_out(project.scope, server.name) or (server.path, server.pointer) in refused)
        ),
    )
    return SetupPlan(
        pinned_files=len(list_file_edits(setup.pins)),
        diff=build_diff(setup.pins),
        new_servers=tuple(_list_new_servers(unapproved)),
        commands=tuple(_describe_pinned(setup, *pair) for pair in prepared if pair[1].is_started),
        addresses=tuple(ready.description for _, ready in prepared if not ready.is_started),
        unverified=tuple(unverified),
        preview=preview,
    )


def _list_new_servers(servers: Sequence[ServerToApprove]) -> Iterator[str]:
    """Yield the servers that the answer ``yes`` locks: they are new next to a lock, and resemble no locked server."""
    for server in servers:
        new = [
            configured.configured
            for part in server.parts
            for configured in part.configured
            if configured.refused is None and part.discovery.is_only_new(configured)
        ]
        if new:
            clients = dict.fromkeys(get_client(one.client).title for one in new)
            yield f"{quote_server(server.name)} in {', '.join(clients)}"


def _describe_pinned(setup: Setup, server: ServerToApprove, ready: PreparedServer) -> str:
    """Return the command of a server with the exact release that would be written first."""
    scopes = {part.project.scope for part in server.parts}
    words = [
        pin.argument
        for plan in setup.pins
        if plan.project.scope in scopes
        for pin in plan.pins
        if pin.server.name == server.name
    ]
    described = ready.description
    for word in words[:1]:
        described = " ".join(word.new if part == word.old else part for part in described.split(" "))
    return f"{server.name}: {described}"


def _describe_plan(plan: SetupPlan) -> Iterator[str]:
    """Yield one line for each step that has something to do."""
    if plan.new_servers:
        yield f"Lock what is new: {', '.join(plan.new_servers)}."
    if plan.pinned_files:
        yield f"Pin: write exact releases into {plural(plan.pinned_files, 'file')}."
    if plan.unverified:
        count, releases = len(set(plan.unverified)), len(plan.unverified)
        packages = "the package of 1 server" if releases == 1 else f"the packages of {plural(count, 'server')}"
        packages += f" ({releases} releases)" if releases > count else ""
        yield f"Verify: download and hash {packages} with all dependencies. This runs no package code."
    actions = [f"start {plural(len(plan.commands), 'server')} once"] if plan.commands else []
    actions += [f"connect to {', '.join(plan.addresses)}"] if plan.addresses else []
    if actions:
        yield f"Review: {' and '.join(actions)}, to read the tools. Then you decide on each server."
    if plan.preview.diffs:
        yield (
            f"Enforce: edit {plural(len(plan.preview.diffs), 'file')}, so that the clients start the servers that you "
            "approve through pinwarden run, which blocks changes."
        )


def _render_in_full(plan: SetupPlan) -> str:
    """Return every command, address and edit of the plan."""
    lines = [f"start {command}" for command in plan.commands]
    lines += [f"connect to {address}" for address in plan.addresses]
    text = "".join(wrap(line, label="- ") for line in lines)
    if plan.diff:
        text += f"\nEdits that pin:\n{plan.diff}"
    if plan.preview.diffs:
        text += "\nEdits that enforce, for the servers that you approve:\n"
        text += "".join(f"{diff}\n\n" for _, diff in plan.preview.diffs)
    return text
