"""Install a server from a registry of bundles: decide, stage, lock, configure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.artifacts.environments.store import Store
from pinwarden.bundle.acceptance import ACCEPT, REJECT, Rejection, provenance_to_json, rejection_from_error
from pinwarden.bundle.bundle_pin import REGISTRY_TYPE, bundle_pin_to_json, find_bundle_pin
from pinwarden.clients.command_line import PROGRAM
from pinwarden.clients.files import install_entry
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Report, Row
from pinwarden.install.decision import AcceptedBundle, InstallDecision, InstallRequest, decide_install
from pinwarden.install.staging import HERE, StagedBundle, bundle_pin, stage_bundle
from pinwarden.lock import entry as lock_entry
from pinwarden.lock import lock_store
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import LockExtension, with_extension
from pinwarden.lock.install_plan import PlanOptions, Scope, build_install_plan
from pinwarden.lock.locked_config import BUNDLE_SOURCE
from pinwarden.lock.server_entry import parse_server_entry
from pinwarden.project.approval_candidate import ApprovalCandidate, warnings_not_approved_error
from pinwarden.project.enforce import build_run_command
from pinwarden.project.lock import LockOptions, build_approval_candidate, build_extension, write_entries
from pinwarden.project.project import Policies, Project, find_broken_rules

if TYPE_CHECKING:
    from pinwarden.install.sources import BundleSource

LITERAL_NOTE = "--literal skips checks: freshness, the attesters' roles, and that the manifest is bound to the pointer"


class InstallTarget(Record):
    """For which clients a bundle is locked."""

    clients: tuple[str, ...] = ("generic",)
    scope: Scope = "project"
    variables: tuple[str, ...] = ()
    """Names of the environment variables that the server gets."""


class InstallContext(Record):
    """What an install needs besides the request."""

    project: Project
    source: BundleSource
    store: Store
    target: InstallTarget
    policies: Policies
    lock_options: LockOptions
    probe: bool = False
    """Whether to start the server, in its sandbox, to record its surface."""


def install(request: InstallRequest, context: InstallContext) -> Report:
    """The report of ``pinwarden install``.

    1. Decide: the nine acceptance steps, the log, every byte. This saves the state of the log, and the registry's new
       key in the trust store if the log records a key change.
    2. Store the files and unpack them.
    3. Get the server's surface. A surface with scan warnings is refused unless the warnings are approved.
    4. Write the lock entry with its provenance, and the approved surface, in one step.
    5. Write the configuration of the clients that were named.
    """
    candidate: ApprovalCandidate | None = None
    decision = decide_install(request, context.source)
    if decision.accepted is None:
        return rejection_report(request, decision)
    try:
        files = _client_files(context)
        _refuse_other_version(context.project, decision.accepted)
        staged = stage_accepted(request, context, decision.accepted)
        candidate = build_approval_candidate(context.project, staged.pin.tool, staged.surface, context.lock_options)
        if candidate is not None and candidate.is_blocked:
            raise warnings_not_approved_error(candidate)
        entries = lock_bundle(
            context.project, staged, candidate, context.target, context.policies, context.lock_options
        )
        configured = _configure(context.project, entries, files)
    except PinwardenError as err:
        stopped = InstallDecision(plan=decision.plan, rejection=rejection_from_error(err), exit_code=err.exit_code)
        report = rejection_report(request, stopped)
        return replace(report, rows=(*report.rows, *(candidate.warnings if candidate is not None else ())))
    return _installed_report(request, decision, staged, entries, configured)


def is_locked_without_bundle(project: Project, name: str) -> bool:
    """Whether the lock has a server of that name that was not installed as a bundle."""
    from pinwarden.project.run import is_bundle

    lock = lock_store.read(project.lock)
    return lock is not None and any(entry.name == name and not is_bundle(entry) for entry in lock.entries)


# Steps


def _refuse_other_version(project: Project, accepted: AcceptedBundle) -> None:
    """Refuse another version than the locked one: ``update`` changes versions, because it shows the drift."""
    lock, documents = lock_store.read(project.lock), accepted.documents
    for entry in lock.entries if lock else ():
        pin = find_bundle_pin(entry) if entry.name == documents.descriptor.name else None
        if pin is not None and (pin.root_cid, pin.descriptor_cid) != (documents.root_cid, documents.descriptor_cid):
            raise PinwardenError(
                "VERSION_LOCKED",
                f"{pin.tool} {pin.version} is locked, and {pin.channel} is at {documents.descriptor.version}",
                data={"locked": pin.root_cid, "offered": documents.root_cid},
            )


def stage_accepted(request: InstallRequest, context: InstallContext, accepted: AcceptedBundle) -> StagedBundle:
    """Store and unpack the accepted bundle, and get its surface."""
    pin = bundle_pin(accepted, context.source, request.floor, literal=request.literal)
    return stage_bundle(context.project, accepted, pin, context.store, context.source, probe=context.probe)


def lock_bundle(  # noqa: PLR0913, PLR0917
    project: Project,
    staged: StagedBundle,
    candidate: ApprovalCandidate | None,
    target: InstallTarget,
    policies: Policies,
    lock_options: LockOptions,
) -> list[Entry]:
    """Write the entries. Raises if the policy forbids one, or if the surface has warnings that are not approved."""
    entries = [_entry(project, staged, candidate, client, target, lock_options) for client in target.clients]
    refuse_entries_by_policy(policies, entries, lock_options.now)
    write_entries(project, entries, candidate, lock_options)
    return entries


def _entry(  # noqa: PLR0913, PLR0917
    project: Project,
    staged: StagedBundle,
    candidate: ApprovalCandidate | None,
    client: str,
    target: InstallTarget,
    lock_options: LockOptions,
) -> Entry:
    pin = staged.pin
    package: dict[str, Any] = {
        "registryType": REGISTRY_TYPE,
        "identifier": pin.tool,
        "version": pin.version,
        "fileSha256": pin.archive.hex,
        "transport": {"type": "stdio"},
        "command": PROGRAM,
        "args": build_run_command(project, pin.tool, client, target.scope)[1:],
        "environmentVariables": [{"name": name, "isRequired": True} for name in target.variables],
    }
    server = {"name": pin.tool, "description": staged.description, "version": pin.version, "packages": [package]}
    server_entry = parse_server_entry({"server": server, "_meta": {}}, source=BUNDLE_SOURCE)
    plan = build_install_plan(
        server_entry, client, now=lock_options.now, options=PlanOptions(scope=target.scope, dialect="modern")
    )
    key = lock_entry.build_entry_key(pin.tool, client)
    entry = lock_entry.with_integrity(Entry(key=key, document=plan))
    return with_extension(entry, _extension(project, staged, candidate, lock_options))


def _extension(
    project: Project, staged: StagedBundle, candidate: ApprovalCandidate | None, lock_options: LockOptions
) -> LockExtension:
    pin = staged.pin
    return replace(
        build_extension(candidate, project, pin.tool, lock_options),
        registry=pin.registry,
        bundle=bundle_pin_to_json(pin),
        published_at=staged.published_at or None,
    )


def refuse_entries_by_policy(policies: Policies, entries: Sequence[Entry], now: str) -> None:
    """Raise POLICY_REFUSED for the first entry that the policy does not allow."""
    for entry in entries:
        broken = [rule for rule in find_broken_rules(policies, entry.document, now) if rule.refuses]
        if broken:
            raise PinwardenError(
                "POLICY_REFUSED",
                f"{broken[0].message} ({broken[0].code})",
                data={"refusals": [{"code": rule.code, "message": rule.message} for rule in broken]},
            )


def _client_files(context: InstallContext) -> dict[str, str]:
    """The configuration file of each requested client. Raises if one has none, before anything is written."""
    paths, scope = context.project.find_install_paths(), context.target.scope
    clients = [client for client in context.target.clients if client != "generic"]
    for client in clients:
        if (client, scope) not in paths:
            raise PinwardenError(
                "USAGE",
                f"{client} has no configuration file of scope {scope}",
                hint=f"Repeat with --scope {'global' if scope == 'project' else 'project'}.",
            )
    return {client: paths[client, scope] for client in clients}


def _configure(project: Project, entries: list[Entry], files: Mapping[str, str]) -> list[dict[str, str]]:
    """Write the clients' configuration files. The generic client has none."""
    configured: list[dict[str, str]] = []
    for entry in entries:
        if entry.client in files:
            path = files[entry.client]
            action = install_entry(Path(path), entry.client, entry.name, entry.config)
            configured.append({"client": entry.client, "file": project.display_path(path), "action": action})
    return configured


# Reports


def _installed_report(
    request: InstallRequest,
    decision: InstallDecision,
    staged: StagedBundle,
    entries: list[Entry],
    configured: list[dict[str, str]],
) -> Report:
    pin, accepted = staged.pin, decision.accepted
    if accepted is None:
        raise TypeError("the install was accepted")
    notes = list(_notes(request, decision))
    if staged.surface is None:
        notes.append(
            f"tools not recorded: {staged.problem}; repeat with --allow-execute to start the server and record them"
        )
    elif pin.surface_from != HERE:
        notes.append(
            "the approved tools are those that its registry recorded; --allow-execute starts the server to check"
        )
    position = accepted.log_position
    return Report(
        command="install",
        subject=pin.tool,
        summary=f"ACCEPT {pin.tool} {pin.version} on {pin.channel}; start it with: pinwarden run {pin.tool}",
        exit_code=EXIT_CLEAN,
        notes=tuple(notes),
        facts={
            "result": ACCEPT,
            "provenance": provenance_to_json(accepted.provenance),
            "plan": [line.to_json() for line in decision.plan],
            "literal": request.literal,
            "version": pin.version,
            "registry": pin.registry,
            "content_hash": str(pin.archive),
            "api_surface": staged.api_surface,
            "surface": str(staged.surface.digest) if staged.surface else None,
            "surface_from": pin.surface_from,
            "policy": {
                "network": pin.policy.network,
                "filesystem": pin.policy.filesystem,
                "exec": pin.policy.exec,
            },
            "log": {"id": position.log_id, "index": position.index, "size": position.size} if position else None,
            "entries": [{"key": entry.key, "integrity": entry.integrity} for entry in entries],
            "configs": configured,
        },
    )


def rejection_report(request: InstallRequest, decision: InstallDecision, command: str = "install") -> Report:
    """The report of a refused install: one code, what, why and what to do."""
    rejection = decision.rejection
    if rejection is None:
        raise TypeError("a refused install has a refusal")
    row = Row(
        code=rejection.code,
        severity="critical" if decision.exit_code == EXIT_REFUSED else "review",
        entity="bundle",
        name=request.tool,
        path="",
        message=rejection.what,
    )
    return Report(
        command=command,
        subject=request.tool,
        summary=f"REJECT {rejection.code}: {rejection.fix}",
        exit_code=decision.exit_code,
        rows=(row,),
        notes=_notes(request, decision),
        facts={
            "result": REJECT,
            "error": rejection_to_json(rejection),
            "plan": [line.to_json() for line in decision.plan],
            "literal": request.literal,
        },
        rule_texts={rejection.code: rejection.fix},
    )


def rejection_to_json(rejection: Rejection) -> dict[str, Any]:
    """A refusal as JSON."""
    return {"code": rejection.code, "what": rejection.what, "why": dict(rejection.why), "fix": rejection.fix}


def _notes(request: InstallRequest, decision: InstallDecision) -> tuple[str, ...]:
    lines = tuple(str(line) for line in decision.plan)
    return (*lines, LITERAL_NOTE) if request.literal else lines
