"""The dashboard's ASGI application. Every request passes these checks, in this order, before anything is read:

1. The host is one that the dashboard is served as (DNS rebinding).
2. Without a session there is only the page to sign in.
3. A request that changes something comes from a page of this dashboard (``Origin``, ``Sec-Fetch-Site``), is a form of
   bounded size, and has the token of its session (CSRF).

Pages are built on threads, because they read files and databases.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http.cookies import CookieError, SimpleCookie
from json import dumps
from typing import Any
from urllib.parse import parse_qs

import anyio
import anyio.to_thread
from anyio import CapacityLimiter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from pinwarden.core.errors import EXIT_REFUSED, EXIT_USAGE, PinwardenError
from pinwarden.core.strict_json import parse_json
from pinwarden.core.typed_json import JsonObject
from pinwarden.dashboard.access import (
    DashboardSession,
    DashboardSessions,
    DashboardUser,
    SignInCode,
    Site,
    check_csrf_token,
)
from pinwarden.dashboard.api import PREFIX, TOKEN_HEADER, answer_get, answer_post
from pinwarden.dashboard.decisions import ACTIONS, DecisionRefused
from pinwarden.dashboard.live import MEDIA_TYPE, LiveChanges
from pinwarden.dashboard.pages import (
    SCRIPT,
    build_error_page,
    build_sign_in_page,
    find_page,
    read_script,
    render_page,
)
from pinwarden.dashboard.provider_login import CALLBACK, ProviderLogin
from pinwarden.dashboard.remote_pages import CONNECT_CALLBACK, RemoteConnections
from pinwarden.dashboard.sources import DashboardRequest, Redirect, Sources
from pinwarden.gateway.audit.chain import read_lines
from pinwarden.gateway.audit.event import SIGNED_IN, AuditEvent
from pinwarden.gateway.store.tokens import SignInEvents
from pinwarden.html.pages import ASSETS, HTML, PageContent, build_page_headers, read_asset

_THREADS = 8
_MAX_FORM_BYTES = 256 * 1024  # a reason and a hundred changes
_MAX_FORM_FIELDS = 1000
_FORM_SECONDS = 30.0
_FORM = "application/x-www-form-urlencoded"
_JSON = "application/json"
_SIGN_IN = "sign-in"
_SIGN_OUT = "sign-out"
_EVENTS = "events"
_LOGIN = "login"
_CONNECT = "connect"
_EXPORT = "audit/export"
_STATUS = {
    "ORIGIN_REFUSED": 403,
    "DASHBOARD_FORBIDDEN": 403,
    "FOUR_EYES": 403,
    "SIGN_IN_FAILED": 403,
    "LOGIN_REFUSED": 403,
    "HOST_REFUSED": 421,
    "REVIEW_NOT_FOUND": 404,
    "PAGE_NOT_FOUND": 404,
    "REVIEW_STALE": 409,
    "SURFACE_INVALID": 422,
    "INPUT_LIMIT": 413,
    "LOCK_BUSY": 409,
    "REMOTE_NOT_CONNECTED": 404,
}


class DashboardApp:
    """An ASGI application for one dashboard."""

    def __init__(
        self,
        sources: Sources,
        site: Site,
        sign_in: SignInCode | ProviderLogin,
        sessions: DashboardSessions | None = None,
        remotes: RemoteConnections | None = None,
    ) -> None:
        """People sign in with the codes of ``sign_in``, or at its provider.

        Without ``remotes``, remote servers cannot be connected here.
        """
        self._sources = sources
        self._site = site
        self._sign_in = sign_in
        self._sessions = DashboardSessions() if sessions is None else sessions
        self._sign_ins = SignInEvents()
        self._remotes = remotes
        self._threads: CapacityLimiter | None = None
        self._live = LiveChanges(lambda: self._run(sources.state.reviews.read_change_mark))

    def close(self) -> None:
        """End the streams of open pages, so that the server can stop."""
        self._live.close()
        self._sources.activity.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            response = await self._respond(request)
        except (ClientDisconnect, TimeoutError):
            response = Response(status_code=408)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        path = request.url.path[1:]
        try:
            self._site.check_host(request.headers.get("host", ""))
            if request.method not in ("GET", "HEAD", "POST"):
                raise PinwardenError("USAGE", "the dashboard has only GET and POST")
            asset = _find_asset(path.removeprefix(f"{self._site.base[1:]}/") if self._site.base else path)
            if asset is not None:
                return asset
            if path == _SIGN_IN:
                return await self._respond_to_sign_in(request)
            if path in (_LOGIN, CALLBACK) and request.method == "GET":
                return await self._log_in(request, path)
            if f"{path}/".startswith(f"{CONNECT_CALLBACK}/") and request.method == "GET":
                return await self._finish_connecting(request, path)
            session = self._find_session(request)
            inner = self._find_inner_path(path)
            if inner is not None and _is_api(inner):
                return await self._respond_as_json(request, inner, session)
            if session is None or inner is None:
                return self._build_redirect(_SIGN_IN) if request.method == "GET" else await self._refuse_signed_out()
            return await self._respond_in_session(request, inner, session)
        except PinwardenError as err:
            return await self._build_error(path, err, None)

    def _find_inner_path(self, path: str) -> str | None:
        """Return the path below the base of the site; None if it is not below it."""
        base = f"{self._site.base[1:]}/" if self._site.base else ""
        return path.removeprefix(base) if path.startswith(base) else None

    async def _respond_to_sign_in(self, request: Request) -> Response:
        if request.method != "POST" or isinstance(self._sign_in, ProviderLogin):
            return await self._build_page(_SIGN_IN, self._build_sign_in_page(), None)
        self._site.check_origin(request.headers)
        form = await _read_form(request)
        try:
            person = self._sign_in.redeem(next(iter(form.get("code", [])), "")[:200])
            await self._record_sign_in(person)
        except PinwardenError as err:
            await self._record_refusal(err)
            return await self._build_page(_SIGN_IN, self._build_sign_in_page(err), None, _choose_status(err))
        self._close_session(request)
        cookie, _ = self._sessions.open(person)
        response = self._build_redirect("")
        response.headers["set-cookie"] = self._site.build_cookie(cookie)
        return response

    async def _respond_as_json(self, request: Request, path: str, session: DashboardSession | None) -> Response:
        """Answer a request of a program. The checks are those of forms, with the token in a header."""
        headers = {**build_page_headers(scripts=True), "cache-control": "no-store"}
        try:
            if session is None:
                raise PinwardenError("SIGN_IN_FAILED", "there is no session")
            asked = DashboardRequest(path=path, session=session, query=_read_query(request))
            if request.method == "POST":
                self._site.check_origin(request.headers)
                check_csrf_token(session, request.headers.get(TOKEN_HEADER, ""))
                body = await _read_json(request)
                answer = await self._run(partial(answer_post, self._sources, asked, body))
            else:
                answer = await self._run(partial(answer_get, self._sources, asked))
        except PinwardenError as err:
            status = 401 if session is None else _choose_status(err)
            error = {"error": {"code": err.code, "message": err.message, "hint": err.hint}}
            return Response(_encode(error), status_code=status, media_type=_JSON, headers=headers)
        return Response(_encode(answer), media_type=_JSON, headers=headers)

    async def _log_in(self, request: Request, path: str) -> Response:
        """Send the browser to the provider, or begin a session when it comes back."""
        login = self._sign_in
        if not isinstance(login, ProviderLogin):
            raise PinwardenError("PAGE_NOT_FOUND", "there is no page at this address")
        headers = {**build_page_headers(scripts=True), "cache-control": "no-store"}
        try:
            if path == _LOGIN:
                key, url = await self._run(login.begin)
                cookie = {"set-cookie": self._site.build_login_cookie(key)}
                return Response(status_code=303, headers={**headers, **cookie, "location": url})
            key = self._read_cookie(request, self._site.login_cookie_name)
            user = await self._run(partial(login.finish, key, request.url.query))
            await self._record_sign_in(user)
        except PinwardenError as err:
            await self._record_refusal(err)
            return await self._build_page(_SIGN_IN, self._build_sign_in_page(err), None, _choose_status(err))
        self._close_session(request)
        cookie_value, _ = self._sessions.open(user)
        # Not a redirect: a browser that comes from another site would not send the new cookie along.
        signed_in = PageContent(template="signed_in.html", values={"person": user, "home": f"{self._site.base}/"})
        response = await self._build_page(path, signed_in, None)
        response.headers.append("set-cookie", self._site.build_cookie(cookie_value))
        response.headers.append("set-cookie", self._site.build_login_cookie(""))
        return response

    async def _begin_connecting(
        self, request: Request, session: DashboardSession, form: dict[str, list[str]]
    ) -> Response:
        """Show where a remote server sends the person, and remember in a cookie what began."""
        if self._remotes is None:
            raise PinwardenError("PAGE_NOT_FOUND", "remote servers cannot be connected here")
        asked = DashboardRequest(path=_CONNECT, session=session, form=form)
        key, page = await self._run(partial(self._remotes.begin, asked, self._read_cookie(request)))
        response = await self._build_page(_CONNECT, page, session)
        response.headers.append("set-cookie", self._site.build_connect_cookie(key))
        return response

    async def _finish_connecting(self, request: Request, path: str) -> Response:
        """Store the grant of a person whom an issuer sends back. Such a request has no cookie of the session."""
        if self._remotes is None:
            raise PinwardenError("PAGE_NOT_FOUND", "there is no page at this address")
        key = self._read_cookie(request, self._site.connect_cookie_name)
        finish = partial(self._remotes.finish, key, path, request.url.query, self._sessions.is_open)
        grant = await self._run(finish)
        values = {"server": grant.server, "home": f"{self._site.base}/remotes/"}
        response = await self._build_page(
            CONNECT_CALLBACK, PageContent(template="remote_connected.html", values=values), None
        )
        response.headers.append("set-cookie", self._site.build_connect_cookie(""))
        return response

    async def _record_sign_in(self, user: DashboardUser) -> None:
        """Record who signs in. A sign-in fails while the audit log cannot be written."""
        event = AuditEvent(kind=SIGNED_IN, item_kind="dashboard", reason=user.role, by=user.name)
        await self._run(partial(self._sources.state.record_events, event))

    async def _record_refusal(self, err: PinwardenError) -> None:
        event = self._sign_ins.build_refused("dashboard", err.message, err.code)
        if event is not None:
            with suppress(PinwardenError):
                await self._run(partial(self._sources.state.record_events, event))

    def _build_sign_in_page(self, problem: PinwardenError | None = None) -> PageContent:
        return build_sign_in_page(problem, at_provider=isinstance(self._sign_in, ProviderLogin))

    async def _respond_in_session(self, request: Request, path: str, session: DashboardSession) -> Response:
        try:
            form: dict[str, list[str]] = {}
            if request.method == "POST":
                self._site.check_origin(request.headers)
                form = await _read_form(request)
                check_csrf_token(session, next(iter(form.get("csrf", [])), ""))
                if path == _SIGN_OUT:
                    return self._sign_out(request)
                if path == _CONNECT:
                    return await self._begin_connecting(request, session, form)
            if path == _EVENTS and request.method == "GET":
                return self._open_event_stream(request)
            if path == _EXPORT and request.method == "GET":
                return _export_log(self._sources)
            asked = DashboardRequest(path=path, session=session, query=_read_query(request), form=form)
            answer = await self._run(partial(self._answer, request.method, asked))
        except DecisionRefused as refusal:
            return await self._build_page(path, refusal.page, session, _choose_status(refusal.problem))
        except PinwardenError as err:
            return await self._build_error(path, err, session)
        if isinstance(answer, Redirect):
            return self._build_redirect(answer.path)
        return await self._build_page(path, answer, session)

    def _answer(self, method: str, request: DashboardRequest) -> PageContent | Redirect:
        """Run the action or build the page at a path. Runs on a thread."""
        if method == "POST" and request.path in ACTIONS:
            return ACTIONS[request.path](self._sources, request)
        page = find_page(self._sources, request)
        if page is None:
            raise PinwardenError("PAGE_NOT_FOUND", "there is no page at this address")
        return page

    async def _run(self, work: Callable[[], Any]) -> Any:
        if self._threads is None:  # needs a running event loop
            self._threads = CapacityLimiter(_THREADS)
        return await anyio.to_thread.run_sync(work, limiter=self._threads)

    # Sessions

    def _find_session(self, request: Request) -> DashboardSession | None:
        cookie = self._read_cookie(request)
        return self._sessions.find(cookie) if cookie else None

    def _read_cookie(self, request: Request, name: str = "") -> str:
        """Return the value of a cookie, by default of the session; empty without one."""
        name = name or self._site.cookie_name
        try:
            cookies = SimpleCookie(request.headers.get("cookie", ""))
        except CookieError:
            return ""
        return cookies[name].value if name in cookies else ""

    def _close_session(self, request: Request) -> None:
        cookie = self._read_cookie(request)
        if cookie:
            self._sessions.close(cookie)

    def _sign_out(self, request: Request) -> Response:
        self._close_session(request)
        response = self._build_redirect(_SIGN_IN)
        response.headers["set-cookie"] = self._site.build_cookie("")
        return response

    async def _refuse_signed_out(self) -> Response:
        err = PinwardenError("SIGN_IN_FAILED", "the session ended; sign in again")
        return await self._build_page(_SIGN_IN, self._build_sign_in_page(err), None, _STATUS[err.code])

    def _open_event_stream(self, request: Request) -> Response:
        cookie = self._read_cookie(request)
        headers = {**build_page_headers(scripts=True), "cache-control": "no-store", "x-accel-buffering": "no"}
        stream = self._live.stream(lambda: self._sessions.is_open(cookie))
        return StreamingResponse(stream, media_type=MEDIA_TYPE, headers=headers)

    # Responses

    async def _build_page(
        self, path: str, content: PageContent, session: DashboardSession | None, status: int = 200
    ) -> Response:
        body = await self._run(partial(render_page, path, content, session))
        headers = {**build_page_headers(scripts=True), "cache-control": "no-store"}
        return Response(body, status_code=status, media_type=HTML, headers=headers)

    async def _build_error(self, path: str, err: PinwardenError, session: DashboardSession | None) -> Response:
        status = _choose_status(err)
        shown = path if session is not None or not self._site.base else path.removeprefix(f"{self._site.base[1:]}/")
        return await self._build_page(shown, build_error_page(err, status), session, status)

    def _build_redirect(self, path: str) -> Response:
        """Redirect to a path of this dashboard. It is never taken from the request."""
        target = f"/{_SIGN_IN}" if path == _SIGN_IN else f"{self._site.base}/{path}"
        headers = {**build_page_headers(scripts=True), "cache-control": "no-store", "location": target}
        return Response(status_code=303, headers=headers)


def _find_asset(path: str) -> Response | None:
    if path not in ASSETS and path != SCRIPT:
        return None
    body = read_script() if path == SCRIPT else read_asset(path)
    media_type = ASSETS.get(path, "text/javascript; charset=utf-8")
    headers = {**build_page_headers(scripts=True), "cache-control": "no-cache"}
    return Response(body, media_type=media_type, headers=headers)


def _export_log(sources: Sources) -> Response:
    """Stream the audit log as ``pinwarden audit export`` writes it. Its pages are read on threads."""
    lines = (line + b"\n" for _, line in read_lines(sources.state.audit_database))
    attachment = {"content-disposition": 'attachment; filename="audit.jsonl"', "cache-control": "no-store"}
    headers = {**build_page_headers(scripts=True), **attachment}
    return StreamingResponse(lines, media_type="application/jsonl", headers=headers)


def _is_api(path: str) -> bool:
    return path.startswith(PREFIX) or path == "openapi.json"


def _encode(value: Any) -> bytes:
    """Return JSON that every parser reads: what servers wrote may have lone surrogates, which ASCII escapes."""
    return dumps(value).encode("ascii")


async def _read_json(request: Request) -> JsonObject:
    """Return the JSON object in the body of a request."""

    def describe(path: str, problem: str) -> PinwardenError:
        return PinwardenError("USAGE", f"{path or 'the body'} {problem}")

    try:
        return JsonObject(parse_json(await _read_body(request, _JSON)), "", describe)
    except PinwardenError as err:
        if err.code in ("USAGE", "INPUT_LIMIT"):
            raise
        raise PinwardenError("USAGE", f"the body is not JSON: {err.message}") from err


async def _read_body(request: Request, media_type: str) -> bytes:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != media_type:
        raise PinwardenError("USAGE", f"the request does not have the content type {media_type}")
    body = bytearray()
    with anyio.fail_after(_FORM_SECONDS):
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_FORM_BYTES:
                raise PinwardenError("INPUT_LIMIT", f"the request has more than {_MAX_FORM_BYTES} bytes")
    return bytes(body)


async def _read_form(request: Request) -> dict[str, list[str]]:
    """Return the values of a form by name."""
    body = await _read_body(request, _FORM)
    try:
        return parse_qs(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FORM_FIELDS)
    except ValueError as err:
        raise PinwardenError("USAGE", "the form cannot be read: it is not UTF-8, or has too many fields") from err


def _read_query(request: Request) -> dict[str, str]:
    query = dict(request.query_params)
    if any("\0" in text for text in query.values()):
        raise PinwardenError("USAGE", "NUL bytes are not allowed")
    return query


def _choose_status(err: PinwardenError) -> int:
    known = _STATUS.get(err.code)
    if known is not None:
        return known
    return 422 if err.exit_code in (EXIT_REFUSED, EXIT_USAGE) else 503
