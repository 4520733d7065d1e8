"""Record the API surface hash of servers whose bytes are pinned, whether or not a person approved their tools.

The server is started once, from its verified bytes and in a sandbox without network: bubblewrap, or for an image a
container without network. If it cannot or may not be started, the lock has the reason instead of a hash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import FindingKinds, Report, Row, build_kind_table, collect_kind_reasons
from pinwarden.core.text import plural
from pinwarden.lock import lock_store
from pinwarden.lock.extension import LockExtension, read_extension, with_extension
from pinwarden.lock.locked_launch import read_locked_launch
from pinwarden.lock.lockfile import put_entries
from pinwarden.surface.interop import compute_api_surface_hash
from pinwarden.surface.surface import TOOL, Surface

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.project import Project
    from pinwarden.project.server_start import PreparedProbe

API_SURFACE_KINDS: FindingKinds = build_kind_table(
    review=(
        (
            "api_surface_changes",
            "The new bytes of a server offer other tools, texts or schemas than the bytes that were pinned before.",
        ),
    )
)
Permission = Literal["sandbox", "anywhere", "never"]
"""Where servers may be started: in a sandbox, also without one, or not at all."""
NOT_STARTED = "it was not started (--no-execute)"
_NO_SANDBOX = "it was not started, because there is no sandbox on this machine (bubblewrap)"
_PROBE_SECONDS = 20.0
_MAX_REASON = 300
_CONTAINER_OPTIONS = (
    *("-i", "--rm", "--network=none", "--read-only", "--tmpfs=/tmp", "--cap-drop=ALL"),
    *("--security-opt=no-new-privileges", "--pids-limit=512", "--memory=4g"),
)


class ApiSurface(Record):
    """The API surface of one server: its hash, or the reason why it is unknown."""

    entry: Entry
    value: str | None
    problem: str | None
    earlier: str | None = None
    """The hash that was recorded before, for other bytes."""

    @property
    def has_changed(self) -> bool:
        """Whether the server offers something else than before."""
        return None not in (self.value, self.earlier) and self.value != self.earlier


def record_api_surfaces(
    project: Project,
    names: Sequence[str],
    permission: Permission,
    now: str,
    *,
    ask: Callable[[int], bool] = lambda _: False,
) -> list[ApiSurface]:
    """Record the API surfaces of the named servers, or of all, that the lock does not have for their pinned bytes.

    ``ask`` gets a number of servers and returns whether they may be started without a sandbox.
    """
    from pinwarden.system.sandbox import find_bubblewrap

    lock = lock_store.read(project.lock)
    named = [entry for entry in (lock.entries if lock else ()) if not names or entry.name in names]
    entries = [entry for entry in named if _is_unrecorded(entry)]
    if not entries:
        return []
    if permission == "sandbox" and find_bubblewrap() is None and ask(len({entry.name for entry in entries})):
        permission = "anywhere"
    surfaces = _read_surfaces(project, entries, permission)

    def change_lock(old: Lock | None) -> lock_store.LockWrite:
        if old is None:
            raise lock_store.missing_lock_error(project.lock)
        by_key = {found.entry.key: found for found in surfaces}
        made = [_with_api_surface(entry, by_key[entry.key]) for entry in old.entries if entry.key in by_key]
        return lock_store.LockWrite(lock=put_entries(old, made, now))

    lock_store.update(project.lock, change_lock)
    return surfaces


def add_to_report(report: Report, surfaces: Sequence[ApiSurface]) -> Report:
    """Add the API surfaces to the report of the command that pinned the bytes."""
    known = {found.entry.name for found in surfaces if found.value is not None}
    unknown = {found.entry.name: found.problem for found in surfaces if found.value is None}
    changed = {found.entry.name: found for found in surfaces if found.has_changed}
    notes = [f"API surface recorded for {plural(len(known), 'server')}"] if known else []
    notes += [f"the API surface of {name} is unknown: {problem}" for name, problem in unknown.items()]
    rows = tuple(
        Row(
            code="api_surface_changes",
            severity="review",
            entity="server",
            name=name,
            path="",
            message="the API surface hash changed: the new release offers other tools, texts or schemas",
            before=found.earlier,
            after=found.value,
        )
        for name, found in changed.items()
    )
    stated = [
        {"server": found.entry.name, "hash": found.value, "problem": found.problem, "before": found.earlier}
        for found in {found.entry.name: found for found in surfaces}.values()
    ]
    return replace(
        report,
        rows=(*report.rows, *rows),
        notes=(*report.notes, *notes),
        facts={**report.facts, "api_surfaces": stated},
        rule_texts={**report.rule_texts, **(collect_kind_reasons(API_SURFACE_KINDS) if rows else {})},
    )


def identify_bytes(extension: LockExtension) -> str | None:
    """Return one digest of all pinned bytes of a server; None if none are pinned."""
    if extension.closure is not None:
        return str(extension.closure.file_digest)
    if extension.image is not None:
        digests = [extension.image.index, *extension.image.platforms.values()]
        return str(next(digest for digest in digests if digest is not None)) if any(digests) else None
    if extension.artifacts:
        return str(Digest.of_bytes("\n".join(sorted(str(file.digest) for file in extension.artifacts)).encode()))
    return None


def _is_unrecorded(entry: Entry) -> bool:
    """Whether an entry pins bytes for which neither an approval nor an earlier start recorded the API surface."""
    extension = read_extension(entry)
    if extension is None or extension.bundle is not None or identify_bytes(extension) is None:
        return False
    if extension.surface is not None and extension.surface_of is None:
        return False
    return extension.api_surface_of != identify_bytes(extension) or extension.api_surface_unknown is not None


def _read_surfaces(project: Project, entries: Sequence[Entry], permission: Permission) -> list[ApiSurface]:
    from pinwarden.project.server_start import probe_prepared

    prepared = [_prepare_or_reason(project, entry, permission) for entry in entries]
    probes = [probe for probe in prepared if not isinstance(probe, str)]
    results = iter(probe_prepared(probes) if probes else ())
    found: list[ApiSurface] = []
    for entry, probe in zip(entries, prepared, strict=True):
        result = probe if isinstance(probe, str) else next(results)
        if isinstance(result, Surface):
            result = _compute_hash(result)
        if isinstance(result, PinwardenError):
            result = f"{result.code}: {result.message}"
        value = result if result.startswith("sha256:") else None
        problem = None if value is not None else result[:_MAX_REASON]
        found.append(ApiSurface(entry=entry, value=value, problem=problem, earlier=_find_earlier(entry)))
    return found


def _compute_hash(surface: Surface) -> str | PinwardenError:
    try:
        return str(compute_api_surface_hash(item.value for item in surface.items_of_kind(TOOL)))
    except PinwardenError as err:
        return err


def _prepare_or_reason(project: Project, entry: Entry, permission: Permission) -> PreparedProbe | str:
    """Prepare the start of a server from its verified bytes. Returns the reason if it must not be started."""
    from pinwarden.project.server_start import prepare_locked_probe, prepare_run_probe
    from pinwarden.surface.probe.probe import ProbeOptions
    from pinwarden.system.sandbox import PROBE_SANDBOX_LIMITS, Sandbox, find_bubblewrap
    from pinwarden.system.target import StdioTarget

    if permission == "never":
        return NOT_STARTED
    try:
        options = ProbeOptions(allow_execute=True, timeout=_PROBE_SECONDS)
        if read_locked_launch(entry).parsed.kind == "oci":
            target = StdioTarget(command=build_isolated_command(project, entry))
            return prepare_run_probe(project, target, options)  # the container is the sandbox
        if find_bubblewrap() is not None:
            options = replace(options, sandbox=Sandbox(limits=PROBE_SANDBOX_LIMITS))
        elif permission == "sandbox":
            return _NO_SANDBOX
        prepared = prepare_locked_probe(project, entry, project.find_configs(), options)
    except PinwardenError as err:
        return f"{err.code}: {err.message}"
    return prepared if prepared.is_from_bytes else "it does not start from the verified bytes"


def build_isolated_command(project: Project, entry: Entry) -> tuple[str, ...]:
    """Build the command that starts a locked image without network, folders and privileges, ignoring its options."""
    from pinwarden.project.run import build_container_command

    return build_container_command(project, entry, lambda _: None, options=_CONTAINER_OPTIONS)


def _find_earlier(entry: Entry) -> str | None:
    extension = read_extension(entry)
    return None if extension is None else extension.api_surface


def _with_api_surface(entry: Entry, found: ApiSurface) -> Entry:
    """Return the entry with its API surface. The hash of an approved surface stays until the new one is approved."""
    extension = read_extension(entry)
    if extension is None:
        return entry
    return with_extension(
        entry,
        replace(
            extension,
            api_surface=found.value if extension.surface is None else extension.api_surface,
            api_surface_of=None if found.value is None else identify_bytes(extension),
            api_surface_unknown=found.problem,
        ),
    )
