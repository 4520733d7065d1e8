"""Checks the access tokens that clients send to the gateway (RFC 9068). Pure: the caller passes the time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pinwarden.core.record import Record
from pinwarden.identity.settings import (
    DEFAULT_ALGORITHMS,
    DEFAULT_LIMITS,
    ClientTokenSettings,
    IdentitySettings,
    TokenLimits,
)
from pinwarden.identity.signed_token import (
    KeySource,
    check_times,
    read_audiences,
    read_groups,
    read_text,
    token_error,
    verify_signature,
)

_TYPES = frozenset({"at+jwt", "jwt", ""})
_STRICT_TYPES = frozenset({"at+jwt"})
# Claims that only other tokens have: ID tokens (OpenID Connect Core, section 3.1.3.6) and logout tokens.
_FOREIGN_CLAIMS = frozenset({"nonce", "at_hash", "c_hash", "events"})
_FOREIGN_TYPES = frozenset({"id", "refresh", "logout", "offline", "bearer-id"})
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+(?: [\x21\x23-\x5b\x5d-\x7e]+)*")  # RFC 6749 section 3.3
_MAX_SCOPE_LENGTH = 4096


class AccessTokenRules(Record):
    """Which access tokens are valid."""

    issuer: str
    audiences: frozenset[str]
    """The token must be for at least one of these: the URL of this gateway, or names that the operator added."""
    audience_prefix: str = ""
    """Audiences that begin with this count too: the URLs of single servers. The caller decides on the server."""
    algorithms: tuple[str, ...] = DEFAULT_ALGORITHMS
    groups_claim: tuple[str, ...] = ("groups",)
    """The path of the claim with the groups of the user or client."""
    limits: TokenLimits = DEFAULT_LIMITS


def build_token_rules(settings: IdentitySettings, clients: ClientTokenSettings) -> AccessTokenRules:
    """Return the rules for tokens of clients that may use all servers: tokens for the address of the gateway."""
    return AccessTokenRules(
        issuer=settings.issuer,
        audiences=frozenset({f"{clients.url}/mcp", *clients.audiences}),
        algorithms=settings.algorithms,
        groups_claim=settings.groups_claim,
        limits=clients.limits,
    )


class AccessToken(Record):
    """A verified access token."""

    issuer: str
    subject: str
    """Who it was issued for: a person, or the client itself."""
    client_id: str
    """The OAuth client that got the token; empty if the token does not say."""
    audiences: frozenset[str]
    scopes: frozenset[str]
    groups: tuple[str, ...]
    expires_at: int
    """In seconds since 1970."""


def verify_access_token(token: str, keys: KeySource, rules: AccessTokenRules, now: float) -> AccessToken:
    """Verify an access token at a time in seconds since 1970.

    Raises ACCESS_TOKEN_INVALID. Its data has the reason: ``malformed``, ``algorithm``, ``header``, ``key``,
    ``signature``, ``type``, ``issuer``, ``audience``, ``expired``, ``not-yet-valid``, ``claims`` or ``bound``.
    If `is_unknown_key` says so, refresh the issuer's keys and try once more.
    """
    signed = verify_signature(token, keys, rules.algorithms)
    claims, limits = signed.claims, rules.limits
    if signed.type not in (_STRICT_TYPES if limits.require_type else _TYPES) or _is_other_token(signed.type, claims):
        raise token_error("type", "the token is not an access token")
    issuer = read_text(claims, "iss", longest=2000)
    if issuer != rules.issuer:
        raise token_error("issuer", f"the token is from {issuer[:200]!a}, not from {rules.issuer}")
    audiences = read_audiences(claims)
    prefix = rules.audience_prefix
    if not audiences & rules.audiences and not (prefix and any(name.startswith(prefix) for name in audiences)):
        raise token_error("audience", "the token was issued for another server")
    expires_at = check_times(claims, now, limits.leeway_seconds)
    issued_at = claims.get("iat")
    if expires_at - (now if issued_at is None else issued_at) > limits.longest_seconds + limits.leeway_seconds:
        raise token_error("claims", f"the token is valid for longer than {limits.longest_seconds} seconds")
    if "cnf" in claims:
        raise token_error("bound", "the token is bound to a key of the client, which the gateway cannot check")
    return AccessToken(
        issuer=issuer,
        subject=_read_name(claims, "sub"),
        client_id=_read_client(claims),
        audiences=audiences,
        scopes=_read_scopes(claims),
        groups=read_groups(claims, rules.groups_claim) or (),
        expires_at=expires_at,
    )


def _is_other_token(kind: str, claims: Mapping[str, Any]) -> bool:
    """Whether this is an ID token, a refresh token or a logout token. Keycloak names the type in a claim."""
    named = claims.get("typ")
    other = isinstance(named, str) and named.lower() in _FOREIGN_TYPES
    return other or (kind != "at+jwt" and bool(_FOREIGN_CLAIMS & claims.keys()))


def _read_client(claims: Mapping[str, Any]) -> str:
    for name in ("client_id", "azp"):
        if name in claims:
            return _read_name(claims, name)
    return ""


def _read_name(claims: Mapping[str, Any], name: str) -> str:
    """Return a claim that names someone in rules and logs: printable ASCII (OpenID Connect Core, section 2)."""
    text = read_text(claims, name)
    if not text.isascii() or not text.isprintable():
        raise token_error("claims", f"the token's claim {name} has characters that are not printable ASCII")
    return text


def _read_scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    """Return the scopes: ``scope`` is a text with spaces; some providers have ``scp``, a text or a list."""
    value = claims.get("scope", claims.get("scp"))
    if value is None or value == "":
        return frozenset()
    if "scope" not in claims and isinstance(value, list) and all(isinstance(word, str) for word in value):
        value = " ".join(value)
    if not isinstance(value, str) or len(value) > _MAX_SCOPE_LENGTH or not _SCOPE.fullmatch(value):
        raise token_error("claims", "the token's scope is not a text of words")
    return frozenset(value.split(" "))
