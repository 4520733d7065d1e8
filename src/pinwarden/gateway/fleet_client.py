"""A machine's side of a fleet: its gateways follow the company's gateway over HTTPS, with a device token.

``pinwarden fleet join`` writes the settings into the folder ``fleet`` of the state folder. From then on, every
``pinwarden run`` has a `FleetFollower`, and one of them at a time synchronizes for all: events, sightings and servers
go up, policy and approvals come down into the folder, where every gateway of this machine reads them.

The audit log of the machine is the spool: a cursor says what the company has. While the company's gateway cannot be
reached, the last known policy and approvals apply. With ``fail-closed``, everything is blocked after a while.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Self

from pinwarden import __version__
from pinwarden.clients.command_line import parse_launch
from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, as_dict, field, field_names, replace
from pinwarden.core.typed_json import JsonObject
from pinwarden.gateway.audit.chain import read_head, read_lines
from pinwarden.gateway.audit.event import EVENTS_LOST, AuditEvent, event_to_json, parse_entry
from pinwarden.gateway.fleet_service import FORMAT, MAX_SERVERS, SYNC_PATH
from pinwarden.gateway.store.approvals import Approvals, ChangeMark, StoredApproval
from pinwarden.gateway.store.devices import DeviceServer
from pinwarden.gateway.store.reviews import PENDING
from pinwarden.lock import lock_store
from pinwarden.lock.entry import is_for_client
from pinwarden.lock.extension import read_extension
from pinwarden.lock.gateway_policy import DEFAULT_GATEWAY_POLICY, GatewayPolicy, tighten
from pinwarden.lock.locked_launch import describe_launch
from pinwarden.lock.policy import parse_policy
from pinwarden.system.files import create_file, read_file, read_file_stamp, try_lock_file, write_atomically
from pinwarden.system.net.connections import ServiceEndpoint
from pinwarden.system.net.fetch import Fetcher, FetchLimits, FetchRequest, FetchRules, UploadBody
from pinwarden.system.target import StdioTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pinwarden.gateway.gated_server import GatedServer
    from pinwarden.gateway.guard import ApprovedSource, ApprovedSurface, Guard
    from pinwarden.gateway.state import GatewayState
    from pinwarden.project.project import Project
    from pinwarden.surface.surface import Surface

SYNC_SECONDS = 10.0
"""Seconds between two synchronizations of a machine."""
_FIRST_RETRY_SECONDS, _MAX_RETRY_SECONDS = 1.0, 60.0  # the pause after a failure doubles
MAX_SPOOLED = 50_000
"""Events that wait for the company's gateway: a month of a busy user. Older ones stay on the machine only."""
_LOOK_SECONDS = 1.0  # how often a gateway reads the folder, and tries to become the one that synchronizes
_CLOSE_SECONDS = 0.5
_BATCH_BYTES = 48 * 1024  # of events or sightings in one request, which has at most 64 KiB
_MAX_ROW = 24 * 1024  # bytes of an event or a definition; longer ones stay on the machine
_MAX_RESPONSE = 32 * 1024 * 1024
_MAX_FILE = 32 * 1024 * 1024
_SERVER_DAYS = 30  # a server that was not started for so long is not reported
_SETTINGS, _CURSOR, _POLICY, _APPROVALS = "settings.json", "cursor.json", "policy.toml", "approvals.json"
_CONTACT, _SERVERS, _LOCK = "contact.json", "servers", "sync.lock"


class FleetSettings(Record):
    """How this machine reaches the company's gateway."""

    url: str
    token: str = field(repr=False)
    installation: str
    """Random, so that a token that was copied to another machine is noticed."""
    fail_closed: int = 0
    """Seconds without contact after which everything is blocked; 0 for never."""
    ca_file: str = ""


class _Cursor(Record):
    """What the company's gateway has."""

    entry: int = 0
    """The number of the last entry of this machine's audit log."""
    next_event: int = 1
    """The position of the next event among those that this machine sent."""
    dropped: int = 0
    """Events that were dropped and not reported as dropped yet."""
    sightings: str = ""
    """The time of the last sighting."""


def get_fleet_folder(state_folder: Path) -> Path:
    """Return the folder with the settings and the last known state."""
    return state_folder / "fleet"


def read_settings(folder: Path) -> FleetSettings | None:
    """Return the settings; None if this machine has not joined."""
    path = folder / _SETTINGS
    if not path.exists():
        return None
    document = JsonObject(strict_json.parse_json(read_file(path, 64 * 1024)), "", _invalid_settings)
    return FleetSettings(
        url=document.string("url"),
        token=document.string("token"),
        installation=document.string("installation"),
        fail_closed=document.integer("fail_closed"),
        ca_file=document.string("ca_file"),
    )


def _invalid_settings(path: str, problem: str) -> PinwardenError:
    return PinwardenError(
        "DATABASE_CORRUPT",
        f"the fleet settings of this machine are damaged: {path} {problem}",
        hint="Join again: pinwarden fleet join URL",
    )


def join(state: GatewayState, settings: FleetSettings, variables: Mapping[str, str]) -> Mapping[str, Any]:
    """Contact the company's gateway and store the settings. Returns its response. Nothing is stored if that fails.

    Only events from now on are sent.
    """
    folder = get_fleet_folder(state.folder)
    head = read_head(state.chain_database)
    cursor = _Cursor(entry=head.number, sightings=_now())
    response = _post(settings, _build_report(settings, folder, servers=()), variables)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _store_response(folder, response)
    write_atomically(folder / _CURSOR, canonicalize(as_dict(cursor)))
    (folder / _SETTINGS).unlink(missing_ok=True)
    create_file(folder / _SETTINGS, canonicalize(as_dict(settings)), 0o600)
    return response.value


def leave(folder: Path) -> None:
    """Forget the settings and everything that came from the company's gateway."""
    for name in (_SETTINGS, _POLICY, _APPROVALS, _CONTACT, _CURSOR):
        (folder / name).unlink(missing_ok=True)


def synchronize(state: GatewayState, settings: FleetSettings, variables: Mapping[str, str]) -> int:
    """Send what the company's gateway does not have yet, and store what it answers. Returns the number of events."""
    folder = get_fleet_folder(state.folder)
    response = _post(settings, _build_report(settings, folder, servers=_list_servers(state)), variables)
    _store_response(folder, response)
    cursor = _skip_oldest(state, folder, _follow_count(response, _read_cursor(folder)))
    sightings, newest = _list_sightings(state, cursor.sightings)
    count = 0
    while True:
        events, after = _read_events(state, cursor)
        rows = _take(sightings, _BATCH_BYTES - sum(map(len, events)))
        if not events and not rows:
            break
        _post(settings, _build_report(settings, folder, cursor, events=events, sightings=rows), variables)
        count += len(events)
        cursor = replace(cursor, entry=after, next_event=cursor.next_event + len(events), dropped=0)
        write_atomically(folder / _CURSOR, canonicalize(as_dict(cursor)))
    write_atomically(folder / _CURSOR, canonicalize(as_dict(replace(cursor, sightings=newest))))
    return count


def _list_servers(state: GatewayState) -> list[DeviceServer]:
    """Return the servers of this machine, each with the number of its changes that are pending review."""
    waiting = Counter(review.server for review in state.reviews.select((PENDING,)))
    return [replace(row, waiting=waiting[row.server]) for row in list_servers(get_fleet_folder(state.folder))]


def _follow_count(response: JsonObject, cursor: _Cursor) -> _Cursor:
    """Continue after the last event that the company's log has. It has fewer than were sent after it was restored."""
    expected = response.integer("next_event", minimum=1) if "next_event" in response else cursor.next_event
    lost = max(0, cursor.next_event - expected)
    return replace(cursor, next_event=cursor.next_event - lost, dropped=cursor.dropped + lost)


def _skip_oldest(state: GatewayState, folder: Path, cursor: _Cursor) -> _Cursor:
    """Drop the oldest events if more than `MAX_SPOOLED` wait. The company's log gets their number."""
    waiting = read_head(state.chain_database).number - cursor.entry
    if waiting <= MAX_SPOOLED:
        return cursor
    dropped = waiting - MAX_SPOOLED
    cursor = replace(cursor, entry=cursor.entry + dropped, dropped=cursor.dropped + dropped)
    write_atomically(folder / _CURSOR, canonicalize(as_dict(cursor)))
    return cursor


def _read_events(state: GatewayState, cursor: _Cursor) -> tuple[list[bytes], int]:
    """Return the next events as JSON, and the number of the last entry among them."""
    events: list[bytes] = []
    size, after = 0, cursor.entry
    if cursor.dropped:
        reason = f"{cursor.dropped} events did not arrive or were lost; they are in the log of the machine"
        events.append(_encode_event(time.time_ns(), AuditEvent(kind=EVENTS_LOST, code="events_dropped", reason=reason)))
    for number, line in read_lines(state.chain_database, after):
        entry = parse_entry(line)
        encoded = _encode_event(_parse_time(entry.at), entry.event)
        if len(encoded) > _MAX_ROW:
            short = AuditEvent(kind=entry.event.kind, code="event_too_long", server=entry.event.server[:200])
            encoded = _encode_event(_parse_time(entry.at), short)
        if size + len(encoded) > _BATCH_BYTES:
            break
        events.append(encoded)
        size += len(encoded)
        after = number
    return events, after


def _encode_event(at: int, event: AuditEvent) -> bytes:
    return b'{"at":%d,"event":%s}' % (at, canonicalize(event_to_json(event)))


def _parse_time(text: str) -> int:
    moment = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    return (int(moment.timestamp()) * 1_000_000 + moment.microsecond) * 1000


def _list_sightings(state: GatewayState, since: str) -> tuple[list[bytes], str]:
    """Return the sightings since a time as JSON, and the time of the newest one."""
    rows = [row for row in state.observed_definitions.list_all() if row.last_seen >= since]
    names = ("server", "entity", "item", "digest", "definition", "action", "first_seen", "last_seen")
    encoded = [json.dumps({name: getattr(row, name) for name in names}).encode() for row in rows]
    return [row for row in encoded if len(row) <= _MAX_ROW], max((row.last_seen for row in rows), default=since)


def _take(rows: list[bytes], size: int) -> list[bytes]:
    """Remove rows of at most this size from the list, and return them."""
    taken: list[bytes] = []
    while rows and size >= len(rows[0]):
        size -= len(rows[0])
        taken.append(rows.pop(0))
    return taken


def _build_report(  # noqa: PLR0913 - the members of one document
    settings: FleetSettings,
    folder: Path,
    cursor: _Cursor = _Cursor(),  # noqa: B008 - records do not change
    *,
    servers: Sequence[DeviceServer] | None = None,
    events: Iterable[bytes] = (),
    sightings: Iterable[bytes] = (),
) -> bytes:
    """Return a report. One with ``servers`` asks for the policy and the approvals."""
    policy = read_policy(folder)
    members = {
        "format": FORMAT,
        "installation": settings.installation,
        "host": _get_host_name(),
        "program": __version__,
        "policy": "" if policy is None else policy.digest,
        "first_event": cursor.next_event,
        **({} if servers is None else {"servers": [as_dict(row) for row in servers]}),
    }
    head = json.dumps(members).encode()[:-1]
    return b'%s,"events":[%s],"sightings":[%s]}' % (head, b",".join(events), b",".join(sightings))


def _post(settings: FleetSettings, body: bytes, variables: Mapping[str, str]) -> JsonObject:
    """Send a report and return the response. Raises ``FLEET_UNAVAILABLE`` or ``FLEET_REFUSED``."""
    limits = FetchLimits(attempts=1, connect_seconds=10.0, idle_seconds=20.0, total_seconds=60.0)
    endpoint = ServiceEndpoint(
        url=f"{settings.url.rstrip('/')}/",
        configured_by="user",
        source="pinwarden fleet join",
        authorization=f"Bearer {settings.token}",
        ca_file=Path(settings.ca_file) if settings.ca_file else None,
    )
    fetcher = Fetcher(FetchRules(limits=limits), variables)
    try:
        response = fetcher.send(
            FetchRequest(
                endpoint=endpoint,
                url=f"{settings.url.rstrip('/')}{SYNC_PATH}",
                upload=UploadBody(method="POST", body=body, media_type="application/json"),
            ),
            max_bytes=_MAX_RESPONSE,
        )
    except PinwardenError as err:
        raise PinwardenError("FLEET_UNAVAILABLE", f"the company's gateway cannot be reached: {err.message}") from err
    finally:
        fetcher.close()
    if response.status in (429, 502, 503, 504):
        raise PinwardenError("FLEET_UNAVAILABLE", f"the company's gateway is unavailable (status {response.status})")
    if response.status != 200:
        raise PinwardenError(
            "FLEET_REFUSED",
            f"the company's gateway refused the report (status {response.status}): {_read_reason(response.body)}",
        )
    document = JsonObject(strict_json.parse_json(response.body), "", _invalid_response)
    if document.string("format") != FORMAT:
        document.fail("format", "is unknown")
    return document


def _read_reason(body: bytes) -> str:
    with suppress(PinwardenError, KeyError, TypeError):
        value: Any = strict_json.parse_json(body)
        return f"{value['error']['message'][:200]!a}"
    return "no reason"


def _invalid_response(path: str, problem: str) -> PinwardenError:
    return PinwardenError("FLEET_REFUSED", f"the response of the company's gateway is invalid: {path} {problem}")


def _store_response(folder: Path, response: JsonObject) -> None:
    """Store policy and approvals, after both were checked."""
    policy = response.optional_string("policy")
    data = None if policy is None else policy.encode()
    if data is not None:
        parse_policy(data)
    approvals = [_parse_approval(row) for row in response.objects("approvals")]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if data is None:
        (folder / _POLICY).unlink(missing_ok=True)
    elif not (folder / _POLICY).exists() or read_file(folder / _POLICY, _MAX_FILE) != data:
        write_atomically(folder / _POLICY, data)
    encoded = canonicalize([as_dict(row) for row in approvals])
    if not (folder / _APPROVALS).exists() or read_file(folder / _APPROVALS, _MAX_FILE) != encoded:
        write_atomically(folder / _APPROVALS, encoded)
    write_atomically(folder / _CONTACT, canonicalize({"at": int(time.time()), "device": response.string("device")}))


def _parse_approval(row: JsonObject) -> StoredApproval:
    texts = {name: row.string(name) for name in field_names(StoredApproval) if name != "sequence"}
    return StoredApproval(sequence=row.integer("sequence"), **texts)


def _read_cursor(folder: Path) -> _Cursor:
    document = JsonObject(strict_json.parse_json(read_file(folder / _CURSOR, 64 * 1024)), "", _invalid_settings)
    return _Cursor(
        entry=document.integer("entry"),
        next_event=document.integer("next_event"),
        dropped=document.integer("dropped"),
        sightings=document.string("sightings"),
    )


def read_policy(folder: Path) -> GatewayPolicy | None:
    """Return the last known policy of the company; None if it has none for gateways."""
    path = folder / _POLICY
    return (parse_policy(read_file(path, _MAX_FILE)).gateway or DEFAULT_GATEWAY_POLICY) if path.exists() else None


def list_servers(folder: Path) -> list[DeviceServer]:
    """Return the servers that were started on this machine in the last days."""
    servers: list[DeviceServer] = []
    for path in sorted((folder / _SERVERS).glob("*.json"))[: 4 * MAX_SERVERS]:
        with suppress(PinwardenError, OSError):
            if time.time() - path.stat().st_mtime > _SERVER_DAYS * 86_400:
                path.unlink()
                continue
            row = JsonObject(strict_json.parse_json(read_file(path, 16 * 1024)), "", _invalid_settings)
            texts = {name: row.string(name) for name in field_names(DeviceServer) if name != "waiting"}
            servers.append(DeviceServer(waiting=row.integer("waiting"), **texts))
    return servers[:MAX_SERVERS]


class FleetApprovals(Approvals):
    """The approvals of this machine's database, and the last known ones of the company."""

    def __init__(self, own: Approvals, folder: Path) -> None:
        super().__init__(own.database)
        self._path = folder / _APPROVALS

    def read_change_mark(self) -> ChangeMark:
        """Return a value that differs after every decision."""
        return (*super().read_change_mark(), *(read_file_stamp(self._path) or ()))

    def list_for_servers(self, servers: Iterable[str]) -> list[StoredApproval]:
        """Return the approvals for servers with these names: those of this machine, then those of the company."""
        names = list(servers)
        mine = super().list_for_servers(names)
        if not self._path.exists():
            return mine
        document = JsonObject(
            {"approvals": strict_json.parse_json(read_file(self._path, _MAX_FILE))}, "", _invalid_settings
        )
        return mine + [row for row in map(_parse_approval, document.objects("approvals")) if row.server in names]


class FleetFollower:
    """Applies the company's policy and approvals to one gateway of this machine, and takes part in synchronizing."""

    def __init__(self, state: GatewayState, settings: FleetSettings, variables: Mapping[str, str]) -> None:
        self._state = type(state)(state.folder, state.url)  # a thread must not share what is opened on first use
        self._folder = get_fleet_folder(state.folder)
        self._settings = settings
        self._variables = variables
        self._stopped = Event()
        self._thread: Thread | None = None
        self._policy: GatewayPolicy | None = None
        self._policy_stamp: object = None
        self.problem = ""
        """Why the last synchronization of this process failed; empty if it did not."""

    @classmethod
    def find(cls, state: GatewayState, variables: Mapping[str, str]) -> Self | None:
        """Return the follower of this machine; None if the machine has not joined."""
        settings = read_settings(get_fleet_folder(state.folder))
        return None if settings is None else cls(state, settings, variables)

    def tighten(self, own: GatewayPolicy) -> GatewayPolicy:
        """Return the policy that applies: the stricter settings of the user's and the company's."""
        company = self._read_policy()
        return own if company is None else tighten(own, company)

    def open_approvals(self) -> Approvals:
        """Return the approvals of this machine and the company."""
        return FleetApprovals(self._state.approvals, self._folder)

    def wrap(self, source: ApprovedSource) -> ApprovedSource:
        """Return a source that fails while the company's gateway was out of reach for too long."""
        return _FailClosed(source, self._folder, self._settings.fail_closed) if self._settings.fail_closed else source

    def start(self, project: Project, gated: GatedServer, guard: Guard, write_log: Callable[[str], None]) -> None:
        """Report the server, and start the thread, which also applies changes of the company's policy to the guard."""
        self._register(_describe_server(project, gated))
        self._thread = Thread(target=self._run, args=(guard, gated.policy, write_log), name="fleet", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread. A synchronization that is under way may be interrupted; it is repeated later."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _register(self, row: DeviceServer) -> None:
        folder = self._folder / _SERVERS
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = canonicalize([row.place, row.server, row.client])
        write_atomically(folder / f"{Digest.of_bytes(key).hex[:24]}.json", canonicalize(as_dict(row)))

    def _read_policy(self) -> GatewayPolicy | None:
        stamp = read_file_stamp(self._folder / _POLICY)
        if stamp != self._policy_stamp:
            self._policy = read_policy(self._folder)
            self._policy_stamp = stamp
        return self._policy

    def _run(self, guard: Guard, own: GatewayPolicy, write_log: Callable[[str], None]) -> None:
        descriptor = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        leads, due, pause = False, 0.0, _FIRST_RETRY_SECONDS / 2
        try:
            while not self._stopped.is_set():
                leads = leads or try_lock_file(descriptor)
                if leads and time.monotonic() >= due:
                    self._synchronize(write_log)
                    pause = min(2 * pause, _MAX_RETRY_SECONDS) if self.problem else _FIRST_RETRY_SECONDS
                    due = time.monotonic() + (pause if self.problem else SYNC_SECONDS)
                with suppress(PinwardenError):  # an unreadable policy: the last one stays
                    policy = self.tighten(own)
                    if policy.digest != guard.policy.digest:
                        guard.set_policy(policy)
                        write_log("the company's policy changed and applies now")
                self._stopped.wait(_LOOK_SECONDS)
        finally:
            os.close(descriptor)
            self._state.close()

    def _synchronize(self, write_log: Callable[[str], None]) -> None:
        try:
            synchronize(self._state, self._settings, self._variables)
        except Exception as err:  # noqa: BLE001 - the thread must survive, and try again
            problem = err.message if isinstance(err, PinwardenError) else f"{type(err).__name__}"
            if problem != self.problem:
                write_log(f"the last known policy applies, and events wait on this machine: {problem}")
            self.problem = problem
        else:
            self.problem = ""


def _describe_server(project: Project, gated: GatedServer) -> DeviceServer:
    server, client = gated.server, gated.client
    version, surface, place, name = "", "", "", client or ""
    runs = _name_package(gated.command.words)
    lock = lock_store.read(project.lock) if gated.has_approved_surface else None
    for entry in () if lock is None else lock.entries:
        extension = read_extension(entry)
        if entry.name == server and is_for_client(entry, client) and extension is not None and extension.surface:
            version, surface = entry.version, str(extension.surface.file_digest)
            place, name = str(project.lock.resolve()), client or entry.client
            runs = describe_launch(entry)
            break
    runs = runs if runs.startswith(_PUBLIC) and len(runs) <= _MAX_TEXT else ""
    texts = (place, server, name, version, surface, runs)
    place, server, name, version, surface, runs = (text.replace("\0", "")[:_MAX_TEXT] for text in texts)
    return DeviceServer(
        place=place, server=server, client=name, version=version, surface=surface, waiting=0, started=_now(), runs=runs
    )


def _name_package(words: tuple[str, ...]) -> str:
    """Return the package URL that a command without a lock entry starts; empty if it starts something else."""
    launch = parse_launch(StdioTarget(command=words))
    return (launch.via or launch).purl or ""


_PUBLIC = ("pkg:", "https://")  # the paths of programs stay on the machine


_MAX_TEXT = 200


class _FailClosed:
    """An `ApprovedSource` that fails without a recent contact with the company's gateway."""

    def __init__(self, source: ApprovedSource, folder: Path, seconds: int) -> None:
        self._source = source
        self._path = folder / _CONTACT
        self._seconds = seconds

    def get_current(self) -> ApprovedSurface | None:
        """Return the approved surface, or raise ``FLEET_UNAVAILABLE``."""
        self._refuse_if_out_of_contact()
        return self._source.get_current()

    def trust(self, surface: Surface) -> ApprovedSurface:
        """Trust the first surface of a server, or raise ``FLEET_UNAVAILABLE``."""
        self._refuse_if_out_of_contact()
        return self._source.trust(surface)

    def _refuse_if_out_of_contact(self) -> None:
        try:
            age = time.time() - self._path.stat().st_mtime
        except OSError:
            age = float("inf")
        if not -self._seconds <= age <= self._seconds:
            raise PinwardenError(
                "FLEET_UNAVAILABLE",
                f"everything is blocked, because the company's gateway was not reached for {self._seconds} seconds",
            )


def _get_host_name() -> str:
    from socket import gethostname

    return gethostname()[:200]


def _now() -> str:
    from pinwarden.system.clock import now

    return now()
