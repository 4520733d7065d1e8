"""The page of remote servers, on which people connect the ones that need their account.

A person who presses Connect sees where the server sends them, and follows a link there. What began is kept here, under
a random word in a cookie that is sent when the issuer sends the browser back (``SameSite=Lax``), and that works once.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.dashboard.sources import DashboardRequest, Redirect, Sources, Values, read_part
from pinwarden.html.pages import PageContent
from pinwarden.project.remote_access import find_local_owner

if TYPE_CHECKING:
    from pinwarden.dashboard.access import DashboardUser
    from pinwarden.identity.grants import Grant, GrantOwner
    from pinwarden.identity.remote_tokens import PendingGrant, RemoteTarget

CONNECT_CALLBACK = "callback"
"""The path to which issuers send browsers back, or its beginning. On this machine, ``remote connect`` has the same."""
_SECONDS = 600.0
_MAX_BEGUN = 1000
_MAX_QUERY = 16 * 1024


class RemoteServerRow(Record):
    """A remote server as a person sees it."""

    server: str
    address: str
    account: str
    grant: Grant | None
    """The grant that the person's requests would use."""


class _Begun(Record):
    pending: PendingGrant
    person: DashboardUser
    cookie: str
    """The cookie of the session in which it began."""
    at: float


class RemoteConnections:
    """Connections that people began. Thread-safe; its methods wait for servers and issuers."""

    def __init__(self, sources: Sources, redirect_uri: str, clock: Callable[[], float] = time.time) -> None:
        self._sources = sources
        self._redirect_uri = redirect_uri
        self._clock = clock
        self._lock = Lock()
        self._begun: dict[str, _Begun] = {}

    def begin(self, request: DashboardRequest, cookie: str) -> tuple[str, PageContent]:
        """Begin to connect the server that the form names. Returns the value of the cookie, and the page with the link.

        ``cookie`` is that of the session, which must still be open in the end.
        """
        from pinwarden.gateway.remote_grants import open_remote_tokens

        person = request.session.person
        target = _find_target(self._sources, request.get("server"))
        if target.settings.account == "shared" or not person.identity:
            person.require("admin")  # what others use too: all users, or the user of this machine
        tokens = open_remote_tokens(self._sources.state, self._sources.project.variables, create_key=True)
        pending, url = tokens.begin(target, find_owner(self._sources, person), self._redirect_uri)
        key = secrets.token_urlsafe(32)
        with self._lock:
            oldest = self._clock() - _SECONDS
            self._begun = {known: begun for known, begun in self._begun.items() if begun.at >= oldest}
            while len(self._begun) >= _MAX_BEGUN:
                del self._begun[next(iter(self._begun))]
            self._begun[key] = _Begun(pending=pending, person=person, cookie=cookie, at=self._clock())
        values: Values = {"pending": pending, "url": url, "shared": target.settings.account == "shared"}
        return key, PageContent(template="remote_connect.html", values=values)

    def finish(self, key: str, path: str, query: str, is_open: Callable[[str], bool]) -> Grant:
        """Store the grant, by the cookie, and the path and query with which the issuer sent the browser back."""
        from pinwarden.gateway.remote_grants import finish_connecting, open_remote_tokens

        with self._lock:
            begun = self._begun.pop(key, None)  # first, so that it works once
        arrived_at = f"{self._redirect_uri}{path.removeprefix(CONNECT_CALLBACK)}"
        if (
            begun is None
            or begun.pending.request.redirect_uri != arrived_at
            or not is_open(begun.cookie)
            or len(query) > _MAX_QUERY
        ):
            raise PinwardenError(
                "LOGIN_REFUSED", "this browser began no connection here", hint="Begin again on the page Remotes."
            )
        state = self._sources.state
        tokens = open_remote_tokens(state, self._sources.project.variables)
        return finish_connecting(state, tokens, begun.pending, query, begun.person.name)


def find_owner(sources: Sources, person: DashboardUser) -> GrantOwner:
    """Return whose grants a person gives: those of their identity at the issuer, or of the user of this machine."""
    from pinwarden.identity.grants import GrantOwner

    issuer, _, subject = person.identity.partition(" ")
    return GrantOwner(issuer=issuer, subject=subject) if issuer else find_local_owner(sources.state.folder)


def build_remotes_page(sources: Sources, request: DashboardRequest) -> PageContent:
    """Build the page of remote servers."""
    rows = read_part(lambda: _list_rows(sources, request.session.person))
    return PageContent(template="remotes.html", values={"remotes": rows})


def forget_grant(sources: Sources, request: DashboardRequest) -> Redirect:
    """Forget a grant of the person; an admin may also forget those of others."""
    from pinwarden.gateway.remote_grants import forget_grants, open_remote_tokens
    from pinwarden.identity.grants import list_grants

    person = request.session.person
    grants = [grant for grant in list_grants(sources.state.grants_database) if grant.id == request.get("id")]
    if not grants:
        raise PinwardenError("REMOTE_NOT_CONNECTED", "this grant was forgotten already", hint="Open the page again.")
    if grants[0].owner != find_owner(sources, person) or not person.identity:
        person.require("admin")
    targets = {target.server: target for target in _list_targets(sources)}
    tokens = open_remote_tokens(sources.state, sources.project.variables)
    report = forget_grants(sources.state, tokens, grants, targets, person.name)
    request.session.notices = (f"{report.summary[:1].upper()}{report.summary[1:]}.",)
    return Redirect(path="remotes/")


def _list_rows(sources: Sources, person: DashboardUser) -> list[RemoteServerRow]:
    from pinwarden.identity.grants import list_grants

    own = find_owner(sources, person)
    grants = {(grant.owner, grant.server, grant.address): grant for grant in list_grants(sources.state.grants_database)}
    return [
        RemoteServerRow(
            server=target.server,
            address=target.address.partition("#")[0],
            account=target.settings.account,
            grant=grants.get((target.choose_owner(own), target.server, target.address)),
        )
        for target in _list_targets(sources)
    ]


def _find_target(sources: Sources, name: str) -> RemoteTarget:
    for target in _list_targets(sources):
        if target.server == name:
            return target
    raise PinwardenError("PAGE_NOT_FOUND", "there is no such remote server in the lock")


def _list_targets(sources: Sources) -> list[RemoteTarget]:
    from pinwarden.gateway.remote_grants import list_remote_targets

    targets: dict[str, RemoteTarget] = {}
    for project in (sources.project, *sources.scopes):
        for target in list_remote_targets(project):
            targets.setdefault(target.server, target)
    return [targets[name] for name in sorted(targets)]
