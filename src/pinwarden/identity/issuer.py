"""An issuer of tokens: an OpenID provider or OAuth authorization server, its metadata and its keys.

The operator names the issuer by its URL; everything else comes from there, and is checked: the metadata must name the
same issuer, no redirect is followed, sizes and times are bounded, and keys that cannot verify signatures are left out.
Private addresses are allowed only for the issuer's own host.

`Issuer.refresh` fetches, and blocks; `Issuer.find_key` uses what was fetched, and does not. So a server with an event
loop verifies tokens on the loop, and refreshes on a thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlencode

from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.strict_json import Limits
from pinwarden.core.typed_json import Invalid, JsonObject
from pinwarden.identity.signed_token import VerificationKey, parse_keys
from pinwarden.system.net.connections import ServiceEndpoint
from pinwarden.system.net.fetch import Fetcher, FetchLimits, FetchRequest, FetchResponse, FetchRules, UploadBody
from pinwarden.system.target import HttpAddress


class IssuerLimits(Record):
    """Limits on what an issuer sends, and how often it is asked."""

    document_bytes: int = 512 * 1024
    """The maximum size of metadata, of a key set and of a token response. Real ones have a few kilobytes."""
    seconds: float = 10.0
    """The maximum duration of one request."""
    fresh_seconds: float = 300.0
    """After this time, metadata and keys are fetched again. So a key that the issuer withdrew is refused by then."""
    stale_seconds: float = 24 * 3600.0
    """How long keys are used while the issuer cannot be reached."""
    cooldown_seconds: float = 30.0
    """The minimum time between two fetches, however many tokens name unknown keys."""


_LIMITS = IssuerLimits()


class IssuerMetadata(Record):
    """The metadata of an issuer (RFC 8414, OpenID Connect Discovery)."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    userinfo_endpoint: str = ""
    end_session_endpoint: str = ""
    registration_endpoint: str = ""
    revocation_endpoint: str = ""
    code_challenge_methods: tuple[str, ...] = ()
    token_auth_methods: tuple[str, ...] = ("client_secret_basic",)
    scopes: tuple[str, ...] = ()
    sends_issuer: bool = False
    """Whether authorization responses have the parameter ``iss`` (RFC 9207)."""
    reads_client_documents: bool = False
    """Whether a client id may be the address of a client metadata document."""


class _Fetched(Record):
    metadata: IssuerMetadata
    keys: tuple[VerificationKey, ...]
    at: float


class Issuer:
    """One issuer. Thread-safe. Nothing is requested before `refresh` or `load_metadata`."""

    def __init__(  # noqa: PLR0913
        self,
        url: str,
        *,
        limits: IssuerLimits = _LIMITS,
        clock: Callable[[], float] = time.monotonic,
        variables: Mapping[str, str] | None = None,
        ca_file: Path | None = None,
        allow_private: bool = True,
        needs_keys: bool = True,
    ) -> None:
        """``variables`` may name a proxy. Without ``allow_private``, the issuer must have a public address.

        Without ``needs_keys``, only the metadata are fetched, as for an authorization server whose tokens are opaque.
        """
        self.url = url
        self._address = check_issuer_url(url)
        self._limits = limits
        self._clock = clock
        self._ca_file = ca_file
        self._private_host = self._address.host if allow_private else None
        self._needs_keys = needs_keys
        self._fetching = Lock()
        self._fetched: _Fetched | None = None
        self._last_attempt: float | None = None
        self._failure: PinwardenError | None = None
        self.generation = 0
        """Increases when the keys change. What was verified with earlier keys must be verified again."""
        rules = FetchRules(
            limits=FetchLimits(
                document_bytes=limits.document_bytes,
                redirects=0,
                connect_seconds=limits.seconds / 2,
                idle_seconds=limits.seconds,
                total_seconds=limits.seconds,
                attempts=1,  # an authorization code and a rotated refresh token work only once
            )
        )
        self._fetcher = Fetcher(rules, variables)

    @property
    def problem(self) -> str:
        """Why the last fetch failed; empty if it succeeded."""
        return "" if self._failure is None else self._failure.message

    @property
    def error(self) -> PinwardenError | None:
        """The error of the last fetch; None if it succeeded."""
        return self._failure

    @property
    def has_keys(self) -> bool:
        """Whether keys were fetched, and are not too old to be used."""
        fetched = self._fetched
        return fetched is not None and self._clock() - fetched.at <= self._limits.stale_seconds

    def load_metadata(self) -> IssuerMetadata:
        """Return the metadata, which is fetched if it is not fresh. Blocks."""
        self.refresh()
        return self._get_usable().metadata

    @property
    def keys(self) -> tuple[VerificationKey, ...]:
        """The keys of the last successful fetch."""
        return () if self._fetched is None else self._fetched.keys

    def find_key(self, key_id: str | None, algorithm: str) -> VerificationKey | None:
        """Return the fetched key for a signature; None if there is none, or no usable fetch. Does not block.

        A signature without a key id is verified only if exactly one key has the right type.
        """
        if not self.has_keys:
            return None
        suitable = [key for key in self.keys if key.suits(algorithm) and key_id in (None, key.key_id)]
        return suitable[0] if len(suitable) == 1 else None

    def needs_refresh(self, *, key_unknown: bool = False) -> bool:
        """Whether `refresh` would fetch now. ``key_unknown`` says that a token names a key that was not fetched."""
        now, fetched = self._clock(), self._fetched
        if self._last_attempt is not None and now - self._last_attempt < self._limits.cooldown_seconds:
            return False
        return key_unknown or fetched is None or now - fetched.at >= self._limits.fresh_seconds

    def refresh(self, *, key_unknown: bool = False) -> None:
        """Fetch metadata and keys if they are not fresh. Blocks.

        If that fails, earlier keys are used further; without them, the error is raised: ISSUER_UNAVAILABLE if the
        issuer could not be asked, ISSUER_INVALID if what it sent is refused.
        """
        with self._fetching:
            if not self.needs_refresh(key_unknown=key_unknown):
                self._get_usable()
                return
            self._last_attempt = self._clock()
            try:
                metadata = self._fetch_metadata()
                keys = self._fetch_keys(metadata)
            except PinwardenError as err:
                self._failure = err
                self._get_usable()
                return
            before, self._failure = self._fetched, None
            self._fetched = _Fetched(metadata=metadata, keys=keys, at=self._last_attempt)
            if before is None or before.keys != keys:
                self.generation += 1

    def register_client(self, url: str, document: Mapping[str, Any]) -> JsonObject:
        """Register a client (RFC 7591), once. Returns what the issuer stored. Blocks."""
        response = self._post(url, canonicalize(document), "application/json")
        if response.status not in (200, 201):
            raise PinwardenError("ISSUER_INVALID", f"the issuer {self.url} refused to register the client")
        return parse_document(response.body, "the registration")

    def post_form(self, url: str, form: Mapping[str, str], authorization: str | None = None) -> FetchResponse:
        """Send a form to an endpoint of the issuer, once. Returns the response, even if it is an error. Blocks."""
        return self._post(url, urlencode(form).encode(), "application/x-www-form-urlencoded", authorization)

    def _post(self, url: str, body: bytes, media_type: str, authorization: str | None = None) -> FetchResponse:
        upload = UploadBody(method="POST", body=body, media_type=media_type)
        return self._send(url, lambda wanted: self._fetcher.send(wanted, max_bytes=_FORM_BYTES), authorization, upload)

    def get_with_token(self, url: str, token: str) -> FetchResponse:
        """Request a document of the issuer, such as the claims about a user, with an access token. Blocks."""
        return self._send(url, self._fetcher.get, f"Bearer {token}")

    def close(self) -> None:
        """Close connections to the issuer."""
        self._fetcher.close()

    def _get_usable(self) -> _Fetched:
        if self._fetched is not None and self.has_keys:
            return self._fetched
        raise self._failure or PinwardenError("ISSUER_UNAVAILABLE", f"the issuer {self.url} was not asked yet")

    def _fetch_metadata(self) -> IssuerMetadata:
        """Fetch the metadata from the first well-known address that has it, in the order of the MCP specification."""
        for url in list_metadata_urls(self.url):
            document = self._find_json(url)
            if document is not None:
                return parse_metadata(document, self.url)
        raise PinwardenError("ISSUER_INVALID", f"the issuer {self.url} has no metadata at its well-known addresses")

    def _fetch_keys(self, metadata: IssuerMetadata) -> tuple[VerificationKey, ...]:
        if not self._needs_keys:
            return ()
        if not metadata.jwks_uri:
            raise PinwardenError("ISSUER_INVALID", f"the metadata of the issuer {self.url} have no jwks_uri")
        return parse_keys(self._get_json(metadata.jwks_uri, "the key set").value)

    def _find_json(self, url: str) -> JsonObject | None:
        """Return a JSON object; None if there is none, even if the server shows a page instead."""
        response = self._send(url, self._fetcher.get, optional=True)
        if not response.found or "json" not in response.headers.get("content-type", ""):
            return None
        return parse_document(response.body, "the metadata")

    def _get_json(self, url: str, name: str) -> JsonObject:
        response = self._send(url, self._fetcher.get)
        if not response.found:
            raise PinwardenError("ISSUER_INVALID", f"{HttpAddress.parse(url)} does not have {name} of the issuer")
        return parse_document(response.body, name)

    def _send(
        self,
        url: str,
        send: Callable[[FetchRequest], FetchResponse],
        authorization: str | None = None,
        upload: UploadBody | None = None,
        *,
        optional: bool = False,
    ) -> FetchResponse:
        address = HttpAddress.parse(url)
        endpoint = ServiceEndpoint(
            url=f"{address.scheme}://{address.host_header}/",
            configured_by="user" if address.host == self._private_host else "project",
            ca_file=self._ca_file,
        )
        wanted = FetchRequest(
            endpoint=endpoint,
            url=url,
            accept="application/json",
            authorization=authorization,
            upload=upload,
        )
        try:
            return send(wanted)
        except PinwardenError as err:
            if optional and err.code == "FETCH_FAILED" and err.data.get("status") in _ABSENT:
                return FetchResponse(status=404, address=address, headers={}, body=b"")
            refused = err.code in ("ADDRESS_REFUSED", "FETCH_LIMIT")
            code = "ISSUER_INVALID" if refused else "ISSUER_UNAVAILABLE"
            raise PinwardenError(code, f"the issuer {self.url} cannot be used: {err.message}", data=err.data) from err


_FORM_BYTES = 128 * 1024
_ABSENT = frozenset({400, 401, 403, 405, 406})  # what servers send for addresses that they do not have
_JSON = Limits(max_bytes=512 * 1024, max_depth=20)


def check_issuer_url(url: str) -> HttpAddress:
    """Check the URL of an issuer: HTTPS, or HTTP on this machine, without a query."""
    address = HttpAddress.parse(url)
    if not is_encrypted_or_local(address):
        raise PinwardenError("ISSUER_INVALID", f"the issuer {address} must use HTTPS")
    if "?" in url or "#" in url:
        raise PinwardenError("ISSUER_INVALID", f"the issuer {address} must be a URL without a query")
    return address


def is_encrypted_or_local(address: HttpAddress) -> bool:
    """Whether what is sent to an address cannot be read on the network: HTTPS, or this machine."""
    if address.scheme == "https" or address.host == "localhost":
        return True
    try:
        return ip_address(address.host).is_loopback
    except ValueError:
        return False


def list_metadata_urls(issuer: str) -> tuple[str, ...]:
    """Return the addresses where an issuer may publish its metadata, in the order of the MCP specification."""
    address = HttpAddress.parse(issuer)
    origin = f"{address.scheme}://{address.host_header}"
    path = address.path.rstrip("/")
    urls = [f"{origin}/.well-known/{name}{path}" for name in ("oauth-authorization-server", "openid-configuration")]
    return (*urls, f"{origin}{path}/.well-known/openid-configuration") if path else tuple(urls)


def parse_metadata(document: JsonObject, issuer: str) -> IssuerMetadata:
    """Read an issuer's metadata. Raises ISSUER_INVALID if it names another issuer, or an endpoint that is no URL."""
    named = document.string("issuer")
    if named != issuer:
        document.fail("issuer", f"is {named[:200]!a} instead of {issuer!a}; the two must be identical")

    def url(name: str) -> str:
        if document.value.get(name) is None:
            return ""
        address = document.parse_string(name, HttpAddress.parse)
        if not is_encrypted_or_local(address):
            document.fail(name, "does not use HTTPS")
        return document.string(name)

    def words(name: str) -> tuple[str, ...]:
        return document.strings(name, max_items=1000, optional=True)

    return IssuerMetadata(
        issuer=named,
        jwks_uri=url("jwks_uri"),
        authorization_endpoint=url("authorization_endpoint"),
        token_endpoint=url("token_endpoint"),
        userinfo_endpoint=url("userinfo_endpoint"),
        end_session_endpoint=url("end_session_endpoint"),
        registration_endpoint=url("registration_endpoint"),
        revocation_endpoint=url("revocation_endpoint"),
        code_challenge_methods=words("code_challenge_methods_supported"),
        token_auth_methods=words("token_endpoint_auth_methods_supported") or ("client_secret_basic",),
        scopes=words("scopes_supported"),
        sends_issuer=document.value.get("authorization_response_iss_parameter_supported") is True,
        reads_client_documents=document.value.get("client_id_metadata_document_supported") is True,
    )


def parse_document(body: bytes, name: str, invalid: Invalid | None = None) -> JsonObject:
    """Parse a JSON object that an issuer sent. ``invalid`` replaces the error ISSUER_INVALID."""

    def issuer_invalid(path: str, problem: str) -> PinwardenError:
        return PinwardenError("ISSUER_INVALID", f"{name} of the issuer is invalid: {path or 'it'} {problem}")

    fail = invalid or issuer_invalid
    try:
        value: Any = strict_json.parse_json(body, _JSON)
    except PinwardenError as err:
        raise fail("", f"is not JSON: {err.message}") from err
    return JsonObject(value, "", fail)
