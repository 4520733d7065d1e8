"""Bringing locked bytes onto this machine: every file of every closure, verified, and the environments built."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from pinwarden.clients.launch.launch import Launch
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED, PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.report import Report, Row, hints_for_failures, plural, row_facts
from pinwarden.lock import lock_store
from pinwarden.lock.closure import approved_digests, not_approved
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import extension_of
from pinwarden.lock.locked_launch import locked_launch
from pinwarden.lock.verification import refuse_if_tampered, verify
from pinwarden.project.fetch_context import Workshop, fetch_files, with_contents
from pinwarden.project.project import Project
from pinwarden.project.run import is_bundle, pinned_closure
from pinwarden.project.server_environments import (
    Scripts,
    environment_of,
    fetch_image,
    fetch_mcpb,
    is_mcpb,
    mcpb_environment,
    pinned_mcpb,
    ready,
)

if TYPE_CHECKING:
    from pinwarden.artifacts.environments.store import Store
    from pinwarden.bundle.bundle_pin import BundlePin


class BundleFetcher(Protocol):
    """Whatever brings the files of a locked bundle into the store."""

    def fetch(self, pin: BundlePin, store: Store) -> None:
        """Bring them, each checked against its digest."""

    def follow(self, pin: BundlePin) -> None:
        """Read the log of its registry up to the head, and keep what was seen."""


class How(Record):
    """What fetching may do."""

    frozen: bool = False
    """A server whose bytes are not locked is a failure."""
    scripts_without_sandbox: bool = False
    """Install scripts that were approved run in a sandbox; without one only if that is allowed here."""
    bundles: BundleFetcher | None = None


def fetch(project: Project, names: Sequence[str], shop: Workshop, how: How) -> Report:
    """Fetch, verify and build every locked server."""
    rows: list[Row] = []
    done: list[dict[str, object]] = []
    failures: list[tuple[str, PinwardenError]] = []
    for entry in chosen_entries(project, names):
        try:
            approved = approved_digests(extension_of(entry))
            scripts = Scripts(approved=approved, without_sandbox=how.scripts_without_sandbox)
            made = _unpacked(entry, shop, how) if is_bundle(entry) else _materialise(project, entry, shop, scripts)
            done.append(made)
        except PinwardenError as err:
            rows.append(_row(entry, err, _level(err, frozen=how.frozen)))
            failures.append((entry.name, err))
    rows += _yanked(project, names, how)
    failed = [row for row in rows if row.severity != "warning"]
    exit_code = EXIT_CLEAN
    if failed:
        exit_code = EXIT_REFUSED if any(row.severity == "critical" for row in failed) else EXIT_UNCHECKED
    return Report(
        command="fetch",
        subject=project.lock.name,
        summary=_summary(len(done), rows),
        exit_code=exit_code,
        rows=tuple(rows),
        notes=hints_for_failures(failures),
        facts={
            "servers": done,
            "findings": [row_facts(row) for row in rows],
        },
    )


def _summary(done: int, rows: Sequence[Row]) -> str:
    without = sum(row.code == "nothing_to_run" for row in rows)
    told = f"{plural(done, 'server')} ready to run, {len(rows) - without} not"
    return f"{told}, {without} with nothing to fetch" if without else told


def _level(err: PinwardenError, *, frozen: bool) -> str:
    """What has no bytes to fetch is never a failure; what has some that nobody locked is one where all must be."""
    if err.code == "NOTHING_TO_RUN" or (err.code == "BYTES_NOT_LOCKED" and not frozen):
        return "warning"
    return "critical" if err.exit_code == EXIT_REFUSED else "review"


def chosen_entries(project: Project, names: Sequence[str]) -> list[Entry]:
    """One entry for each thing that a named server, or any, starts; the lock must be whole."""
    lock = lock_store.read(project.lock)
    if lock is None:
        raise PinwardenError("LOCK_MISSING", f"there is no lockfile {project.lock}")
    refuse_if_tampered(verify(lock))
    found: dict[tuple[object, ...], Entry] = {}
    for entry in lock.entries:
        if not names or entry.name in names:
            found.setdefault((entry.name, *_what_it_starts(entry)), entry)
    for name in names:
        if not any(entry.name == name for entry in found.values()):
            from pinwarden.project.locked_servers import not_locked

            raise not_locked(lock.entries, name)
    return list(found.values())


def _what_it_starts(entry: Entry) -> tuple[object, ...]:
    from pinwarden.project.server_identity import entry_identity

    extension = extension_of(entry)
    pin = extension.closure if extension else None
    return entry_identity(entry), pin.file_digest if pin else None


def _materialise(project: Project, entry: Entry, shop: Workshop, scripts: Scripts) -> dict[str, object]:
    if is_mcpb(entry):
        bundle = pinned_mcpb(entry)
        fetch_mcpb(bundle.url, bundle.digest, shop)
        folder = ready(mcpb_environment(bundle, shop.store), shop.store, say=lambda _: None)
        return {"server": entry.name, "packages": 1, "environment": folder.name, "scripts": []}
    runs = locked_launch(entry).runs
    if runs.kind == "oci":
        folder = fetch_image(entry, runs, shop)
        return {"server": entry.name, "packages": 1, "environment": folder.name, "scripts": []}
    _refuse_unbuilt(runs.via or runs)
    closure, digest = pinned_closure(project, entry)
    search_path = project.variables.get("PATH", "")
    environment = environment_of(closure, digest, shop.store, search_path, scripts)
    files = environment.files()
    fetch_files(closure, files, shop)
    unknown = [file for file in files if file.tree is None]
    if unknown:
        # Locked on another platform: their bytes are the locked ones, so their content may be looked at now.
        with_contents(closure, unknown, shop)
        environment = environment_of(closure, digest, shop.store, search_path, scripts)
    folder = ready(environment, shop.store, say=lambda _: None)
    return {
        "server": entry.name,
        "packages": len(files),
        "environment": folder.name,
        "scripts": [package.name for package in not_approved(closure, scripts.approved)],
    }


def _unpacked(entry: Entry, shop: Workshop, how: How) -> dict[str, object]:
    """An installed bundle, from what its entry pins."""
    from pinwarden.bundle.bundle_pin import find_bundle_pin
    from pinwarden.bundle.environment import missing_files
    from pinwarden.project.installed_bundles import ready_bundle

    pin = find_bundle_pin(entry)
    if pin is None:
        raise PinwardenError("LOCK_INVALID", f"the record of the bundle {entry.name[:120]!a} is gone")
    if how.bundles is not None and missing_files(pin, shop.store):
        how.bundles.fetch(pin, shop.store)
    folder = ready_bundle(pin, shop.store, say=lambda _: None)
    return {"server": entry.name, "packages": 1, "environment": folder.name, "scripts": []}


def _yanked(project: Project, names: Sequence[str], how: How) -> list[Row]:
    """Which of the locked bundles were yanked, by the newest head of the log that can be had."""
    from pinwarden.bundle.bundle_pin import find_bundle_pin
    from pinwarden.project.installed_bundles import yank_rows

    bundles = [entry for entry in chosen_entries(project, names) if is_bundle(entry)]
    for pin in {pin.log_id: pin for entry in bundles if (pin := find_bundle_pin(entry)) is not None}.values():
        with suppress(PinwardenError):  # without a network the last head that was seen counts
            if how.bundles is not None:
                how.bundles.follow(pin)
    return list(yank_rows(project, bundles))


def _refuse_unbuilt(runs: Launch) -> None:
    """Stop at what is not built here: programs of this machine are here already, and others come anew each time."""
    if runs.kind in ("npm", "pypi"):
        return
    if runs.kind in ("nuget", "jsr", "source"):
        raise PinwardenError("BYTES_NOT_LOCKED", f"{runs.runner or runs.kind} would fetch it anew at each start")
    raise PinwardenError("NOTHING_TO_RUN", f"{runs.kind} is not built here")


def _row(entry: Entry, err: PinwardenError, level: str) -> Row:
    return Row(code=err.code.lower(), severity=level, entity="server", name=entry.name, path="", message=err.message)
