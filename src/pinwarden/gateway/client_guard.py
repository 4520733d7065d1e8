"""`guard`: hold a client session of the ``mcp`` SDK, or a client of ``fastmcp``, to a lock inside an application.

The session decides as behind the gateway (`gateway/session`), but instead of a filtered list or an error response, the
application gets a `PinwardenError`. The SDK's public ``send_request`` is the seam: every request of the session passes
it, and the guard reads the result before the SDK parses it, because the SDK drops members that it does not know.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import CODES, PinwardenError
from pinwarden.core.record import Record
from pinwarden.gateway.session.list_subscription import ACKNOWLEDGED
from pinwarden.gateway.session.messages import LIST_METHODS, LISTEN, build_request, make_printable
from pinwarden.surface.protocol import CLIENT_META, INITIALIZED, INTERNAL_ERROR, SUBSCRIPTION_META, VERSION_META
from pinwarden.surface.surface import SERVER_MEMBERS

if TYPE_CHECKING:
    from anyio import Event
    from anyio.abc import TaskGroup

    from pinwarden.gateway.audit.event import AuditEvent
    from pinwarden.gateway.guard import Guard
    from pinwarden.gateway.session.output import SessionOutput

_TICK_SECONDS = 1.0
_MAX_REFUSALS = 20_000
_INTRODUCTIONS = ("initialize", "server/discover")
_CALLBACKS = {
    "_sampling_callback": "sampling/createMessage",
    "_elicitation_callback": "elicitation/create",
    "_list_roots_callback": "roots/list",
}
"""The callbacks of a session for requests from the server, and their methods."""


@asynccontextmanager
async def guard(client: Any, server: str | None = None, *, lock: str | Path = "mcp-lock.json") -> AsyncIterator[Any]:
    """Hold a session to the approved surface of a server while the context is open. Yields ``client``.

    ``client`` is a ``ClientSession`` or ``Client`` of the ``mcp`` SDK (1.x or 2.x), or a ``Client`` of ``fastmcp``, and
    is open. ``server`` is the server's name in the lock; a lock with one server does not need it. The gateway policy of
    the ``pinwarden.toml`` next to the lock applies.

    Raises `PinwardenError`: on entering, if the lock has no approved surface or was tampered with; then from any method
    of the session, with the code ``SERVER_BLOCKED``, before the application gets a list, a result or instructions that
    the policy blocks. Approvals and revocations in the lock take effect immediately.
    """
    import anyio

    session = _find_session(client)
    guarded = _GuardedSession(session, _build_guard(Path(lock), server))
    failure: Exception | None = None
    with guarded.attached(getattr(client, "transport", None)):
        async with anyio.create_task_group() as tasks:
            guarded.tasks = tasks
            try:
                guarded.introduce_connected()
                tasks.start_soon(guarded.tick_forever)
                yield client
            except Exception as err:  # noqa: BLE001  raised below, because a task group would wrap it in a group
                failure = err
            finally:
                tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _find_session(client: Any) -> Any:
    """Return the ``ClientSession`` of a client, or the argument if it is a session."""
    try:
        session = client if hasattr(client, "send_request") else client.session
    except (AttributeError, RuntimeError) as err:
        reason = "is not open" if isinstance(err, RuntimeError) else "is not a client session"
        text = f"the {type(client).__name__} cannot be guarded, because it {reason}"
        hint = "Write: async with Client(...) as client, pinwarden.guard(client, NAME):"
        raise PinwardenError("CLIENT_UNSUPPORTED", text, hint=hint) from err
    if not (hasattr(session, "send_request") and hasattr(session, "_message_handler")):
        text = f"{type(session).__module__}.{type(session).__name__} is not a client session of the mcp SDK"
        raise PinwardenError("CLIENT_UNSUPPORTED", text)
    if isinstance(vars(session).get("send_request"), _GuardedSend):
        raise PinwardenError("CLIENT_UNSUPPORTED", "the session is guarded already", hint="Guard each session once.")
    return session


def _build_guard(lock: Path, server: str | None) -> Guard:
    """Return the gateway's guard for a server, with its approvals loaded."""
    from pinwarden.gateway.approved_sources import LockApprovals
    from pinwarden.gateway.guard import Guard
    from pinwarden.lock import lock_store
    from pinwarden.project.project import Project, load_policies

    if server is None:
        locked = lock_store.read(lock)
        names = sorted({entry.name for entry in locked.entries}) if locked is not None else []
        if len(names) > 1:
            text = f"{lock} has {len(names)} servers, so the guard needs the name of one: {', '.join(names)[:400]}"
            raise PinwardenError("SERVER_NOT_LOCKED", text, hint="Write: pinwarden.guard(client, NAME)")
        server = names[0] if names else ""
    folder = lock.absolute().parent
    project = Project(root=folder, lock=lock, home=Path.home(), variables=dict(os.environ))
    source = LockApprovals(lock, server)
    source.get_current()
    return Guard(server, source, load_policies(project).gateway)


class _Exchange:
    """One request of the application: whether the server may get it, and the response to return."""

    def __init__(self, decided: Event) -> None:
        self.decided = decided
        self.forward = False
        self.response: dict[str, Any] | None = None


class _RawResult:
    """Stands for a result type of the SDK, and returns the result as the server sent it."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        """The options with which the SDK parses the result."""

    def model_validate(self, value: Any, **options: Any) -> Any:
        self.options = options
        return value


class _GuardedSend:
    """Replaces ``send_request`` of a session."""

    def __init__(self, guarded: _GuardedSession, send: Callable[..., Any]) -> None:
        self._guarded = guarded
        self._send = send

    async def __call__(self, request: Any, result_type: Any, *arguments: Any, **options: Any) -> Any:
        parse = _RawResult()

        async def ask() -> Any:
            return await self._send(request, parse, *arguments, **options)

        message = request.model_dump(by_alias=True, mode="json", exclude_none=True)
        raw = await self._guarded.exchange(message, ask)
        if hasattr(result_type, "validate_python"):
            return result_type.validate_python(raw, **parse.options)
        return result_type.model_validate(raw, **parse.options)


class _RawRequest(Record):
    """A request of the guard itself, in the form that the SDK sends."""

    message: Mapping[str, Any]
    name_param = None  # the SDK 2.x asks the request's class whether a header has a name from the parameters

    def model_dump(self, **options: Any) -> dict[str, Any]:
        del options
        return {name: self.message[name] for name in ("method", "params") if name in self.message}


class _GuardedSession:
    """A session of the gateway whose transport is a client session of the SDK."""

    tasks: TaskGroup

    def __init__(self, session: Any, guard: Guard) -> None:
        from pinwarden.gateway.session.session import Session

        self._session = session
        self._guard = guard
        self._gate = Session(guard, name=os.urandom(12).hex())
        self._send: Callable[..., Any] = session.send_request
        self._exchanges: dict[int, _Exchange] = {}
        self._server_requests = 0
        self._last_id = 0
        self._listen_id = ""
        self._refusals: dict[tuple[str, str], AuditEvent] = {}
        """The last refusal of each item, by kind and key."""

    # The seams of the SDK

    def attached(self, transport: Any) -> _Attachment:
        """Return a context in which the session passes the guard."""
        session = self._session
        replaced: list[tuple[Any, str, Any]] = [(session, "send_request", _GuardedSend(self, self._send))]
        handler = session._message_handler

        async def on_message(message: Any) -> None:
            if self._passes_notification(message):
                await handler(message)

        replaced.append((session, "_message_handler", on_message))
        for name, method in _CALLBACKS.items():
            callback = getattr(session, name, None)
            if callback is not None and getattr(callback, "__name__", "") != f"_default{name}":
                replaced.append((session, name, self._guard_callback(method, callback)))
        if hasattr(session, "adopt"):
            replaced.append((session, "adopt", self._guard_adoption(session.adopt)))
        if hasattr(transport, "connect_session"):
            replaced.append((transport, "connect_session", _refuse_reconnection))
        return _Attachment(replaced)

    def _guard_callback(self, method: str, callback: Callable[..., Any]) -> Callable[..., Any]:
        async def answer(context: Any, *arguments: Any) -> Any:
            params = arguments[0].model_dump(by_alias=True, mode="json", exclude_none=True) if arguments else {}
            self._server_requests += 1
            request_id = f"server-{self._server_requests}"
            out = self._gate.on_server_message(build_request(request_id, method, params), time.monotonic())
            self._apply(out)
            refusals = [message for message in map(json.loads, out.to_server) if message.get("id") == request_id]
            if refusals:
                from mcp.types import ErrorData

                return ErrorData(code=refusals[0]["error"]["code"], message=refusals[0]["error"]["message"])
            try:
                return await callback(context, *arguments)
            finally:  # what the application answers is its own decision
                self._apply(self._gate.on_client_message(_encode({"id": request_id, "result": {}}), time.monotonic()))

        return answer

    def _guard_adoption(self, adopt: Callable[[Any], None]) -> Callable[[Any], None]:
        def check_and_adopt(result: Any) -> None:
            self._introduce(result)
            adopt(result)

        return check_and_adopt

    # Requests of the application

    async def exchange(self, message: dict[str, Any], ask: Callable[[], Any]) -> Any:
        """Return the server's result for a request. Raises if the guard refuses the request or the result."""
        from anyio import Event

        self._last_id += 1
        request_id, method = self._last_id, message["method"]
        exchange = self._exchanges[request_id] = _Exchange(Event())
        try:
            self._apply(self._gate.on_client_message(_encode({"id": request_id, **message}), time.monotonic()))
            await exchange.decided.wait()
            if not exchange.forward:
                raise self._build_refusal(exchange.response or {}, method)
            exchange.decided = Event()
            response = await self._ask(request_id, ask)
            await exchange.decided.wait()
            return self._read_response(method, response, exchange.response or {})
        finally:
            del self._exchanges[request_id]
            self._gate.abandon_request(request_id)

    async def _ask(self, request_id: int | str, ask: Callable[[], Any]) -> dict[str, Any]:
        """Pass the server's response to the gate and return it. Errors of the server are raised after that."""
        try:
            response = {"jsonrpc": "2.0", "id": request_id, "result": await ask()}
        except Exception as err:
            error = getattr(err, "error", None)
            code, text = getattr(error, "code", INTERNAL_ERROR), str(getattr(error, "message", err))
            failed = {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": text}}
            self._apply(self._gate.on_server_message(_encode(failed), time.monotonic()))
            raise
        self._apply(self._gate.on_server_message(_encode(response), time.monotonic()))
        return response

    def _read_response(self, method: str, sent: dict[str, Any], checked: dict[str, Any]) -> Any:
        """Return the checked result. Raises if it is an error or lacks something that the server sent."""
        result = checked.get("result")
        if not isinstance(result, dict):
            raise self._build_refusal(checked, method)
        before = sent["result"]
        if method in LIST_METHODS:
            kind = LIST_METHODS[method]
            blocked = [item for item in before.get(kind.member, ()) if item not in result.get(kind.member, ())]
            keys = [(kind.entity, str(item.get(kind.key, "")) if isinstance(item, dict) else "") for item in blocked]
            self._raise_if_blocked(keys)
        if method in _INTRODUCTIONS:
            self._raise_if_blocked(("server", name) for name in SERVER_MEMBERS if result.get(name) != before.get(name))
        return result

    def _raise_if_blocked(self, keys: Iterable[tuple[str, str]]) -> None:
        rows = [self._describe(entity, key) for entity, key in keys]
        if rows:
            name = self._guard.server
            more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
            text = "; ".join(f"{row['kind']} '{row['name']}': {row['reason']}" for row in rows[:3])
            raise PinwardenError(
                "SERVER_BLOCKED",
                f"the server '{name}' differs from its approved surface: {text}{more}",
                data={"server": name, "items": rows},
            )

    def _describe(self, entity: str, key: str) -> dict[str, str]:
        event = self._refusals.get((entity, key))
        reason = "It is not approved." if event is None else event.reason
        code = "" if event is None else event.code
        return {"kind": entity, "name": make_printable(key), "code": code, "reason": reason}

    def _build_refusal(self, response: dict[str, Any], method: str) -> PinwardenError:
        """Return the error for a refused request or result."""
        error = response.get("error") or {}
        details = (error.get("data") or {}).get("pinwarden") or {}
        code = str(details.get("code"))
        text = str(error.get("message") or f"the response to {method} was refused").removeprefix("pinwarden: ")
        data = {"server": self._guard.server, "method": method, **details}
        return PinwardenError(code if code in CODES else "SERVER_BLOCKED", text, data=data)

    # The handshake

    def introduce_connected(self) -> None:
        """Check the server's description of itself if the session is connected already."""
        session = self._session
        result = getattr(session, "discover_result", None) or getattr(session, "initialize_result", None)
        if result is not None:
            self._introduce(result)
        elif not hasattr(session, "adopt") and session.get_server_capabilities() is not None:
            text = "the session is initialized already, so its instructions cannot be checked"
            raise PinwardenError("CLIENT_UNSUPPORTED", text, hint="Guard the session before session.initialize().")

    def _introduce(self, result: Any) -> None:
        if self._gate.server_info is not None:
            return
        described = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        self._restore_dropped_members(result, described)
        self._last_id += 1
        request_id, method = self._last_id, "initialize" if "protocolVersion" in described else "server/discover"
        version = self._session.protocol_version or (described.get("supportedVersions") or [""])[-1]
        params = {"_meta": {VERSION_META: version, CLIENT_META: {"name": "mcp"}}} if method == "server/discover" else {}
        request = {"id": request_id, "method": method, "params": params}
        self._gate.on_client_message(_encode(request), time.monotonic())
        sent = {"jsonrpc": "2.0", "id": request_id, "result": described}
        out = self._gate.on_server_message(_encode(sent), time.monotonic())
        self._apply(out)
        for checked in map(json.loads, out.to_client):
            if checked.get("id") == request_id:
                self._read_response(method, sent, checked)
        if method == "initialize":
            self._apply(self._gate.on_client_message(_encode({"method": INITIALIZED}), time.monotonic()))

    def _restore_dropped_members(self, result: Any, described: dict[str, Any]) -> None:
        """Put back approved members that the SDK does not know, so that they do not count as removed."""
        approved = self._guard.approved
        server = (approved.surface.server if approved is not None else None) or {}
        with suppress(ValueError):  # pydantic's ValidationError: the approved values do not fit this protocol version
            same = type(result).model_validate({**described, **server})
            known = same.model_dump(by_alias=True, mode="json", exclude_none=True)
            described.update(
                (name, server[name]) for name in server if name in described and known.get(name) == described[name]
            )

    # What the gate wants to send

    def _apply(self, out: SessionOutput) -> None:
        for event in out.events:
            if event.reason:
                self._refusals.pop((event.item_kind, event.item), None)
                self._refusals[event.item_kind, event.item] = event
                if len(self._refusals) > _MAX_REFUSALS:  # a server may invent names forever
                    del self._refusals[next(iter(self._refusals))]
        for data in out.to_client:
            message = json.loads(data)
            exchange = self._exchanges.get(message.get("id")) if "method" not in message else None
            if exchange is not None:
                exchange.response = message
                exchange.decided.set()
        for data in out.to_server:
            message = json.loads(data)
            exchange = self._exchanges.get(message.get("id")) if "method" in message else None
            if exchange is not None:
                exchange.forward = True
                exchange.decided.set()
            elif "method" in message and self._gate.is_gateway_id(message.get("id")):
                self.tasks.start_soon(self._ask_for_gate, message)

    async def _ask_for_gate(self, message: dict[str, Any]) -> None:
        """Send a request of the gate itself, such as for a list."""
        request_id = message["id"]
        if message["method"] == LISTEN:
            self._listen_id = request_id

        async def ask() -> Any:
            return await self._send(_RawRequest(message=message), _RawResult())

        with suppress(Exception):  # the gate has the error and refuses what needed the response
            await self._ask(request_id, ask)

    def _passes_notification(self, message: Any) -> bool:
        """Show a message to the gate, and return whether the application may get it."""
        if isinstance(message, Exception) or not hasattr(message, "model_dump"):
            return True
        notification = message.model_dump(by_alias=True, mode="json", exclude_none=True)
        if self._listen_id and notification.get("method") == ACKNOWLEDGED:
            meta = notification.setdefault("params", {}).setdefault("_meta", {})
            meta[SUBSCRIPTION_META] = self._listen_id  # the SDK sent the request under an id of its own
        out = self._gate.on_server_message(_encode(notification), time.monotonic())
        self._apply(out)
        return any(json.loads(data).get("method") == notification.get("method") for data in out.to_client)

    async def tick_forever(self) -> None:
        """Keep the gate's timeouts and approvals up to date."""
        from anyio import sleep

        while True:
            await sleep(_TICK_SECONDS)
            self._apply(self._gate.tick(time.monotonic()))


class _Attachment:
    """A context in which attributes of objects are replaced."""

    def __init__(self, replaced: list[tuple[Any, str, Any]]) -> None:
        self._replaced = replaced
        self._before: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> None:
        for owner, name, value in self._replaced:
            self._before.append((owner, name, vars(owner).get(name, _Attachment)))
            setattr(owner, name, value)

    def __exit__(self, *failure: object) -> None:
        for owner, name, value in self._before:
            if value is _Attachment:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def _refuse_reconnection(**options: Any) -> Any:
    """Refuse to connect again: the new session would not be guarded."""
    del options
    text = "the guarded connection ended, and a new connection would not be guarded"
    raise PinwardenError("CLIENT_UNSUPPORTED", text, hint="Leave the guard, connect again, and guard the new session.")


def _encode(message: Mapping[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}, allow_nan=False).encode()
