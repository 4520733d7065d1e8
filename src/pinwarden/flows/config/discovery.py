"""Lock what is already configured on this machine and in this repository, without needing a registry.

Each configured server becomes an entry whose approved configuration is what stands in the client's file, with every
literal value of a variable, header or unknown member replaced by a placeholder: the lock pins which variables a server
gets, never what is in them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from pinwarden.adapters import lock_store
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.documents import surface
from pinwarden.documents.clients.config import ConfigFile, ConfiguredServer
from pinwarden.documents.clients.table import client_of
from pinwarden.documents.launch.launched import what_runs
from pinwarden.documents.lock import entry as lock_entry
from pinwarden.documents.lock.extension import Approval, Extension, extended, pin_surface, surface_path
from pinwarden.documents.lock.relock import relock
from pinwarden.documents.server_entry import from_value
from pinwarden.documents.surface import Surface
from pinwarden.documents.target import HttpTarget
from pinwarden.flows.config.configured import CONFIGURED_IN, SOURCE
from pinwarden.flows.config.view import view_of
from pinwarden.flows.lock.locking import with_approved_surface
from pinwarden.flows.report import Report, Row
from pinwarden.rules.config.findings import findings_in
from pinwarden.rules.config.masking import (
    MASK,
    addresses_of,
    lockable_entry,
    looks_secret,
    shown_address,
    shown_words,
    words_in_the_open,
)
from pinwarden.rules.plan import Installation, install_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinwarden.adapters.probe.probe import ProbeOptions
    from pinwarden.flows.lock.locking import Approver
    from pinwarden.flows.project import Project

_REGISTRY_TYPES = {"npm": "npm", "pypi": "pypi", "oci": "oci", "nuget": "nuget"}
_LOCK_CLIENT = {"claude-desktop": "generic"}
"""Clients that lockfileVersion 2 does not know, under the one that has the same dialect."""
_LITERAL = re.compile(r"<([^<>\s]*[a-z][^<>\s]*)>")
"""A word in angle brackets that nobody would take for the name of a variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One configured server, and what became of it."""

    server: ConfiguredServer
    key: str
    surface: Surface | None = None
    unasked: str | None = None
    """Why its live surface was not approved."""
    refused: str | None = None
    """Why it was not locked."""


def lock_discovered(
    project: Project,
    *,
    now: str,
    approver: Approver,
    probe: ProbeOptions | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Find every configured server, lock it, and say what stands out.

    1. Read the configurations of all clients.
    2. Leave out what cannot be locked, with the reason.
    3. Ask the live servers, if that was allowed.
    4. Write all entries and approved surfaces in one step.
    """
    files = view_of(project, (), project.configs()).files  # servers of the user's other projects are their affair
    found = _choose(files)
    found = _ask_all(found, probe, on_progress)
    lockable = [each for each in found if each.refused is None]
    if lockable:
        _write(project, lockable, approver, now)
    return _report(project, files, found)


def _choose(files: Sequence[ConfigFile]) -> list[Found]:
    chosen: dict[str, Found] = {}
    refused: list[Found] = []
    for file in files:
        for server in file.servers:
            key = lock_entry.entry_key(server.name, lock_client(server.client))
            reason = _why_not(server)
            if reason is None and key in chosen:
                same = _fragment(server) == _fragment(chosen[key].server)
                reason = None if same else f"another file configures {server.name!a} differently for the same client"
                if same:
                    continue
            if reason is None:
                chosen[key] = Found(server=server, key=key)
            else:
                refused.append(Found(server=server, key=key, refused=reason))
    return [*chosen.values(), *refused]


def _why_not(server: ConfiguredServer) -> str | None:
    if server.target is None:
        return server.problem or "its entry cannot be used"
    if not server.name or len(server.name) > 200:
        return "its name is empty or too long"
    if _secret_in_the_open(server.entry):
        return "a secret stands in its arguments or address, where every process can read it; move it into a variable"
    return None


def _secret_in_the_open(entry: Any) -> bool:
    """Whether an argument or an address holds a secret: a lock must not, and neither should a command line."""
    for url in addresses_of(entry):
        place, _, query = url.partition("?")
        if MASK in shown_address(place) or any(looks_secret(name, value) for name, value in parse_qsl(query)):
            return True
    lines = [[_LITERAL.sub(r"\1", word) for word in words] for words in words_in_the_open(entry)]
    return any(shown_words(words) != words for words in lines)


def lock_client(client: str) -> str:
    """The client as lockfileVersion 2 knows it."""
    return _LOCK_CLIENT.get(client, client)


def _ask_all(
    found: list[Found], options: ProbeOptions | None, on_progress: Callable[[int, int], None] | None
) -> list[Found]:
    from dataclasses import replace

    if options is None:
        return [replace(each, unasked="nobody agreed to ask it") if each.refused is None else each for each in found]
    from pinwarden.adapters.probe.probe import probe_all

    wanted = [each for each in found if each.refused is None and not each.server.disabled]
    targets = [each.server.target for each in wanted if each.server.target is not None]
    outcomes = probe_all(
        targets, options, on_progress=(lambda step: on_progress(step.done, step.total)) if on_progress else None
    )
    answers = dict(zip([each.key for each in wanted], outcomes, strict=True))
    result: list[Found] = []
    for each in found:
        outcome = answers.get(each.key) if each.refused is None else None
        if isinstance(outcome, PinwardenError):
            result.append(replace(each, unasked=outcome.message))
        elif outcome is None:
            result.append(each if each.refused else replace(each, unasked="it is switched off"))
        elif outcome.digest is None:
            result.append(replace(each, refused="it sends an item that cannot be digested"))
        else:
            result.append(replace(each, surface=outcome))
    return result


def _write(project: Project, found: Sequence[Found], approver: Approver, now: str) -> None:
    folder = lock_store.surfaces_folder(project.lock)
    texts: dict[str, bytes] = {}
    entries: list[lock_entry.Entry] = []
    for each in found:
        path = surface_path(each.key, folder=folder)
        if each.surface is not None:
            texts[path] = surface.to_bytes(each.surface)
        extension = Extension(
            surface=None if each.surface is None else pin_surface(each.surface, path),
            approval=Approval(by=approver.by, at=now, why=approver.why),
            others={
                CONFIGURED_IN: {
                    "client": each.server.client,
                    "scope": each.server.scope,
                    "file": project.shown(each.server.path),
                }
            },
        )
        entries.append(extended(entry_of(each.server, now), extension))

    def change(old: Any) -> lock_store.Change:
        made = [with_approved_surface(old, entry) for entry in entries]
        return lock_store.Change(lock=relock(old, made, now), surfaces=texts)

    lock_store.update(project.lock, change)


def entry_of(server: ConfiguredServer, now: str) -> lock_entry.Entry:
    """The lock entry of a configured server."""
    made_up = from_value({"server": _server_json(server), "_meta": {}}, source=SOURCE)
    client = lock_client(server.client)
    how = Installation(scope="global" if server.scope == "global" else "project")
    plan = install_plan(made_up, client, now=now, how=how)
    fragment = _fragment(server)
    plan["config"] = fragment
    plan["locked"]["config"] = deepcopy(fragment)
    plan["notes"] = [f"Configured by hand in {server.client}."]
    return lock_entry.with_integrity(lock_entry.Entry(key=lock_entry.entry_key(server.name, client), document=plan))


def _server_json(server: ConfiguredServer) -> dict[str, Any]:
    target = server.target
    if target is None:
        raise PinwardenError("CONFIG_INVALID", f"{server.name[:80]!a} cannot be used: {server.problem}")
    launched = what_runs(target)
    document: dict[str, Any] = {
        "name": server.name,
        "description": "",
        "version": launched.version if launched.version and launched.pinned else "0.0.0",
    }
    if isinstance(target, HttpTarget):
        kind = "sse" if target.transport == "sse" else "streamable-http"
        return {**document, "remotes": [{"type": kind, "url": launched.identity}]}
    package = launched.via or launched
    identifier = f"{package.identity}@{package.digest}" if package.digest else package.identity
    row: dict[str, Any] = {
        "registryType": _REGISTRY_TYPES.get(package.kind, package.kind),
        "identifier": identifier,
        "transport": {"type": "stdio"},
    }
    if package.version:
        row["version"] = package.version
    return {**document, "packages": [row]}


def _fragment(server: ConfiguredServer) -> dict[str, Any]:
    """The entry inside its client's root, without any literal value that could be a secret."""
    client = client_of(server.client)
    entry = lockable_entry(server.entry)
    root: Any = [entry] if client.dialect.named_list else {server.name: entry}
    for step in reversed(client.root):
        root = {step: root}
    fragment: dict[str, Any] = root
    return fragment


def _report(project: Project, files: Sequence[ConfigFile], found: Sequence[Found]) -> Report:
    locked = [each for each in found if each.refused is None]
    rows = [
        Row(
            code="not_locked",
            level="critical",
            entity="config",
            name=each.server.name,
            path="",
            message=f"not locked: {each.refused}",
            file=project.shown(each.server.path),
        )
        for each in found
        if each.refused is not None
    ]
    rows += [
        Row(
            code=finding.code,
            level=finding.severity,
            entity="config",
            name=finding.name,
            path=finding.pointer,
            message=finding.message,
            file=project.shown(finding.file),
        )
        for finding in findings_in(files)
    ]
    asked = sum(each.surface is not None for each in locked)
    notes = [f"{each.server.name}: its tools are not pinned: {each.unasked}" for each in locked if each.unasked]
    return Report(
        command="init",
        subject=project.lock.name,
        summary=(
            f"{len(locked)} of {len(found)} configured servers locked in {project.lock.name}, "
            f"{asked} with their live surface; {len(rows)} findings"
            if found
            else "no MCP servers are configured for this project or user"
        ),
        exit_code=EXIT_REFUSED if any(each.refused for each in found) else EXIT_CLEAN,
        rows=tuple(sorted(rows, key=lambda row: ("critical", "review", "warning", "info").index(row.level))),
        notes=tuple(notes),
        facts={
            "files": [{"client": file.client, "scope": file.scope, "path": project.shown(file.path)} for file in files],
            "servers": [_facts(project, each) for each in found],
            "findings": [_row_facts(row) for row in rows],
        },
    )


def _facts(project: Project, each: Found) -> dict[str, Any]:
    launched = what_runs(each.server.target) if each.server.target else None
    facts: Mapping[str, Any] = {
        "name": each.server.name,
        "client": each.server.client,
        "scope": each.server.scope,
        "file": project.shown(each.server.path),
        "runs": launched.purl or launched.identity if launched else None,
        "pinned": launched.pinned if launched else False,
        "locked": each.refused is None,
        "surface": str(each.surface.digest) if each.surface else None,
        "reason": each.refused or each.unasked,
    }
    return dict(facts)


def _row_facts(row: Row) -> dict[str, Any]:
    return {
        "code": row.code,
        "severity": row.level,
        "server": row.name,
        "file": row.file,
        "pointer": row.path,
        "message": row.message,
    }
