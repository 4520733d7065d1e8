"""Logs people in at an OpenID provider: the authorization code flow with PKCE.

How a web application uses it:

1. `LoginFlow.begin` returns a `LoginRequest` and the URL to send the browser to. Keep the request on the server, under
   a random name in a cookie of this browser (``__Host-``, ``HttpOnly``, ``SameSite=Lax``).
2. The provider sends the browser back to the redirect URI. Take the request out of the store **before** anything else,
   so that it works once, and only for the browser with the cookie.
3. `LoginFlow.finish` checks the response, exchanges the code, verifies the ID token and returns the `Person`. Then give
   the browser a new session id; an id from before the login must not be valid after it.

``begin`` and ``finish`` block while they contact the provider: call them on a thread. A refused login raises
LOGIN_REFUSED with the reason in its data; a provider that cannot be used ISSUER_UNAVAILABLE or ISSUER_INVALID.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.text import show_invisible
from pinwarden.core.typed_json import JsonObject
from pinwarden.identity.issuer import Issuer, IssuerMetadata, parse_document
from pinwarden.identity.settings import LoginSettings, Role
from pinwarden.identity.signed_token import (
    check_times,
    is_unknown_key,
    read_audiences,
    read_groups,
    read_text,
    verify_signature,
)

LOGIN_SECONDS = 600.0
"""How long a person has for the login at the provider."""
MAX_QUERY_LENGTH = 16 * 1024
"""The maximum length of the query with which the provider sends the browser back."""
_LEEWAY_SECONDS = 60.0
_MAX_NAME = 200


class LoginRequest(Record):
    """A login that began: what `LoginFlow.finish` compares the response with. Valid once, for `LOGIN_SECONDS`."""

    state: str = field(repr=False)
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)
    """The secret of PKCE (RFC 7636)."""
    redirect_uri: str
    return_to: str
    """The path to show after the login."""
    began_at: float
    """In seconds since 1970."""


class Person(Record):
    """A person who logged in."""

    issuer: str
    subject: str
    """Identifies the person at the issuer. Names and addresses may change, or be given to another person."""
    name: str
    """For display: the name, the user name or the address; otherwise the subject."""
    email: str
    """Empty if the provider does not say."""
    groups: tuple[str, ...]
    role: Role
    expires_at: int
    """The expiry of the ID token, in seconds since 1970. A session may last longer; roles are as of the login."""


class LoginFlow:
    """Logs people in at one provider. Thread-safe."""

    def __init__(self, issuer: Issuer, settings: LoginSettings) -> None:
        self._issuer = issuer
        self._settings = settings

    def begin(self, redirect_uri: str, return_to: str, now: float) -> tuple[LoginRequest, str]:
        """Begin a login. Returns what to keep, and the URL to send the browser to.

        ``redirect_uri`` is the complete URL of the page that calls `finish`; build it from a setting, not from the
        header ``Host``. ``return_to`` comes from the user: `is_local_path` must be true, or ``/`` is used.
        """
        metadata = self._issuer.load_metadata()
        request = LoginRequest(
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=create_verifier(),
            redirect_uri=redirect_uri,
            return_to=return_to if is_local_path(return_to) else "/",
            began_at=now,
        )
        parameters = {
            "client_id": self._settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(self._settings.scopes),
            "state": request.state,
            "nonce": request.nonce,
        }
        return request, build_authorization_url(metadata, parameters, request.verifier)

    def finish(self, request: LoginRequest, query: str, now: float) -> Person:
        """Finish a login with the query of the request that the provider sent the browser back with."""
        metadata = self._issuer.load_metadata()
        if not 0 <= now - request.began_at <= LOGIN_SECONDS:
            raise login_error("expired", "the login took too long")
        code = check_authorization_response(query, request.state, metadata)
        tokens = exchange_code(
            self._issuer,
            metadata,
            ClientCredentials(client_id=self._settings.client_id, client_secret=self._settings.client_secret),
            {"code": code, "redirect_uri": request.redirect_uri, "code_verifier": request.verifier},
        )
        id_token = tokens.value.get("id_token")
        if not isinstance(id_token, str):
            raise login_error("id-token", "the provider sent no ID token")
        claims = self._verify_id_token(id_token, request.nonce, metadata, now)
        return self._build_person(claims, tokens, metadata)

    def _verify_id_token(self, id_token: str, nonce: str, metadata: IssuerMetadata, now: float) -> Mapping[str, Any]:
        """Verify an ID token (OpenID Connect Core, section 3.1.3.7)."""
        try:
            try:
                signed = verify_signature(id_token, self._issuer, self._settings.algorithms)
            except PinwardenError as err:
                if not is_unknown_key(err):
                    raise
                self._issuer.refresh(key_unknown=True)
                signed = verify_signature(id_token, self._issuer, self._settings.algorithms)
            claims = signed.claims
            check_times(claims, now, _LEEWAY_SECONDS)
            issuer, audiences = read_text(claims, "iss", longest=2000), read_audiences(claims)
            read_text(claims, "sub")
            received = read_text(claims, "nonce", longest=1000)
        except PinwardenError as err:
            if err.code != "ACCESS_TOKEN_INVALID":
                raise
            raise login_error("id-token", f"the provider's ID token is refused: {err.message}") from err
        client = self._settings.client_id
        if signed.type not in ("jwt", "") or issuer != metadata.issuer:
            raise login_error("id-token", "the ID token is from another issuer, or is another kind of token")
        party = claims.get("azp", client if len(audiences) == 1 else None)
        if client not in audiences or party != client:
            raise login_error("id-token", "the ID token was issued for another application")
        if not hmac.compare_digest(received.encode(), nonce.encode()):
            raise login_error("nonce", "the ID token belongs to another login")
        if "iat" not in claims:
            raise login_error("id-token", "the ID token does not say when it was issued")
        return claims

    def _build_person(self, claims: Mapping[str, Any], tokens: JsonObject, metadata: IssuerMetadata) -> Person:
        settings, subject = self._settings, str(claims["sub"])
        if read_groups(claims, settings.groups_claim) is None and metadata.userinfo_endpoint:
            claims = {**claims, **self._fetch_user_claims(tokens, metadata, subject)}
        try:
            groups = read_groups(claims, settings.groups_claim) or ()
        except PinwardenError as err:
            raise login_error("groups", err.message) from err
        role = settings.find_role(groups)
        if role is None:
            raise login_error("role", f"no role is configured for any of the {len(groups)} groups of this person")
        names = (claims.get(name) for name in ("name", "preferred_username", "email"))
        email = claims.get("email")
        return Person(
            issuer=metadata.issuer,
            subject=subject,
            name=next((_clean(name) for name in names if isinstance(name, str) and name.strip()), _clean(subject)),
            email=_clean(email) if isinstance(email, str) else "",
            groups=groups,
            role=role,
            expires_at=int(claims["exp"]),
        )

    def _fetch_user_claims(self, tokens: JsonObject, metadata: IssuerMetadata, subject: str) -> Mapping[str, Any]:
        """Fetch claims that the ID token does not have (OpenID Connect Core, section 5.3)."""
        access_token = tokens.value.get("access_token")
        if not isinstance(access_token, str):
            return {}
        response = self._issuer.get_with_token(metadata.userinfo_endpoint, access_token)
        if not response.found or "json" not in response.headers.get("content-type", ""):
            return {}
        claims = parse_document(response.body, "the claims about the user").value
        if claims.get("sub") != subject:
            raise login_error("userinfo", "the provider sent the claims of another user")
        return {name: value for name, value in claims.items() if name not in _FIXED_CLAIMS}


_FIXED_CLAIMS = frozenset({"iss", "sub", "aud", "exp", "iat", "nbf", "nonce"})


def is_local_path(path: str) -> bool:
    """Whether a browser stays on this site when it is redirected to a path.

    Refuses ``//host``, ``/\\host`` and everything that browsers remove or normalize before they look at the path.
    """
    return (
        path.startswith("/")
        and path[1:2] not in ("/", "\\")
        and path.isascii()
        and path.isprintable()
        and not set(path) & set(" \\")
        and len(path) <= _MAX_PATH
    )


_MAX_PATH = 2000


# The steps of the flow, which logins share with the authorization of remote servers


class ClientCredentials(Record):
    """How an OAuth client identifies itself: with a secret, or as a public client without one."""

    client_id: str
    client_secret: str = field(default="", repr=False)


def create_verifier() -> str:
    """Return a new secret for PKCE."""
    return secrets.token_urlsafe(48)


def build_authorization_url(metadata: IssuerMetadata, parameters: Mapping[str, str], verifier: str) -> str:
    """Return the URL that asks for an authorization code, with PKCE.

    Raises ISSUER_INVALID if the issuer does not support PKCE with S256, or has no authorization endpoint.
    """
    endpoint = metadata.authorization_endpoint
    if not endpoint or not metadata.token_endpoint:
        raise PinwardenError("ISSUER_INVALID", f"the issuer {metadata.issuer} has no authorization or token endpoint")
    if "S256" not in metadata.code_challenge_methods:
        raise PinwardenError("ISSUER_INVALID", f"the issuer {metadata.issuer} does not announce PKCE with S256")
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    query = urlencode(
        {"response_type": "code", **parameters, "code_challenge": challenge, "code_challenge_method": "S256"}
    )
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{query}"


def check_authorization_response(query: str, state: str, metadata: IssuerMetadata) -> str:
    """Check the response of the authorization endpoint, and return the code.

    The state is compared first, so that nothing in a forged response is used or shown.
    """
    if not belongs_to_login(query, state):
        raise login_error("state", "the response of the provider does not belong to this login")
    parameters = _parse_query(query)
    issuer = parameters.get("iss")
    if issuer != metadata.issuer and (issuer is not None or metadata.sends_issuer):
        raise login_error("issuer", "the response is not from the provider that was asked (RFC 9207)")
    if "error" in parameters:
        raise _refusal(parameters)
    code = parameters.get("code")
    if not code:
        raise login_error("response", "the response of the provider has no code")
    return code


def belongs_to_login(query: str, state: str) -> bool:
    """Whether the query of a response has the state of this login."""
    return hmac.compare_digest(_parse_query(query).get("state", "").encode(), state.encode())


def _parse_query(query: str) -> dict[str, str]:
    """Return the query parameters; empty if the query is too long, malformed, or repeats a parameter."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=50) if len(query) <= MAX_QUERY_LENGTH else []
    except ValueError:
        return {}
    parameters = dict(pairs)
    return parameters if len(parameters) == len(pairs) else {}


def exchange_code(
    issuer: Issuer, metadata: IssuerMetadata, client: ClientCredentials, parameters: Mapping[str, str]
) -> JsonObject:
    """Exchange an authorization code for tokens. Raises LOGIN_REFUSED if the provider refuses."""
    return request_tokens(issuer, metadata, client, {"grant_type": "authorization_code", **parameters})


def request_tokens(
    issuer: Issuer, metadata: IssuerMetadata, client: ClientCredentials, form: Mapping[str, str]
) -> JsonObject:
    """Send a request to the token endpoint, and return its response. Raises LOGIN_REFUSED if the provider refuses."""
    authorization, fields, methods = None, dict(form), metadata.token_auth_methods
    if not client.client_secret:
        fields["client_id"] = client.client_id
    elif "client_secret_post" in methods and "client_secret_basic" not in methods:
        fields |= {"client_id": client.client_id, "client_secret": client.client_secret}
    else:
        pair = f"{quote(client.client_id, safe='')}:{quote(client.client_secret, safe='')}"
        authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
    response = issuer.post_form(metadata.token_endpoint, fields, authorization)
    document = parse_document(response.body, "the token response")
    if response.status != 200:
        raise _refusal(document.value)
    if str(document.value.get("token_type", "")).lower() != "bearer" or not document.value.get("access_token"):
        raise login_error("provider", "the provider sent no bearer token")
    return document


def login_error(reason: str, message: str) -> PinwardenError:
    """Return the error for a login that is refused. ``reason`` is for programs and the audit log."""
    return PinwardenError("LOGIN_REFUSED", message, data={"reason": reason})


_ERROR_CODE = re.compile(r"[A-Za-z0-9_.:/-]{1,80}")  # others are not stored and shown as what Pinwarden says


def _refusal(parameters: Mapping[str, Any]) -> PinwardenError:
    """Return the error for a refusal of the provider. Its data have the error code of OAuth (RFC 6749, section 5.2)."""
    error = parameters.get("error")
    code = error if isinstance(error, str) and _ERROR_CODE.fullmatch(error) else "another error"
    data = {"reason": "provider", **({"error": code} if isinstance(error, str) else {})}
    return PinwardenError("LOGIN_REFUSED", f"the provider refused: {_describe_error(parameters)}", data=data)


def _describe_error(parameters: Mapping[str, Any]) -> str:
    words = [parameters.get(name) for name in ("error", "error_description")]
    return ": ".join(_clean(word) for word in words if isinstance(word, str) and word) or "without a reason"


def _clean(text: str) -> str:
    """Return a text of the provider for display: short, on one line, without invisible characters."""
    return show_invisible(" ".join(text[:_MAX_NAME].split()))
