"""The company's side of a fleet: what a gateway answers to a machine that reports to it over HTTPS.

One request, ``POST /fleet/v1/sync`` with a device token, brings the machine's servers, sightings and events, and takes
the company's policy and approvals back. A request is small, and a machine sends as many as it needs.

Everything in a request is hostile: a machine can only report about itself. Its events go into the audit log under a
source of its own, so that it cannot continue the log of another gateway, and only without a gap, so that the log stays
verifiable.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import orjson

from pinwarden.core import strict_json
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import as_dict
from pinwarden.core.typed_json import JsonObject
from pinwarden.gateway.audit.chain import append_events, count_events
from pinwarden.gateway.audit.event import event_from_json
from pinwarden.gateway.audit.journal import JournalBatch, JournalEvent
from pinwarden.gateway.store.devices import Device, DeviceServer, DeviceSighting
from pinwarden.lock.gateway_policy import DEFAULT_GATEWAY_POLICY
from pinwarden.project.project import Project, load_policies
from pinwarden.system.files import read_file

if TYPE_CHECKING:
    from pinwarden.gateway.http.http1 import Reply, Request
    from pinwarden.gateway.state import GatewayState

SYNC_PATH = "/fleet/v1/sync"
FORMAT = "pinwarden-fleet/1"
MAX_REQUEST = 64 * 1024
"""Bytes of one request, which are read before its sender is authenticated."""
MAX_SERVERS = 100
MAX_REQUESTS = 300
"""Requests of one machine in a minute: some 20,000 events."""
MAX_EVENT_BYTES = 128 * 1024 * 1024
"""Bytes of the requests with events of one machine in a day: several hundred thousand events."""
_MINUTE, _DAY = 60.0, 86_400.0
_MAX_TEXT = 400
_MAX_TIME = 1 << 63  # nanoseconds since 1970
_WORKERS = 2
_MAX_WAITING = 64  # requests; a machine whose request is refused sends it again
_ERROR_STATUS = {"DEVICE_TOKEN_USED": 409, "FLEET_UNAVAILABLE": 429, "DATABASE_UNAVAILABLE": 503, "AUDIT_TAMPERED": 409}


class FleetService:
    """Answers the reports of machines. `handle` is called on the event loop; the work is done on threads."""

    def __init__(self, state: GatewayState, project: Callable[[], Project]) -> None:
        self._state = type(state)(state.folder, state.url)  # threads must not share what is opened on first use
        for table in (self._state.devices, self._state.approvals, self._state.chain_database):
            del table  # opened here, so that two threads do not open it twice
        self._project = project
        self._threads = ThreadPoolExecutor(_WORKERS, thread_name_prefix="fleet")
        self._waiting = 0
        self._is_stopped = False
        self._pace: dict[str, tuple[float, int]] = {}
        """When the current minute of a device began, and how many requests it has sent since."""
        self._volume: dict[str, tuple[float, int]] = {}
        """When the current day of a device began, and how many bytes with events it has sent since."""

    def close(self) -> None:
        """Stop the threads."""
        self._is_stopped = True
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._state.close()

    async def handle(self, request: Request, reply: Reply) -> None:
        """Answer one request."""
        if request.method != "POST":
            reply.send(405, headers={"allow": "POST"})
            return
        if len(request.body) > MAX_REQUEST:
            reply.send(413)
            return
        if self._waiting >= _MAX_WAITING or self._is_stopped:
            reply.send(503, headers={"retry-after": "5"})
            return
        scheme, _, token = request.get_header(b"authorization").partition(" ")
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            token = token.strip() if scheme.lower() == "bearer" else ""
            status, body = await loop.run_in_executor(self._threads, self.answer, token, request.body)
        finally:
            self._waiting -= 1
        reply.send(status, body)

    def answer(self, token: str, body: bytes) -> tuple[int, bytes]:
        """Return status and body of the response to a request."""
        try:
            device = self._state.devices.find(token)
            if device is None:
                return 401, _encode_error("DEVICE_UNKNOWN", "the device token is not valid")
            if not _count(self._pace, device, 1, _MINUTE, MAX_REQUESTS):
                return 429, _encode_error("FLEET_UNAVAILABLE", "the device sends too many requests")
            return 200, orjson.dumps(self._sync(device, _parse_request(body), len(body)))
        except PinwardenError as err:
            return _ERROR_STATUS.get(err.code, 400), _encode_error(err.code, err.message)

    def _sync(self, device: Device, report: JsonObject, size: int) -> dict[str, Any]:
        installation = _read_text(report, "installation")
        self._state.devices.record_contact(
            device,
            installation=installation,
            host=_read_text(report, "host"),
            program=_read_text(report, "program"),
            policy=_read_text(report, "policy"),
            now=int(time.time()),
        )
        self._state.devices.record_sightings(device, [_parse_sighting(row) for row in report.objects("sightings")])
        source = hashlib.sha256(f"{device.id} {installation}".encode()).hexdigest()[:24]
        events = [_parse_event(row) for row in report.objects("events")]
        first = report.integer("first_event")
        if events:
            if not _count(self._volume, device, size, _DAY, MAX_EVENT_BYTES):
                raise PinwardenError("FLEET_UNAVAILABLE", "the device sent too many events today")
            batch = JournalBatch(gateway=f"device {device.name}", source=source, first=first, events=tuple(events))
            append_events(self._state.chain_database, batch, refuse_gap=True)
        response: dict[str, Any] = {"format": FORMAT, "device": device.name, "group": device.team}
        if "servers" not in report:
            return response
        servers = [_parse_server(row) for row in report.objects("servers", max_items=MAX_SERVERS)]
        self._state.devices.replace_servers(device, servers)
        policy = self._find_policy()
        approvals = self._state.approvals.list_for_servers(sorted({row.server for row in servers}))
        return {
            **response,
            "next_event": count_events(self._state.chain_database, source) + 1,
            "policy": None if policy is None else policy.decode("utf-8"),
            "approvals": [as_dict(row) for row in approvals],
        }

    def _find_policy(self) -> bytes | None:
        """Return the policy file of this gateway, if it has rules for gateways."""
        project = self._project()
        own = load_policies(project).own
        gateway = None if own is None else own.gateway
        return None if gateway in (None, DEFAULT_GATEWAY_POLICY) else read_file(project.policy_file)


def _count(counts: dict[str, tuple[float, int]], device: Device, amount: int, seconds: float, limit: int) -> bool:
    """Count what a device sends in a period. Returns whether it is within the limit: it must not fill the disk."""
    moment = time.monotonic()
    started, count = counts.get(device.id, (moment, 0))
    if moment - started >= seconds:
        started, count = moment, 0
    counts[device.id] = started, count + amount
    return count + amount <= limit


def _parse_request(body: bytes) -> JsonObject:
    report = JsonObject(strict_json.parse_json(body, strict_json.Limits(max_bytes=MAX_REQUEST)), "", _invalid_error)
    if report.string("format") != FORMAT:
        raise _invalid_error("/format", "is unknown")
    if report.integer("first_event") < 1:
        raise _invalid_error("/first_event", "is not a positive number")
    return report


def _parse_server(row: JsonObject) -> DeviceServer:
    texts = {
        name: _read_text(row, name) for name in ("place", "server", "client", "version", "surface", "started", "runs")
    }
    return DeviceServer(waiting=min(max(row.integer("waiting"), 0), 1 << 31), **texts)


def _parse_sighting(row: JsonObject) -> DeviceSighting:
    names = ("server", "entity", "item", "digest", "action", "first_seen", "last_seen")
    definition = row.string("definition")
    sighting = DeviceSighting(definition=definition, **{name: _read_text(row, name) for name in names})
    if "\0" in definition or (sighting.digest and str(Digest.of_bytes(definition.encode())) != sighting.digest):
        raise _invalid_error("/sightings", "has a definition that does not match its digest")
    return sighting


def _parse_event(row: JsonObject) -> JournalEvent:
    at = row.integer("at")
    if not 0 <= at < _MAX_TIME:
        raise _invalid_error("/events", "has an invalid time")
    event: Mapping[str, Any] = row.object("event").value
    return JournalEvent(at=at, event=event_from_json(event))


def _read_text(row: JsonObject, name: str) -> str:
    text = row.string(name)
    if len(text) > _MAX_TEXT or "\0" in text:
        raise _invalid_error(f"/{name}", "is too long or has a NUL character")
    return text


def _invalid_error(path: str, problem: str) -> PinwardenError:
    return PinwardenError("FLEET_REPORT_INVALID", f"the report is invalid: {path} {problem}")


def _encode_error(code: str, message: str) -> bytes:
    return orjson.dumps({"error": {"code": code, "message": message}})
