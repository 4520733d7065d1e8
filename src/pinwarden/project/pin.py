"""``pinwarden pin``: write exact releases into the clients' files in place of floating ones, and into the lock.

The files and the locks of all scopes are written together or not at all. An approved surface stays approved if the
release is the one that was probed for it; otherwise the lock records that it is the surface of another release.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pinwarden.clients.command_line import find_floating_package
from pinwarden.clients.config import ConfiguredServer
from pinwarden.clients.files import edit_word, read_server_file
from pinwarden.clients.package_arguments import PackageArgument, find_package_argument, replace_package_argument
from pinwarden.clients.table import get_client
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED, PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.core.report import COULD_NOT_CHECK, FindingKinds, Report, Row, build_kind_table
from pinwarden.core.text import plural
from pinwarden.lock import lock_store
from pinwarden.lock.entry import Entry, build_entry_key
from pinwarden.lock.extension import LockExtension, has_surface, read_extension, with_extension
from pinwarden.lock.locked_config import CONFIG_SOURCE, read_config_origin
from pinwarden.lock.lockfile import put_entries
from pinwarden.project.client_edits import plan_lock_edit, to_backup_server, write_edits
from pinwarden.project.client_install import is_as_approved
from pinwarden.project.config_diff import FileEdit, diff_config
from pinwarden.project.configs import compare_with_lock, is_only_started_directly
from pinwarden.project.configured_entry import build_plain_entry, client_name_in_lock
from pinwarden.project.edit_backups import EditSet, LockEdit
from pinwarden.project.floating_releases import ReleaseResolver
from pinwarden.project.lock import keep_earlier_pins, refuse_policy_violations
from pinwarden.project.locked_servers import not_locked_error
from pinwarden.project.project import load_policies
from pinwarden.system.clock import now as current_time
from pinwarden.system.target import StdioTarget

if TYPE_CHECKING:
    from pinwarden.artifacts.newest_release import NewestRelease
    from pinwarden.clients.launchers import Launch
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.fetch_context import FetchContext
    from pinwarden.project.project import Project

Approval = Literal["kept", "outdated", "none"]
_UNCHECKED_CODES = ("FETCH_FAILED", "FETCH_LIMIT", "OFFLINE")

PIN_KINDS: FindingKinds = build_kind_table(
    review=(("not_pinned", "The entry still names no exact release."),),
    info=(("pinned", "The entry names an exact release now."),),
)


class ServerPin(Record):
    """One entry in a client's file, and the exact release to write into it."""

    server: ConfiguredServer
    """The server as the file has it now."""
    package: Launch
    """The package as it is written now."""
    release: NewestRelease
    argument: PackageArgument
    changed: ConfiguredServer
    """The server with the exact release."""
    locked: Entry | None = None
    """The lock entry to change with the file; None if the server is not locked as it is configured."""
    approval: Approval = "none"
    """What the edit means for the approved surface."""

    @property
    def version(self) -> str:
        """The release as it is written: a version, or a tag and a digest."""
        digest = f"@{self.release.digest}" if self.release.digest is not None else ""
        return f"{self.release.version}{digest}"


class UnpinnedServer(Record):
    """An entry without an exact release that cannot be pinned."""

    server: ConfiguredServer
    problem: PinwardenError


class PinPlan(Record):
    """What would be written for one scope."""

    project: Project
    pins: tuple[ServerPin, ...]
    unpinned: tuple[UnpinnedServer, ...]
    exact: int
    """How many entries name an exact release already, or start no package."""
    to_enforce: int = 0
    """How many entries were enforced before. Enforcing them again makes their clients start the locked release."""
    contents: Mapping[Path, bytes] = field(default_factory=dict, repr=False)
    """The clients' files that are edited, as they were read."""


def plan_pins(
    project: Project, names: Sequence[str], context: FetchContext, resolver: ReleaseResolver | None = None
) -> PinPlan:
    """Find the entries of a scope that name no exact release, and choose the release for each. Nothing is written.

    Share one ``resolver`` between scopes, so that a server gets the same release in all of them.
    """
    lock = lock_store.find_verified(project.lock)
    servers = project.find_servers()
    known = {server.name for server in servers} | {entry.name for entry in (lock.entries if lock else ())}
    for name in names:
        if name not in known:
            raise not_locked_error(lock.entries if lock is not None else (), name)
    resolver = resolver or ReleaseResolver((project,), context)
    pins: list[ServerPin] = []
    unpinned: list[UnpinnedServer] = []
    requested = [server for server in servers if not names or server.name in names]
    to_enforce = 0
    for server in requested:
        package = find_floating_package(server.target)
        if package is None:
            continue
        if _was_enforced(project, lock, server):
            to_enforce += 1
            continue
        try:
            pin = _plan_edit(server, package, resolver.resolve(server, package))
            pins.append(_plan_lock_entry(project, lock, pin))
        except PinwardenError as err:
            unpinned.append(UnpinnedServer(server=server, problem=err))
    return PinPlan(
        project=project,
        pins=tuple(pins),
        unpinned=tuple(unpinned),
        exact=len(requested) - len(pins) - len(unpinned) - to_enforce,
        to_enforce=to_enforce,
        contents={Path(pin.server.path): read_server_file(pin.server) for pin in pins},
    )


def write_pins(plans: Sequence[PinPlan], *, in_setup: bool = False) -> None:
    """Write the planned releases into the clients' files and the locks of all scopes, or change nothing."""
    edits = EditSet(
        command="pin",
        in_setup=in_setup,
        files=tuple(list_file_edits(plans)),
        locks=tuple(_edit_lock(plan) for plan in plans if any(pin.locked is not None for pin in plan.pins)),
        servers=tuple(
            to_backup_server(plan.project, _find_key(pin), pin.server) for plan in plans for pin in plan.pins
        ),
    )
    write_edits(plans[0].project, edits)


def list_file_edits(plans: Sequence[PinPlan]) -> list[FileEdit]:
    """Return the edits of all files, each with the pins of all scopes in it."""
    edits: dict[Path, FileEdit] = {}
    for plan in plans:
        for pin in plan.pins:
            path = Path(pin.server.path)
            data = plan.contents[path]
            edit = edits.get(path) or FileEdit(path=path, before=data, after=data)
            edits[path] = replace(edit, after=_edit_file(edit.after or b"", pin))
    return list(edits.values())


def build_diff(plans: Sequence[PinPlan]) -> str:
    """Return the edits of all files as a unified diff, with secrets masked."""
    if not plans:
        return ""
    project = plans[0].project
    diffs = (diff_config(project.display_path(edit.path), edit.before, edit.after) for edit in list_file_edits(plans))
    return "".join(f"{diff}\n" for diff in diffs)


def build_pin_report(plans: Sequence[PinPlan], *, written: bool) -> Report:
    """Return the report of ``pinwarden pin``."""
    pins = [(plan.project, pin) for plan in plans for pin in plan.pins]
    unpinned = [(plan.project, entry) for plan in plans for entry in plan.unpinned]
    exact = sum(plan.exact for plan in plans)
    files = len({pin.server.path for _, pin in pins})
    outcome = "would name" if not written else "now names" if len(pins) == 1 else "now name"
    parts = [f"{plural(len(pins), 'entry', 'entries')} in {plural(files, 'file')} {outcome} an exact release"]
    parts += [f"{plural(len(unpinned), 'entry', 'entries')} could not be pinned"] if unpinned else []
    to_enforce = sum(plan.to_enforce for plan in plans)
    if not pins and not unpinned:
        other = " other" if to_enforce else ""
        parts, exact = [f"Every{other} entry that starts a package names an exact release"], 0
    if to_enforce:
        entries = plural(to_enforce, "entry", "entries")
        parts.append(f"{entries} started directly, without Pinwarden: pinwarden enforce restores the locked release")
    unchecked = unpinned and all(entry.problem.code in _UNCHECKED_CODES for _, entry in unpinned)
    refused = bool(unpinned) or (bool(pins) and not written)
    return Report(
        command="pin",
        subject="client configurations",
        summary="; ".join(parts) + (f"; {exact} unchanged" if exact else ""),
        exit_code=EXIT_CLEAN
        if not refused
        else EXIT_UNCHECKED
        if unchecked and (written or not pins)
        else EXIT_REFUSED,
        rows=tuple(_build_rows(pins, unpinned, written=written)),
        facts={
            "written": written and bool(pins),
            "pins": [_pin_to_json(project, pin) for project, pin in pins],
            "unpinned": [
                {**_server_to_json(project, entry.server), "reason": entry.problem.message}
                for project, entry in unpinned
            ],
            "diff": (build_diff(plans) or None) if not written else None,
        },
    )


def _plan_edit(server: ConfiguredServer, package: Launch, release: NewestRelease) -> ServerPin:
    """Plan the edit of a client's entry. Raises CONFIG_UNEDITABLE if the release cannot be written exactly once."""
    target = server.target
    if not isinstance(target, StdioTarget):
        raise PinwardenError("CONFIG_UNEDITABLE", "there is no command to write a release into")
    digest = str(release.digest) if release.digest is not None else None
    argument = find_package_argument(target, release.version, digest, add_digest=True)
    entry = replace_package_argument(server.entry, argument) if argument is not None else None
    if argument is None or entry is None:
        raise PinwardenError(
            "CONFIG_UNEDITABLE",
            f"its command does not name {package.identity[:120]} in exactly one place",
            hint=f"Write the release {release.version} into {Path(server.path).name} yourself.",
        )
    changed = replace(server, entry=entry, target=replace(target, command=argument.replace_in(target.command)))
    pin = ServerPin(server=server, package=package, release=release, argument=argument, changed=changed)
    _edit_file(read_server_file(server), pin)
    return pin


def _edit_file(data: bytes, pin: ServerPin) -> bytes:
    return edit_word(data, pin.server, pin.changed.entry, pin.argument.old, pin.argument.new)


def _plan_lock_entry(project: Project, lock: Lock | None, pin: ServerPin) -> ServerPin:
    """Find the lock entry to change with the file, and what the edit means for its approval."""
    entry = next((entry for entry in (lock.entries if lock else ()) if _is_entry_of(project, entry, pin.server)), None)
    if entry is None or not is_as_approved(entry, pin.server, get_client(pin.server.client)):
        return pin
    now = current_time()
    changed = _build_entry(lock, entry, pin, now)
    refuse_policy_violations(load_policies(project), changed.document, now, pin.release.facts.published_at)
    if not has_surface(entry):
        return replace(pin, locked=entry)
    extension = read_extension(changed)
    outdated = extension is not None and extension.surface_of is not None
    return replace(pin, locked=entry, approval="outdated" if outdated else "kept")


def _was_enforced(project: Project, lock: Lock | None, server: ConfiguredServer) -> bool:
    """Whether the lock has the exact release of a server, and enforcing it again makes its client start that one."""
    entries = (entry for entry in (lock.entries if lock else ()) if _is_entry_of(project, entry, server))
    client = get_client(server.client)
    return any(is_only_started_directly(compare_with_lock(entry, server.entry, client)) for entry in entries)


def _is_entry_of(project: Project, entry: Entry, server: ConfiguredServer) -> bool:
    where = read_config_origin(entry)
    if entry.source != CONFIG_SOURCE or entry.name != server.name or entry.client != client_name_in_lock(server.client):
        return False
    here = (server.client, server.scope, project.display_path(server.path))
    return where is None or here == (where.client, where.scope, where.file)


def _build_entry(lock: Lock | None, entry: Entry, pin: ServerPin, now: str) -> Entry:
    """Return the lock entry with the exact release, and with the approval of the earlier entry."""
    known = read_extension(entry)
    fresh = build_plain_entry(pin.changed, now, entry.key)
    if known is None:
        return fresh
    extension = LockExtension(approval=known.approval, configured_in=known.configured_in)
    return keep_earlier_pins(lock, with_extension(fresh, extension))


def _edit_lock(plan: PinPlan) -> LockEdit:
    """Return the edit of a scope's lock. Raises LOCK_BUSY if an entry changed since the releases were planned."""
    now = current_time()
    locked = [(pin.locked, pin) for pin in plan.pins if pin.locked is not None]

    def change_lock(old: Lock | None) -> lock_store.LockWrite:
        present = {} if old is None else old.entries_by_key()
        if old is None or any(present.get(entry.key) != entry for entry, _ in locked):
            raise PinwardenError("LOCK_BUSY", f"{plan.project.lock.name} changed in the meantime")
        entries = [_build_entry(old, entry, pin, now) for entry, pin in locked]
        return lock_store.LockWrite(lock=put_entries(old, entries, now))

    return plan_lock_edit(plan.project.lock, change_lock)


def _find_key(pin: ServerPin) -> str:
    """Return the key of the lock entry that the server has, or will have when it is locked."""
    if pin.locked is not None:
        return pin.locked.key
    return build_entry_key(pin.server.name, client_name_in_lock(pin.server.client))


def _build_rows(
    pins: Sequence[tuple[Project, ServerPin]], unpinned: Sequence[tuple[Project, UnpinnedServer]], *, written: bool
) -> Iterator[Row]:
    for project, entry in unpinned:
        unchecked = entry.problem.code in _UNCHECKED_CODES
        yield Row(
            code=COULD_NOT_CHECK if unchecked else "not_pinned",
            severity="review",
            entity="server",
            name=entry.server.name,
            path="",
            message=entry.problem.message,
            file=project.display_path(entry.server.path),
        )
    if not written:
        return
    for project, pin in pins:
        note = "; its approved tools are those of another release now" if pin.approval == "outdated" else ""
        yield Row(
            code="pinned",
            severity=PIN_KINDS["pinned"].severity,
            entity="server",
            name=pin.server.name,
            path="",
            message=f"{pin.package.identity} is pinned at {pin.version}{note}",
            file=project.display_path(pin.server.path),
        )


def _pin_to_json(project: Project, pin: ServerPin) -> dict[str, Any]:
    return {
        **_server_to_json(project, pin.server),
        "package": pin.package.identity,
        "from": pin.package.version,
        "to": pin.version,
        "locked": pin.locked is not None,
        "approval": pin.approval,
    }


def _server_to_json(project: Project, server: ConfiguredServer) -> dict[str, Any]:
    return {
        "name": server.name,
        "client": server.client,
        "scope": project.scope,
        "file": project.display_path(server.path),
    }
