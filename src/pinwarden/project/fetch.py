"""Implements ``pinwarden fetch``: downloads and verifies the locked bytes of servers, and builds environments."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from pinwarden.clients.launchers import Launch
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED, PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.report import Report, Row, get_error_row_code, hints_for_failures, row_to_json
from pinwarden.core.text import plural
from pinwarden.lock import lock_store
from pinwarden.lock.closure import list_approved_digests, list_unapproved_packages
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import read_extension
from pinwarden.lock.locked_launch import read_locked_launch
from pinwarden.project.fetch_context import FetchContext, add_content_digests, build_single_server_context, fetch_files
from pinwarden.project.parallel import run_for_servers
from pinwarden.project.project import Project
from pinwarden.project.run import is_bundle, read_pinned_closure
from pinwarden.project.server_environments import (
    ScriptPermissions,
    ensure_environment,
    fetch_image,
    fetch_mcpb,
    find_pinned_mcpb,
    is_mcpb,
    plan_environment,
    plan_mcpb_environment,
)

if TYPE_CHECKING:
    from pinwarden.artifacts.environments.store import Store
    from pinwarden.bundle.bundle_pin import BundlePin


class BundleFetcher(Protocol):
    """Downloads the files of a locked bundle into the store."""

    def fetch(self, pin: BundlePin, store: Store) -> None:
        """Download the files, and verify each against its digest."""

    def follow_log(self, pin: BundlePin) -> None:
        """Read the transparency log of the bundle's registry up to its head, and save the state."""


class FetchOptions(Record):
    """Options of ``pinwarden fetch``."""

    frozen: bool = False
    """Whether a server whose bytes are not locked is a failure."""
    scripts_without_sandbox: bool = False
    """Whether approved install scripts may run without a sandbox."""
    bundles: BundleFetcher | None = None
    builds_environments: bool = True
    """Whether environments of packages are built, which runs approved install scripts. If not, the first start does."""


def fetch(project: Project, names: Sequence[str], context: FetchContext, options: FetchOptions) -> Report:
    """Download the locked bytes of the named servers, or of all servers if no name is given.

    1. Download each server's files, several servers at a time, and verify them against the digests in the lock.
    2. Build each server's environment, or unpack its bundle.
    3. Report locked bundles that were yanked.
    """
    rows: list[Row] = []
    ready: list[dict[str, object]] = []
    failures: list[tuple[str, PinwardenError]] = []
    entries = select_entries(project, names)
    each = build_single_server_context(context, len(entries))

    def fetch_one(index: int) -> dict[str, object]:
        entry = entries[index]
        if is_bundle(entry):
            return _fetch_bundle(entry, each, options)
        approved = list_approved_digests(read_extension(entry))
        scripts = ScriptPermissions(approved=approved, without_sandbox=options.scripts_without_sandbox)
        return _fetch_server(project, entry, each, scripts, builds_environment=options.builds_environments)

    def finish(index: int, result: dict[str, object] | PinwardenError) -> None:
        if isinstance(result, PinwardenError):
            rows.append(_build_row(entries[index], result, _choose_severity(result, frozen=options.frozen)))
            failures.append((entries[index].name, result))
        else:
            ready.append(result)

    run_for_servers(
        [entry.name for entry in entries], fetch_one, finish, context=context, on_progress=context.on_servers
    )
    rows += _check_yanked(project, names, options)
    failed = [row for row in rows if row.severity not in ("info", "warning")]
    exit_code = EXIT_CLEAN
    if failed:
        exit_code = EXIT_REFUSED if any(row.severity == "critical" for row in failed) else EXIT_UNCHECKED
    return Report(
        command="fetch",
        subject=project.lock.name,
        summary=_summarize(len(ready), rows),
        exit_code=exit_code,
        rows=tuple(row for row in rows if names or row.code != "nothing_to_run"),  # otherwise they are only counted
        notes=hints_for_failures(failures),
        facts={
            "servers": ready,
            "findings": [row_to_json(row) for row in rows],
        },
    )


def select_entries(project: Project, names: Sequence[str]) -> list[Entry]:
    """Return one entry for each distinct server with one of these names, or for each server if no name is given.

    Raises if the lock was tampered with, or if a name is not locked.
    """
    lock = lock_store.read_verified(project.lock)
    chosen: dict[tuple[object, ...], Entry] = {}
    for entry in lock.entries:
        if not names or entry.name in names:
            chosen.setdefault((entry.name, *_build_server_key(entry)), entry)
    for name in names:
        if not any(entry.name == name for entry in chosen.values()):
            from pinwarden.project.locked_servers import not_locked_error

            raise not_locked_error(lock.entries, name)
    return list(chosen.values())


def _summarize(done: int, rows: Sequence[Row]) -> str:
    local_programs = sum(row.code == "nothing_to_run" for row in rows)
    summary = f"{plural(done, 'server')} ready to run, {len(rows) - local_programs} not"
    return f"{summary}, {local_programs} with nothing to download" if local_programs else summary


def _choose_severity(err: PinwardenError, *, frozen: bool) -> str:
    """Return ``info`` for a local program and, without ``frozen``, ``warning`` for a server without locked bytes."""
    if err.code == "NOTHING_TO_RUN":
        return "info"
    if err.code == "BYTES_NOT_LOCKED" and not frozen:
        return "warning"
    return "critical" if err.exit_code == EXIT_REFUSED else "review"


def _build_server_key(entry: Entry) -> tuple[object, ...]:
    from pinwarden.project.configured_servers import identify_entry

    extension = read_extension(entry)
    pin = extension.closure if extension else None
    return identify_entry(entry), pin.file_digest if pin else None


def _fetch_server(
    project: Project, entry: Entry, context: FetchContext, scripts: ScriptPermissions, *, builds_environment: bool
) -> dict[str, object]:
    if is_mcpb(entry):
        bundle = find_pinned_mcpb(entry)
        fetch_mcpb(bundle.url, bundle.digest, context)
        folder = ensure_environment(plan_mcpb_environment(bundle, context.store), context.store, notify=lambda _: None)
        return {"server": entry.name, "packages": 1, "environment": folder.name, "scripts": []}
    launch = read_locked_launch(entry).parsed
    if launch.kind == "oci":
        folder = fetch_image(entry, launch, context)
        return {"server": entry.name, "packages": 1, "environment": folder.name, "scripts": []}
    _refuse_unsupported(launch.via or launch)
    closure, digest = read_pinned_closure(project, entry)
    search_path = project.variables.get("PATH", "")
    environment = plan_environment(closure, digest, context.store, search_path, scripts)
    files = environment.list_files()
    fetch_files(closure, files, context)
    without_tree = [file for file in files if file.tree is None]
    if without_tree:
        # The server was locked on another platform. The bytes match the lock, so their tree digests can be recorded.
        add_content_digests(closure, without_tree, context)
        environment = plan_environment(closure, digest, context.store, search_path, scripts)
    if builds_environment:
        ensure_environment(environment, context.store, notify=lambda _: None)
    return {
        "server": entry.name,
        "packages": len(files),
        "environment": environment.key,
        "scripts": [package.name for package in list_unapproved_packages(closure, scripts.approved)],
    }


def _fetch_bundle(entry: Entry, context: FetchContext, options: FetchOptions) -> dict[str, object]:
    """Unpack the bundle that a lock entry pins, after downloading the files that are missing here."""
    from pinwarden.bundle.bundle_pin import find_bundle_pin
    from pinwarden.bundle.environment import find_missing_files
    from pinwarden.project.installed_bundles import ensure_bundle

    pin = find_bundle_pin(entry)
    if pin is None:
        raise PinwardenError(
            "LOCK_INVALID", f"the lock entry of {entry.name[:120]!a} does not say which bundle is installed"
        )
    if options.bundles is not None and find_missing_files(pin, context.store):
        options.bundles.fetch(pin, context.store)
    folder = ensure_bundle(pin, context.store, notify=lambda _: None)
    return {"server": entry.name, "packages": 1, "environment": folder.name, "scripts": []}


def _check_yanked(project: Project, names: Sequence[str], options: FetchOptions) -> list[Row]:
    """Return a row for each locked bundle that was yanked, according to the newest available state of the log."""
    from pinwarden.bundle.bundle_pin import find_bundle_pin
    from pinwarden.project.installed_bundles import check_yanked_bundles

    bundles = [entry for entry in select_entries(project, names) if is_bundle(entry)]
    for pin in {pin.log_id: pin for entry in bundles if (pin := find_bundle_pin(entry)) is not None}.values():
        with suppress(PinwardenError):  # without a network, use the last known state
            if options.bundles is not None:
                options.bundles.follow_log(pin)
    return list(check_yanked_bundles(project, bundles))


def _refuse_unsupported(launch: Launch) -> None:
    """Raise for servers whose environment Pinwarden does not build, such as local programs and NuGet packages."""
    if launch.kind in ("npm", "pypi"):
        return
    if launch.kind in ("nuget", "jsr", "source"):
        raise PinwardenError(
            "BYTES_NOT_LOCKED", f"{launch.runner or launch.kind} downloads the server again at each start"
        )
    raise PinwardenError("NOTHING_TO_RUN", f"Pinwarden does not build environments of type {launch.kind}")


def _build_row(entry: Entry, err: PinwardenError, level: str) -> Row:
    return Row(
        code=get_error_row_code(err), severity=level, entity="server", name=entry.name, path="", message=err.message
    )
