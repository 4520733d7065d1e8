"""The job for one server: resolve, verify, probe, compare, judge. The result is stored by the caller.

Nothing here is a second mechanism: packages are verified as by ``pinwarden prove``, servers are probed as by
``pinwarden ci --live``, and texts are scanned as by ``pinwarden scan``.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pinwarden.artifacts.resolvers import list_reasons
from pinwarden.census.bundles import stage_listed_bundle
from pinwarden.census.observation import CensusServer, ServerMemory, ServerObservation
from pinwarden.census.registry_responses import RecordingFetcher, is_unchanged
from pinwarden.census.run_cache import RunCache
from pinwarden.clients.config import parse_configured_server
from pinwarden.clients.package_arguments import find_package_argument, replace_package_argument
from pinwarden.clients.table import get_client
from pinwarden.contract.costs import compute_costs
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Row
from pinwarden.core.text import parse_timestamp
from pinwarden.lock import lock_store
from pinwarden.lock.entry import Entry, build_entry_key
from pinwarden.lock.extension import LockExtension, keep_pinned_bytes, read_extension, with_extension
from pinwarden.lock.locked_launch import is_same_release, read_locked_launch, starts_local_command
from pinwarden.lock.lockfile import put_entries
from pinwarden.project.artifact_check import ArtifactCheck, check_artifact, resolve_floating_release
from pinwarden.project.configured_entry import build_entry
from pinwarden.project.fetch_context import FetchContext
from pinwarden.project.project import Project
from pinwarden.project.prove import pin_artifact
from pinwarden.project.server_start import prepare_probe, probe_server
from pinwarden.project.server_target import find_probe_target
from pinwarden.surface.drift.changes import build_change_row
from pinwarden.surface.drift.compare import compare
from pinwarden.surface.probe.probe import ProbeOptions
from pinwarden.surface.scan.scan import build_scan_row, scan
from pinwarden.surface.surface import Surface
from pinwarden.system.bounded_task import list_error_lines
from pinwarden.system.probe_budget import ProbeLimits
from pinwarden.system.sandbox import Sandbox, SandboxLimits
from pinwarden.system.target import HttpAddress, HttpTarget, StdioTarget, Target, find_placeholder_names

_TEMPORARY_CODES = frozenset({"FETCH_FAILED", "REGISTRY_UNAVAILABLE"})
_TEMPORARY_REASONS = frozenset({"connect", "dns", "ended", "tls"})
_TEMPORARY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_LOCAL_CODES = frozenset({"CONSENT_REQUIRED", "POLICY_REFUSED", "DATABASE_UNAVAILABLE", "FILE_UNWRITABLE"})
"""Failures that say something about the worker and its user. They do not count in the next run."""
_MESSAGE_BYTES = 8 * 1024 * 1024  # the largest real list has less than 1 MB
_SCRATCH_BYTES = 256 * 1024 * 1024
_MAX_PATH = 4096
_MAX_STDERR = 300
_MAX_REASON = 80
_MAX_HASHED_BYTES = 64 * 1024 * 1024  # of one file that a local command names


class ExaminationOptions(Record):
    """What a worker may do, and what it need not repeat."""

    probe: ProbeOptions
    allow_connect: bool = False
    """Whether remote servers may be contacted."""
    max_age_seconds: float = 72_000.0
    """How long an observation of a server counts whose code has no digest, such as a remote one."""
    refresh: bool = False
    """Whether to observe unchanged servers, too."""
    retry_seconds: float = 5.0
    """The pause after the first temporary failure. It doubles with each attempt."""
    cache: RunCache | None = None
    """What this machine requested in the run."""


def examine_server(  # noqa: PLR0913, PLR0917 - what is examined, what is known, and how
    server: CensusServer,
    memory: ServerMemory,
    read_before: Callable[[], Surface | None],
    context: FetchContext,
    options: ExaminationOptions,
    now: str,
) -> ServerObservation:
    """Examine one server. A failure becomes an observation with its code and reason.

    ``read_before`` returns its last surface, which is read only if there is one to compare it with.

    1. Build the lock entry from its configuration, and resolve a floating release.
    2. Skip the server if its configuration, its files and the responses of its registry are the same as last time.
    3. Verify the artifact, and compare it with the last one. Skip the rest if its bytes are the same.
    4. Probe the surface.
    5. Compare it with the last one, and scan it.
    """
    started = time.monotonic()
    examination = _Examination(server, memory, context, options, now)
    try:
        observation = examination.run(read_before)
    except PinwardenError as err:
        observation = examination.build_failure(err)
    return replace(observation, milliseconds=round((time.monotonic() - started) * 1000))


class _Examination:
    """The state of one examination, which a failure records as far as it got."""

    def __init__(
        self,
        server: CensusServer,
        memory: ServerMemory,
        context: FetchContext,
        options: ExaminationOptions,
        now: str,
    ) -> None:
        self._server = server
        self._memory = memory
        self._options = options
        self._now = now
        self._recorder = RecordingFetcher(context.fetcher, options.cache)
        self._context = replace(context, fetcher=self._recorder, resolver_cache=options.cache)
        self._observation = ServerObservation(state="failed", checked_at=now)
        self._fingerprint = ""
        self._findings: list[tuple[str, Row]] = []

    def run(self, read_before: Callable[[], Surface | None]) -> ServerObservation:
        """Do the steps of `examine_server`."""
        self._fingerprint = compute_fingerprint(self._server)
        if self._is_recent() or self._is_same_package():
            return self._build_unchanged()
        if "bundle" in self._server.spec:
            return self._examine_bundle(read_before())
        entry = self._build_entry()
        self._note(version=entry.version)
        with tempfile.TemporaryDirectory(prefix="pinwarden-census-", ignore_cleanup_errors=True) as folder:
            project = replace(self._context.project, root=Path(folder), lock=Path(folder) / "mcp-lock.json")
            context = replace(self._context, project=project)
            check = self._verify(entry, context)
            if check is not None:
                entry = _pin(project, entry, check, context, self._now)
                if self._has_same_bytes(entry):
                    return replace(self._build_unchanged(), memory=self._build_memory(entry))
            surface = self._probe(project, entry)
        return self._judge(read_before(), surface, entry)

    def _examine_bundle(self, before: Surface | None) -> ServerObservation:
        """Accept a bundle as ``pinwarden install`` does, and judge the surface of its server."""
        allow_execute = self._options.probe.allow_execute
        staged = stage_listed_bundle(self._server.spec, self._context, self._now, allow_execute=allow_execute)
        self._observation = replace(
            self._observation,
            version=staged.pin.version,
            artifact=str(staged.pin.archive),
            publisher=staged.pin.log_id or "",
        )
        if staged.surface is None:
            raise PinwardenError("PROBE_FAILED", staged.surface_problem or "its surface is unknown")
        return self._judge(before, staged.surface, None)

    def build_failure(self, err: PinwardenError) -> ServerObservation:
        """Return the observation of a server that could not be examined."""
        reason = str(err.data.get("reason") or err.data.get("limit") or err.data.get("code") or "")
        reason = reason if len(reason) <= _MAX_REASON and reason.isascii() and reason.isprintable() else ""
        status = err.data.get("status")
        is_temporary = status in _TEMPORARY_STATUSES or (
            status is None and (err.code in _TEMPORARY_CODES or reason in _TEMPORARY_REASONS)
        )
        is_crash = err.code == "PROBE_FAILED" and reason == "ended"
        is_repeatable = is_crash or not (is_temporary or err.code in _LOCAL_CODES or reason == "start")
        memory = replace(self._memory, fingerprint=self._fingerprint, checked_at=self._now)
        return replace(
            self._observation,
            state="failed",
            code=err.code,
            reason=reason or (str(status) if status else ""),
            message=_build_message(err),
            findings=tuple(self._findings),
            memory=replace(memory, is_repeatable=is_repeatable, responses=self._recorder.responses),
            retry_seconds=self._options.retry_seconds if is_temporary else None,
        )

    def _build_unchanged(self) -> ServerObservation:
        return ServerObservation(state="unchanged", checked_at=self._now, observed_run=self._memory.run)

    def _note(self, *, version: str) -> None:
        self._observation = replace(self._observation, version=version)

    def _is_known(self) -> bool:
        """Whether the last observation still counts, if nothing changed."""
        memory = self._memory
        is_same = memory.run > 0 and memory.is_repeatable and memory.fingerprint == self._fingerprint
        return is_same and not self._options.refresh

    def _is_recent(self) -> bool:
        """Whether a server whose code cannot be compared was observed a short time ago."""
        if not self._is_known() or self._memory.responses:
            return False
        then, current = parse_timestamp(self._memory.checked_at), parse_timestamp(self._now)
        if then is None or current is None:
            return False
        return 0 <= (current - then).total_seconds() < self._options.max_age_seconds

    def _is_same_package(self) -> bool:
        """Whether the registry sends the same documents about the package as at the last observation."""
        if not self._is_known() or not self._memory.responses:
            return False
        return is_unchanged(self._memory.responses, self._context, self._recorder)

    def _has_same_bytes(self, entry: Entry) -> bool:
        """Whether the artifact has the bytes of the last observation, although its registry changed something."""
        memory = self._memory
        if not self._is_known() or memory.pins is None or self._findings:
            return False
        then = read_extension(Entry(key=entry.key, document=memory.pins))
        current = read_extension(entry)
        if then is None or current is None or memory.version != entry.version or not current.has_pinned_bytes:
            return False
        return (then.artifacts, then.image, then.provenance, then.closure) == (
            current.artifacts,
            current.image,
            current.provenance,
            current.closure,
        )

    def _build_entry(self) -> Entry:
        """Build the lock entry, with a floating release resolved, and the pins of the last observation."""
        spec = self._server.spec
        if "entry" in spec:
            entry = Entry(key=spec["key"], document=spec["entry"])
        else:
            entry = self._build_configured(spec)
        if self._memory.pins is None:
            return entry
        earlier = Entry(key=entry.key, document=self._memory.pins)
        known, fresh = read_extension(earlier) or LockExtension(), read_extension(entry) or LockExtension()
        if is_same_release(earlier, entry):
            return with_extension(entry, keep_pinned_bytes(replace(known, closure=None), fresh, same_config=False))
        # Another release has other bytes, but should have the same publisher, builder and registry.
        return with_extension(
            entry, replace(fresh, registry=known.registry, provenance=known.provenance, publisher=known.publisher)
        )

    def _build_configured(self, spec: Mapping[str, object]) -> Entry:
        client = get_client(str(spec["client"]))
        server = parse_configured_server(self._server.name, spec["config"], client)
        if server.target is None:
            raise PinwardenError("CONFIG_INVALID", f"its entry cannot be used: {server.problem}")
        key = build_entry_key(server.name, client.id)
        entry = build_entry(server, key, None, LockExtension(), self._now)
        if not isinstance(server.target, StdioTarget) or starts_local_command(entry):
            return entry
        launch = read_locked_launch(entry).parsed
        package = launch.via or launch
        if package.pinned:
            return entry
        release = resolve_floating_release(package, self._context)
        if release is None:
            raise PinwardenError("VERSION_FLOATS", f"{package.identity[:120]} has no release that fits")
        digest = str(release.digest or "") or None
        argument = find_package_argument(server.target, release.version, digest, add_digest=True)
        changed = None if argument is None else replace_package_argument(server.entry, argument)
        if changed is None:
            raise PinwardenError(
                "VERSION_FLOATS", f"no release can be written into the command of {server.name[:120]!a}"
            )
        return build_entry(parse_configured_server(server.name, changed, client), key, None, LockExtension(), self._now)

    def _verify(self, entry: Entry, context: FetchContext) -> ArtifactCheck | None:
        """Verify the artifact; None for a remote server or a local command."""
        if _is_remote(entry) or starts_local_command(entry):
            return None
        check = check_artifact(entry, context, self._now)
        self._findings += [("artifact", row) for row in check.rows]
        digests = [str(file.sha256) for file in check.artifact.files]
        self._observation = replace(
            self._observation,
            version=check.package.version or entry.version,
            artifact=digests[0] if digests else str(getattr(check.artifact.image, "tag_digest", "") or ""),
            publisher=check.artifact.facts.publisher or "",
            provenance="" if check.identity is None else str(check.identity),
        )
        _refuse_unusable(check)
        return check

    def _probe(self, project: Project, entry: Entry) -> Surface:
        """Start or contact the server. It gets none of the worker's environment variables."""
        options = self._options.probe
        target = find_probe_target(entry, ())
        if isinstance(target, HttpTarget):
            if not self._options.allow_connect:
                raise PinwardenError(
                    "CONSENT_REQUIRED", "Pinwarden does not contact remote servers without consent (--allow-connect)"
                )
            host = HttpAddress.parse(target.url).host if "${" not in target.url else ""
            if host:
                self._recorder.wait_for(host)
        else:
            target = self._confine(target, project)
            if options.sandbox is not None:
                files = tuple(str(path) for _, path in _find_named_files(self._server))
                options = replace(options, sandbox=replace(options.sandbox, readable=files))
        return probe_server(prepare_probe(project, entry.name, target, options, entry, anonymous=True))

    def _confine(self, target: StdioTarget, project: Project) -> Target:
        """Return the command without values that a person must give, started in the folder of its source."""
        if any(find_placeholder_names(word) for word in target.command):
            raise PinwardenError("VARIABLE_MISSING", "its command needs a value that only a user of it has")
        environment = {name: value for name, value in target.env.items() if not find_placeholder_names(value)}
        folder = target.cwd or self._server.folder or str(project.root)
        return replace(target, env=environment, cwd=folder)

    def _judge(self, before: Surface | None, surface: Surface, entry: Entry | None) -> ServerObservation:
        if before is not None:
            self._findings += [("drift", build_change_row(change)) for change in compare(before, surface)]
        self._findings += [("scan", build_scan_row(finding, "")) for finding in scan(surface)]
        return replace(
            self._observation,
            state="observed",
            surface=surface,
            tokens=compute_costs(surface).total,
            findings=tuple(self._findings),
            memory=self._build_memory(entry),
        )

    def _build_memory(self, entry: Entry | None) -> ServerMemory:
        """Remember the observation. A bundle has no entry: its spec names its bytes."""
        is_package = entry is not None and not _is_remote(entry) and not starts_local_command(entry)
        return ServerMemory(
            run=self._memory.run,
            checked_at=self._now,
            version=entry.version if entry is not None else self._observation.version,
            fingerprint=self._fingerprint,
            responses=self._recorder.responses if is_package else (),
            pins=dict(entry.document) if entry is not None and is_package else None,
            surface=self._memory.surface,
            is_repeatable=True,
        )


def _build_message(err: PinwardenError) -> str:
    """Return the message of a failure, with the reason of a resolver or the last line that a server wrote to stderr."""
    lines = list_reasons(err)[:1] or list_error_lines(err)[-1:]
    return ": ".join((err.message, *(line[:_MAX_STDERR] for line in lines)))


def compute_fingerprint(server: CensusServer) -> str:
    """Return a digest of a server's configuration, and of the files that a local command names."""
    files = list(_hash_named_files(server))
    return str(Digest.of_bytes(canonicalize({"spec": dict(server.spec), "files": files})))


def _hash_named_files(server: CensusServer) -> Iterator[list[str]]:
    for word, path in _find_named_files(server):
        try:
            if path.stat().st_size <= _MAX_HASHED_BYTES:
                yield [word, str(Digest.of_bytes(path.read_bytes()))]
        except OSError:
            continue


def _find_named_files(server: CensusServer) -> Iterator[tuple[str, Path]]:
    """Yield the words of a local command that name files, with the files."""
    entry = server.spec.get("config")
    if not server.folder or not isinstance(entry, dict):
        return
    words = entry.get("args")
    for word in (entry.get("command"), *(words if isinstance(words, list) else ())):
        if isinstance(word, str) and len(word) < _MAX_PATH and "\x00" not in word:
            try:
                path = (Path(server.folder) / word).resolve()
                is_file = path.is_file()
            except (OSError, RuntimeError):
                continue
            if is_file:
                yield word, path


def _refuse_unusable(check: ArtifactCheck) -> None:
    """Raise if there are no bytes to start, or if they are not those that the registry states.

    Bytes or builders that differ from those of the last observation are findings, and their surface is of interest.
    """
    problem = next((issue for issue in check.outcome.issues if issue.severity == "critical"), None)
    if problem is not None:
        raise PinwardenError("ARTIFACT_MISMATCH", problem.message, data={"code": problem.code})
    if check.artifact.missing is not None:
        raise PinwardenError(
            "ARTIFACT_MISSING", f"its registry does not have {check.package}", data={"code": check.artifact.missing}
        )


def _pin(project: Project, entry: Entry, check: ArtifactCheck, context: FetchContext, now: str) -> Entry:
    """Pin the verified bytes and their dependencies in a lock of the job's own folder. Returns the pinned entry."""
    lock_store.update(project.lock, lambda old: lock_store.LockWrite(lock=put_entries(old, [entry], now)))
    pin_artifact(project, entry, check, context, now)
    lock = lock_store.read(project.lock)
    if lock is None:
        raise PinwardenError("LOCK_MISSING", "the lock of the job is gone")
    return lock.entries[0]


def _is_remote(entry: Entry) -> bool:
    from pinwarden.lock.locked_launch import is_remote

    return is_remote(entry) or isinstance(find_probe_target(entry, ()), HttpTarget)


def build_probe_options(  # noqa: PLR0913 - what the user allows
    *,
    allow_execute: bool,
    allow_private: bool,
    allow_plain_http: bool,
    seconds: float,
    memory_bytes: int,
    sandbox: bool,
    allow_network: bool,
) -> ProbeOptions:
    """Return the budget of a hostile server: time, bytes, memory and processes. It gets no variable of the worker."""
    limits = SandboxLimits(
        memory_bytes=memory_bytes,
        processes=128,
        file_bytes=_SCRATCH_BYTES,
        scratch_bytes=_SCRATCH_BYTES,
        cpu_seconds=max(1, round(seconds)),
        nice=5,
    )
    return ProbeOptions(
        allow_execute=allow_execute,
        allow_private=allow_private,
        allow_plain_http=allow_plain_http,
        timeout=seconds,
        send_only=(),
        sandbox=Sandbox(limits=limits, allow_network=allow_network) if sandbox else None,
        limits=ProbeLimits(
            max_message_bytes=_MESSAGE_BYTES, max_total_bytes=4 * _MESSAGE_BYTES, max_items=20_000, max_pages=1_000
        ),
    )
