"""The MCP session of a probe: finds the protocol era and reads every page of every list, within limits.

The probe does not use an MCP SDK, because SDKs drop members that they do not know, and a reviewer must see these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from time import monotonic
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.text import show_invisible
from pinwarden.core.version import __version__
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
    choose_stateless_version,
    read_supported_versions,
)
from pinwarden.surface.surface import ITEM_KINDS, Item, ItemKind
from pinwarden.system.probe_budget import ProbeBudget, probe_error, probe_limit_error

_MAX_REQUEST_ID = 200  # characters of a server's request id that are sent back


class ClientIdentity(Record):
    """The client that a probe identifies as. Servers may respond differently to different clients."""

    name: str = "pinwarden"
    version: str = __version__
    capabilities: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the identity as surface files record it."""
        return {"name": self.name, "version": self.version, "capabilities": dict(self.capabilities)}


class NegotiatedSession(Record):
    """The protocol era and version of a session, and the server information from its first response."""

    era: str
    """``discover`` (2026-07-28, no handshake) or ``initialize``."""
    version: str
    server: dict[str, Any]


class ItemList(Record):
    """One complete list, with the number of pages in which the server sent it."""

    items: tuple[Item, ...]
    pages: int


class ProbeSession:
    """One MCP session over one transport."""

    def __init__(self, transport: ProbeTransport, client: ClientIdentity, budget: ProbeBudget) -> None:
        self.noise_lines = 0
        self._transport = transport
        self._client = client
        self._budget = budget
        self._limits = budget.limits
        self._json_limits = budget.limits.json
        self._last_id = 0
        self._unsolicited = 0
        self._server_requests = 0
        self._changed_kinds: set[ItemKind] = set()
        self._stateless_version = ""
        """The revision of stateless requests; empty in a session with a handshake."""
        self._version_header: dict[str, str] = {}
        self._initialize_id: int | None = None
        self._initialize_response: Message | None = None

    def open(self, *, discover: bool) -> NegotiatedSession | NoMessage:
        """Find the protocol era. Returns `NoMessage` if the server does not respond to ``initialize``.

        With ``discover``, the session first tries ``server/discover``, which needs no handshake.
        """
        negotiated = self._discover() if discover else None
        return self._initialize() if negotiated is None else negotiated

    def read_lists(self, negotiated: NegotiatedSession) -> tuple[dict[ItemKind, ItemList], list[str]]:
        """Read every list that the server offers.

        Lists that change in the meantime are read again. The second result has the names of lists that kept changing.
        """
        offered = [kind for kind in ITEM_KINDS if _is_offered(negotiated.server["capabilities"], kind)]
        lists: dict[ItemKind, ItemList] = {}
        pending = offered
        for _ in range(self._limits.max_list_reads):
            self._changed_kinds.clear()
            for kind in pending:
                item_list = self._read_list(kind)
                if item_list is not None:
                    lists[kind] = item_list
            pending = [kind for kind in lists if kind in self._changed_kinds]
            if not pending:
                break
        return lists, [kind.member for kind in pending]

    def _discover(self) -> NegotiatedSession | None:
        """Try ``server/discover``, which needs no handshake. Returns None if the server does not support it."""
        wait = min(self._limits.max_discovery_seconds, self._budget.seconds / 3)
        discover_id = self._send_discover(STATELESS_VERSIONS[0], wait)
        response = self._receive_response({discover_id}, wait)
        if isinstance(response, NoMessage) and response.reason == "quiet" and self._transport.line_based:
            # Some old servers ignore unknown requests. A slow server responds to ``server/discover`` first.
            self._initialize_id = self._send("initialize", self._build_initialize_params())
            response = self._receive_response({discover_id, self._initialize_id}, None)
        if isinstance(response, NoMessage):
            if response.status in (401, 403):
                raise build_no_response_error("server/discover", response)
            if response.reason == "ended":
                self._transport.restart()  # some old servers exit when they receive an unknown request
                self._initialize_id = None
            return None
        if _has_id(response, self._initialize_id):
            self._initialize_response = response
            return None
        other_version = choose_stateless_version(read_supported_versions(response.members.get("error")))
        if other_version not in {"", STATELESS_VERSIONS[0]}:
            response = self._receive_response({self._send_discover(other_version, wait)}, wait)
            if isinstance(response, NoMessage):
                raise build_no_response_error("server/discover", response)
        negotiated = self._parse_discovery(response)
        self._stateless_version = "" if negotiated is None else negotiated.version
        return negotiated

    def _send_discover(self, version: str, wait: float) -> int:
        self._stateless_version = version
        discover_id = self._send("server/discover", {}, wait)
        self._stateless_version = ""
        return discover_id

    def _parse_discovery(self, response: Message) -> NegotiatedSession | None:
        error = response.members.get("error")
        if error is not None:
            supported = read_supported_versions(error)
            if supported and not set(supported) & {*HANDSHAKE_VERSIONS, *STATELESS_VERSIONS}:
                raise probe_error("protocol", "the server and Pinwarden support no common protocol version")
            return None
        result = parse_result(response)
        version = choose_stateless_version(result.get("supportedVersions"))
        if not version:
            return None
        self._version_header = {"MCP-Protocol-Version": version}
        return NegotiatedSession(
            era="discover",
            version=version,
            server={**_select_server_info(result), **_select_capabilities_and_instructions(result)},
        )

    def _initialize(self) -> NegotiatedSession | NoMessage:
        if self._initialize_id is None:
            self._initialize_id = self._send("initialize", self._build_initialize_params())
        response = self._initialize_response or self._receive_response({self._initialize_id}, None)
        if isinstance(response, NoMessage):
            return response
        _raise_if_error("initialize", response)
        result = parse_result(response)
        version = result.get("protocolVersion")
        if version not in HANDSHAKE_VERSIONS:
            raise probe_error("protocol", f"the server chose the unknown protocol version {str(version)[:40]!a}")
        self._version_header = {"MCP-Protocol-Version": version}
        self._notify(INITIALIZED)
        info = {"serverInfo": result["serverInfo"]} if "serverInfo" in result else {}
        return NegotiatedSession(
            era="initialize", version=version, server={**info, **_select_capabilities_and_instructions(result)}
        )

    def _build_initialize_params(self) -> dict[str, Any]:
        return {
            "protocolVersion": HANDSHAKE_VERSIONS[0],
            "capabilities": dict(self._client.capabilities),
            "clientInfo": {"name": self._client.name, "version": self._client.version},
        }

    def _read_list(self, kind: ItemKind) -> ItemList | None:
        items: list[Item] = []
        cursors: set[str] = set()
        params: dict[str, Any] = {}
        for page_number in range(1, self._limits.max_pages + 1):
            request_id = self._send(kind.method, params)
            response = self._receive_response({request_id}, None)
            if isinstance(response, NoMessage):
                raise build_no_response_error(kind.method, response)
            if page_number == 1 and _get_error_code(response) == METHOD_NOT_FOUND:
                return None
            _raise_if_error(kind.method, response)
            page = parse_page(response, kind, self._json_limits)
            items.extend(page.items)
            if len(items) > self._limits.max_items:
                raise probe_limit_error(kind.member, self._limits.max_items)
            if page.cursor is None:
                return ItemList(items=tuple(items), pages=page_number)
            if page.cursor in cursors:
                message = f"the list of {kind.member} never ends: the server repeats a cursor"
                raise PinwardenError("PROBE_LIMIT", message, data={"limit": "loop"})
            cursors.add(page.cursor)
            params = {"cursor": page.cursor}
        raise probe_limit_error(f"pages of {kind.member}", self._limits.max_pages)

    def _send(self, method: str, params: Mapping[str, Any], wait: float | None = None) -> int:
        self._last_id += 1
        call: dict[str, Any] = {"jsonrpc": "2.0", "id": self._last_id, "method": method}
        headers = dict(self._version_header)
        if self._stateless_version:
            params = {**params, "_meta": self._build_request_meta()}
            headers = {"MCP-Protocol-Version": self._stateless_version, "Mcp-Method": method}
        if params:
            call["params"] = params
        self._transport.send(_encode(call), headers, expects_response=True, wait=wait)
        return self._last_id

    def _build_request_meta(self) -> dict[str, Any]:
        return {
            VERSION_META: self._stateless_version,
            CLIENT_META: {"name": self._client.name, "version": self._client.version},
            CAPABILITIES_META: dict(self._client.capabilities),
        }

    def _notify(self, method: str) -> None:
        message = _encode({"jsonrpc": "2.0", "method": method})
        self._transport.send(message, self._version_header, expects_response=False)

    def _receive_response(self, request_ids: set[int | None], wait: float | None) -> Message | NoMessage:
        """Wait for the response to one of the requests. Other messages that arrive first are handled and counted."""
        end = None if wait is None else monotonic() + wait
        while True:
            received = self._transport.receive(None if end is None else max(end - monotonic(), 0))
            if isinstance(received, NoMessage):
                return received
            message = self._parse_line(received)
            if message is None:
                continue
            if message.is_call:
                self._handle_server_call(message)
            elif any(_has_id(message, request_id) for request_id in request_ids) or _is_error_without_id(message):
                return message
            else:
                self._count_unsolicited()

    def _parse_line(self, text: bytes) -> Message | None:
        """Parse a message. Returns None for a line on stdout that is not a message."""
        if not text.lstrip().startswith(b"{"):
            if not self._transport.line_based:
                raise probe_error("protocol", "the server's response is not a JSON-RPC message")
            self._count_noise()
            return None
        message = parse_message(text, self._json_limits)
        if "jsonrpc" not in message.members and self._transport.line_based:
            self._count_noise()  # a log line that happens to be JSON
            return None
        return message

    def _handle_server_call(self, call: Message) -> None:
        method = call.members["method"]
        self._count_unsolicited()
        self._changed_kinds.update(LIST_CHANGED.get(method, ()))
        if "id" not in call.members:
            return
        self._server_requests += 1
        if self._server_requests > self._limits.max_server_requests:
            raise probe_limit_error("requests of its own", self._limits.max_server_requests)
        request_id = call.members["id"]
        if not isinstance(request_id, int | str) or len(str(request_id)) > _MAX_REQUEST_ID:
            raise probe_error("protocol", "the server sent a request with an invalid id")
        response: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id}
        if method == "ping":
            response["result"] = {}
        elif method == "roots/list" and "roots" in self._client.capabilities:
            response["result"] = {"roots": []}
        else:
            response["error"] = {"code": METHOD_NOT_FOUND, "message": "this client does not support server requests"}
        self._transport.send(_encode(response), self._version_header, expects_response=False)

    def _count_unsolicited(self) -> None:
        self._unsolicited += 1
        if self._unsolicited > self._limits.max_stray_messages:
            raise probe_limit_error("unsolicited messages", self._limits.max_stray_messages)

    def _count_noise(self) -> None:
        self.noise_lines += 1
        if self.noise_lines > self._limits.max_noise_lines:
            raise probe_error("protocol", "the server writes text to stdout, where only JSON-RPC messages are allowed")


def build_no_response_error(method: str, outcome: NoMessage) -> PinwardenError:
    """Build the error for a request that got no response."""
    details: dict[str, object] = {"method": method}
    if outcome.status is not None:
        details["status"] = outcome.status
    return probe_error(outcome.reason, f"no response to {method}: {outcome.detail}", details)


def _raise_if_error(method: str, response: Message) -> None:
    error = response.members.get("error")
    if error is None:
        return
    text = error.get("message") if isinstance(error, dict) else None
    detail = f": {show_invisible(text[:200])}" if isinstance(text, str) else ""
    raise probe_error(
        "error", f"the server responded to {method} with error {_get_error_code(response)}{detail}", {"method": method}
    )


def _get_error_code(response: Message) -> int | None:
    error = response.members.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) else None


def _has_id(message: Message, request_id: int | None) -> bool:
    message_id = message.members.get("id")
    return request_id is not None and type(message_id) is int and message_id == request_id


def _is_error_without_id(message: Message) -> bool:
    """Whether the message is an error without an id; it belongs to the only open request (JSON-RPC 2.0, section 5)."""
    return message.members.get("id") is None and message.members.get("error") is not None


def _select_capabilities_and_instructions(result: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(result.get("capabilities"), dict):
        raise probe_error("protocol", "the server's response has no capabilities")
    return {member: result[member] for member in ("capabilities", "instructions") if member in result}


def _is_offered(capabilities: Mapping[str, Any], kind: ItemKind) -> bool:
    return capabilities.get(CAPABILITY[kind]) not in (None, False)


def _select_server_info(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return serverInfo, which servers without a handshake send in the ``_meta`` of the result."""
    meta = result.get("_meta")
    return {"serverInfo": meta[SERVER_META]} if isinstance(meta, dict) and SERVER_META in meta else {}


def _encode(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()
