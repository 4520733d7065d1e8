"""The locked servers as the gateway serves them: what each of them is, how it is reached, and who judges it."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.gateway.approved_sources import ApprovedByLock
from pinwarden.gateway.gated_server import Command, command_of
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.merged import slugs_of
from pinwarden.gateway.http.process_transport import ProcessSlots, ProcessSupervisor
from pinwarden.gateway.http.record_then_send import StepRecorder
from pinwarden.gateway.http.remote_transport import RemoteServer, RemoteTransport
from pinwarden.gateway.http.session_manager import Opener, Upstream
from pinwarden.gateway.http.upstream_pool import UpstreamPool
from pinwarden.gateway.recorder import Recorder
from pinwarden.lock import lock_store
from pinwarden.lock.extension import has_surface
from pinwarden.lock.gateway_policy import DEFAULT_POLICY, GatewayPolicy
from pinwarden.lock.verification import refuse_if_tampered, verify
from pinwarden.project.locked_servers import LockedServer, differences, servers_by_name
from pinwarden.project.server_start import live_target
from pinwarden.system.environment_variables import child_environment
from pinwarden.system.files import find_program
from pinwarden.system.net.network_guard import NetworkRules
from pinwarden.system.target import HttpAddress, HttpTarget, StdioTarget, expand_placeholders, placeholder_names

if TYPE_CHECKING:
    from pinwarden.gateway.http.telemetry import Tracing
    from pinwarden.gateway.shared_approvals import SharedApprovals
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.project import Project

_LOCAL_NAMES = ("localhost",)
# What `run` says of servers that are not started from verified bytes.
_UNPROVEN = frozenset({"NOTHING_TO_RUN", "BYTES_NOT_LOCKED", "VERSION_FLOATS", "REGISTRY_IN_COMMAND"})


_CONSENT = "it starts only with --allow-execute"
CONSENT_HINT = (
    "A package's bytes are verified with pinwarden prove; a script of this machine has none. Or look at its command "
    "(pinwarden explain NAME), and if you trust it as it is, add --allow-execute."
)
"""What to do about servers that nobody agreed to start."""


class Permissions(Record):
    """What the user allows beyond what is safe anywhere."""

    execute: bool = False
    """Start commands as they are configured, where their bytes are not verified."""
    private: bool = False
    """Contact hosts whose names lead to private addresses."""
    variables: tuple[str, ...] = ()
    """Variables that a remote server may be sent, and that a command inherits."""


class LockedUpstreams(Record):
    """The servers of a lock."""

    upstreams: Mapping[str, Upstream]
    problems: Mapping[str, str] = field(default_factory=dict)
    """By name, why a server is not served."""
    unapproved: tuple[str, ...] = ()
    """Those that are served, but of which nothing is approved yet: all that they tell is withheld."""

    @property
    def needs_consent(self) -> bool:
        """Whether some are not served because nobody agreed to start them as they are."""
        return any(_CONSENT in problem for problem in self.problems.values())


class UpstreamFactory:
    """Makes upstreams of the lock's entries; those that did not change stay what they are."""

    def __init__(
        self,
        project: Project,
        permissions: Permissions,
        limits: HttpLimits,
        recorder: Callable[[str], Recorder],
        say: Callable[[str], None],
    ) -> None:
        self._project = project
        self._permissions = permissions
        self._limits = limits
        self._recorder = recorder
        self._say = say
        self._made: dict[str, tuple[Digest, Upstream]] = {}
        self._pools: dict[str, UpstreamPool] = {}
        self._replaced: list[UpstreamPool] = []
        """Connections to where servers were before. The loop has them, so that no other thread may end them."""
        self._slots = ProcessSlots(limits.max_children)
        self.policy: GatewayPolicy = DEFAULT_POLICY
        self.tracing: Tracing | None = None
        self.shared: SharedApprovals | None = None
        """Approvals of the database that count in addition to the lock."""

    def read(self) -> LockedUpstreams:
        """The servers of the lock as it is now. A lock that cannot be read or was edited raises."""
        lock = lock_store.read(self._project.lock)
        if lock is None:
            raise PinwardenError("LOCK_MISSING", f"there is no lockfile {self._project.lock}")
        refuse_if_tampered(verify(lock))
        servers, problems = _by_name(lock)
        slugs = slugs_of(servers)
        upstreams: dict[str, Upstream] = {}
        made: dict[str, tuple[Digest, Upstream]] = {}
        for name, server in sorted(servers.items()):
            known = self._made.get(name)
            content = Digest.of_bytes(
                repr((server.identity, server.pinned, server.entry.document.get("config"))).encode()
            )
            try:
                if known is None or known[0] != content or known[1].slug != slugs[name]:
                    known = content, self._upstream(name, slugs[name], server.entry)
            except PinwardenError as err:
                problems[name] = f"{err.message} [{err.code}]"
                continue
            made[name] = known
            upstreams[slugs[name]] = known[1]
        self._made = made
        approved = {entry.name for entry in lock.entries if has_surface(entry)}
        return LockedUpstreams(upstreams=upstreams, problems=problems, unapproved=tuple(sorted(made.keys() - approved)))

    def set_policy(self, policy: GatewayPolicy) -> None:
        """Another policy for all servers, from now on."""
        self.policy = policy
        for _, upstream in self._made.values():
            upstream.guard.set_policy(policy)

    def hang_up(self) -> None:
        """Hang up where remote servers were before, on the loop and when nobody talks with them there any more."""
        while self._replaced:
            self._replaced.pop().close()

    def close(self) -> None:
        """Hang up on remote servers."""
        self.hang_up()
        for pool in self._pools.values():
            pool.close()

    def _upstream(self, name: str, slug: str, entry: Entry) -> Upstream:
        guard = Guard(name, ApprovedByLock(self._project.lock, name, shared=self.shared), self.policy)
        opener = self._opener(name, entry)
        recorder = self._recorder(name)
        recording = StepRecorder(recorder, None if recorder.log is None else recorder.log.note)
        recording.tracing = self.tracing
        return Upstream(name, slug, guard, recording, opener)

    def _opener(self, name: str, entry: Entry) -> Opener:
        target = live_target(entry, self._project.configs())
        if isinstance(target, HttpTarget):
            return self._remote(name, target)
        return self._child(name, target)

    # Commands

    def _child(self, name: str, target: StdioTarget) -> Opener:
        command = self._command(name, target)
        _refuse_missing(command())  # what cannot be started is told now, and not to the first client
        supervisor = ProcessSupervisor(name, command, self._limits, self._slots)
        return lambda owner: supervisor.open(owner, lambda text: self._say(f"{name}: {text}"))

    def _command(self, name: str, target: StdioTarget) -> Callable[[], Command]:
        """What starts the server: its verified bytes, or with permission the command as it is configured."""
        from pinwarden.project.run import Started, find_entry, prepare
        from pinwarden.project.server_start import prepare_start

        def locked() -> Started:
            return prepare(self._project, find_entry(self._project, name, None), given=(), say=self._say)

        def as_configured() -> Started:
            variables = self._project.variables
            own = {key: expand_placeholders(value, variables) for key, value in target.env.items()}
            return Started(
                command=tuple(expand_placeholders(word, variables) for word in target.command),
                environment=child_environment(own, variables, self._permissions.variables),
                cwd=None if target.cwd is None else expand_placeholders(target.cwd, variables),
            )

        def verified() -> Command:
            return command_of(prepare_start(self._project, name, locked), name)

        def configured() -> Command:
            return command_of(prepare_start(self._project, name, as_configured), name)

        try:
            verified()
        except PinwardenError as err:
            if err.code not in _UNPROVEN:
                raise
            if not self._permissions.execute:
                raise PinwardenError(
                    "CONSENT_REQUIRED", f"its bytes are not verified ({err.code}), so {_CONSENT}"
                ) from err
            return configured
        return verified

    # Addresses

    def _remote(self, name: str, target: HttpTarget) -> Opener:
        variables = self._project.variables
        texts = (target.url, *target.headers.values())
        named = {each for text in texts for each in placeholder_names(text)}
        unnamed = sorted(each for each in named - set(self._permissions.variables) if each in variables)
        if unnamed:
            raise PinwardenError(
                "CONSENT_REQUIRED",
                f"not sent without consent: {', '.join(unnamed)[:400]}; add --pass-env for each",
            )
        if target.transport == "sse":
            raise PinwardenError("TARGET_INVALID", f"{name[:120]!a} speaks HTTP+SSE, which the gateway does not")
        address = HttpAddress.parse(expand_placeholders(target.url, variables))
        headers = {key: expand_placeholders(value, variables) for key, value in target.headers.items()}
        rules = NetworkRules(allow_private=self._permissions.private or _names_private(address.host))
        pool = self._pools.get(name)
        if pool is not None:
            self._replaced.append(pool)
        pool = self._pools[name] = UpstreamPool(address, rules, self._limits)
        server = RemoteServer.of(pool, address, headers)
        return lambda owner: RemoteTransport(server, owner, self._limits)


def _refuse_missing(command: Command) -> None:
    program = command.words[0]
    if "/" in program:
        found = os.access(Path(command.cwd or ".") / program, os.X_OK)
    else:
        found = find_program(program, command.environment.get("PATH", os.defpath)) is not None
    if not found:
        raise PinwardenError("PROGRAM_UNKNOWN", f"there is no program {program[:200]!a}")


def _by_name(lock: Lock) -> tuple[dict[str, LockedServer], dict[str, str]]:
    """One server for each name, and why others have none: clients that have different servers of one name."""
    found: dict[str, LockedServer] = {}
    problems: dict[str, str] = {}
    for name, servers in servers_by_name(lock.entries).items():
        if len(servers) == 1:
            found[name] = servers[0]
        else:
            problems[name] = (
                f"it is {differences(servers)}; lock it in the same way for all clients, "
                "or name another lock with --file"
            )
    return found, problems


def _names_private(host: str) -> bool:
    """Whether the lock itself names an address that is not public; a name that leads to one is another matter."""
    if host in _LOCAL_NAMES:
        return True
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return False
