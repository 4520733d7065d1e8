"""Connects remote servers, and returns a valid token for each request of an owner: the grants, kept up to date.

A token that expires soon is renewed first. One process at a time renews a grant; others wait for it, or use the old
token while it is valid. Renewed tokens are stored before they are used, because the old refresh token may be void.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Lock

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.identity.grants import EVERYONE, LOCAL, REFRESH_SECONDS, STATIC, Grant, GrantOwner, Grants, name_address
from pinwarden.identity.protected_resource import parse_bearer_challenge
from pinwarden.identity.remote_flow import ConnectRequest, IssuedTokens, RemoteClient, RemoteFlow, select_scopes
from pinwarden.identity.remote_settings import RemoteSettings

_EXPIRY_SECONDS = 20
"""Tokens are renewed this long before they expire."""
_WAIT_SECONDS = 0.2
_RECHECK_SECONDS = 5.0
"""How long a token is used without looking whether the person forgot the server or connected it again."""
_STORE_ATTEMPTS = 3
_MAX_WANTED = 20  # scopes that a server asked for and the grant does not have
_TEMPORARY = frozenset({"temporarily_unavailable", "server_error", "slow_down"})
_DATABASE_UNAVAILABLE = "DATABASE_UNAVAILABLE"


class RemoteTarget(Record):
    """A remote server as it is configured."""

    server: str
    url: str = field(repr=False)
    settings: RemoteSettings = field(default_factory=RemoteSettings)
    allow_private: bool = False
    connect_at: str = ""
    """The address of the dashboard on which people connect the server, for messages; empty if it is not known."""

    @property
    def address(self) -> str:
        """What identifies the address in grants."""
        return name_address(self.url)

    def choose_owner(self, owner: GrantOwner) -> GrantOwner:
        """Return whose grant is used for a person: their own, unless the configuration says that one is shared."""
        return EVERYONE if self.settings.account == "shared" else owner


class RemoteToken(Record):
    """A token for the requests of one owner."""

    grant_id: str
    """Changes when the server is connected again, perhaps with another account."""
    access_token: str = field(repr=False)
    expires_at: int
    """When a new one is needed, in seconds since 1970; 0 if that is not known."""


class PendingGrant(Record):
    """A grant that a person began to give."""

    target: RemoteTarget
    owner: GrantOwner
    request: ConnectRequest


class RemoteTokens:
    """The grants of one database. Thread-safe. Its methods block."""

    def __init__(
        self,
        grants: Grants,
        variables: Mapping[str, str],
        *,
        on_failed: Callable[[Grant, str], None] = lambda _grant, _reason: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``on_failed`` is called with a grant that can no longer be used, and the reason.

        ``clock`` returns seconds since 1970.
        """
        self.grants = grants
        self._variables = variables
        self._on_failed = on_failed
        self.clock = clock
        self._machine_lock = Lock()
        self._machine_tokens: dict[tuple[str, str], IssuedTokens] = {}

    def open_flow(self, target: RemoteTarget) -> RemoteFlow:
        """Return the OAuth flow for a server."""
        return RemoteFlow(target.url, target.settings, self._variables, allow_private=target.allow_private)

    # Connect and forget

    def begin(
        self, target: RemoteTarget, owner: GrantOwner, redirect_uri: str, *, may_register: bool = False
    ) -> tuple[PendingGrant, str]:
        """Begin to connect a server. Returns what to keep for `finish`, and the URL to send the browser to.

        An earlier grant's scopes are requested again, with those that the server asked for since then.
        """
        if target.settings.account == "machine":
            raise PinwardenError(
                "REMOTE_REFUSED",
                f"{target.server} is used with the gateway's own account, which is not connected by a person",
            )
        _ = self.grants.key  # without one, the person would log in for nothing
        owner = target.choose_owner(owner)
        earlier = self.grants.find(owner, target.server, target.address)
        scopes = () if earlier is None else (*earlier.scopes.split(), *earlier.wanted.split())
        with self.open_flow(target) as flow:
            request, url = flow.begin(redirect_uri, self.clock(), scopes=scopes, may_register=may_register)
        return PendingGrant(target=target, owner=owner, request=request), url

    def finish(self, pending: PendingGrant, query: str, by: str, at: str) -> Grant:
        """Finish to connect, with the query with which the issuer sent the browser back."""
        target, request = pending.target, pending.request
        with self.open_flow(target) as flow:
            tokens = flow.finish(request, query, self.clock())
        grant = Grant(
            id=secrets.token_hex(8),
            owner_issuer=pending.owner.issuer,
            owner_subject=pending.owner.subject,
            server=target.server,
            address=target.address,
            issuer=request.client.issuer,
            client_id=request.client.credentials.client_id,
            resource=request.client.resource,
            redirect_uri=request.redirect_uri,
            scopes=" ".join(tokens.scopes),
            wanted="",
            expires_at=tokens.expires_at,
            connected_at=at,
            connected_by=by,
            problem="",
            revision=1,
        )
        self.grants.add(grant, request.client, tokens)
        return grant

    def forget(self, grant: Grant, target: RemoteTarget | None) -> bool:
        """Delete a grant. Returns whether the issuer revoked its tokens too."""
        revoked = False
        if target is not None:
            try:
                opened = self.grants.open_tokens(grant)
                if opened is not None:
                    with self.open_flow(target) as flow:
                        revoked = flow.revoke(*opened)
            except PinwardenError as err:
                if err.code == _DATABASE_UNAVAILABLE:
                    raise  # a lost key must not prevent forgetting
        self.grants.remove(grant.id)
        return revoked

    # Tokens for requests

    def get(self, target: RemoteTarget, owner: GrantOwner, rejected: str = "") -> RemoteToken:
        """Return a valid token of an owner for a server. ``rejected`` is one that the server refused just now.

        Raises REMOTE_NOT_CONNECTED if the person has to connect the server, or REMOTE_UNAVAILABLE.
        """
        if target.settings.account == "machine":
            return self._get_machine_token(target, rejected)
        deadline = time.monotonic() + REFRESH_SECONDS + 1
        while True:
            grant = self.grants.find(target.choose_owner(owner), target.server, target.address)
            if grant is None or grant.problem:
                raise describe_missing_grant(target, owner, "" if grant is None else grant.problem)
            opened = self.grants.open_tokens(grant)
            if opened is None:
                continue  # it was renewed between the two queries
            client, tokens = opened
            now = int(self.clock())
            is_rejected = tokens.access_token == rejected
            if not is_rejected and (not tokens.expires_at or now < tokens.expires_at - _EXPIRY_SECONDS):
                return _to_token(grant, tokens)
            is_usable = not is_rejected and now < tokens.expires_at
            if not tokens.refresh_token:
                if is_usable:
                    return _to_token(grant, tokens)
                self._fail(grant, "the server refused the token" if is_rejected else "the token expired")
            elif self.grants.claim_refresh(grant, now):
                return self._refresh(target, grant, client, tokens, is_usable=is_usable)
            elif is_usable:
                return _to_token(grant, tokens)
            elif time.monotonic() > deadline:
                raise PinwardenError("REMOTE_UNAVAILABLE", f"another process renews the token of {target.server}")
            else:
                time.sleep(_WAIT_SECONDS)

    def note_missing_scopes(self, target: RemoteTarget, owner: GrantOwner, scopes: Sequence[str]) -> None:
        """Remember the scopes that a server asked for, for the next time that the person connects it."""
        grant = self.grants.find(target.choose_owner(owner), target.server, target.address)
        if grant is not None:
            held, wanted = grant.scopes.split(), grant.wanted.split()
            more = [scope for scope in select_scopes(scopes) if scope not in held and scope not in wanted]
            if more and len(wanted) < _MAX_WANTED:
                self.grants.mark(grant, wanted=[*wanted, *more][:_MAX_WANTED])

    def _refresh(
        self, target: RemoteTarget, grant: Grant, client: RemoteClient, tokens: IssuedTokens, *, is_usable: bool
    ) -> RemoteToken:
        try:
            with self.open_flow(target) as flow:
                renewed = flow.refresh(client, tokens, self.clock())
        except PinwardenError as err:
            error = err.data.get("error")
            if error is not None and error not in _TEMPORARY:
                self._fail(grant, f"the issuer does not renew it ({error})")
                raise describe_missing_grant(target, grant.owner, f"the issuer does not renew it ({error})") from err
            self.grants.release_refresh(grant)
            if is_usable:
                return _to_token(grant, tokens)
            raise
        except BaseException:
            self.grants.release_refresh(grant)
            raise
        return _to_token(self._store(grant, client, renewed), renewed)

    def _store(self, grant: Grant, client: RemoteClient, renewed: IssuedTokens) -> Grant:
        """Store renewed tokens. Tries again, because the refresh token before them may be void."""
        for attempt in range(_STORE_ATTEMPTS):
            try:
                return self.grants.store_refreshed(grant, client, renewed)
            except PinwardenError as err:
                if err.code != _DATABASE_UNAVAILABLE or attempt == _STORE_ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _fail(self, grant: Grant, reason: str) -> None:
        if self.grants.mark(grant, problem=reason):
            self._on_failed(grant, reason)

    def _get_machine_token(self, target: RemoteTarget, rejected: str) -> RemoteToken:
        key = target.server, target.url
        with self._machine_lock:
            tokens, now = self._machine_tokens.get(key), self.clock()
            is_fresh = tokens is not None and (not tokens.expires_at or now < tokens.expires_at - _EXPIRY_SECONDS)
            if tokens is None or not is_fresh or tokens.access_token == rejected:
                with self.open_flow(target) as flow:
                    tokens = self._machine_tokens[key] = flow.request_machine_tokens(now)
            return RemoteToken(grant_id="machine", access_token=tokens.access_token, expires_at=_find_renewal(tokens))


class RemoteCredential:
    """The token of one owner for one server, kept for some seconds. Thread-safe.

    Without a grant, requests are sent without a token. Only if the server then asks for one is that an error, because
    many servers need none.
    """

    def __init__(self, tokens: RemoteTokens, target: RemoteTarget, owner: GrantOwner) -> None:
        self._tokens = tokens
        self._target = target
        self._owner = owner
        self._lock = Lock()
        self._token: RemoteToken | None = None
        self._read_at = -_RECHECK_SECONDS
        self._missing: PinwardenError | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether `token` was looked up within the last seconds, and need not be renewed. Does not block."""
        if time.monotonic() - self._read_at >= _RECHECK_SECONDS:
            return False
        token = self._token
        return token is None or not token.expires_at or self._tokens.clock() < token.expires_at

    @property
    def token(self) -> RemoteToken | None:
        """The token that was looked up last; None if the owner has no grant."""
        return self._token

    def load(self, rejected: str = "") -> RemoteToken | None:
        """Return a valid token, or None without a grant. ``rejected`` is one that the server refused. Blocks."""
        with self._lock:
            token = self._token
            if not self.is_fresh or (rejected and token is not None and token.access_token == rejected):
                self._read_at = -_RECHECK_SECONDS
                self._token = self._missing = None
                try:
                    self._token = self._tokens.get(self._target, self._owner, rejected)
                except PinwardenError as err:
                    if err.code != "REMOTE_NOT_CONNECTED":
                        raise
                    self._missing = err
                self._read_at = time.monotonic()
            return self._token

    def explain_missing(self) -> str:
        """Return that the server needs a token, and what the person can do."""
        err = self._missing or describe_missing_grant(self._target, self._owner, "the server refused its token")
        return f"{err.message}. {err.hint}"

    def explain_refusal(self, challenge: str) -> str:
        """Return why a server refused a request with a valid token, and what the person can do. Blocks."""
        parameters = parse_bearer_challenge(challenge)
        server = self._target.server
        if parameters.get("error") != "insufficient_scope":
            return f"{server} does not allow this with the connected account"
        scopes = select_scopes(parameters.get("scope", "").split())
        self._tokens.note_missing_scopes(self._target, self._owner, scopes)
        hint = describe_missing_grant(self._target, self._owner).hint
        return f"{server} needs more permissions ({' '.join(scopes)[:200] or 'it does not say which'}). {hint}"


def describe_missing_grant(target: RemoteTarget, owner: GrantOwner, problem: str = "") -> PinwardenError:
    """Return the error for a server that has to be connected, with the command that does it."""
    if target.settings.account == "shared":
        option = " --shared"
    elif owner.issuer == STATIC:
        option = f" --for {owner.subject}"
    else:
        option = ""
    command = f"pinwarden remote connect {target.server}{option}"
    where = f"at {target.connect_at}" if target.connect_at else "in the dashboard"
    hint = f"Run: {command}" if owner.issuer == LOCAL or option else f"Connect it {where}, on the page Remotes."
    why = f"has to be connected again, because {problem}" if problem else "is not connected for this user"
    return PinwardenError("REMOTE_NOT_CONNECTED", f"{target.server[:120]!a} {why}", hint=hint)


def _to_token(grant: Grant, tokens: IssuedTokens) -> RemoteToken:
    return RemoteToken(grant_id=grant.id, access_token=tokens.access_token, expires_at=_find_renewal(tokens))


def _find_renewal(tokens: IssuedTokens) -> int:
    return tokens.expires_at - _EXPIRY_SECONDS if tokens.expires_at else 0
