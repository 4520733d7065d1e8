"""Install a server from a registry of bundles: download and check it, stage it, lock it, configure clients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.artifacts.environments.store import Store
from pinwarden.bundle.acceptance import rejection_from_error
from pinwarden.bundle.bundle_documents import SKILLS_RUNTIME
from pinwarden.bundle.bundle_pin import REGISTRY_TYPE, bundle_pin_to_json, find_bundle_pin
from pinwarden.clients.command_line import PROGRAM
from pinwarden.clients.table import GENERIC_CLIENT
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Report
from pinwarden.install.bundle_download import download_bundle
from pinwarden.install.decision import (
    AcceptedBundle,
    InstallDecision,
    InstallRequest,
    build_acceptance_facts,
    build_refusal_report,
    list_check_notes,
)
from pinwarden.install.staging import HERE, StagedBundle, build_bundle_pin, stage_bundle
from pinwarden.lock import entry as lock_entry
from pinwarden.lock import lock_store
from pinwarden.lock.entry import Entry, ToolPinScope
from pinwarden.lock.extension import LockExtension, with_extension
from pinwarden.lock.install_plan import PlanOptions, build_install_plan
from pinwarden.lock.locked_config import BUNDLE_SOURCE
from pinwarden.lock.server_entry import parse_server_entry
from pinwarden.project.approval_candidate import ApprovalCandidate, warnings_not_approved_error
from pinwarden.project.client_edits import write_locked_servers
from pinwarden.project.lock import (
    LockOptions,
    build_approval_candidate,
    build_extension,
    change_entries,
    refuse_policy_violations,
)
from pinwarden.project.project import Policies, Project

if TYPE_CHECKING:
    from pinwarden.install.registry_log import LogFollower
    from pinwarden.install.sources import BundleSource


class InstallTarget(Record):
    """The clients to lock a bundle for, and the environment variables that its server gets."""

    clients: tuple[str, ...] = (GENERIC_CLIENT,)
    scope: ToolPinScope = "project"
    variables: tuple[str, ...] = ()
    """Names of environment variables, without values."""


class InstallContext(Record):
    """The project, the bundle source and the options of an install."""

    project: Project
    source: BundleSource
    follower: LogFollower
    store: Store
    target: InstallTarget
    policies: Policies
    lock_options: LockOptions
    probe: bool | None = None
    """Whether to start the server, in its sandbox, to record its surface. None: if the registry did not record it."""


def install(request: InstallRequest, context: InstallContext) -> Report:
    """Install a bundle, and return the report of ``pinwarden install``.

    1. Download the bundle and check it: the nine acceptance steps, the registry's log, every byte. This step saves the
       state of the log, and trusts the registry's new key if the log records a key change.
    2. Find the configuration file of each requested client.
    3. If the bundle is already locked, refuse any other version.
    4. Store the files, unpack them, and read the server's surface.
    5. Scan the surface. Warnings stop the install, unless they are approved.
    6. Build the lock entries and the edits of the clients' configuration files. The project's policy must allow them.
    7. Write the lock, the approved surface and the clients' files. If one of them cannot be written, none is changed.

    Steps 2 to 7 are for servers; ``skill_install.py`` has those for skills.
    """
    decision = download_bundle(request, context.source, context.follower)
    if decision.accepted is None:
        return build_refusal_report(request, decision)
    if decision.accepted.documents.descriptor.runtime == SKILLS_RUNTIME:
        from pinwarden.install.skill_install import install_skills

        return install_skills(request, context, decision)
    candidate: ApprovalCandidate | None = None
    try:
        config_files = _find_config_files(context)
        _refuse_other_version(context.project, decision.accepted)
        staged = _stage(request, context, decision.accepted)
        candidate = build_approval_candidate(context.project, staged.pin.tool, staged.surface, context.lock_options)
        _refuse_open_warnings(candidate)
        entries = build_bundle_entries(
            context.project, staged, candidate, context.target, context.policies, context.lock_options
        )
        change_lock = change_entries(entries, candidate, context.lock_options)
        config_changes = write_locked_servers(context.project, "install", entries, change_lock, config_files)
    except PinwardenError as err:
        refused = InstallDecision(checks=decision.checks, refusal=rejection_from_error(err), exit_code=err.exit_code)
        return build_refusal_report(request, refused, () if candidate is None else candidate.warnings)
    return _build_install_report(request, decision, staged, entries, config_changes)


def is_locked_without_bundle(project: Project, name: str) -> bool:
    """Whether the lock has a server with this name that was not installed as a bundle."""
    from pinwarden.project.run import is_bundle

    lock = lock_store.read(project.lock)
    return lock is not None and any(entry.name == name and not is_bundle(entry) for entry in lock.entries)


# Steps


def _find_config_files(context: InstallContext) -> dict[str, Path]:
    """Return the configuration file of each requested client. Raises USAGE if a client has none in this scope."""
    clients = [client for client in context.target.clients if client != GENERIC_CLIENT]
    return {client: context.project.find_install_path(client, context.target.scope) for client in clients}


def _refuse_other_version(project: Project, accepted: AcceptedBundle) -> None:
    """Raise VERSION_LOCKED if another version is locked: only ``update`` changes versions, because it shows drift."""
    lock, documents = lock_store.read(project.lock), accepted.documents
    for entry in lock.entries if lock else ():
        pin = find_bundle_pin(entry) if entry.name == documents.descriptor.name else None
        if pin is not None and (pin.root_cid, pin.descriptor_cid) != (documents.root_cid, documents.descriptor_cid):
            raise PinwardenError(
                "VERSION_LOCKED",
                f"{pin.tool} {pin.version} is locked, but channel {pin.channel} is at {documents.descriptor.version}",
                data={"locked": pin.root_cid, "offered": documents.root_cid},
            )


def _stage(request: InstallRequest, context: InstallContext, accepted: AcceptedBundle) -> StagedBundle:
    pin = build_bundle_pin(accepted, context.source, request.floor, literal=request.literal)
    return stage_bundle(context.project, accepted, pin, context.store, context.source, probe=context.probe)


def _refuse_open_warnings(candidate: ApprovalCandidate | None) -> None:
    if candidate is not None and candidate.is_blocked:
        raise warnings_not_approved_error(candidate)


def build_bundle_entries(  # noqa: PLR0913, PLR0917
    project: Project,
    staged: StagedBundle,
    candidate: ApprovalCandidate | None,
    target: InstallTarget,
    policies: Policies,
    lock_options: LockOptions,
) -> list[Entry]:
    """Build one lock entry for each client. Raises POLICY_REFUSED if the project's policy does not allow an entry."""
    entries = [_build_entry(project, staged, candidate, client, target, lock_options) for client in target.clients]
    refuse_entries_by_policy(policies, entries, lock_options.now)
    return entries


def _build_entry(  # noqa: PLR0913, PLR0917
    project: Project,
    staged: StagedBundle,
    candidate: ApprovalCandidate | None,
    client: str,
    target: InstallTarget,
    lock_options: LockOptions,
) -> Entry:
    pin = staged.pin
    # The server is described as an MCP registry would, so that its entry has all that ToolPin expects. ToolPin knows no
    # command for this type of package, so the declared ``command`` is the one in the plan (`build_toolpin_command`).
    package: dict[str, Any] = {
        "registryType": REGISTRY_TYPE,
        "identifier": pin.tool,
        "version": pin.version,
        "fileSha256": pin.archive.hex,
        "transport": {"type": "stdio"},
        "command": PROGRAM,
        "args": project.build_run_command(pin.tool, client, target.scope)[1:],
        "environmentVariables": [{"name": name, "isRequired": True} for name in target.variables],
    }
    server = {"name": pin.tool, "description": staged.description, "version": pin.version, "packages": [package]}
    server_entry = parse_server_entry({"server": server, "_meta": {}}, source=BUNDLE_SOURCE)
    plan = build_install_plan(
        server_entry, client, now=lock_options.now, options=PlanOptions(scope=target.scope, dialect="modern")
    )
    key = lock_entry.build_entry_key(pin.tool, client)
    entry = lock_entry.with_integrity(Entry(key=key, document=plan))
    return with_extension(entry, _build_extension(project, staged, candidate, lock_options))


def _build_extension(
    project: Project, staged: StagedBundle, candidate: ApprovalCandidate | None, lock_options: LockOptions
) -> LockExtension:
    pin = staged.pin
    return replace(
        build_extension(candidate, project, pin.tool, lock_options),
        registry=pin.registry,
        bundle=bundle_pin_to_json(pin),
        api_surface_unknown=staged.surface_problem,
        published_at=staged.published_at or None,
    )


def refuse_entries_by_policy(policies: Policies, entries: Sequence[Entry], now: str) -> None:
    """Raise POLICY_REFUSED for the first entry that the policy does not allow."""
    for entry in entries:
        refuse_policy_violations(policies, entry.document, now)


# Reports


def _build_install_report(
    request: InstallRequest,
    decision: InstallDecision,
    staged: StagedBundle,
    entries: list[Entry],
    config_changes: list[dict[str, str]],
) -> Report:
    pin, accepted = staged.pin, decision.accepted
    if accepted is None:
        raise TypeError("the decision has no accepted bundle")
    notes = list(list_check_notes(request, decision))
    if staged.surface is None:
        notes.append(
            f"tools not recorded: {staged.surface_problem}; "
            "repeat with --allow-execute to start the server and record them"
        )
    elif pin.surface_from != HERE:
        notes.append(
            "the registry recorded the approved tools; repeat with --allow-execute to start the server and compare them"
        )
    return Report(
        command="install",
        subject=pin.tool,
        summary=f"ACCEPT {pin.tool} {pin.version} on {pin.channel}; start it with: pinwarden run {pin.tool}",
        exit_code=EXIT_CLEAN,
        notes=tuple(notes),
        facts={
            **build_acceptance_facts(request, decision, accepted, pin),
            "api_surface": staged.api_surface_hash,
            "surface": str(staged.surface.digest) if staged.surface else None,
            "surface_from": pin.surface_from,
            "entries": [{"key": entry.key, "integrity": entry.integrity} for entry in entries],
            "configs": config_changes,
        },
    )
