"""Install a server from a registry of bundles: judge, bring, lock, configure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.artifacts.environments.store import Store
from pinwarden.bundle import acceptance_result as provenance_document
from pinwarden.bundle.acceptance_result import ACCEPT, REJECT, Rejection, rejection_from_error
from pinwarden.bundle.bundle_pin import REGISTRY_TYPE, bundle_pin_to_json, find_bundle_pin
from pinwarden.clients.files import install_entry
from pinwarden.clients.launch.parse import PROGRAM
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Report, Row
from pinwarden.install.decision import Accepted, Judged, Question, judge
from pinwarden.install.staging import HERE, Brought, bring, pin_of
from pinwarden.lock import entry as lock_entry
from pinwarden.lock import lock_store
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import Extension, extended
from pinwarden.lock.install_plan import Installation, Scope, install_plan
from pinwarden.lock.locked_config import INSTALLED
from pinwarden.lock.server_entry import from_value
from pinwarden.project.approvable import Approvable, not_approved
from pinwarden.project.enforce import start_words
from pinwarden.project.lock import LockWriting, extension_for, offered_surface, write_entries
from pinwarden.project.policies import broken_rules
from pinwarden.project.project import Policies, Project

if TYPE_CHECKING:
    from pinwarden.install.sources import BundleSource

LETTER = "by the letter of the rulebook, which leaves holes open: no freshness, no bound roles, no bound manifest"


class Installing(Record):
    """What an install needs besides the question."""

    project: Project
    source: BundleSource
    store: Store
    placed: Placed
    policies: Policies
    writing: LockWriting
    ask: bool = False
    """Whether the server may be started, in its sandbox, to learn what it tells the model."""


def install(question: Question, installing: Installing) -> Report:
    """The report of ``pinwarden install``.

    1. Take the plan: the nine steps, the log, every byte. Nothing is written but what was seen of the log.
    2. Put the files into the store and unpack them.
    3. Learn what the server tells the model. Text with scan warnings is refused unless the warnings are approved.
    4. Write the entry with its provenance, and the approved text, in one step.
    5. Write the configuration of the clients that were named.
    """
    offered: Approvable | None = None
    judged = judge(question, installing.source)
    if judged.accepted is None:
        return refused_report(question, judged)
    try:
        _refuse_other_version(installing.project, judged.accepted)
        brought = brought_bundle(question, installing, judged.accepted)
        offered = offered_surface(installing.project, brought.pin.tool, brought.surface, installing.writing)
        if offered is not None and offered.blocked:
            raise not_approved(offered)
        made = lock_bundle(
            installing.project, brought, offered, installing.placed, installing.policies, installing.writing
        )
        configured = _configure(installing, made)
    except PinwardenError as err:
        stopped = Judged(lines=judged.lines, refusal=rejection_from_error(err), exit_code=err.exit_code)
        report = refused_report(question, stopped)
        return replace(report, rows=(*report.rows, *(offered.warnings if offered is not None else ())))
    return _installed_report(question, judged, brought, made, configured)


def brought_bundle(question: Question, installing: Installing, accepted: Accepted) -> Brought:
    """What was accepted, in the store and asked."""
    pin = pin_of(accepted, installing.source, question.floor, literal=question.literal)
    return bring(installing.project, accepted, pin, installing.store, installing.source, ask=installing.ask)


def _refuse_other_version(project: Project, accepted: Accepted) -> None:
    """What was approved is changed by an update, which shows the drift; never by installing again."""
    lock, found = lock_store.read(project.lock), accepted.documents
    for entry in lock.entries if lock else ():
        pin = find_bundle_pin(entry) if entry.name == found.descriptor.name else None
        if pin is not None and (pin.root_cid, pin.descriptor_cid) != (found.root_cid, found.descriptor_cid):
            raise PinwardenError(
                "VERSION_LOCKED",
                f"{pin.tool} {pin.version} is locked, and {pin.channel} is at {found.descriptor.version}",
                data={"locked": pin.root_cid, "offered": found.root_cid},
            )


def _configure(installing: Installing, made: list[Entry]) -> list[dict[str, str]]:
    """The clients' own files, for those that have one. The generic client is only locked for."""
    project = installing.project
    paths = project.config_paths()
    done: list[dict[str, str]] = []
    for entry in made:
        place = paths.get((entry.client, entry.scope))
        if entry.client != "generic" and place is None:
            raise PinwardenError("USAGE", f"{entry.client} has no configuration file of scope {entry.scope}")
        if place is not None and entry.client != "generic":
            action = install_entry(Path(place), entry.client, entry.name, entry.config)
            done.append({"client": entry.client, "file": project.shown(place), "action": action})
    return done


def refused_report(question: Question, judged: Judged, command: str = "install") -> Report:
    """Why nothing was installed: one code, what, why and what to do."""
    refusal = judged.refusal
    if refusal is None:
        raise TypeError("a refused install has a refusal")
    row = Row(
        code=refusal.code,
        severity="critical" if judged.exit_code == EXIT_REFUSED else "review",
        entity="bundle",
        name=question.tool,
        path="",
        message=refusal.what,
    )
    return Report(
        command=command,
        subject=question.tool,
        summary=f"REJECT {refusal.code}: {refusal.fix}",
        exit_code=judged.exit_code,
        rows=(row,),
        notes=_notes(question, judged),
        facts={
            "result": REJECT,
            "error": refusal_value(refusal),
            "plan": [line.to_json() for line in judged.lines],
            "literal": question.literal,
        },
        rule_texts={refusal.code: refusal.fix},
    )


def refusal_value(refusal: Rejection) -> dict[str, Any]:
    """A refusal as JSON."""
    return {"code": refusal.code, "what": refusal.what, "why": dict(refusal.why), "fix": refusal.fix}


def _notes(question: Question, judged: Judged) -> tuple[str, ...]:
    lines = tuple(str(line) for line in judged.lines)
    return (*lines, LETTER) if question.literal else lines


def _installed_report(
    question: Question, judged: Judged, brought: Brought, made: list[Entry], configured: list[dict[str, str]]
) -> Report:
    pin, accepted = brought.pin, judged.accepted
    if accepted is None:
        raise TypeError("an install was accepted")
    notes = list(_notes(question, judged))
    if brought.surface is None:
        notes.append(f"what it tells the model is not approved, because nobody knows it: {brought.problem}")
    elif pin.surface_from != HERE:
        notes.append("what it tells the model is approved as its registry wrote it down; --allow-execute asks it here")
    fresh = accepted.fresh
    return Report(
        command="install",
        subject=pin.tool,
        summary=f"ACCEPT {pin.tool} {pin.version} on {pin.channel}; start it with: pinwarden run {pin.tool}",
        exit_code=EXIT_CLEAN,
        notes=tuple(notes),
        facts={
            "result": ACCEPT,
            "provenance": provenance_document.provenance_to_json(accepted.provenance),
            "plan": [line.to_json() for line in judged.lines],
            "literal": question.literal,
            "version": pin.version,
            "registry": pin.registry,
            "content_hash": str(pin.archive),
            "api_surface": brought.api_surface,
            "surface": str(brought.surface.digest) if brought.surface else None,
            "surface_from": pin.surface_from,
            "policy": {
                "network": pin.policy.network,
                "filesystem": pin.policy.filesystem,
                "exec": pin.policy.exec,
            },
            "log": {"id": fresh.log_id, "index": fresh.index, "size": fresh.size} if fresh else None,
            "entries": [{"key": each.key, "integrity": each.integrity} for each in made],
            "configs": configured,
        },
    )


def is_locked(project: Project, name: str) -> bool:
    """Whether the lock has a server of that name that was not installed from a registry of bundles."""
    from pinwarden.project.run import is_bundle

    lock = lock_store.read(project.lock)
    return lock is not None and any(each.name == name and not is_bundle(each) for each in lock.entries)


class Placed(Record):
    """For whom a bundle is locked."""

    clients: tuple[str, ...] = ("generic",)
    scope: Scope = "project"
    variables: tuple[str, ...] = ()
    """Names of the variables that it is given."""


def lock_bundle(  # noqa: PLR0913, PLR0917  what was accepted, for whom, and by whose rules
    project: Project,
    brought: Brought,
    offered: Approvable | None,
    placed: Placed,
    policies: Policies,
    writing: LockWriting,
) -> list[Entry]:
    """Write the entries. What the project's policy forbids is not written, and neither is text with open warnings."""
    made = [_entry(project, brought, offered, client, placed, writing) for client in placed.clients]
    refuse_forbidden(policies, made, writing.now)
    write_entries(project, made, offered, writing)
    return made


def _entry(  # noqa: PLR0913, PLR0917  the same, for one client
    project: Project, brought: Brought, offered: Approvable | None, client: str, placed: Placed, writing: LockWriting
) -> Entry:
    pin = brought.pin
    package: dict[str, Any] = {
        "registryType": REGISTRY_TYPE,
        "identifier": pin.tool,
        "version": pin.version,
        "fileSha256": pin.archive.hex,
        "transport": {"type": "stdio"},
        "command": PROGRAM,
        "args": start_words(project, pin.tool, client, placed.scope)[1:],
        "environmentVariables": [{"name": name, "isRequired": True} for name in placed.variables],
    }
    server = {"name": pin.tool, "description": brought.description, "version": pin.version, "packages": [package]}
    made_up = from_value({"server": server, "_meta": {}}, source=INSTALLED)
    plan = install_plan(made_up, client, now=writing.now, how=Installation(scope=placed.scope, dialect="modern"))
    key = lock_entry.entry_key(pin.tool, client)
    entry = lock_entry.with_integrity(Entry(key=key, document=plan))
    return extended(entry, _extension(project, brought, offered, writing))


def _extension(project: Project, brought: Brought, offered: Approvable | None, writing: LockWriting) -> Extension:
    pin = brought.pin
    return replace(
        extension_for(offered, project, pin.tool, writing),
        registry=pin.registry,
        bundle=bundle_pin_to_json(pin),
        published_at=brought.published_at or None,
    )


def refuse_forbidden(policies: Policies, entries: Sequence[Entry], now: str) -> None:
    """Stop at what the project's policy does not allow."""
    for entry in entries:
        broken = [rule for rule in broken_rules(policies, entry.document, now) if rule.refuses]
        if broken:
            raise PinwardenError(
                "POLICY_REFUSED",
                f"{broken[0].message} ({broken[0].code})",
                data={"refusals": [{"code": rule.code, "message": rule.message} for rule in broken]},
            )
