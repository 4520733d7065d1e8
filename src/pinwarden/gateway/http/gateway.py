"""The HTTP gateway: reads lock, policy and tokens, reloads them when they change, and serves clients."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.text import plural
from pinwarden.gateway.audit.event import LOCK_CHANGED, POLICY_CHANGED, STOPPED, AuditEvent
from pinwarden.gateway.baselines import PUBLISHED, Baseline
from pinwarden.gateway.fleet_service import SYNC_PATH, FleetService
from pinwarden.gateway.http.endpoint import Endpoint
from pinwarden.gateway.http.header_checks import Access, GatewayClient
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.listener import HttpServer, ListenAddress
from pinwarden.gateway.http.merged import create_merged_route
from pinwarden.gateway.http.session_manager import SessionManager
from pinwarden.gateway.http.status_pages import OperatorEndpoint, StatusPages, make_audit_check
from pinwarden.gateway.http.tracing import configure_tracing
from pinwarden.gateway.http.upstreams import CONSENT_HINT, LockedUpstreams, Permissions, UpstreamFactory
from pinwarden.gateway.recorder import Recorder
from pinwarden.gateway.store import published_locks as locks
from pinwarden.gateway.store.tokens import TOPIC, GatewayToken, SignInEvents, hash_token
from pinwarden.lock.gateway_policy import DEFAULT_GATEWAY_POLICY, GatewayPolicy
from pinwarden.project.project import load_policies
from pinwarden.system.files import read_file, read_file_stamp
from pinwarden.system.processes import kill_all_trees
from pinwarden.system.state_folder import GRANT_KEY_FILE

if TYPE_CHECKING:
    from pinwarden.gateway.audit.log import AuditLog, WhenUnavailable
    from pinwarden.gateway.http.resource_server import ResourceServer
    from pinwarden.gateway.published_lock import LockSigners, PublishedLockFollower
    from pinwarden.gateway.shared_approvals import SharedApprovals
    from pinwarden.gateway.shared_budgets import SharedBudgets
    from pinwarden.gateway.state import GatewayState
    from pinwarden.identity.remote_tokens import RemoteTokens
    from pinwarden.project.project import Project
    from pinwarden.system.change_feed import ChangeFeed, Mark

_SWITCH_SECONDS = 0.0002
_COUNT_SECONDS = 5.0
_MAX_POLICY_BYTES = 1 << 20
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class Settings(Record):
    """Settings of the HTTP gateway."""

    listening: ListenAddress
    status: tuple[str, int] | None = None
    """Host and port on which health, readiness and metrics are served without a token."""
    permissions: Permissions = Permissions()
    hosts: tuple[str, ...] = ()
    """Host names under which clients reach the gateway, in addition to the listen address."""
    origins: tuple[str, ...] = ()
    when_unavailable: WhenUnavailable = "refuse"
    shared_approvals: bool = True
    """Whether approvals in the database apply in addition to the lock."""
    published: str = ""
    """The name of the published lock to serve instead of the project's; empty for the project's."""
    signers: LockSigners | None = None
    """Whose signatures a published lock needs; None if none are needed."""
    limits: HttpLimits = HttpLimits()
    dashboard_url: str = ""
    """Where users connect remote servers, for error messages."""


class HttpGateway:
    """The HTTP gateway: `start` reads lock, policy and tokens and listens; `stop` shuts it down."""

    def __init__(
        self, project: Project, state: GatewayState, settings: Settings, write_log: Callable[[str], None]
    ) -> None:
        self._follower: PublishedLockFollower | None = None
        if settings.published:
            from pinwarden.gateway.published_lock import PublishedLockFollower

            folder = state.get_published_folder(settings.published)
            self._follower = PublishedLockFollower(
                lambda: state.published_locks, settings.published, folder, settings.signers
            )
            project = self._follower.apply_to(project)
        self._project = project
        self._state = state
        self._settings = settings
        self._write_log = write_log
        self.log: AuditLog = state.open_audit_log(
            gateway=f"http {os.getpid()}", when_unavailable=settings.when_unavailable
        )
        self._recorders: list[Recorder] = []
        self._factory = UpstreamFactory(
            project, settings.permissions, settings.limits, self._create_recorder, write_log
        )
        self._factory.open_remote_tokens = self._open_remote_tokens
        self._factory.dashboard_url = settings.dashboard_url
        self._stamps: tuple[object, ...] = ()
        self._policy: GatewayPolicy = DEFAULT_GATEWAY_POLICY
        self._logged: set[str] = set()
        self._clients: KnownClients | None = None
        self._lock_problem = ""
        self._approval_problem = ""
        self._publication_problem = ""
        self._locks_mark: Mark | None = None
        """The mark of the feed before the last successful query of published locks."""
        self.unreadable: set[str] = set()
        """Names of servers whose approvals cannot be read."""
        self.endpoint: Endpoint | None = None
        self.serving: HttpServer | None = None
        self._manager: SessionManager | None = None
        self._shared: SharedApprovals | None = None
        self._budgets: SharedBudgets | None = None
        self._feed: ChangeFeed | None = None
        self._resource_server: ResourceServer | None = None
        self._key_generation = 0
        self._sign_ins = SignInEvents()
        self._fleet: FleetService | None = None
        self._status_pages: StatusPages | None = None
        self._next_count = 0.0

    async def start(self, one_time_token: str = "") -> tuple[str, int, LockedUpstreams]:
        """Read lock, policy and tokens, and listen for clients. Returns the host, the port and the servers."""
        settings = self._settings
        loop = asyncio.get_running_loop()
        self._feed = self._state.open_change_feed()
        if self._feed is not None:
            self._feed.start()
        clients = self._clients = self._create_known_clients(one_time_token)
        if self._follower is not None:
            self._write_log(await loop.run_in_executor(None, self._follower.refresh))
        self._policy = load_policies(self._project).gateway
        self._factory.set_policy(self._policy)
        self._warn_if_observing()
        self._factory.tracing = configure_tracing(self._project.variables, self._write_log)
        self._stamps = self._read_file_stamps()
        self._shared = self._factory.shared = self._state.open_shared_approvals(
            self._project.lock, applies=settings.shared_approvals, feed=self._feed
        )
        self._budgets = self._factory.budgets = self._state.open_shared_budgets(self._write_log)
        locked = await loop.run_in_executor(None, self._factory.read_lock)
        if not locked.upstreams:
            reason = "; ".join(f"{name}: {problem}" for name, problem in locked.problems.items()) or "the lock is empty"
            raise PinwardenError(
                "GATEWAY_UNAVAILABLE",
                f"the gateway cannot serve any server in the lock: {reason}",
                hint=CONSENT_HINT if locked.needs_consent else "To see the servers in the lock, run pinwarden status.",
            )
        manager = self._manager = SessionManager(locked.upstreams, settings.limits, loop.time)
        resource_server = await self._open_resource_server()
        access = Access(self._list_hosts(), settings.origins, await clients.load(), resource_server)
        access.on_admitted, access.on_refused = self._record_sign_in, self._record_refused_token
        endpoint = self.endpoint = Endpoint(manager, access, settings.limits, create_merged_route())
        serving = self.serving = HttpServer(endpoint, manager, settings.limits)
        status_pages = self._create_status_pages(manager, endpoint, serving, clients)
        serving.connections.on_slow_disconnect = self._record_slow_disconnect
        serving.write_log = self._write_log
        endpoint.public_pages = {
            "/healthz": status_pages.build_health_page,
            "/readyz": status_pages.build_readiness_page,
        }
        self._fleet = FleetService(self._state, lambda: self._project)
        endpoint.services = {SYNC_PATH: self._fleet.handle}
        endpoint.pages = {"/metrics": status_pages.build_metrics_page}
        serving.periodic += [self._reload, self._expire_tokens, self._start_counting_reviews]
        await self._check_approvals(manager)
        if self._shared is not None:
            await loop.run_in_executor(None, self._shared.start, settings.limits.token_read_seconds)
        if self._budgets is not None:
            self._budgets.start()
        if settings.status is None:
            host, port = await serving.start(settings.listening)
            return host, port, locked
        operators = OperatorEndpoint({**endpoint.public_pages, **endpoint.pages}, {*settings.hosts, "localhost"})
        host, port = await serving.start(settings.listening, (operators, *settings.status))
        self._write_log("health, readiness and metrics are at http://{}:{}".format(*serving.status_address or ()))
        return host, port, locked

    def _create_status_pages(
        self, manager: SessionManager, endpoint: Endpoint, serving: HttpServer, clients: KnownClients
    ) -> StatusPages:
        status_pages = self._status_pages = StatusPages(
            manager, endpoint, serving.connections, lambda: self.log.waiting_count, self._factory.clients
        )
        status_pages.problems = [
            make_audit_check(lambda: self.log.refusal),
            lambda: self._lock_problem,
            lambda: self._approval_problem,
            lambda: "" if clients.admits_known else clients.problem,
        ]
        status_pages.warnings = [
            self._describe_spooling,
            lambda: clients.problem if clients.admits_known else "",
            lambda: self._publication_problem,
            lambda: "" if self._resource_server is None else self._resource_server.problem,
        ]
        return status_pages

    async def stop(self) -> None:
        """Close connections, the database and the log."""
        self._factory.close()
        if self._shared is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._shared.close)
        if self._budgets is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._budgets.close)
        if self._fleet is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._fleet.close)
        if self._feed is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._feed.close)
        if self._clients is not None:
            self._clients.close()
        if self._resource_server is not None:
            self._resource_server.close()
        loop = asyncio.get_running_loop()
        if self._factory.tracing is not None:
            await loop.run_in_executor(None, self._factory.tracing.close)
        for recorder in self._recorders:
            await loop.run_in_executor(None, recorder.close)
        await loop.run_in_executor(None, self.log.close)

    def _open_remote_tokens(self) -> RemoteTokens:
        from pinwarden.gateway.remote_grants import open_remote_tokens

        return open_remote_tokens(self._state, self._project.variables, record=self.log.record_durably)

    def _describe_spooling(self) -> str:
        """Return a warning if events wait for the audit database; otherwise an empty string."""
        problem = None if self.log.refusal is not None else self.log.problem
        return (
            ""
            if problem is None
            else f"the audit database is unavailable, so events wait in the journal ({problem.code})"
        )

    def _record_sign_in(self, client: GatewayClient) -> None:
        self._record_if_possible(self._sign_ins.build_admitted(client.name, client.token, client.teams))

    def _record_refused_token(self, reason: str) -> None:
        self._record_if_possible(self._sign_ins.build_refused("token", reason))

    def _record_if_possible(self, event: AuditEvent | None) -> None:
        """Record an event about a sign-in. If the log cannot be written, the messages that follow are refused."""
        with suppress(PinwardenError):
            if event is not None:
                self.log.record(event)

    def _record_slow_disconnect(self, reason: str) -> None:
        """Log and record that a client was disconnected because it read too slowly."""
        self._write_log(reason)
        try:
            self.log.record(AuditEvent(kind=STOPPED, code="reader_too_slow", reason=reason))
        except PinwardenError as err:
            self._log_once(f"the disconnection could not be recorded: {err.message}")

    def _create_recorder(self, server: str) -> Recorder:
        published = self._settings.published
        baseline = Baseline(kind=PUBLISHED, name=published) if published else Baseline.of_lock(self._project.lock)
        recorder = Recorder(self.log, lambda: self._state.open_sighting_recorder(server, baseline), self._write_log)
        self._recorders.append(recorder)
        return recorder

    def _list_hosts(self) -> set[str]:
        listening = self._settings.listening
        hosts = {*self._settings.hosts, listening.host}
        if self._resource_server is not None:
            hosts.add(self._resource_server.host)
        return hosts | LOOPBACK if listening.host in LOOPBACK else hosts

    async def _open_resource_server(self) -> ResourceServer | None:
        """Read ``[identity]``, and ask the issuer for its keys. The gateway also starts while the issuer is away."""
        resource_server = self._resource_server = load_resource_server(self._project, self._write_log)
        if resource_server is not None:
            await resource_server.refresh_if_outdated()
            self._key_generation = resource_server.generation
        return resource_server

    async def _apply_identity(self, access: Access) -> None:
        """Apply changed settings of the issuer. Access tokens are verified again."""
        earlier = self._resource_server
        access.verifier = await self._open_resource_server()
        access.set_hosts(self._list_hosts())
        access.forget_verified()
        if earlier is not None:
            earlier.close()

    async def _expire_tokens(self) -> None:
        """Fetch keys when they are due, and end the streams of clients whose token expired."""
        endpoint, manager, resource_server = self.endpoint, self._manager, self._resource_server
        if endpoint is None or manager is None:
            return
        manager.end_streams_of(endpoint.access.forget_expired())
        if resource_server is None:
            return
        await resource_server.refresh_if_outdated()
        if resource_server.generation != self._key_generation:
            self._key_generation = resource_server.generation
            endpoint.access.forget_verified()

    def _create_known_clients(self, one_time_token: str) -> KnownClients:
        digest = hash_token(one_time_token)
        temporary = {}
        if one_time_token:  # only for clients on this machine: they act for its user
            person = ("local", self._state.read_host_id())
            temporary[digest] = GatewayClient(name="local", token=digest, person=person)
        return KnownClients(
            self._state.tokens.list_valid,
            temporary,
            self._write_log,
            keep=self._settings.when_unavailable == "spool",
            seconds=self._settings.limits.token_read_seconds,
            feed=self._feed,
        )

    # Reloading

    async def _reload(self) -> None:
        """Reload tokens, policy and lock if they changed. If lock or policy cannot be read, block all requests."""
        if self.endpoint is None or self._manager is None or self._clients is None:
            return
        await self._clients.reload(self.endpoint.access)
        await self._check_approvals(self._manager)
        await self._follow_published_lock()
        stamps = self._read_file_stamps()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            await self._apply_policy(load_policies(self._project).gateway)
            await self._apply_identity(self.endpoint.access)
            locked = await asyncio.get_running_loop().run_in_executor(None, self._factory.read_lock)
            await self._record(
                AuditEvent(kind=LOCK_CHANGED, reason=f"the gateway serves {plural(len(locked.upstreams), 'server')}")
            )
        except PinwardenError as err:
            if err.code == "AUDIT_UNAVAILABLE":
                self._stamps = ()  # lock and policy are valid: retry until the change can be recorded
            self._lock_problem = err.message
            self._log_once(f"all requests are blocked, because the lock or the policy cannot be read: {err.message}")
            # If the lock is unreadable, the guards block all messages. If the policy is unreadable, this line does.
            self._manager.replace_upstreams({})
            return
        self._lock_problem = ""
        self._logged.clear()
        before = set(self._manager.upstreams)
        self._manager.replace_upstreams(locked.upstreams)
        self._factory.close_replaced_pools()
        for name, problem in locked.problems.items():
            self._log_once(f"the gateway does not serve {name}: {problem}")
        if set(locked.upstreams) != before:
            self._write_log(f"the gateway now serves {', '.join(sorted(locked.upstreams)) or 'no server'}")

    async def _follow_published_lock(self) -> None:
        """Copy the newest published lock. If it is refused or cannot be read, the accepted one still applies."""
        follower = self._follower
        mark = None if self._feed is None else self._feed.read_mark(locks.TOPIC)
        if follower is None or (mark is not None and mark == self._locks_mark):
            return
        self._locks_mark = None
        try:
            applied = await asyncio.get_running_loop().run_in_executor(None, follower.refresh)
        except PinwardenError as err:
            problem = (
                f"the published lock {follower.name} cannot be applied, so the one before still applies ({err.code})"
            )
            if problem != self._publication_problem:
                self._write_log(f"{problem}: {err.message}")
                if err.code != _DATABASE_UNAVAILABLE:
                    await self._record(AuditEvent(kind=LOCK_CHANGED, code=err.code, reason=err.message))
            self._publication_problem = problem
            return
        self._publication_problem = ""
        self._locks_mark = mark
        if applied:
            self._write_log(applied)

    async def _check_approvals(self, manager: SessionManager) -> None:
        """Read the approvals of all servers, and report servers whose approvals cannot be read."""

        def find_unreadable() -> dict[str, str]:
            problems: dict[str, str] = {}
            for upstream in upstreams:
                upstream.guard.refresh(now)
                try:
                    _ = upstream.guard.approved
                except PinwardenError as err:
                    problems[upstream.name] = err.message
            return problems

        upstreams, now = tuple(manager.upstreams.values()), manager.clock()
        problems = await asyncio.get_running_loop().run_in_executor(None, find_unreadable)
        for name in problems.keys() - self.unreadable:
            self._write_log(
                f"all messages of {name} are blocked, because its approvals cannot be read: {problems[name]}"
            )
        self.unreadable = set(problems)
        # /readyz is public, so it does not name servers.
        self._approval_problem = (
            f"all messages of {plural(len(problems), 'server')} are blocked, because approvals cannot be read"
            if problems
            else ""
        )

    async def _apply_policy(self, policy: GatewayPolicy) -> None:
        if policy.digest != self._policy.digest:
            await self._record(AuditEvent(kind=POLICY_CHANGED, policy=policy.digest))
            self._policy = policy
            self._factory.set_policy(policy)
            self._write_log("the policy was reloaded")
            self._warn_if_observing()

    async def _start_counting_reviews(self) -> None:
        """Count the pending reviews for the metrics, in a task: other periodic work must not wait for the database."""
        now = asyncio.get_running_loop().time()
        if self._manager is not None and now >= self._next_count:
            self._next_count = inf  # until this count is done
            self._manager.run_task(self._count_reviews(now))

    async def _count_reviews(self, now: float) -> None:
        counts = None
        with suppress(PinwardenError):  # while the database is away, the number is unknown
            counts = await asyncio.get_running_loop().run_in_executor(None, self._state.reviews.count_pending)
        if self._status_pages is not None:
            self._status_pages.pending_reviews = counts
        self._next_count = now + _COUNT_SECONDS

    def _warn_if_observing(self) -> None:
        """Warn if the policy reports changes without blocking them."""
        warning = self._policy.describe_unblocked_content()
        if warning:
            self._write_log(warning)

    async def _record(self, event: AuditEvent) -> None:
        """Record a change before it takes effect, in the journal if the database is unavailable."""
        await asyncio.get_running_loop().run_in_executor(None, self.log.record_durably, event)

    def _read_file_stamps(self) -> tuple[object, ...]:
        """Read values that change when the lock or the policy file changes."""
        policy = self._project.policy_file
        key = self._state.folder / GRANT_KEY_FILE  # made when the user connects the first remote server
        return tuple(read_file_stamp(path) for path in (self._project.lock, policy, key))

    def _log_once(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            self._write_log(text)


def load_resource_server(project: Project, write_log: Callable[[str], None]) -> ResourceServer | None:
    """Return the resource server that ``[identity.clients]`` describes; None without this table."""
    path = project.policy_file
    if not path.exists() or b"identity" not in (data := read_file(path, _MAX_POLICY_BYTES)):
        return None
    try:
        from pinwarden.gateway.http.resource_server import ResourceServer
        from pinwarden.identity.identity_report import open_issuer
    except ImportError as err:
        raise PinwardenError(
            "GATEWAY_UNAVAILABLE",
            f"access tokens need the package {err.name}, which is not installed",
            hint='Install it from a checkout of Pinwarden: pip install ".[identity]"',
        ) from err
    from pinwarden.identity.settings import parse_identity

    settings = parse_identity(data, project.variables)
    if settings is None or settings.clients is None:
        return None
    return ResourceServer(settings, settings.clients, open_issuer(settings, project.variables), write_log)


def serve(
    gateway: HttpGateway,
    on_started: Callable[[str, int, LockedUpstreams], None],
    one_time_token: str,
    *,
    once: bool = False,
) -> bool:
    """Run a gateway until a signal stops it. Returns whether all requests ended in time.

    With ``once``, stop the gateway as soon as it listens.
    """

    async def run() -> bool:
        try:
            host, port, locked = await gateway.start(one_time_token)
            on_started(host, port, locked)
            gc.collect()
            gc.freeze()  # exempt long-lived objects from garbage collection, which would delay responses
            if gateway.serving is None:
                return False
            return await (gateway.serving.stop() if once else gateway.serving.run_until_signal())
        finally:
            await gateway.stop()

    # With the default switch interval of 5 ms, responses would wait for the audit log's thread.
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        with asyncio.Runner(loop_factory=_choose_loop_factory()) as runner:
            return runner.run(run())
    finally:
        kill_all_trees()  # a server may have been starting when the loop ended


def _choose_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the loop factory of uvloop if uvloop is installed; otherwise None."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


_DATABASE_UNAVAILABLE = "DATABASE_UNAVAILABLE"


class KnownClients:
    """The clients with valid tokens, reloaded regularly."""

    def __init__(  # noqa: PLR0913 - the sources and the limits of one reader
        self,
        read: Callable[[], Sequence[GatewayToken]],
        temporary: Mapping[str, GatewayClient],
        write_log: Callable[[str], None],
        *,
        keep: bool,
        seconds: float,
        feed: ChangeFeed | None = None,
    ) -> None:
        """``read`` reads the valid tokens. ``temporary`` are additional clients of this run. The token store counts as
        unavailable if it does not respond within ``seconds``. With ``keep``, known clients are still admitted then.
        While ``feed`` works, the tokens are read again only after a change."""
        self._read = read
        self._temporary = dict(temporary)
        self._write_log = write_log
        self._keep = keep
        self._seconds = seconds
        self._feed = feed
        self._mark: Mark | None = None
        """The mark of the feed before the last successful query."""
        # A dedicated thread with its own database connection.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokens")
        self._reading: asyncio.Future[dict[str, GatewayClient]] | None = None
        self.problem = ""
        """Why tokens cannot be validated now; empty if they can. Contains no secrets."""
        self.admits_known = True
        """Whether known clients are admitted although tokens cannot be validated."""

    async def load(self) -> dict[str, GatewayClient]:
        """Read the clients at start-up. Raises if the tokens cannot be read."""
        return await self._query_tokens()

    async def reload(self, access: Access) -> None:
        """Read the tokens again, and admit exactly the clients with a valid token."""
        mark = None if self._feed is None else self._feed.read_mark(TOPIC)
        if mark is not None and mark == self._mark and self._reading is None:
            return
        self._mark = None
        earlier, self._reading = self._reading, None
        reading = earlier or asyncio.ensure_future(self._query_tokens())
        done, _ = await asyncio.wait({reading}, timeout=self._seconds if earlier is None else 0)
        if not done:
            self._reading = reading  # no second query while the first one runs
            self._on_unavailable(access, PinwardenError(_DATABASE_UNAVAILABLE, "the database does not respond"))
            return
        try:
            access.set_clients(reading.result())
        except PinwardenError as err:
            self._on_unavailable(access, err)
        else:
            if self.problem:
                self._write_log("the tokens can be read again")
            self.problem = ""
            self.admits_known = True
            self._mark = mark if earlier is None else None  # an earlier query may not have seen the change

    def close(self) -> None:
        """Stop reloading."""
        if self._reading is not None:
            self._reading.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _query_tokens(self) -> dict[str, GatewayClient]:
        query = partial(asyncio.get_running_loop().run_in_executor, self._thread, self._read)
        try:
            tokens = await query()
        except PinwardenError as err:
            if err.code != _DATABASE_UNAVAILABLE:
                raise
            tokens = await query()  # retry once: the first error may only mean that the connection was lost
        clients = {
            token.digest: GatewayClient(
                name=token.client,
                servers=token.servers,
                token=token.digest,
                teams=token.teams,
                person=("static", token.client),
                scopes=token.scopes,
                expires_at=token.expiry,
            )
            for token in tokens
        }
        return clients | self._temporary

    def _on_unavailable(self, access: Access, err: PinwardenError) -> None:
        unavailable = err.code == _DATABASE_UNAVAILABLE
        if not unavailable:
            access.set_clients(self._temporary)
        elif self._keep:
            access.admit_unverified()
        else:
            access.admit_unverified(self._temporary)
        self.admits_known = unavailable and self._keep
        consequence = "known clients are admitted" if unavailable and self._keep else "no client is admitted"
        problem = f"the tokens cannot be read, so {consequence} ({err.code})"
        if problem != self.problem:
            self._write_log(f"{problem}: {err.message}")
        self.problem = problem
