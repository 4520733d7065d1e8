"""Creates an upstream for each server of the lock: its guard, its recorder, and its transport."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.gateway.approved_sources import LockApprovals
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.merged import assign_slugs
from pinwarden.gateway.http.process_supervisor import ProcessSlots, ProcessSupervisor
from pinwarden.gateway.http.remote_transport import RemoteServer, RemoteTransport
from pinwarden.gateway.http.session_manager import Opener, Upstream
from pinwarden.gateway.http.upstream_pool import UpstreamPool
from pinwarden.gateway.inside_server import mark_as_server
from pinwarden.gateway.recorder import ClientCounters, LoopRecorder, Recorder
from pinwarden.lock import lock_store
from pinwarden.lock.extension import has_surface
from pinwarden.lock.gateway_policy import DEFAULT_GATEWAY_POLICY, GatewayPolicy
from pinwarden.project.locked_servers import LockedServer, describe_differences, group_servers_by_name
from pinwarden.project.remote_access import build_remote_target, load_remote_settings, may_be_connected
from pinwarden.project.server_start import ServerCommand
from pinwarden.project.server_target import find_probe_target
from pinwarden.system.environment_variables import build_child_environment
from pinwarden.system.files import find_program, read_file
from pinwarden.system.net.connections import NetworkRules, is_private_literal
from pinwarden.system.secret_variables import add_secrets
from pinwarden.system.state_folder import may_have_grants
from pinwarden.system.target import HttpAddress, HttpTarget, StdioTarget, expand_placeholders, find_placeholder_names

if TYPE_CHECKING:
    from pinwarden.gateway.http.connected_server import ConnectedServer
    from pinwarden.gateway.http.tracing import Tracing
    from pinwarden.gateway.shared_approvals import SharedApprovals
    from pinwarden.gateway.shared_budgets import SharedBudgets
    from pinwarden.identity.remote_tokens import RemoteTokens
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.project import Project

# Errors of `run` for servers whose bytes are not verified.
_UNVERIFIED = frozenset({"NOTHING_TO_RUN", "BYTES_NOT_LOCKED", "VERSION_FLOATS", "REGISTRY_IN_COMMAND"})


_MAX_SETTINGS_BYTES = 1 << 20
_CONSENT = "it starts only with --allow-execute"
CONSENT_HINT = (
    "To verify the bytes of a package, run pinwarden prove. To start an unverified package or a local script, read its "
    "command (pinwarden explain NAME), and add --allow-execute if you trust it."
)
"""The hint for servers that need --allow-execute."""


class Permissions(Record):
    """Risky actions that the user allows with options of ``pinwarden gateway``."""

    execute: bool = False
    """Whether to start commands whose bytes are not verified, as configured."""
    private: bool = False
    """Whether to connect to host names that resolve to private addresses."""
    variables: tuple[str, ...] = ()
    """Environment variables to send to remote servers and to pass to commands."""


class LockedUpstreams(Record):
    """The servers of a lock that the gateway can serve, and why it cannot serve the other servers."""

    upstreams: Mapping[str, Upstream]
    problems: Mapping[str, str] = field(default_factory=dict)
    """Why a server is not served, by name."""
    unapproved: tuple[str, ...] = ()
    """Names of servers without an approval. The gateway serves them, but blocks everything they send."""

    @property
    def needs_consent(self) -> bool:
        """Whether the gateway would serve more servers with --allow-execute."""
        return any(_CONSENT in problem for problem in self.problems.values())


class UpstreamFactory:
    """Creates upstreams from the lock's entries, and reuses those whose entries did not change."""

    def __init__(
        self,
        project: Project,
        permissions: Permissions,
        limits: HttpLimits,
        recorder: Callable[[str], Recorder],
        write_log: Callable[[str], None],
    ) -> None:
        self._project = project
        self._permissions = permissions
        self._limits = limits
        self._recorder = recorder
        self._write_log = write_log
        self._known: dict[str, tuple[Digest, Upstream]] = {}
        self._pools: dict[str, UpstreamPool | ConnectedServer] = {}
        self._replaced: list[UpstreamPool | ConnectedServer] = []
        """Connection pools of former addresses. Only the event loop may close them."""
        self._slots = ProcessSlots(limits.max_processes)
        self.policy: GatewayPolicy = DEFAULT_GATEWAY_POLICY
        self.tracing: Tracing | None = None
        self.clients = ClientCounters()
        """What each client used, of all servers."""
        self.shared: SharedApprovals | None = None
        """Approvals in the database, in addition to the lock."""
        self.open_remote_tokens: Callable[[], RemoteTokens] | None = None
        """Opens the grants of users for remote servers; None if none may be used."""
        self.dashboard_url = ""
        """Where users connect remote servers, for error messages."""
        self._remote_tokens: RemoteTokens | None = None
        self.budgets: SharedBudgets | None = None
        """What counts calls across gateways; None if this gateway counts alone."""

    def read_lock(self) -> LockedUpstreams:
        """Read the lock. Raises if it cannot be read or was tampered with."""
        lock = lock_store.read_verified(self._project.lock)
        servers, problems = _select_by_name(lock)
        slugs = assign_slugs(servers)
        access = self._read_remote_access()
        upstreams: dict[str, Upstream] = {}
        current: dict[str, tuple[Digest, Upstream]] = {}
        for name, server in sorted(servers.items()):
            known = self._known.get(name)
            content = Digest.of_bytes(
                repr((server.identity, server.pinned_bytes, server.entry.document.get("config"), access)).encode()
            )
            try:
                if known is None or known[0] != content or known[1].slug != slugs[name]:
                    known = content, self._build_upstream(name, slugs[name], server.entry)
            except PinwardenError as err:
                problems[name] = f"{err.message} [{err.code}]"
                continue
            current[name] = known
            upstreams[slugs[name]] = known[1]
        self._known = current
        approved = {entry.name for entry in lock.entries if has_surface(entry)}
        return LockedUpstreams(
            upstreams=upstreams, problems=problems, unapproved=tuple(sorted(current.keys() - approved))
        )

    def set_policy(self, policy: GatewayPolicy) -> None:
        """Apply a policy to all servers."""
        self.policy = policy
        for _, upstream in self._known.values():
            upstream.guard.set_policy(policy)

    def close_replaced_pools(self) -> None:
        """Close pools of former addresses. Call it on the event loop, after their conversations ended."""
        while self._replaced:
            self._replaced.pop().close()

    def close(self) -> None:
        """Close all connections to remote servers."""
        self.close_replaced_pools()
        for pool in self._pools.values():
            pool.close()

    def _build_upstream(self, name: str, slug: str, entry: Entry) -> Upstream:
        guard = Guard(name, LockApprovals(self._project.lock, name, shared=self.shared), self.policy)
        guard.budgets.reporter = self.budgets
        opener = self._build_opener(name, entry)
        recorder = self._recorder(name)
        record_call = None if recorder.log is None else recorder.log.record_call
        loop_recorder = LoopRecorder(recorder, record_call, self.clients)
        return Upstream(name, slug, guard, loop_recorder, opener, self.tracing)

    def _build_opener(self, name: str, entry: Entry) -> Opener:
        target = find_probe_target(entry, self._project.find_configs())
        if isinstance(target, HttpTarget):
            return self._build_remote_opener(name, target)
        return self._build_process_opener(name, target)

    # Commands

    def _build_process_opener(self, name: str, target: StdioTarget) -> Opener:
        command = self._build_command(name, target)
        _refuse_missing_program(command())  # report a missing program at start-up, not to the first client
        supervisor = ProcessSupervisor(name, command, self._limits, self._slots)
        return lambda owner: supervisor.open(owner, lambda text: self._write_log(f"{name}: {text}"))

    def _build_command(self, name: str, target: StdioTarget) -> Callable[[], ServerCommand]:
        """Return a function that builds the start command. Only --allow-execute permits one with unverified bytes."""
        from pinwarden.lock.locked_launch import find_wrappers, starts_local_command
        from pinwarden.project.run import ServerLaunch, find_entry, prepare_locked_launch
        from pinwarden.project.server_start import prepare_start

        def prepare_locked() -> ServerLaunch:
            entry = find_entry(self._project, name, None)
            if starts_local_command(entry):
                raise PinwardenError("NOTHING_TO_RUN", f"{name[:120]!a} has no bytes to verify")
            if wrappers := find_wrappers(entry):  # env can preload code, and a wrapper itself is not verified
                raise PinwardenError("NOTHING_TO_RUN", f"{name[:120]!a} is started by {wrappers[0]}")
            return prepare_locked_launch(self._project, entry, arguments_given=(), notify=self._write_log)

        def prepare_configured() -> ServerLaunch:
            variables = self._read_variables()
            own = {key: expand_placeholders(value, variables) for key, value in target.env.items()}
            return ServerLaunch(
                command=tuple(expand_placeholders(word, variables) for word in target.command),
                environment=build_child_environment(own, variables, self._permissions.variables),
                cwd=None if target.cwd is None else expand_placeholders(target.cwd, variables),
            )

        def build_verified() -> ServerCommand:
            return mark_as_server(prepare_start(self._project, name, prepare_locked), name)

        def build_configured() -> ServerCommand:
            return mark_as_server(prepare_start(self._project, name, prepare_configured), name)

        try:
            build_verified()
        except PinwardenError as err:
            if err.code not in _UNVERIFIED:
                raise
            if not self._permissions.execute:
                raise PinwardenError(
                    "CONSENT_REQUIRED", f"its bytes are not verified ({err.code}), so {_CONSENT}"
                ) from err
            return build_configured
        return build_verified

    def _read_variables(self) -> dict[str, str]:
        """Return what the entries of clients can refer to, with the user's secrets, as ``pinwarden run`` has it."""
        return add_secrets(self._project.variables, self._project.home)

    # Addresses

    def _read_remote_access(self) -> object:
        """Return what decides how the gateway gets tokens for remote servers. It differs after a change."""
        project = self._project
        file = project.policy_file
        stated = file.exists() and b"remotes" in read_file(file, _MAX_SETTINGS_BYTES)
        settings = load_remote_settings(file, project.variables) if stated else {}
        return may_have_grants(project.variables, project.home), settings

    def _build_remote_opener(self, name: str, target: HttpTarget) -> Opener:
        variables = self._read_variables()
        templates = (target.url, *target.headers.values())
        used = {variable for template in templates for variable in find_placeholder_names(template)}
        refused = sorted(variable for variable in used - set(self._permissions.variables) if variable in variables)
        if refused:
            raise PinwardenError(
                "CONSENT_REQUIRED",
                f"its address or headers use environment variables that the gateway may not send: "
                f"{', '.join(refused)[:400]}; allow each with --pass-env",
            )
        if target.transport == "sse":
            raise PinwardenError(
                "TARGET_INVALID", f"{name[:120]!a} uses the HTTP+SSE transport, which the gateway does not support"
            )
        address = HttpAddress.parse(expand_placeholders(target.url, variables))
        headers = {key: expand_placeholders(value, variables) for key, value in target.headers.items()}
        rules = NetworkRules(allow_private=self._permissions.private or is_private_literal(address.host))
        replaced = self._pools.get(name)
        if replaced is not None:
            self._replaced.append(replaced)
        if self.open_remote_tokens is not None and may_be_connected(self._project, target):
            remote = build_remote_target(self._project, name, target, allow_private=self._permissions.private)
            from pinwarden.gateway.http.connected_server import ConnectedServer

            self._remote_tokens = self._remote_tokens or self.open_remote_tokens()
            remote = replace(remote, connect_at=self.dashboard_url)
            connected = self._pools[name] = ConnectedServer(remote, self._remote_tokens, headers, rules, self._limits)
            return connected.open
        pool = self._pools[name] = UpstreamPool(address, rules, self._limits)
        server = RemoteServer.create(pool, address, headers)
        return lambda owner: RemoteTransport(server, owner, self._limits)


def _refuse_missing_program(command: ServerCommand) -> None:
    program = command.words[0]
    if "/" in program:
        exists = os.access(Path(command.cwd or ".") / program, os.X_OK)
    else:
        exists = find_program(program, command.environment.get("PATH", os.defpath)) is not None
    if not exists:
        raise PinwardenError("PROGRAM_UNKNOWN", f"the program {program[:200]!a} does not exist")


def _select_by_name(lock: Lock) -> tuple[dict[str, LockedServer], dict[str, str]]:
    """Return the servers by name, and an explanation for each name that clients use for different servers."""
    unique: dict[str, LockedServer] = {}
    problems: dict[str, str] = {}
    for name, servers in group_servers_by_name(lock.entries).items():
        if len(servers) == 1:
            unique[name] = servers[0]
        else:
            problems[name] = (
                f"it is {describe_differences(servers)}; lock it in the same way for all clients, "
                "or choose another lock with --file"
            )
    return unique, problems
