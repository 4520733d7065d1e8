"""The MCP conversation of a probe: find the era, ask for every list to its last page, be polite, stay bounded.

It speaks JSON-RPC itself, because the models of the SDKs drop the members they do not know, and those are exactly
the members that must be seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from time import monotonic
from typing import Any

from pinwarden import __version__
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.text import show_invisible
from pinwarden.surface.probe.message import Message, NoMessage, ProbeTransport, parse_message, parse_page, parse_result
from pinwarden.surface.protocol import (
    CAPABILITIES_META,
    CAPABILITY,
    CLIENT_META,
    HANDSHAKE_VERSIONS,
    INITIALIZED,
    LIST_CHANGED,
    METHOD_NOT_FOUND,
    SERVER_META,
    STATELESS_VERSIONS,
    VERSION_META,
    VERSION_UNSUPPORTED,
)
from pinwarden.surface.surface import ITEM_KINDS, Item, ItemKind
from pinwarden.system.probe_budget import ProbeBudget, probe_failed, probe_limit_exceeded

_MAX_ID = 200  # characters of a server's request id that are sent back


class ClientIdentity(Record):
    """Who asks. Servers may answer clients differently, so a probe can ask as a real client would."""

    name: str = "pinwarden"
    version: str = __version__
    capabilities: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The identity as it is recorded."""
        return {"name": self.name, "version": self.version, "capabilities": dict(self.capabilities)}


class Opening(Record):
    """The first response: the protocol era and the server's information about itself."""

    era: str
    """``discover`` (2026-07-28, no handshake) or ``initialize``."""
    version: str
    server: dict[str, Any]


class Listing(Record):
    """One list, complete."""

    items: tuple[Item, ...]
    pages: int


class Session:
    """One conversation over one wire."""

    def __init__(self, wire: ProbeTransport, client: ClientIdentity, allowance: ProbeBudget) -> None:
        self.noise_lines = 0
        self._wire = wire
        self._client = client
        self._allowance = allowance
        self._limits = allowance.limits
        self._json_limits = allowance.limits.json
        self._last_id = 0
        self._strays = 0
        self._server_requests = 0
        self._changed: set[ItemKind] = set()
        self._stateless = False
        self._version_header: dict[str, str] = {}
        self._initialize_id: int | None = None
        self._initialize_answer: Message | None = None

    def open(self, *, discover: bool) -> Opening | NoMessage:
        """Find the era. A silence says that ``initialize`` met no MCP server on this transport."""
        opening = self._discover() if discover else None
        return self._initialize() if opening is None else opening

    def lists(self, opening: Opening) -> tuple[dict[ItemKind, Listing], list[str]]:
        """Every list that is offered, and the names of those that went on changing while they were read."""
        offered = [kind for kind in ITEM_KINDS if _offers(opening.server["capabilities"], kind)]
        found: dict[ItemKind, Listing] = {}
        wanted = offered
        for _ in range(self._limits.max_rounds):
            self._changed.clear()
            for kind in wanted:
                listing = self._list(kind)
                if listing is not None:
                    found[kind] = listing
            wanted = [kind for kind in found if kind in self._changed]
            if not wanted:
                break
        return found, [kind.member for kind in wanted]

    def _discover(self) -> Opening | None:
        """The era without a handshake, if the server speaks it."""
        wait = min(self._limits.max_discovery_seconds, self._allowance.seconds / 3)
        self._stateless = True
        wanted = self._send("server/discover", {}, wait)
        self._stateless = False
        answer = self._answer({wanted}, wait)
        if isinstance(answer, NoMessage) and answer.reason == "quiet" and self._wire.line_based:
            # Some old servers ignore what they do not know. One that is merely slow answers the first question first.
            self._initialize_id = self._send("initialize", self._hello())
            answer = self._answer({wanted, self._initialize_id}, None)
        if isinstance(answer, NoMessage):
            if answer.status in (401, 403):
                raise no_answer("server/discover", answer)
            if answer.reason == "ended":
                self._wire.restart()  # some old servers die of what they do not know
                self._initialize_id = None
            return None
        if _is_id(answer, self._initialize_id):
            self._initialize_answer = answer
            return None
        opening = self._discovered(answer)
        self._stateless = opening is not None
        return opening

    def _discovered(self, answer: Message) -> Opening | None:
        error = answer.members.get("error")
        if error is not None:
            supported = _supported_versions(error)
            if supported and not set(supported) & {*HANDSHAKE_VERSIONS, *STATELESS_VERSIONS}:
                raise probe_failed("protocol", "the server speaks no protocol version that is known here")
            return None
        result = parse_result(answer)
        versions = result.get("supportedVersions")
        if not isinstance(versions, list) or STATELESS_VERSIONS[0] not in versions:
            return None
        self._version_header = {"MCP-Protocol-Version": STATELESS_VERSIONS[0]}
        return Opening(
            era="discover", version=STATELESS_VERSIONS[0], server={**_stamped_info(result), **_facts(result)}
        )

    def _initialize(self) -> Opening | NoMessage:
        if self._initialize_id is None:
            self._initialize_id = self._send("initialize", self._hello())
        answer = self._initialize_answer or self._answer({self._initialize_id}, None)
        if isinstance(answer, NoMessage):
            return answer
        _refuse_error("initialize", answer)
        result = parse_result(answer)
        version = result.get("protocolVersion")
        if version not in HANDSHAKE_VERSIONS:
            raise probe_failed(
                "protocol", f"the server chose the protocol version {str(version)[:40]!a}, which is not known"
            )
        self._version_header = {"MCP-Protocol-Version": version}
        self._tell(INITIALIZED)
        info = {"serverInfo": result["serverInfo"]} if "serverInfo" in result else {}
        return Opening(era="initialize", version=version, server={**info, **_facts(result)})

    def _hello(self) -> dict[str, Any]:
        return {
            "protocolVersion": HANDSHAKE_VERSIONS[0],
            "capabilities": dict(self._client.capabilities),
            "clientInfo": {"name": self._client.name, "version": self._client.version},
        }

    def _list(self, kind: ItemKind) -> Listing | None:
        items: list[Item] = []
        cursors: set[str] = set()
        params: dict[str, Any] = {}
        for page_number in range(1, self._limits.max_pages + 1):
            wanted = self._send(kind.method, params)
            answer = self._answer({wanted}, None)
            if isinstance(answer, NoMessage):
                raise no_answer(kind.method, answer)
            if page_number == 1 and _error_code(answer) == METHOD_NOT_FOUND:
                return None
            _refuse_error(kind.method, answer)
            page = parse_page(answer, kind, self._json_limits)
            items.extend(page.items)
            if len(items) > self._limits.max_items:
                raise probe_limit_exceeded(kind.member, self._limits.max_items)
            if page.cursor is None:
                return Listing(items=tuple(items), pages=page_number)
            if page.cursor in cursors:
                what = f"the list of {kind.member} loops: the server repeats a cursor"
                raise PinwardenError("PROBE_LIMIT", what, data={"limit": "loop"})
            cursors.add(page.cursor)
            params = {"cursor": page.cursor}
        raise probe_limit_exceeded(f"pages of {kind.member}", self._limits.max_pages)

    def _send(self, method: str, params: Mapping[str, Any], wait: float | None = None) -> int:
        self._last_id += 1
        call: dict[str, Any] = {"jsonrpc": "2.0", "id": self._last_id, "method": method}
        headers = dict(self._version_header)
        if self._stateless:
            params = {**params, "_meta": self._request_meta()}
            headers = {"MCP-Protocol-Version": STATELESS_VERSIONS[0], "Mcp-Method": method}
        if params:
            call["params"] = params
        self._wire.send(_encode(call), headers, expects_answer=True, wait=wait)
        return self._last_id

    def _request_meta(self) -> dict[str, Any]:
        return {
            VERSION_META: STATELESS_VERSIONS[0],
            CLIENT_META: {"name": self._client.name, "version": self._client.version},
            CAPABILITIES_META: dict(self._client.capabilities),
        }

    def _tell(self, method: str) -> None:
        message = _encode({"jsonrpc": "2.0", "method": method})
        self._wire.send(message, self._version_header, expects_answer=False)

    def _answer(self, wanted: set[int | None], wait: float | None) -> Message | NoMessage:
        """The answer to one of the requests; whatever else comes before it is counted and dealt with."""
        end = None if wait is None else monotonic() + wait
        while True:
            received = self._wire.receive(None if end is None else max(end - monotonic(), 0))
            if isinstance(received, NoMessage):
                return received
            message = self._read(received)
            if message is None:
                continue
            if message.is_call:
                self._respond(message)
            elif any(_is_id(message, number) for number in wanted) or _is_lost_error(message):
                return message
            else:
                self._count_stray()

    def _read(self, text: bytes) -> Message | None:
        """The message, or None for a line that is none."""
        if not text.lstrip().startswith(b"{"):
            if not self._wire.line_based:
                raise probe_failed("protocol", "the server answered with something that is not a JSON-RPC message")
            self._count_noise()
            return None
        message = parse_message(text, self._json_limits)
        if "jsonrpc" not in message.members and self._wire.line_based:
            self._count_noise()  # a log line that happens to be JSON
            return None
        return message

    def _respond(self, call: Message) -> None:
        method = call.members["method"]
        self._count_stray()
        self._changed.update(LIST_CHANGED.get(method, ()))
        if "id" not in call.members:
            return
        self._server_requests += 1
        if self._server_requests > self._limits.max_server_requests:
            raise probe_limit_exceeded("requests of its own", self._limits.max_server_requests)
        number = call.members["id"]
        if not isinstance(number, int | str) or len(str(number)) > _MAX_ID:
            raise probe_failed("protocol", "the server sent a request with an id that is not usable")
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": number}
        if method == "ping":
            answer["result"] = {}
        elif method == "roots/list" and "roots" in self._client.capabilities:
            answer["result"] = {"roots": []}
        else:
            answer["error"] = {"code": METHOD_NOT_FOUND, "message": "this client only lists"}
        self._wire.send(_encode(answer), self._version_header, expects_answer=False)

    def _count_stray(self) -> None:
        self._strays += 1
        if self._strays > self._limits.max_stray_messages:
            raise probe_limit_exceeded("unsolicited messages", self._limits.max_stray_messages)

    def _count_noise(self) -> None:
        self.noise_lines += 1
        if self.noise_lines > self._limits.max_noise_lines:
            raise probe_failed("protocol", "the server writes text instead of messages to its standard output")


def no_answer(method: str, silence: NoMessage) -> PinwardenError:
    """The error for a question that met silence."""
    details: dict[str, object] = {"method": method}
    if silence.status is not None:
        details["status"] = silence.status
    return probe_failed(silence.reason, f"no answer to {method}: {silence.detail}", details)


def _refuse_error(method: str, answer: Message) -> None:
    error = answer.members.get("error")
    if error is None:
        return
    text = error.get("message") if isinstance(error, dict) else None
    shown = f": {show_invisible(text[:200])}" if isinstance(text, str) else ""
    raise probe_failed(
        "error", f"the server answered {method} with error {_error_code(answer)}{shown}", {"method": method}
    )


def _error_code(answer: Message) -> int | None:
    error = answer.members.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) else None


def _supported_versions(error: Any) -> list[str]:
    data = error.get("data") if isinstance(error, dict) and error.get("code") == VERSION_UNSUPPORTED else None
    supported = data.get("supported") if isinstance(data, dict) else None
    return [version for version in supported if isinstance(version, str)] if isinstance(supported, list) else []


def _is_id(message: Message, number: int | None) -> bool:
    found = message.members.get("id")
    return number is not None and type(found) is int and found == number


def _is_lost_error(message: Message) -> bool:
    """An error without an id belongs to the only question that is open (JSON-RPC 2.0, section 5)."""
    return message.members.get("id") is None and message.members.get("error") is not None


def _facts(result: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(result.get("capabilities"), dict):
        raise probe_failed("protocol", "the server does not say what it is capable of")
    return {member: result[member] for member in ("capabilities", "instructions") if member in result}


def _offers(capabilities: Mapping[str, Any], kind: ItemKind) -> bool:
    return capabilities.get(CAPABILITY[kind]) not in (None, False)


def _stamped_info(result: Mapping[str, Any]) -> dict[str, Any]:
    """Without a handshake, the server's name and version come as a stamp on the result."""
    meta = result.get("_meta")
    stamp = SERVER_META
    return {"serverInfo": meta[stamp]} if isinstance(meta, dict) and stamp in meta else {}


def _encode(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()
