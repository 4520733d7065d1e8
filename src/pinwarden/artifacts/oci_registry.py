"""Asking a container registry: documents and blobs of one image, with the answers to its challenges.

What is asked for goes out without a credential first. The registry then says how it wants to be answered: with the
credential itself (Basic) or with a token from a realm (Bearer). The realm is a claim of the registry; the credential
goes there only if it is the registry's own (:func:`pinwarden.artifacts.oci_challenge.may_answer_to`).
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

from pinwarden.artifacts.docker_config import IDENTITY, Credential
from pinwarden.artifacts.oci_challenge import Challenge, may_answer_to, parse_challenges
from pinwarden.artifacts.oci_manifest import ACCEPTED, IMAGE_LIMITS, OCI_INDEX, Descriptor
from pinwarden.artifacts.oci_reference import TAG, Reference, parse_digest
from pinwarden.core import strict_json
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.limits import Limits
from pinwarden.core.record import Record, field, replace
from pinwarden.system.net.endpoint import Endpoint
from pinwarden.system.net.fetch import Answer, Fetcher, Received, Wanted
from pinwarden.system.net.fetch_failures import too_large, unfetched
from pinwarden.system.target import Address

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_TOKEN = re.compile(r"[\x21-\x7e]{1,65536}")
_TOKEN_LIMITS = Limits(max_bytes=1024 * 1024, max_depth=16)
_NO_SUCH_ROUTE = frozenset({400, 405, 406, 501})
_TAGS_PER_PAGE = 1000
_TAG_PAGES = 50  # images that are built anew every day have some thousand tags
NEXT_PAGE = re.compile(r'<([^<>\s]{1,4096})>\s*;[^,]*\brel="?next"?')
"""Where a list goes on, in the header that says so."""
Got = TypeVar("Got")


class Tokens:
    """What registries gave out during one run, so that several images of one registry are asked for with few requests.

    Kept in memory only. May be shared by threads: at worst a token is got twice.
    """

    def __init__(self) -> None:
        self.challenges: dict[str, Challenge] = {}
        """By the address of the registry."""
        self.tokens: dict[tuple[str, str, str, str], str] = {}
        """By realm, service, scope and the credential they were got with."""


class Document(Record):
    """An index or manifest as it was sent."""

    content_type: str
    body: bytes = field(repr=False)
    digest: Digest
    """Of the bytes, by the algorithm that it was asked for with."""
    expected: Digest | None
    """What it was asked for by, if that was a digest."""
    claim: Digest | None
    """What the registry says it is."""
    false_digests: tuple[str, ...]
    """Those of the two that are not true."""

    @property
    def proven(self) -> bool:
        """Whether these are the bytes that were meant. By tag, the registry's word must at least fit its bytes."""
        return self.digest == self.expected if self.expected is not None else not self.false_digests


class Registry:
    """One image in its registry."""

    actions = "pull"
    """What tokens are asked for."""

    def __init__(
        self, reference: Reference, fetcher: Fetcher, endpoint: Endpoint, tokens: Tokens | None = None
    ) -> None:
        self.reference = reference
        self.url = endpoint.url
        self._fetcher = fetcher
        self._credential = endpoint.authorization
        # The credential is added to a request only after the registry has said how it wants it.
        self._endpoint = replace(endpoint, authorization=None)
        self._tokens = Tokens() if tokens is None else tokens
        self._met = self._credential is None

    def document(self, asked: str | Digest) -> Document | None:
        """An index or manifest by tag or digest; None if the registry has none. Its bytes are hashed here.

        No copy is used: a registry that says "unchanged" has not shown what it would give to a client.
        """
        answer = self._get(f"manifests/{asked}", ACCEPTED, IMAGE_LIMITS.document_bytes)
        return _document(answer, asked if isinstance(asked, Digest) else None) if answer.found else None

    def has_repository(self) -> bool:
        """Whether the registry has any image of that name, as far as it tells."""
        try:
            return self._get("tags/list?n=1", "application/json", IMAGE_LIMITS.document_bytes).found
        except PinwardenError:
            return True  # it does not say

    def tags(self) -> tuple[str, ...]:
        """Every tag of the image, page after page. A list that does not end is an error, not a shorter list."""
        found: list[str] = []
        query = f"n={_TAGS_PER_PAGE}"
        for _ in range(_TAG_PAGES):
            answer = self._get(f"tags/list?{query}", "application/json", IMAGE_LIMITS.document_bytes)
            if not answer.found:
                return ()
            found += _tags_in(answer)
            following = NEXT_PAGE.search(answer.headers.get("link", ""))
            if following is None:
                return tuple(found)
            query = next_query(self._url("tags/list"), following[1])
        raise PinwardenError("FETCH_LIMIT", f"{self.reference.name} has more tags than are looked at")

    def referrers(self, digest: Digest, page: str = "") -> Answer | None:
        """One page (a query) of the list of what refers to a digest; None where the registry has no such list."""
        path = f"referrers/{digest}" + (f"?{page}" if page else "")
        try:
            answer = self._get(path, OCI_INDEX, IMAGE_LIMITS.document_bytes)
        except PinwardenError as err:
            if err.data.get("status") in _NO_SUCH_ROUTE:
                return None
            raise
        return answer if answer.found else None

    def blob(self, descriptor: Descriptor, to: BinaryIO | None, most: int) -> Received | None:
        """A config or layer, hashed while it comes in; None if the registry has none.

        Never more is read than the descriptor says, and then FETCH_LIMIT is raised. Without ``to`` the bytes are
        only hashed.
        """
        url = self._url(f"blobs/{descriptor.digest}")
        if descriptor.size > most:
            raise too_large(Address.parse(url), most)
        algorithms = ("sha256", descriptor.digest.algorithm)[: 1 if descriptor.digest.algorithm == "sha256" else 2]

        def download(wanted: Wanted) -> Received:
            target = Discarded() if to is None else to
            return self._fetcher.download(wanted, target, algorithms=algorithms, max_bytes=descriptor.size or 1)

        try:
            return self._answered(Wanted(endpoint=self._endpoint, url=url), download)
        except PinwardenError as err:
            if err.data.get("status") in (404, 410):
                return None
            raise

    def _get(self, path: str, accept: str, most: int) -> Answer:
        wanted = Wanted(endpoint=self._endpoint, url=self._url(path), accept=accept)
        return self._answered(wanted, lambda asked: self._fetcher.get(asked, max_bytes=most))

    def _url(self, path: str) -> str:
        # Name, tag and digest hold only characters that mean themselves in an address.
        return f"{self.url}{self.reference.name}/{path}"

    # Answering challenges

    def _answered(self, wanted: Wanted, ask: Callable[[Wanted], Got]) -> Got:
        """Ask, and once more if the registry does not know us, or no longer."""
        known = self._tokens.challenges.get(self.url)
        if known is None and not self._met:
            known = self._challenge(wanted)
        self._met = True  # one that asks for nothing now may still do so later
        try:
            return ask(replace(wanted, authorization=self._authorization(known) if known else None))
        except PinwardenError as err:
            if err.data.get("status") != 401:
                raise
            renewed = self._challenge(wanted)
            if renewed is None:
                raise
            return ask(replace(wanted, authorization=self._authorization(renewed, fresh=True)))

    def _challenge(self, wanted: Wanted) -> Challenge | None:
        """How the registry wants to be answered; None if it asks for nothing that is understood."""
        status, text = self._fetcher.challenge(wanted)
        if status != 401:
            return None
        offered = {each.scheme: each for each in reversed(parse_challenges(text))}
        # A token opens one repository for a while; the credential opens everything.
        chosen = offered.get("bearer") or offered.get("basic")
        if chosen is not None:
            self._tokens.challenges[self.url] = chosen
        return chosen

    def _authorization(self, challenge: Challenge, *, fresh: bool = False) -> str | None:
        if challenge.scheme == "basic":
            credential = Credential.of(self._credential)
            return self._credential if credential is not None and credential.user != IDENTITY else None
        realm = challenge.parameters.get("realm", "")
        # Never the scope that the registry proposes: this one image is all that is needed.
        scope = f"repository:{self.reference.name}:{self.actions}"
        key = (realm, challenge.parameters.get("service", ""), scope, self._credential or "")
        if fresh or key not in self._tokens.tokens:
            self._tokens.tokens[key] = self._token(realm, key[1], scope)
        return f"Bearer {self._tokens.tokens[key]}"

    def _token(self, realm: str, service: str, scope: str) -> str:
        address = _realm_address(realm)
        mine = self._endpoint.address
        if address.scheme != "https" and not (address.host == mine.host and mine.scheme == "http"):
            raise unfetched("protocol", f"{mine} wants a token from {address}, which is not encrypted")
        own = may_answer_to(mine, address)
        endpoint = Endpoint(
            url=f"{address.scheme}://{address.host_header}{address.path.partition('?')[0].rpartition('/')[0]}/",
            # A realm that is not the registry's own is a stranger's word: it may not lead into a private network.
            said_by=self._endpoint.said_by if own else "project",
            source=f"the registry {mine}",
            ca_file=self._endpoint.ca_file,
        )
        wanted = _token_request(endpoint, realm, service, scope, Credential.of(self._credential) if own else None)
        answer = self._fetcher.get(wanted, max_bytes=_TOKEN_LIMITS.max_bytes)
        if not answer.found:
            raise unfetched("unauthorized", f"{address} gives out no tokens", answer.status)
        return _token_in(answer, address)


class Discarded(io.RawIOBase, BinaryIO):
    """A file that forgets what is written to it, for bytes that are only hashed."""

    def writable(self) -> bool:
        """It takes everything."""
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """So many bytes were forgotten."""
        return memoryview(data).nbytes

    def tell(self) -> int:
        """Always at its beginning."""
        return 0

    def seek(self, _offset: int, _whence: int = 0, /) -> int:
        """Anywhere is its beginning."""
        return 0

    def truncate(self, _size: int | None = None, /) -> int:
        """There is nothing to cut off."""
        return 0


def _document(answer: Answer, expected: Digest | None) -> Document:
    said = answer.headers.get("docker-content-digest")
    claim = parse_digest(said) if said is not None else None
    digest = Digest.of(answer.body, expected.algorithm if expected is not None else "sha256")
    false = [
        str(each) for each in (expected, claim) if each is not None and Digest.of(answer.body, each.algorithm) != each
    ]
    return Document(
        content_type=answer.headers.get("content-type", ""),
        body=answer.body,
        digest=digest,
        expected=expected,
        claim=claim,
        false_digests=tuple(dict.fromkeys(false)),
    )


def next_query(here: str, target: str) -> str:
    """The next page is the same list with another query, and nothing else."""
    try:
        following = urlsplit(urljoin(here, target))
    except ValueError as err:
        raise unfetched("protocol", "a list of the registry goes on at no address") from err
    if following._replace(query="", fragment="").geturl() != here or not following.query:
        raise unfetched("protocol", "a list of the registry goes on at another place")
    return following.query


def _tags_in(answer: Answer) -> list[str]:
    try:
        value: Any = strict_json.parse(answer.body, Limits(max_bytes=IMAGE_LIMITS.document_bytes))
    except PinwardenError as err:
        raise unfetched("protocol", f"the registry's list of tags cannot be read: {err}") from err
    tags = value.get("tags", ()) if isinstance(value, dict) else None
    if tags is None and isinstance(value, dict):
        return []  # some registries say so that there are none
    if not isinstance(tags, list | tuple):
        raise unfetched("protocol", "the registry's list of tags is not a list")
    return [tag for tag in tags if isinstance(tag, str) and TAG.fullmatch(tag)]


def _realm_address(realm: str) -> Address:
    try:
        return Address.parse(realm)
    except PinwardenError as err:
        raise unfetched("protocol", "the registry wants a token from something that is not a web address") from err


def _token_request(endpoint: Endpoint, realm: str, service: str, scope: str, credential: Credential | None) -> Wanted:
    question = {"service": service, "scope": scope} if service else {"scope": scope}
    if credential is not None and credential.user == IDENTITY:
        form = {
            "grant_type": "refresh_token",
            "client_id": "pinwarden",
            "refresh_token": credential.secret,
            **question,
        }
        return Wanted(endpoint=endpoint, url=realm, accept="application/json", form=urlencode(form).encode())
    if credential is not None:
        question = {"account": credential.user, **question}
    return Wanted(
        endpoint=endpoint,
        url=f"{realm}{'&' if '?' in realm else '?'}{urlencode(question)}",
        accept="application/json",
        authorization=credential.authorization if credential is not None else None,
    )


def _token_in(answer: Answer, address: Address) -> str:
    try:
        value: Any = strict_json.parse(answer.body, _TOKEN_LIMITS)
    except PinwardenError as err:
        raise unfetched("protocol", f"{address} gave out something that is not a token") from err
    token = (value.get("token") or value.get("access_token")) if isinstance(value, dict) else None
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise unfetched("protocol", f"{address} gave out something that is not a token")
    return token
