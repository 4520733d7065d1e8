"""Sign in with the OpenID provider of the company: who decides is who the provider says, with the role of their groups.

The login that began is kept here, under a random word in a cookie of its own. That cookie is sent when the provider
sends the browser back (``SameSite=Lax``), works once, and is worth nothing afterwards.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.dashboard.access import DashboardUser

if TYPE_CHECKING:
    from pinwarden.identity.code_flow import LoginFlow, LoginRequest, Person

CALLBACK = "login/callback"
"""The path to which the provider sends browsers back."""
_MAX_BEGUN = 1000
_BEGUN_SECONDS = 600.0  # as long as the cookie of a login
_MAX_QUERY = 16 * 1024


class ProviderLogin:
    """Logs people in at one provider. Thread-safe; its methods wait for the provider."""

    def __init__(self, flow: LoginFlow, redirect_uri: str, clock: Callable[[], float] = time.time) -> None:
        self._flow = flow
        self._redirect_uri = redirect_uri
        self._clock = clock
        self._lock = Lock()
        self._begun: dict[str, LoginRequest] = {}

    def begin(self) -> tuple[str, str]:
        """Begin a login. Returns the value of its cookie, and the address of the provider for the browser."""
        request, url = self._flow.begin(self._redirect_uri, "/", self._clock())
        key = secrets.token_urlsafe(32)
        with self._lock:
            oldest = self._clock() - _BEGUN_SECONDS
            self._begun = {known: begun for known, begun in self._begun.items() if begun.began_at >= oldest}
            while len(self._begun) >= _MAX_BEGUN:
                del self._begun[next(iter(self._begun))]
            self._begun[key] = request
        return key, url

    def finish(self, key: str, query: str) -> DashboardUser:
        """Return the person, by the cookie of the login and the query with which the provider sent the browser back."""
        with self._lock:
            request = self._begun.pop(key, None)  # first, so that it works once
        if request is None:
            raise PinwardenError(
                "LOGIN_REFUSED", "this browser began no login here", hint="Begin again on the page to sign in."
            )
        if len(query) > _MAX_QUERY:
            raise PinwardenError("LOGIN_REFUSED", "the response of the provider is too long")
        person = self._flow.finish(request, query, self._clock())
        return DashboardUser(
            name=name_in_records(person), role=person.role, identity=f"{person.issuer} {person.subject}"
        )


def name_in_records(person: Person) -> str:
    """Return the name that decisions are recorded with: never only a display name, which people choose themselves."""
    return f"{person.name} <{person.email or person.subject}>"
