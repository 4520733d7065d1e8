"""Who uses the dashboard: one-time codes, sessions and roles, and the checks of a request before anything else.

- A code is printed on the terminal of the dashboard, is valid for one sign-in, and is never part of an address.
- A session begins with a new random cookie at each sign-in, so no cookie from elsewhere ever becomes a session.
- Cookies do not know ports: a browser sends the cookie of ``http://127.0.0.1:8643`` to every other port, too. So
  without TLS all pages are below a random path, and the cookie is limited to that path.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from hashlib import sha256
from hmac import compare_digest
from time import monotonic

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.gateway.http.header_checks import parse_host
from pinwarden.identity.settings import ROLES, Role

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")

_CODE_ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # without characters that look alike
_CODE_GROUPS, _CODE_GROUP_LENGTH = 4, 4  # 16 characters of 5 bits
_IDLE_SECONDS = 8 * 3600.0
_MAX_SECONDS = 24 * 3600.0
_MAX_SESSIONS = 1000


class DashboardUser(Record):
    """Someone who signed in."""

    name: str
    """The name that decisions are recorded with."""
    role: Role
    identity: str = ""
    """Identifies the person at the issuer; empty for a person who signed in with a code."""

    def may(self, role: Role) -> bool:
        """Whether the person has this role or a later one of `ROLES`."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def require(self, role: Role) -> None:
        """Raise ``DASHBOARD_FORBIDDEN`` unless the person has this role."""
        if not self.may(role):
            raise PinwardenError("DASHBOARD_FORBIDDEN", f"{self.name[:120]!a} is {self.role}; this needs {role}")


class DashboardSession:
    """One signed-in browser."""

    def __init__(self, person: DashboardUser, now: float) -> None:
        self.person = person
        self.csrf_token = secrets.token_urlsafe(32)
        self.started = self.used = now
        self.notices: tuple[str, ...] = ()
        """What the next page says about the last action."""

    def is_expired(self, now: float) -> bool:
        """Whether the session was unused for too long, or is too old."""
        return now - self.used > _IDLE_SECONDS or now - self.started > _MAX_SECONDS

    def take_notices(self) -> tuple[str, ...]:
        """Return the notices once."""
        notices, self.notices = self.notices, ()
        return notices


class DashboardSessions:
    """The sessions of one dashboard, in memory. Cookies are stored as digests."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._sessions: dict[str, DashboardSession] = {}

    def open(self, person: DashboardUser) -> tuple[str, DashboardSession]:
        """Begin a session. Returns the value of its cookie, which is always new."""
        now = self._clock()
        for key in [key for key, session in self._sessions.items() if session.is_expired(now)]:
            del self._sessions[key]
        while len(self._sessions) >= _MAX_SESSIONS:  # the oldest ends
            del self._sessions[next(iter(self._sessions))]
        cookie = secrets.token_urlsafe(32)
        session = self._sessions[_hash(cookie)] = DashboardSession(person, now)
        return cookie, session

    def find(self, cookie: str) -> DashboardSession | None:
        """Return the session of a cookie; None if there is none, or if it expired."""
        session = self._sessions.get(_hash(cookie))
        if session is None:
            return None
        now = self._clock()
        if session.is_expired(now):
            self.close(cookie)
            return None
        session.used = now
        return session

    def is_open(self, cookie: str) -> bool:
        """Whether the session of a cookie is still open. Does not count as its use."""
        session = self._sessions.get(_hash(cookie))
        return session is not None and not session.is_expired(self._clock())

    def close(self, cookie: str) -> None:
        """End the session of a cookie."""
        self._sessions.pop(_hash(cookie), None)


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()


class SignInCode:
    """The code that is valid now. Each code is valid for one sign-in; then ``announce`` gets the next one."""

    def __init__(self, person: DashboardUser, announce: Callable[[str], None]) -> None:
        self._person = person
        self._announce = announce
        self._code = ""
        self._renew()

    def redeem(self, text: str) -> DashboardUser:
        """Return the person, if this is the code. Raises ``SIGN_IN_FAILED``."""
        entered = "".join(text.upper().split()).replace("-", "")
        if not compare_digest(_hash(entered), _hash(self._code.replace("-", ""))):
            raise PinwardenError("SIGN_IN_FAILED", "this is not the sign-in code, or it was used already")
        self._renew()
        return self._person

    def _renew(self) -> None:
        groups = (
            "".join(secrets.choice(_CODE_ALPHABET) for _ in range(_CODE_GROUP_LENGTH)) for _ in range(_CODE_GROUPS)
        )
        self._code = "-".join(groups)
        self._announce(self._code)


class Site(Record):
    """Where the dashboard is served: what a request must say about host and origin."""

    hosts: Collection[str]
    """The names under which browsers reach it, without ports. Other names are refused, against DNS rebinding."""
    is_secure: bool
    """Whether browsers use TLS."""
    base: str
    """The path that all pages are below: empty with TLS, otherwise ``/`` and a random word."""

    @property
    def cookie_name(self) -> str:
        """The name of the session cookie. Browsers accept ``__Host-`` only from this host and with TLS."""
        return "__Host-pinwarden" if self.is_secure else "pinwarden"

    def build_cookie(self, value: str) -> str:
        """Return the ``Set-Cookie`` header of a session; an empty value removes the cookie."""
        attributes = [f"{self.cookie_name}={value}", f"Path={self.base or ''}/", "HttpOnly", "SameSite=Strict"]
        attributes += ["Secure"] if self.is_secure else []
        attributes += ["Max-Age=0"] if not value else []
        return "; ".join(attributes)

    @property
    def login_cookie_name(self) -> str:
        """The name of the cookie of a login at the provider that began."""
        return f"{self.cookie_name}-login"

    @property
    def connect_cookie_name(self) -> str:
        """The name of the cookie of a remote server that a person began to connect."""
        return f"{self.cookie_name}-connect"

    def build_login_cookie(self, value: str) -> str:
        """Return the ``Set-Cookie`` header of a login that began. Sent when another site sends the browser back."""
        return self._build_lax_cookie(self.login_cookie_name, "/login", value)

    def build_connect_cookie(self, value: str) -> str:
        """Return the ``Set-Cookie`` header of a connection that began. Sent when the issuer sends the browser back."""
        return self._build_lax_cookie(self.connect_cookie_name, "/callback", value)

    def _build_lax_cookie(self, name: str, local_path: str, value: str) -> str:
        path = "/" if self.is_secure else local_path
        attributes = [f"{name}={value}", f"Path={path}", "HttpOnly", "SameSite=Lax"]
        attributes += ["Secure"] if self.is_secure else []
        attributes += ["Max-Age=0"] if not value else ["Max-Age=600"]
        return "; ".join(attributes)

    def check_host(self, host: str) -> None:
        """Raise ``HOST_REFUSED`` if a request is for a host that is not this dashboard's."""
        if parse_host(host) not in self.hosts:
            raise PinwardenError("HOST_REFUSED", f"the dashboard is not served as {host[:120]!a}")

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Raise ``ORIGIN_REFUSED`` unless a page of this dashboard sends the request. For requests with effects."""
        own = f"{'https' if self.is_secure else 'http'}://{headers.get('host', '')}"
        origin, fetched_from = headers.get("origin", ""), headers.get("sec-fetch-site", "same-origin")
        if origin.lower() != own.lower() or fetched_from != "same-origin":
            raise PinwardenError("ORIGIN_REFUSED", f"the request comes from {origin[:120]!a}, not from this dashboard")


def check_csrf_token(session: DashboardSession, token: str) -> None:
    """Raise ``ORIGIN_REFUSED`` unless the form has the token of this session."""
    if not compare_digest(_hash(token), _hash(session.csrf_token)):
        raise PinwardenError("ORIGIN_REFUSED", "the form is not from this session")


def build_local_site(hosts: Collection[str], *, is_secure: bool) -> Site:
    """Return a site with a new random path, if it needs one."""
    return Site(
        hosts=frozenset(host.lower() for host in hosts),
        is_secure=is_secure,
        base="" if is_secure else f"/{secrets.token_hex(8)}",
    )
