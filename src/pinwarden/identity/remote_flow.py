"""Gets tokens for one remote server, as an OAuth client: with a person's consent, or for the gateway itself.

How a page or a command connects a server:

1. `RemoteFlow.begin` finds the issuer, and returns a `ConnectRequest` and the URL to send the browser to. Keep the
   request where only this browser can use it, once.
2. `RemoteFlow.finish` checks the response with which the issuer sent the browser back, and exchanges the code.

`RemoteFlow.refresh` renews tokens, and `request_machine_tokens` gets those of the gateway's own account. All of these
block. Raises REMOTE_UNAVAILABLE if a server or issuer cannot be asked, REMOTE_REFUSED if an answer is not acceptable.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.typed_json import JsonObject
from pinwarden.identity.code_flow import (
    LOGIN_SECONDS,
    ClientCredentials,
    build_authorization_url,
    check_authorization_response,
    create_verifier,
    login_error,
    request_tokens,
)
from pinwarden.identity.issuer import Issuer, IssuerMetadata
from pinwarden.identity.protected_resource import ProtectedResource, find_protected_resource, refusal
from pinwarden.identity.remote_settings import RemoteSettings
from pinwarden.system.net.connections import is_private_literal
from pinwarden.system.net.fetch import Fetcher, FetchLimits, FetchRules
from pinwarden.system.target import HttpAddress, strip_query

_SECONDS = 10.0
_LIMITS = FetchLimits(
    document_bytes=128 * 1024,
    redirects=0,
    connect_seconds=_SECONDS / 2,
    idle_seconds=_SECONDS,
    total_seconds=_SECONDS,
    attempts=1,
)
_TOKEN = re.compile(r"[\x21-\x7e]{1,16384}")  # what fits into a header
_CLIENT_ID = re.compile(r"[\x20-\x7e]{1,2000}")
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")
_MAX_SCOPES = 100
_MAX_LIFETIME = 10 * 365 * 86_400
_OFFLINE = "offline_access"
_UNAVAILABLE = frozenset({"ISSUER_UNAVAILABLE", "FETCH_FAILED"})
_REFUSED = frozenset({"ISSUER_INVALID", "LOGIN_REFUSED", "ADDRESS_REFUSED", "FETCH_LIMIT", "TARGET_INVALID"})


class IssuedTokens(Record):
    """The tokens that an issuer issued. Their text is never part of ``repr``."""

    access_token: str = field(repr=False)
    refresh_token: str = field(default="", repr=False)
    expires_at: int = 0
    """In seconds since 1970; 0 if the issuer does not say."""
    scopes: tuple[str, ...] = ()


class RemoteClient(Record):
    """As whom Pinwarden gets tokens of an issuer, and what for."""

    issuer: str
    credentials: ClientCredentials
    resource: str


class ConnectRequest(Record):
    """A connection that began: what `RemoteFlow.finish` compares the response with. Valid once, for ten minutes."""

    client: RemoteClient
    scopes: tuple[str, ...]
    redirect_uri: str
    state: str = field(repr=False)
    verifier: str = field(repr=False)
    began_at: float
    """In seconds since 1970."""


class RemoteFlow:
    """Gets tokens for one server. Use as a context manager, which closes connections."""

    def __init__(
        self,
        address: str,
        settings: RemoteSettings,
        variables: Mapping[str, str] | None = None,
        *,
        allow_private: bool = False,
    ) -> None:
        """``allow_private`` allows private addresses, of the server and of an issuer that it names."""
        self._address = HttpAddress.parse(address)
        self._url = address
        self._settings = settings
        self._variables = variables
        self._allow_private = allow_private
        self._fetcher = Fetcher(FetchRules(limits=_LIMITS), variables)
        self._issuers: dict[str, Issuer] = {}

    def __enter__(self) -> RemoteFlow:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._fetcher.close()
        for issuer in self._issuers.values():
            issuer.close()

    def begin(
        self, redirect_uri: str, now: float, *, scopes: Iterable[str] = (), may_register: bool = False
    ) -> tuple[ConnectRequest, str]:
        """Begin to connect. Returns what to keep, and the URL to send the browser to.

        The redirect URI in the `ConnectRequest` can be below ``redirect_uri``. The caller must compare it with the
        address at which the response arrives. ``scopes`` are requested in addition, such as those of an earlier
        connection and of a refused call. With ``may_register``, Pinwarden registers itself at an issuer that does not
        know it.
        """
        with self._translate_errors():
            metadata, found = self._find_issuer()
            if self._settings.has_metadata_document and not metadata.reads_client_documents:
                raise refusal("client", f"{metadata.issuer} does not read client metadata documents")
            redirect_uri = self._choose_redirect(redirect_uri, metadata)
            wanted = _join_scopes(self._choose_scopes(found, metadata), scopes)
            credentials = self._choose_client(
                metadata, redirect_uri, may_register=may_register or self._settings.allow_registration
            )
            resource = self._choose_resource(found)
            request = ConnectRequest(
                client=RemoteClient(issuer=metadata.issuer, credentials=credentials, resource=resource),
                scopes=wanted,
                redirect_uri=redirect_uri,
                state=secrets.token_urlsafe(32),
                verifier=create_verifier(),
                began_at=now,
            )
            parameters = {
                "client_id": credentials.client_id,
                "redirect_uri": redirect_uri,
                "state": request.state,
                "resource": resource,
                **({"scope": " ".join(wanted)} if wanted else {}),
                # Without it, issuers do not grant offline access (OpenID Connect Core, section 11).
                **({"prompt": "consent"} if _OFFLINE in wanted else {}),
            }
            return request, build_authorization_url(metadata, parameters, request.verifier)

    def finish(self, request: ConnectRequest, query: str, now: float) -> IssuedTokens:
        """Finish with the query of the request that the issuer sent the browser back with."""
        with self._translate_errors():
            if not 0 <= now - request.began_at <= LOGIN_SECONDS:
                raise login_error("expired", "the authorization took too long")
            client = request.client
            issuer = self._open_issuer(client.issuer)
            metadata = issuer.load_metadata()
            code = check_authorization_response(query, request.state, metadata)
            form = {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": request.redirect_uri,
                "code_verifier": request.verifier,
                "resource": client.resource,
            }
            return _parse_tokens(request_tokens(issuer, metadata, client.credentials, form), request.scopes, now)

    def refresh(self, client: RemoteClient, tokens: IssuedTokens, now: float) -> IssuedTokens:
        """Renew tokens. The old refresh token is kept if the issuer sends no new one."""
        with self._translate_errors():
            issuer = self._open_issuer(client.issuer)
            refresh_token = tokens.refresh_token
            form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "resource": client.resource}
            document = request_tokens(issuer, issuer.load_metadata(), client.credentials, form)
            return _parse_tokens(document, tokens.scopes, now, refresh_token)

    def request_machine_tokens(self, now: float) -> IssuedTokens:
        """Get a token of the gateway's own account (client credentials)."""
        settings = self._settings
        with self._translate_errors():
            metadata, found = self._find_issuer()
            scopes = settings.scopes or (() if found is None else found.scopes)
            client = ClientCredentials(client_id=settings.client_id, client_secret=settings.client_secret)
            form = {
                "grant_type": "client_credentials",
                "resource": self._choose_resource(found),
                **({"scope": " ".join(scopes)} if scopes else {}),
            }
            document = request_tokens(self._open_issuer(metadata.issuer), metadata, client, form)
            return _parse_tokens(document, scopes, now)

    def revoke(self, client: RemoteClient, tokens: IssuedTokens) -> bool:
        """Ask the issuer to revoke tokens (RFC 7009). Returns whether it did."""
        with suppress(PinwardenError):
            issuer = self._open_issuer(client.issuer)
            endpoint, credentials = issuer.load_metadata().revocation_endpoint, client.credentials
            form = {"token": tokens.refresh_token or tokens.access_token, "client_id": credentials.client_id}
            if credentials.client_secret:
                form["client_secret"] = credentials.client_secret
            return bool(endpoint) and issuer.post_form(endpoint, form).status == 200
        return False

    # What is decided from the server's answers and the settings

    def _find_issuer(self) -> tuple[IssuerMetadata, ProtectedResource | None]:
        settings = self._settings
        found = find_protected_resource(
            self._url, self._fetcher, resource=settings.resource, allow_private=self._is_private_allowed()
        )
        # Some servers add a slash to the issuer. Its own metadata decide on the spelling, and the user's settings.
        named = () if found is None else [issuer.rstrip("/") for issuer in found.issuers]
        if found is not None and settings.issuer and settings.issuer.rstrip("/") not in named:
            raise refusal("issuer", f"the server does not accept tokens of {settings.issuer}")
        issuer = settings.issuer or next(iter(() if found is None else found.issuers), "")
        if not issuer:
            raise refusal(
                "metadata",
                f"{self._address} does not say who issues its tokens",
                hint="If the server needs a token, state its issuer and client-id in [remotes.NAME] of pinwarden.toml.",
            )
        return self._open_issuer(issuer).load_metadata(), found

    def _open_issuer(self, url: str) -> Issuer:
        """Return an issuer. It may have a private address if it is configured, or at the host of the server."""
        if url not in self._issuers:
            settings = self._settings
            own_host = HttpAddress.parse(url).host == self._address.host and self._is_private_allowed()
            self._issuers[url] = Issuer(
                url,
                variables=self._variables,
                ca_file=None if settings.ca_file is None else Path(settings.ca_file),
                allow_private=self._allow_private or url == settings.issuer or own_host,
                needs_keys=False,
            )
        return self._issuers[url]

    def _is_private_allowed(self) -> bool:
        return self._allow_private or is_private_literal(self._address.host)

    def _choose_resource(self, found: ProtectedResource | None) -> str:
        return self._settings.resource or (strip_query(self._url) if found is None else found.resource)

    def _choose_scopes(self, found: ProtectedResource | None, metadata: IssuerMetadata) -> tuple[str, ...]:
        if self._settings.scopes:
            return self._settings.scopes
        scopes = () if found is None else found.scopes
        return _join_scopes(scopes, (_OFFLINE,) if _OFFLINE in metadata.scopes else ())

    def _choose_redirect(self, redirect_uri: str, metadata: IssuerMetadata) -> str:
        """Return the redirect URI for an issuer. A response at another one is from another issuer.

        An issuer that a server named could forward the browser to another issuer, and get its code (RFC 9700, section
        4.4). The address must therefore be its own, or its responses must name it.
        """
        if self._settings.issuer or (self._settings.has_metadata_document and metadata.sends_issuer):
            return redirect_uri
        if self._settings.has_metadata_document:
            raise refusal(
                "issuer",
                f"{metadata.issuer} does not name itself in its responses, so they could be another issuer's",
                hint="If you trust it, state it as issuer in [remotes.NAME] of pinwarden.toml.",
            )
        return f"{redirect_uri}/{sha256(metadata.issuer.encode()).hexdigest()[:16]}"

    def _choose_client(self, metadata: IssuerMetadata, redirect_uri: str, *, may_register: bool) -> ClientCredentials:
        settings = self._settings
        if settings.client_id:
            return ClientCredentials(client_id=settings.client_id, client_secret=settings.client_secret)
        if not metadata.registration_endpoint:
            raise refusal(
                "client",
                f"{metadata.issuer} does not know Pinwarden, and clients cannot register themselves there",
                hint="Register a client there, and state its issuer and client-id in [remotes.NAME] of pinwarden.toml.",
            )
        if not may_register:
            raise refusal(
                "registration",
                f"{metadata.issuer} does not know Pinwarden, and registering a client is not allowed",
                hint="Add --register to pinwarden remote connect, or allow-registration = true to [remotes.NAME].",
            )
        return self._register(metadata, redirect_uri)

    def _register(self, metadata: IssuerMetadata, redirect_uri: str) -> ClientCredentials:
        public = "none" in metadata.token_auth_methods
        document = self._open_issuer(metadata.issuer).register_client(
            metadata.registration_endpoint,
            {
                **describe_client([redirect_uri]),
                "token_endpoint_auth_method": "none" if public else metadata.token_auth_methods[0],
            },
        )
        secret = document.value.get("client_secret", "")
        if not isinstance(secret, str) or (secret and not _CLIENT_ID.fullmatch(secret)):
            raise refusal("registration", f"{metadata.issuer} sent no usable client secret")
        return ClientCredentials(client_id=document.string("client_id", _CLIENT_ID), client_secret=secret)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except PinwardenError as err:
            if err.code in _UNAVAILABLE:
                raise PinwardenError("REMOTE_UNAVAILABLE", err.message, data=err.data) from err
            if err.code in _REFUSED:
                raise PinwardenError("REMOTE_REFUSED", err.message, data={"reason": "issuer", **err.data}) from err
            raise


def describe_client(redirect_uris: Sequence[str]) -> dict[str, Any]:
    """Return what Pinwarden says about itself to an issuer (RFC 7591, and client metadata documents)."""
    local = all(uri.startswith("http://127.0.0.1") for uri in redirect_uris)
    return {
        "client_name": "Pinwarden",
        "redirect_uris": list(redirect_uris),
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "application_type": "native" if local else "web",
    }


def select_scopes(words: Iterable[str]) -> tuple[str, ...]:
    """Return the words that are scopes (RFC 6749, section 3.3), each once."""
    return tuple(dict.fromkeys(word for word in words if _SCOPE.fullmatch(word)))


def _join_scopes(first: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
    joined = select_scopes((*first, *more))
    if len(joined) > _MAX_SCOPES:
        raise refusal("scopes", f"the server asks for more than {_MAX_SCOPES} scopes")
    return joined


def _parse_tokens(document: JsonObject, scopes: Sequence[str], now: float, refresh_token: str = "") -> IssuedTokens:
    """Check a token response (RFC 6749, section 5.1). No error contains a part of it."""
    access = document.value.get("access_token")
    renewed = document.value.get("refresh_token")
    lifetime, granted = document.value.get("expires_in"), document.value.get("scope")
    if not isinstance(access, str) or not _TOKEN.fullmatch(access):
        raise refusal("token", "the issuer sent an access token that is not one word of printable ASCII")
    if renewed is not None and not (isinstance(renewed, str) and (not renewed or _TOKEN.fullmatch(renewed))):
        raise refusal("token", "the issuer sent a refresh token that is not one word of printable ASCII")
    if lifetime is not None and not (type(lifetime) is int and 0 <= lifetime <= _MAX_LIFETIME):
        raise refusal("token", "the issuer sent a lifetime that is not a number of seconds")
    if granted is not None and not isinstance(granted, str):
        raise refusal("token", "the issuer sent scopes that are not a text")
    return IssuedTokens(
        access_token=access,
        refresh_token=renewed or refresh_token,
        expires_at=0 if lifetime is None else int(now) + lifetime,
        scopes=_join_scopes(granted.split(), ()) if granted else tuple(scopes),
    )
