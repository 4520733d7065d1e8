"""The whole gateway over HTTP: the lock and the policy in, a listening server out; both are looked at again."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.report import plural
from pinwarden.gateway.audit.event import LOCK_CHANGED, POLICY_CHANGED, STOPPED, AuditEvent
from pinwarden.gateway.gated_server import gateway_policy_of
from pinwarden.gateway.http.endpoint import Endpoint
from pinwarden.gateway.http.header_checks import Access, Client
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.listener import HttpServer, ListenAddress, file_stamp
from pinwarden.gateway.http.merged import merged_route
from pinwarden.gateway.http.session_manager import SessionManager
from pinwarden.gateway.http.telemetry import Figures, audit_problem, tracing_of
from pinwarden.gateway.http.upstreams import CONSENT_HINT, LockedUpstreams, Permissions, UpstreamFactory
from pinwarden.gateway.recorder import Recorder
from pinwarden.gateway.state import lock_baseline
from pinwarden.gateway.store.tokens import Token, token_digest
from pinwarden.lock.gateway_policy import DEFAULT_POLICY, GatewayPolicy
from pinwarden.system.processes import kill_all_trees

if TYPE_CHECKING:
    from pinwarden.gateway.audit.log import AuditLog, WhenAway
    from pinwarden.gateway.shared_approvals import SharedApprovals
    from pinwarden.gateway.state import GatewayState
    from pinwarden.project.project import Project

_TURN_SECONDS = 0.0002
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class Settings(Record):
    """What the user says about a gateway."""

    listening: ListenAddress
    permissions: Permissions = Permissions()
    hosts: tuple[str, ...] = ()
    """Names under which clients reach the gateway, beyond the address that it listens on."""
    origins: tuple[str, ...] = ()
    when_away: WhenAway = "refuse"
    shared_approvals: bool = True
    """Whether approvals of the database count in addition to the lock."""
    limits: HttpLimits = HttpLimits()


class HttpGateway:
    """A gateway that can be started, and that ends when it is told to."""

    def __init__(self, project: Project, state: GatewayState, settings: Settings, say: Callable[[str], None]) -> None:
        self._project = project
        self._state = state
        self._settings = settings
        self._say = say
        self.log: AuditLog = state.audit_log(gateway=f"http {os.getpid()}", when_away=settings.when_away)
        self._recorders: list[Recorder] = []
        self._locked = UpstreamFactory(project, settings.permissions, settings.limits, self._recorder, say)
        self._stamps: tuple[object, ...] = ()
        self._policy: GatewayPolicy = DEFAULT_POLICY
        self._told: set[str] = set()
        self._clients: KnownClients | None = None
        self._lock_problem = ""
        self._approval_problem = ""
        self._unjudged: set[str] = set()
        """Servers of which nobody can say what was approved."""
        self.endpoint: Endpoint | None = None
        self.serving: HttpServer | None = None
        self._manager: SessionManager | None = None
        self._shared: SharedApprovals | None = None

    async def start(self, one_time_token: str = "") -> tuple[str, int, LockedUpstreams]:
        """Read everything, begin to serve, and tell where."""
        settings = self._settings
        loop = asyncio.get_running_loop()
        clients = self._clients = self._known_clients(one_time_token)
        self._policy = gateway_policy_of(self._project)
        self._locked.set_policy(self._policy)
        self._tell_mode()
        self._locked.tracing = tracing_of(self._project.variables, self._say)
        self._stamps = self._seen()
        self._shared = self._locked.shared = self._state.shared_approvals(
            self._project.lock, applies=settings.shared_approvals
        )
        locked = await loop.run_in_executor(None, self._locked.read)
        if not locked.upstreams:
            why = "; ".join(f"{name}: {problem}" for name, problem in locked.problems.items()) or "the lock is empty"
            raise PinwardenError(
                "GATEWAY_UNAVAILABLE",
                f"no locked server can be served: {why}",
                hint=CONSENT_HINT if locked.needs_consent else "pinwarden list shows what is locked.",
            )
        manager = self._manager = SessionManager(locked.upstreams, settings.limits, loop.time)
        access = Access(self._hosts(), settings.origins, await clients.first())
        endpoint = self.endpoint = Endpoint(manager, access, settings.limits, merged_route())
        serving = self.serving = HttpServer(endpoint, manager, settings.limits)
        figures = Figures(manager, endpoint, serving.connections, lambda: self.log.waiting)
        figures.problems = [
            audit_problem(lambda: self.log.refusal),
            lambda: self._lock_problem,
            lambda: self._approval_problem,
            lambda: "" if clients.lets_in else clients.problem,
        ]
        figures.warnings = [
            self._spooling,
            lambda: clients.problem if clients.lets_in else "",
        ]
        serving.connections.on_cut = self._cut
        serving.say = self._say
        endpoint.open_pages = {"/healthz": figures.health, "/readyz": figures.readiness}
        endpoint.pages = {"/metrics": figures.metrics}
        serving.every_second.append(self._look)
        await self._look_at_approvals(manager)
        if self._shared is not None:
            await loop.run_in_executor(None, self._shared.start, settings.limits.tokens_seconds)
        host, port = await serving.start(settings.listening)
        return host, port, locked

    async def stop(self) -> None:
        """End what is left."""
        self._locked.close()
        if self._shared is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._shared.close)
        if self._clients is not None:
            self._clients.close()
        loop = asyncio.get_running_loop()
        if self._locked.tracing is not None:
            await loop.run_in_executor(None, self._locked.tracing.close)
        for recorder in self._recorders:
            await loop.run_in_executor(None, recorder.close)
        await loop.run_in_executor(None, self.log.close)

    def _spooling(self) -> str:
        """What is not well with the audit log, although it takes events."""
        away = None if self.log.refusal is not None else self.log.problem
        return "" if away is None else f"the audit database is away, so events wait in the journal ({away.code})"

    def _cut(self, why: str) -> None:
        """A client that did not read was cut off, and whatever it was answered with was lost."""
        self._say(why)
        try:
            self.log.record(AuditEvent(kind=STOPPED, code="reader_too_slow", reason=why))
        except PinwardenError as err:
            self._tell(f"that could not be recorded: {err.message}")

    def _recorder(self, server: str) -> Recorder:
        baseline = lock_baseline(self._project.lock)
        made = Recorder(self.log, lambda: self._state.sightings(server, baseline), self._say)
        self._recorders.append(made)
        return made

    def _hosts(self) -> set[str]:
        listening = self._settings.listening
        hosts = {*self._settings.hosts, listening.host}
        return hosts | LOOPBACK if listening.host in LOOPBACK else hosts

    def _known_clients(self, one_time_token: str) -> KnownClients:
        digest = token_digest(one_time_token)
        once = {digest: Client(name="local", token=digest)} if one_time_token else {}
        return KnownClients(
            self._state.tokens.valid,
            once,
            self._say,
            keep=self._settings.when_away == "spool",
            seconds=self._settings.limits.tokens_seconds,
        )

    # Looking again

    async def _look(self) -> None:
        """Tokens, policy and lock, as they are now. What cannot be read changes nothing, and is told."""
        if self.endpoint is None or self._manager is None or self._clients is None:
            return
        await self._clients.look(self.endpoint.access)
        await self._look_at_approvals(self._manager)
        stamps = self._seen()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            await self._take_policy(gateway_policy_of(self._project))
            locked = await asyncio.get_running_loop().run_in_executor(None, self._locked.read)
            await self._record(AuditEvent(kind=LOCK_CHANGED, reason=f"{len(locked.upstreams)} servers are served"))
        except PinwardenError as err:
            if err.code == "AUDIT_UNAVAILABLE":
                self._stamps = ()  # the files are well: they are looked at again until there is room for the event
            self._lock_problem = err.message
            self._tell(f"the lock or the policy cannot be read, so nothing passes: {err.message}")
            # The guards meet the same lock and refuse by themselves; a policy that is gone refuses here.
            self._manager.replace({})
            return
        self._lock_problem = ""
        self._told.clear()
        before = set(self._manager.upstreams)
        self._manager.replace(locked.upstreams)
        self._locked.hang_up()
        for name, problem in locked.problems.items():
            self._tell(f"{name} is not served: {problem}")
        if set(locked.upstreams) != before:
            self._say(f"serving {', '.join(sorted(locked.upstreams)) or 'nothing'}")

    async def _look_at_approvals(self, manager: SessionManager) -> None:
        """Whether what was approved can be read, also of servers that nobody uses now."""

        def unread() -> dict[str, str]:
            found: dict[str, str] = {}
            for upstream in upstreams:
                upstream.guard.look(now)
                try:
                    _ = upstream.guard.approved
                except PinwardenError as err:
                    found[upstream.name] = err.message
            return found

        upstreams, now = tuple(manager.upstreams.values()), manager.clock()
        problems = await asyncio.get_running_loop().run_in_executor(None, unread)
        for name in problems.keys() - self._unjudged:
            self._say(f"nothing of {name} passes, because what was approved cannot be read: {problems[name]}")
        self._unjudged = set(problems)
        # Anybody may ask whether we are ready, so the servers are not named.
        self._approval_problem = (
            f"what was approved of {plural(len(problems), 'server')} cannot be read, so nothing of it passes"
            if problems
            else ""
        )

    async def _take_policy(self, policy: GatewayPolicy) -> None:
        if policy.digest != self._policy.digest:
            await self._record(AuditEvent(kind=POLICY_CHANGED, policy=policy.digest))
            self._policy = policy
            self._locked.set_policy(policy)
            self._say("the policy was read anew")
            self._tell_mode()

    def _tell_mode(self) -> None:
        """A gateway that only watches looks like one that protects, so it says so."""
        passing = self._policy.lets_pass()
        if passing:
            self._say(passing)

    async def _record(self, fact: AuditEvent) -> None:
        """Before what it tells of takes effect; also while the database is away, as then its journal has it."""
        await asyncio.get_running_loop().run_in_executor(None, self.log.record_durably, fact)

    def _seen(self) -> tuple[object, ...]:
        """Cheap signs of a change."""
        from pinwarden.project.project import OWN_POLICY

        policy = self._project.policy or self._project.root / OWN_POLICY
        return tuple(file_stamp(path) for path in (self._project.lock, policy))

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._say(text)


def serve(
    gateway: HttpGateway,
    started: Callable[[str, int, LockedUpstreams], None],
    one_time_token: str,
    *,
    once: bool = False,
) -> bool:
    """Run a gateway until it is told to end, or only until it could serve; whether all requests ended in time."""

    async def run() -> bool:
        try:
            host, port, locked = await gateway.start(one_time_token)
            started(host, port, locked)
            gc.collect()
            gc.freeze()  # what is there now stays; looking at it again and again would make answers wait
            if gateway.serving is None:
                return False
            return await (gateway.serving.stop() if once else gateway.serving.run_until_asked_to_end())
        finally:
            await gateway.stop()

    # The audit log writes on a thread of its own. At the usual five milliseconds a turn, answers would wait for it.
    sys.setswitchinterval(_TURN_SECONDS)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(run())
    finally:
        kill_all_trees()  # such as a server that was being started when the loop ended


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """A faster loop, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


_AWAY = "DATABASE_UNAVAILABLE"


class KnownClients:
    """The clients of a gateway, looked up again and again."""

    def __init__(
        self,
        read: Callable[[], Sequence[Token]],
        once: Mapping[str, Client],
        say: Callable[[str], None],
        *,
        keep: bool,
        seconds: float,
    ) -> None:
        """``once`` are let in by this process itself. With ``keep`` those who were known are let in while the store is
        away, which it is if it does not answer in so many ``seconds``."""
        self._read = read
        self._once = dict(once)
        self._say = say
        self._keep = keep
        self._seconds = seconds
        # A thread of its own has one connection to the database, and waits for nobody else's.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokens")
        self._reading: asyncio.Future[dict[str, Client]] | None = None
        self.problem = ""
        """What is wrong with the tokens now, in words that anybody may read."""
        self.lets_in = True
        """Whether clients that are known are let in all the same."""

    async def first(self) -> dict[str, Client]:
        """Those who are let in at the start. What cannot be read then raises."""
        return await self._looked_up()

    async def look(self, access: Access) -> None:
        """Let those in who may come in now."""
        owed, self._reading = self._reading, None
        reading = owed or asyncio.ensure_future(self._looked_up())
        done, _ = await asyncio.wait({reading}, timeout=self._seconds if owed is None else 0)
        if not done:
            self._reading = reading  # nobody asks, or waits, a second time while the first answer is owed
            self._cannot_tell(access, PinwardenError(_AWAY, "the database does not answer"))
            return
        try:
            access.set_clients(reading.result())
        except PinwardenError as err:
            self._cannot_tell(access, err)
        else:
            if self.problem:
                self._say("the tokens can be read again")
            self.problem = ""
            self.lets_in = True

    def close(self) -> None:
        """Nobody looks any more."""
        if self._reading is not None:
            self._reading.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _looked_up(self) -> dict[str, Client]:
        ask = partial(asyncio.get_running_loop().run_in_executor, self._thread, self._read)
        try:
            tokens = await ask()
        except PinwardenError as err:
            if err.code != _AWAY:
                raise
            tokens = await ask()  # only its connection may be gone, and the next one is new
        found = {each.digest: Client(name=each.client, servers=each.servers, token=each.digest) for each in tokens}
        return found | self._once

    def _cannot_tell(self, access: Access, err: PinwardenError) -> None:
        away = err.code == _AWAY
        if not away:
            access.set_clients(self._once)
        elif self._keep:
            access.set_unverified()
        else:
            access.set_unverified(self._once)
        self.lets_in = away and self._keep
        then = "those who were known are let in" if away and self._keep else "nobody is let in by one"
        problem = f"the tokens cannot be read, so {then} ({err.code})"
        if problem != self.problem:
            self._say(f"{problem}: {err.message}")
        self.problem = problem
