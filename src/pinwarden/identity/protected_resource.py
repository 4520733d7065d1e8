"""Finds out which issuer a remote server accepts tokens of (RFC 9728), as the authorization spec of MCP has it.

1. Send a request without a token. A server that needs one refuses it with a challenge.
2. Fetch the metadata of the resource: from the address in the challenge, else from the well-known addresses.
3. The metadata must be about this server: tokens that are requested for anything else could be used elsewhere.

The server chooses the answers, so all addresses in them are checked: those of metadata have the server's own origin.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.identity.issuer import check_issuer_url, is_encrypted_or_local, parse_document
from pinwarden.system.net.challenges import parse_challenges
from pinwarden.system.net.connections import ServiceEndpoint
from pinwarden.system.net.fetch import Fetcher, FetchRequest, FetchResponse, UploadBody
from pinwarden.system.target import HttpAddress

_WELL_KNOWN = "/.well-known/oauth-protected-resource"
_PING = b'{"id":1,"jsonrpc":"2.0","method":"ping"}'
_MAX_SCOPES = 100
_MAX_ISSUERS = 20
_MAX_DOCUMENT = 128 * 1024


class ProtectedResource(Record):
    """What a server says about the tokens that it accepts."""

    resource: str
    """What tokens must be issued for."""
    issuers: tuple[str, ...]
    scopes: tuple[str, ...]
    """The scopes that the server asks for; empty if it does not say."""


def find_protected_resource(
    url: str, fetcher: Fetcher, *, resource: str = "", allow_private: bool = False
) -> ProtectedResource | None:
    """Ask a server about the tokens that it accepts; None if it has no metadata. Blocks.

    ``resource`` is what the user configured instead of the server's address. Raises REMOTE_REFUSED.
    """
    address = HttpAddress.parse(url)
    if not is_encrypted_or_local(address):
        raise refusal("address", f"{address} does not use HTTPS, so tokens cannot be sent there")
    origin = f"{address.scheme}://{address.host_header}"
    endpoint = ServiceEndpoint(url=f"{origin}/", configured_by="user" if allow_private else "project")
    challenge = _request_challenge(FetchRequest(endpoint=endpoint, url=url), fetcher)
    named = challenge.get("resource_metadata", "")
    if named and HttpAddress.parse(named).origin != address.origin:
        raise refusal("metadata", f"{address} names metadata at another host")
    path = address.path.partition("?")[0].rstrip("/")
    urls = (named,) if named else dict.fromkeys((f"{origin}{_WELL_KNOWN}{path}", f"{origin}{_WELL_KNOWN}"))
    for candidate in urls:
        response = fetcher.get(
            FetchRequest(endpoint=endpoint, url=candidate, accept="application/json"), max_bytes=_MAX_DOCUMENT
        )
        if response.found and "json" in response.headers.get("content-type", ""):
            return _parse_metadata(response, resource or url, tuple(challenge.get("scope", "").split()))
    return None


def parse_bearer_challenge(header: str) -> Mapping[str, str]:
    """Return the parameters of the ``Bearer`` challenge in a ``WWW-Authenticate`` header; none if it is malformed."""
    with suppress(PinwardenError):
        for challenge in parse_challenges(header):
            if challenge.scheme == "bearer":
                return challenge.parameters
    return {}


def _request_challenge(wanted: FetchRequest, fetcher: Fetcher) -> Mapping[str, str]:
    ping = UploadBody(method="POST", body=_PING, media_type="application/json")
    request = FetchRequest(
        endpoint=wanted.endpoint, url=wanted.url, accept="application/json, text/event-stream", upload=ping
    )
    try:
        response = fetcher.send(request, max_bytes=_MAX_DOCUMENT)
    except PinwardenError as err:
        if err.code == "FETCH_FAILED" and err.data.get("reason") == "status":
            return {}
        raise
    if response.status not in (401, 403):
        return {}
    return parse_bearer_challenge(response.headers.get("www-authenticate", ""))


def _parse_metadata(response: FetchResponse, url: str, scopes: tuple[str, ...]) -> ProtectedResource:
    document = parse_document(response.body, "the metadata of the server", _invalid)
    named = document.string("resource")
    if _normalize(named) != _normalize(url):
        raise refusal(
            "resource",
            f"the server at {HttpAddress.parse(url)} asks for tokens for {named[:200]!a}, where they could be used too",
            hint="If you trust everything at that address, state it as resource in [remotes.NAME] of pinwarden.toml.",
        )
    issuers = document.strings("authorization_servers", max_items=_MAX_ISSUERS)
    for issuer in issuers:
        check_issuer_url(issuer)
    return ProtectedResource(
        resource=named,
        issuers=issuers,
        scopes=scopes or document.strings("scopes_supported", max_items=_MAX_SCOPES, optional=True),
    )


def _normalize(url: str) -> tuple[tuple[str, str, int], str]:
    """Return what must be equal for two addresses of a resource: a slash at the end does not count."""
    address = HttpAddress.parse(url)
    return address.origin, address.path.rstrip("/")


def refusal(reason: str, message: str, *, hint: str | None = None) -> PinwardenError:
    """Return the error for a remote server or issuer that Pinwarden does not use. ``reason`` is for programs."""
    return PinwardenError("REMOTE_REFUSED", message, hint=hint, data={"reason": reason})


def _invalid(path: str, problem: str) -> PinwardenError:
    return refusal("metadata", f"the metadata of the server are invalid: {path or 'it'} {problem}")
