"""A client for one repository of an OCI registry: manifests, blobs, tags, referrers and pushes.

The client sends its first request without a credential. The registry's challenge then asks for the credential itself
(Basic), or for a token from a token service, the realm (Bearer). Pinwarden sends the credential to a realm only if the
realm belongs to the registry (:func:`pinwarden.artifacts.oci_auth.may_receive_credential`).
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

from pinwarden.artifacts.oci_auth import (
    IDENTITY_TOKEN_USER,
    Credential,
    may_receive_credential,
)
from pinwarden.artifacts.oci_manifest import ACCEPT_HEADER, IMAGE_LIMITS, OCI_INDEX, OCI_MANIFEST, OciDescriptor
from pinwarden.artifacts.oci_reference import TAG, ImageReference, parse_digest
from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.core.strict_json import Limits
from pinwarden.system.net.challenges import Challenge, parse_challenges
from pinwarden.system.net.connections import ServiceEndpoint
from pinwarden.system.net.fetch import DownloadResult, Fetcher, FetchRequest, FetchResponse, UploadBody
from pinwarden.system.net.network_errors import fetch_error, too_large_error
from pinwarden.system.target import HttpAddress

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_TOKEN = re.compile(r"[\x21-\x7e]{1,65536}")
_TOKEN_LIMITS = Limits(max_bytes=1024 * 1024, max_depth=16)
_UNSUPPORTED_STATUSES = frozenset({400, 405, 406, 501})
_TAGS_PER_PAGE = 1000
_TAG_PAGES = 50  # images with daily builds have several thousand tags
NEXT_PAGE = re.compile(r'<([^<>\s]{1,4096})>\s*;[^,]*\brel="?next"?')
"""Matches the URL of the next page in a ``Link`` header."""
ResultT = TypeVar("ResultT")


class RegistryTokens:
    """An in-memory cache of challenges and tokens, which saves requests if a registry has several images.

    Safe to share between threads, although two threads may request the same token.
    """

    def __init__(self) -> None:
        self.challenges: dict[str, Challenge] = {}
        """Challenges by registry URL."""
        self.tokens: dict[tuple[str, str, str, str], str] = {}
        """Tokens by realm, service, scope and credential."""


class FetchedDocument(Record):
    """An index or manifest as the registry sent it."""

    content_type: str
    body: bytes = field(repr=False)
    digest: Digest
    """The digest of ``body``, with the algorithm of ``expected`` or otherwise SHA-256."""
    expected: Digest | None
    """The digest that the document was requested by; None if it was requested by tag."""
    claim: Digest | None
    """The digest in the ``Docker-Content-Digest`` header."""
    mismatches: tuple[str, ...]
    """The digests among ``expected`` and ``claim`` that do not match ``body``."""

    @property
    def is_verified(self) -> bool:
        """Whether the bytes match the requested digest or, for a tag, the digest in the registry's own header."""
        return self.digest == self.expected if self.expected is not None else not self.mismatches


class OciRegistry:
    """A client with read access to one repository of a registry."""

    actions = "pull"
    """The actions that requested tokens allow."""

    def __init__(
        self,
        reference: ImageReference,
        fetcher: Fetcher,
        endpoint: ServiceEndpoint,
        tokens: RegistryTokens | None = None,
    ) -> None:
        self.reference = reference
        self.url = endpoint.url
        self._fetcher = fetcher
        self._credential = endpoint.authorization  # sent only after the registry's challenge
        self._endpoint = replace(endpoint, authorization=None)
        self._tokens = RegistryTokens() if tokens is None else tokens
        self._contacted = self._credential is None

    def fetch_document(self, tag_or_digest: str | Digest) -> FetchedDocument | None:
        """Fetch and hash an index or manifest by tag or digest. Returns None if it does not exist.

        The request is never conditional, because a response "not modified" would not show which bytes clients get.
        """
        response = self._get(f"manifests/{tag_or_digest}", ACCEPT_HEADER, IMAGE_LIMITS.document_bytes)
        return (
            _hash_document(response, tag_or_digest if isinstance(tag_or_digest, Digest) else None)
            if response.found
            else None
        )

    def has_repository(self) -> bool:
        """Whether the registry has any image with this name. True if the registry does not list tags."""
        try:
            return self._get("tags/list?n=1", "application/json", IMAGE_LIMITS.document_bytes).found
        except PinwardenError:
            return True

    def list_tags(self) -> tuple[str, ...]:
        """Return every tag of the image. Raises ``FETCH_LIMIT`` if there are too many."""
        tags: list[str] = []
        query = f"n={_TAGS_PER_PAGE}"
        for _ in range(_TAG_PAGES):
            response = self._get(f"tags/list?{query}", "application/json", IMAGE_LIMITS.document_bytes)
            if not response.found:
                return ()
            tags += _parse_tags(response)
            next_page = NEXT_PAGE.search(response.headers.get("link", ""))
            if next_page is None:
                return tuple(tags)
            query = parse_next_query(self._build_url("tags/list"), next_page[1])
        raise PinwardenError("FETCH_LIMIT", f"{self.reference.name} has more than {_TAG_PAGES * _TAGS_PER_PAGE} tags")

    def fetch_referrers(self, digest: Digest, page: str = "") -> FetchResponse | None:
        """Fetch one page of the referrers API for a digest. Returns None if the registry does not have this API."""
        path = f"referrers/{digest}" + (f"?{page}" if page else "")
        try:
            response = self._get(path, OCI_INDEX, IMAGE_LIMITS.document_bytes)
        except PinwardenError as err:
            if err.data.get("status") in _UNSUPPORTED_STATUSES:
                return None
            raise
        return response if response.found else None

    def fetch_blob(self, descriptor: OciDescriptor, output: BinaryIO | None, max_bytes: int) -> DownloadResult | None:
        """Download and hash a config or layer. Returns None if it does not exist.

        Raises ``FETCH_LIMIT`` if the blob is larger than its descriptor says. Without ``output``, the bytes are
        discarded.
        """
        url = self._build_url(f"blobs/{descriptor.digest}")
        if descriptor.size > max_bytes:
            raise too_large_error(HttpAddress.parse(url), max_bytes)
        algorithms = ("sha256", descriptor.digest.algorithm)[: 1 if descriptor.digest.algorithm == "sha256" else 2]

        def download(request: FetchRequest) -> DownloadResult:
            target = DiscardingFile() if output is None else output
            return self._fetcher.download(request, target, algorithms=algorithms, max_bytes=descriptor.size or 1)

        try:
            return self._send_authenticated(FetchRequest(endpoint=self._endpoint, url=url), download)
        except PinwardenError as err:
            if err.data.get("status") in (404, 410):
                return None
            raise

    def _get(self, path: str, accept: str, max_bytes: int) -> FetchResponse:
        request = FetchRequest(endpoint=self._endpoint, url=self._build_url(path), accept=accept)
        return self._send_authenticated(request, lambda prepared: self._fetcher.get(prepared, max_bytes=max_bytes))

    def _build_url(self, path: str) -> str:
        # Names, tags and digests consist of characters that need no escaping in URLs.
        return f"{self.url}{self.reference.name}/{path}"

    # Authentication

    def _send_authenticated(self, request: FetchRequest, send: Callable[[FetchRequest], ResultT]) -> ResultT:
        """Send a request, and repeat it with a new token if the registry responds with status 401."""
        challenge = self._tokens.challenges.get(self.url)
        if challenge is None and not self._contacted:
            challenge = self._fetch_challenge(request)
        self._contacted = True
        try:
            return send(replace(request, authorization=self._build_authorization(challenge) if challenge else None))
        except PinwardenError as err:
            if err.data.get("status") != 401:
                raise
            new_challenge = self._fetch_challenge(request)
            if new_challenge is None:
                raise
            return send(replace(request, authorization=self._build_authorization(new_challenge, renew_token=True)))

    def _fetch_challenge(self, request: FetchRequest) -> Challenge | None:
        """Return the registry's challenge; None if the registry needs no login or uses an unknown scheme."""
        status, text = self._fetcher.request_challenge(request)
        if status != 401:
            return None
        by_scheme = {challenge.scheme: challenge for challenge in reversed(parse_challenges(text))}
        # Prefer Bearer: a token is valid for a limited time and one repository, unlike the credential.
        challenge = by_scheme.get("bearer") or by_scheme.get("basic")
        if challenge is not None:
            self._tokens.challenges[self.url] = challenge
        return challenge

    def _build_authorization(self, challenge: Challenge, *, renew_token: bool = False) -> str | None:
        if challenge.scheme == "basic":
            credential = Credential.parse(self._credential)
            return self._credential if credential is not None and credential.user != IDENTITY_TOKEN_USER else None
        realm = challenge.parameters.get("realm", "")
        # Ignore the scope that the registry proposes: access to this repository is enough.
        scope = f"repository:{self.reference.name}:{self.actions}"
        key = (realm, challenge.parameters.get("service", ""), scope, self._credential or "")
        if renew_token or key not in self._tokens.tokens:
            self._tokens.tokens[key] = self._fetch_token(realm, key[1], scope)
        return f"Bearer {self._tokens.tokens[key]}"

    def _fetch_token(self, realm: str, service: str, scope: str) -> str:
        address = _parse_realm(realm)
        registry = self._endpoint.address
        if address.scheme != "https" and not (address.host == registry.host and registry.scheme == "http"):
            raise fetch_error("protocol", f"{registry} requires a token from {address}, which uses plain HTTP")
        is_same_owner = may_receive_credential(registry, address)
        endpoint = ServiceEndpoint(
            url=f"{address.scheme}://{address.host_header}{address.path.partition('?')[0].rpartition('/')[0]}/",
            # A realm on another domain is not trusted more than a URL that a project chose: not in a private network.
            configured_by=self._endpoint.configured_by if is_same_owner else "project",
            source=f"the registry {registry}",
            ca_file=self._endpoint.ca_file,
        )
        request = _build_token_request(
            endpoint, realm, service, scope, Credential.parse(self._credential) if is_same_owner else None
        )
        response = self._fetcher.get(request, max_bytes=_TOKEN_LIMITS.max_bytes)
        if not response.found:
            raise fetch_error("unauthorized", f"{address} does not issue tokens", response.status)
        return _parse_token(response, address)


class DiscardingFile(io.RawIOBase, BinaryIO):
    """A writable file that discards everything written to it."""

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Return the number of discarded bytes."""
        return memoryview(data).nbytes

    def tell(self) -> int:
        """Return 0."""
        return 0

    def seek(self, _offset: int, _whence: int = 0, /) -> int:
        """Return 0."""
        return 0

    def truncate(self, _size: int | None = None, /) -> int:
        """Return 0."""
        return 0


def _hash_document(response: FetchResponse, expected: Digest | None) -> FetchedDocument:
    header = response.headers.get("docker-content-digest")
    claim = parse_digest(header) if header is not None else None
    digest = Digest.of_bytes(response.body, expected.algorithm if expected is not None else "sha256")
    mismatches = [
        str(stated)
        for stated in (expected, claim)
        if stated is not None and Digest.of_bytes(response.body, stated.algorithm) != stated
    ]
    return FetchedDocument(
        content_type=response.headers.get("content-type", ""),
        body=response.body,
        digest=digest,
        expected=expected,
        claim=claim,
        mismatches=tuple(dict.fromkeys(mismatches)),
    )


def parse_next_query(page_url: str, target: str) -> str:
    """Return the query of the next page's URL. Raises unless the URL differs from the current one only in its query."""
    try:
        next_page_url = urlsplit(urljoin(page_url, target))
    except ValueError as err:
        raise fetch_error("protocol", "the registry's link to the next page is not a URL") from err
    if next_page_url._replace(query="", fragment="").geturl() != page_url or not next_page_url.query:
        raise fetch_error("protocol", "the registry's link to the next page leads to another URL")
    return next_page_url.query


def _parse_tags(response: FetchResponse) -> list[str]:
    try:
        value: Any = strict_json.parse_json(response.body, Limits(max_bytes=IMAGE_LIMITS.document_bytes))
    except PinwardenError as err:
        raise fetch_error("protocol", f"the registry's tag list is not valid JSON: {err}") from err
    tags = value.get("tags", ()) if isinstance(value, dict) else None
    if tags is None and isinstance(value, dict):
        return []  # some registries send null for an empty list
    if not isinstance(tags, list | tuple):
        raise fetch_error("protocol", "the registry's tag list is not a list")
    return [tag for tag in tags if isinstance(tag, str) and TAG.fullmatch(tag)]


def _parse_realm(realm: str) -> HttpAddress:
    try:
        return HttpAddress.parse(realm)
    except PinwardenError as err:
        raise fetch_error(
            "protocol", "the realm in the registry's WWW-Authenticate header is not a web address"
        ) from err


def _build_token_request(
    endpoint: ServiceEndpoint, realm: str, service: str, scope: str, credential: Credential | None
) -> FetchRequest:
    query = {"service": service, "scope": scope} if service else {"scope": scope}
    if credential is not None and credential.user == IDENTITY_TOKEN_USER:
        form = {
            "grant_type": "refresh_token",
            "client_id": "pinwarden",
            "refresh_token": credential.secret,
            **query,
        }
        return FetchRequest(endpoint=endpoint, url=realm, accept="application/json", form=urlencode(form).encode())
    if credential is not None:
        query = {"account": credential.user, **query}
    return FetchRequest(
        endpoint=endpoint,
        url=f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}",
        accept="application/json",
        authorization=credential.authorization if credential is not None else None,
    )


def _parse_token(response: FetchResponse, address: HttpAddress) -> str:
    try:
        value: Any = strict_json.parse_json(response.body, _TOKEN_LIMITS)
    except PinwardenError as err:
        raise fetch_error("protocol", f"{address} sent an invalid token response") from err
    token = (value.get("token") or value.get("access_token")) if isinstance(value, dict) else None
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise fetch_error("protocol", f"{address} sent an invalid token response")
    return token


EMPTY_CONFIG = b"{}"
EMPTY_CONFIG_TYPE = "application/vnd.oci.empty.v1+json"
"""The media type of the empty config that artifacts other than images have (OCI image specification 1.1)."""
_OCTET_STREAM = "application/octet-stream"


class OciPushRegistry(OciRegistry):
    """A client with read and push access to one repository."""

    actions = "pull,push"

    def put_blob(self, data: bytes) -> Digest:
        """Upload a blob and return its digest. Uploading the same bytes again is harmless."""
        digest = Digest.of_bytes(data)
        response = self._upload("POST", self._build_url("blobs/uploads/"), b"", _OCTET_STREAM)
        location = self._parse_upload_location(response)
        self._upload("PUT", f"{location}{'&' if '?' in location else '?'}digest={digest}", data, _OCTET_STREAM)
        return digest

    def put_artifact(
        self,
        tag: str,
        artifact_type: str,
        blobs: list[tuple[str, bytes]],
        annotations: Mapping[str, str] | None = None,
    ) -> Digest:
        """Upload blobs, given as media type and bytes, and a tagged manifest that lists them. Returns its digest."""
        config = self.put_blob(EMPTY_CONFIG)
        manifest: dict[str, object] = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "artifactType": artifact_type,
            "config": {"mediaType": EMPTY_CONFIG_TYPE, "digest": str(config), "size": len(EMPTY_CONFIG)},
            "layers": [
                {"mediaType": media_type, "digest": str(self.put_blob(data)), "size": len(data)}
                for media_type, data in blobs
            ],
        }
        if annotations:
            manifest["annotations"] = dict(annotations)
        body = canonicalize(manifest)
        self._upload("PUT", self._build_url(f"manifests/{tag}"), body, OCI_MANIFEST)
        return Digest.of_bytes(body)

    def _parse_upload_location(self, response: FetchResponse) -> str:
        """Return the upload URL. Raises if it is not below the registry's URL, because uploads include the token."""
        location = urljoin(self._build_url("blobs/uploads/"), response.headers.get("location", ""))
        try:
            is_same_owner = self._endpoint.owns(HttpAddress.parse(location))
        except PinwardenError:
            is_same_owner = False
        if not is_same_owner:
            raise fetch_error("protocol", f"{self._endpoint.address} sent an upload URL outside the registry")
        return location

    def _upload(self, method: str, url: str, body: bytes, media_type: str) -> FetchResponse:
        upload = UploadBody(method=method, body=body, media_type=media_type)

        def send(request: FetchRequest) -> FetchResponse:
            response = self._fetcher.send(replace(request, upload=upload))
            if response.status not in (200, 201, 202, 204):
                reason = "unauthorized" if response.status in (401, 403) else "status"
                raise fetch_error(
                    reason, f"{response.address} responded with status {response.status}", response.status
                )
            return response

        return self._send_authenticated(FetchRequest(endpoint=self._endpoint, url=url), send)
