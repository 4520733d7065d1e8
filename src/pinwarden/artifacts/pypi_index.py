"""Parses documents of a Python index: simple API pages (JSON and HTML), the JSON API, and PEP 740 provenance.

All input is untrusted. A document that two installers could read differently raises ``FETCH_FAILED``.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from binascii import Error as BinasciiError
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html.parser import HTMLParser
from typing import Any, NoReturn
from urllib.parse import unquote, urljoin, urlsplit

from pinwarden.artifacts.python_package import is_safe_file_name, is_same_version
from pinwarden.core import strict_json
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.strict_json import Limits
from pinwarden.core.typed_json import JsonObject

DOCUMENT_LIMITS = Limits(max_bytes=64 * 1024 * 1024)
"""The largest project documents of public indexes have about 20 MB."""
PROVENANCE_LIMITS = Limits(max_bytes=8 * 1024 * 1024)
"""An attestation has about 10 kB, and a file has one or two."""
SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"
SIMPLE_ACCEPT = f"{SIMPLE_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"

_MAX_FILES = 100_000  # projects with nightly builds list about 10,000
_MAX_URL = 8192
_MAX_SHORT_TEXT = 500
_MAX_ATTESTATIONS = 100
_TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
)
_ACCEPTED_ALGORITHMS = ("sha256", "sha384", "sha512")


class ReleaseFile(Record):
    """One file as an index lists it. All fields are unverified."""

    name: str
    url: str
    """The absolute URL without fragment."""
    claims: tuple[Digest, ...] = ()
    size: int | None = None
    uploaded_at: str | None = None
    requires_python: str | None = None
    yanked: str | None = None
    """The publisher's reason, or ``yanked`` without one; None if the file is not yanked."""
    provenance: str | None = None
    """The URL of the PEP 740 document."""


class SimplePage(Record):
    """The simple API's page of one project."""

    files: tuple[ReleaseFile, ...]
    announces_provenance: bool = False
    """Whether the index supports PEP 740. If so, a file without ``provenance`` has no provenance."""


class JsonRelease(Record):
    """The JSON API's document about one release."""

    files: tuple[ReleaseFile, ...]
    publisher: str | None = None
    project_urls: Mapping[str, str]


class PypiAttestation(Record):
    """One attestation of a file, from a PEP 740 document."""

    predicate_type: str
    bundle: bytes = field(repr=False)
    """The attestation, converted to a Sigstore bundle of version 0.3."""
    publisher: Mapping[str, Any] = field(default_factory=dict)
    """The publisher according to the index. Unverified: the certificate decides who signed."""


def deduplicate_files(files: Iterable[ReleaseFile]) -> tuple[tuple[ReleaseFile, ...], tuple[str, ...]]:
    """Return the files without duplicates, and the names that the index lists with different digests."""
    by_name: dict[str, ReleaseFile] = {}
    conflicting: list[str] = []
    for file in files:
        first = by_name.setdefault(file.name, file)
        if first is not file and are_digests_conflicting(first.claims, file.claims) and file.name not in conflicting:
            conflicting.append(file.name)
    return tuple(by_name.values()), tuple(conflicting)


def are_digests_conflicting(claims: Sequence[Digest], other_claims: Sequence[Digest]) -> bool:
    """Whether two lists of digests cannot belong to the same file."""
    by_algorithm = {digest.algorithm: digest for digest in claims}
    return any(by_algorithm.get(digest.algorithm, digest) != digest for digest in other_claims)


# Simple API


def parse_simple_page(body: bytes, content_type: str, page_url: str) -> SimplePage:
    """Parse a project page in JSON or HTML, according to its content type."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in (SIMPLE_JSON, "application/json"):
        return _parse_json_page(body, page_url)
    if kind in ("text/html", "application/vnd.pypi.simple.v1+html", "application/xhtml+xml"):
        return _parse_html_page(body, page_url)
    _refuse(f"an index page has the content type {kind[:80]!a}")


def _parse_json_page(body: bytes, page_url: str) -> SimplePage:
    document = JsonObject(strict_json.parse_json(body, DOCUMENT_LIMITS), "", _index_error)
    api_version = document.object("meta").value.get("api-version", "1.0") if "meta" in document else "1.0"
    if not isinstance(api_version, str) or not re.fullmatch(r"1\.[0-9]{1,4}", api_version):
        _refuse(f"an index page has the unsupported API version {str(api_version)[:20]!a}")
    files = tuple(_parse_json_file(entry, page_url) for entry in document.objects("files", max_items=_MAX_FILES))
    return SimplePage(files=files, announces_provenance=int(api_version.partition(".")[2]) >= 3)


def _parse_json_file(entry: JsonObject, page_url: str) -> ReleaseFile:
    name, url = entry.string("filename"), _resolve_file_url(entry.string("url"), page_url)
    if _get_file_name(url) != name:
        # pip uses the name in the URL and uv the stated name, so they would install different files.
        _refuse(f"the file {name[:120]!a} has a URL with another file name")
    provenance = entry.optional_string("provenance")
    return ReleaseFile(
        name=_check_file_name(name),
        url=url,
        claims=_parse_digests(entry, "hashes"),
        size=_parse_size(entry),
        uploaded_at=_parse_timestamp(entry.value.get("upload-time")),
        requires_python=_truncate_text(entry.value.get("requires-python")),
        yanked=_parse_yanked(entry.value.get("yanked")),
        provenance=None if provenance is None else _resolve_file_url(provenance, page_url),
    )


def _parse_html_page(body: bytes, page_url: str) -> SimplePage:
    if len(body) > DOCUMENT_LIMITS.max_bytes:
        _refuse("an index page is too large")
    links = _LinkParser(page_url)
    try:
        for tag in _find_relevant_tags(body.decode("utf-8")):
            links.feed(tag)
        links.close()
    except (UnicodeDecodeError, AssertionError, ValueError) as err:  # html.parser asserts on some broken declarations
        raise _protocol_error("an index page is not HTML in UTF-8") from err
    return SimplePage(files=tuple(links.files), announces_provenance=links.version >= 3)


# Each character can match only one alternative, so a failed match backtracks over it once. Possessive quantifiers would
# express that, but early releases of Python 3.11 get them wrong.
_TAG = re.compile(r"""<([A-Za-z][A-Za-z0-9-]*)(?![A-Za-z0-9-])(?:[^<>"']|"[^"]*"|'[^']*')*>""")
# Parsers disagree about where a comment with two dashes ends, so they could disagree about links inside it.
_OTHER_TAG = re.compile(r"<!--(?:(?!--|<a[\s/>]).)*-->|<(?!!--)[/!?][^<>]*>", re.DOTALL | re.IGNORECASE)
_RAW_TEXT = re.compile(r"</(?:script|style)\s*>", re.IGNORECASE)
_MAX_TAG = 32 * 1024  # a URL, a reason and a few other attributes


def _find_relevant_tags(text: str) -> Iterator[str]:
    """Yield the complete a, base and meta tags of a page.

    html.parser takes quadratic time for unterminated tags, so a small page could keep it busy for hours. It gets only
    complete tags, and a page with an unterminated tag is refused.
    """
    position, count = text.find("<"), 0
    while position >= 0:
        next_character = text[position + 1 : position + 2]
        if next_character in ("/", "!", "?") or (next_character.isascii() and next_character.isalpha()):
            match = _TAG.match(text, position, position + _MAX_TAG + 1) or _OTHER_TAG.match(text, position)
            if match is None or match.end() - position > _MAX_TAG:
                _refuse("an index page has an unterminated tag")
            name = match[1].lower() if match.re is _TAG else ""
            if name in ("a", "base", "meta"):
                count += 1
                if count > 2 * _MAX_FILES:
                    _refuse("an index page has too many links")
                yield match[0]
            position = match.end()
            if name in ("script", "style"):
                end_tag = _RAW_TEXT.search(text, position)
                if end_tag is None:
                    _refuse("an index page has an unterminated tag")
                position = end_tag.end()
        else:
            position += 1
        position = text.find("<", position)


class _LinkParser(HTMLParser):
    """Collects the links of a page. Like installers, treats every link as a file."""

    def __init__(self, page_url: str) -> None:
        super().__init__(convert_charrefs=True)
        self._base = page_url
        self.files: list[ReleaseFile] = []
        self.version = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes: dict[str, str] = {}
        for name, value in attrs:
            attributes.setdefault(
                name, value or ""
            )  # of duplicate attributes the first counts, as in browsers and installers
        if tag == "a" and "href" in attributes:
            self._add_link(attributes)
        elif tag == "base" and "href" in attributes and not self.files:
            self._base = urljoin(self._base, attributes["href"])
        elif tag == "meta" and attributes.get("name", "").lower() == "pypi:repository-version":
            api_version = re.fullmatch(r"1\.([0-9]{1,4})", attributes.get("content", ""))
            if api_version is None:
                _refuse("an index page has an unsupported API version")
            self.version = int(api_version[1])

    def _add_link(self, attributes: Mapping[str, str]) -> None:
        if len(self.files) >= _MAX_FILES:
            _refuse("an index page lists too many files")
        href, _, fragment = attributes["href"].strip().partition("#")
        if re.match(r"(?:mailto|javascript|data):", href, re.IGNORECASE):
            return
        url = _resolve_file_url(href, self._base)
        name = _get_file_name(url)
        if not is_safe_file_name(name):
            return  # a navigation link, which installers ignore
        provenance = attributes.get("data-provenance")
        self.files.append(
            ReleaseFile(
                name=name,
                url=url,
                claims=_parse_fragment(fragment),
                size=None,
                uploaded_at=_parse_timestamp(attributes.get("data-upload-time")),
                requires_python=_truncate_text(attributes.get("data-requires-python")),
                yanked=_parse_yanked(attributes["data-yanked"] or True) if "data-yanked" in attributes else None,
                provenance=_resolve_file_url(provenance, self._base) if provenance else None,
            )
        )


def _parse_fragment(fragment: str) -> tuple[Digest, ...]:
    hashes: dict[str, str] = {}
    for part in fragment.split("&")[:16]:
        algorithm, _, value = part.partition("=")
        if algorithm in hashes and hashes[algorithm] != value:
            _refuse("a link states two digests with one algorithm")
        hashes[algorithm] = value
    return _select_digests(hashes)


# JSON API


def parse_json_release(body: bytes, document_url: str, version: str) -> JsonRelease | None:
    """Parse one release from a release's or project's document. Returns None if the document does not have it."""
    document = JsonObject(strict_json.parse_json(body, DOCUMENT_LIMITS), "", _index_error)
    info = document.object("info")
    releases = document.value.get("releases")
    if isinstance(releases, dict) and releases:
        matching = [name for name in releases if is_same_version(name, version)]
        if not matching:
            return None
        by_version = document.object("releases")
        entries = [entry for name in matching for entry in by_version.objects(name, max_items=_MAX_FILES)]
    elif is_same_version(str(info.value.get("version", "")), version) and document.value.get("urls") is not None:
        entries = document.objects("urls", max_items=_MAX_FILES)
    else:
        return None
    files = tuple(_parse_json_api_file(entry, document_url) for entry in entries)
    urls = info.object("project_urls").value if info.value.get("project_urls") else {}
    project_urls = {str(label)[:80]: url for label, url in urls.items() if isinstance(url, str)}
    homepage = info.value.get("home_page")
    if isinstance(homepage, str) and homepage:
        project_urls.setdefault("Homepage", homepage)
    return JsonRelease(
        files=files, publisher=_format_owners(document.value.get("ownership")), project_urls=project_urls
    )


def find_source_repository(project_urls: Mapping[str, str]) -> str | None:
    """Return the source repository among a project's URLs, found by label (PEP 753).

    The homepage counts only if it is on a code host.
    """
    urls_by_label = {re.sub(r"[^a-z0-9]", "", label.lower()): url for label, url in project_urls.items()}
    for label in ("source", "repository", "sourcecode", "github", "code", "scm"):
        if _is_web_url(urls_by_label.get(label, "")):
            return urls_by_label[label]
    for label in ("homepage", "home"):
        url = urls_by_label.get(label, "")
        if _is_web_url(url) and re.search(r"://(?:www\.)?(?:github|gitlab|codeberg|bitbucket)\.[a-z]+/", url):
            return url
    return None


def _parse_json_api_file(entry: JsonObject, document_url: str) -> ReleaseFile:
    row = entry.value
    return ReleaseFile(
        name=_check_file_name(entry.string("filename")),
        url=_resolve_file_url(entry.string("url"), document_url),
        claims=_parse_digests(entry, "digests"),
        size=_parse_size(entry),
        uploaded_at=_parse_timestamp(row.get("upload_time_iso_8601") or row.get("upload_time")),
        requires_python=_truncate_text(row.get("requires_python")),
        yanked=_parse_yanked(row.get("yanked_reason") or True) if row.get("yanked") else None,
    )


def _format_owners(ownership: Any) -> str | None:
    """Return the organisation or the users that own the project."""
    if not isinstance(ownership, dict):
        return None
    organization = ownership.get("organization")
    if isinstance(organization, str) and organization:
        return organization[:_MAX_SHORT_TEXT]
    roles = ownership.get("roles")
    rows = [row for row in roles if isinstance(row, dict)] if isinstance(roles, list) else []
    owners = {str(row.get("user")) for row in rows if row.get("role") == "Owner" and row.get("user")}
    return ", ".join(sorted(owners))[:_MAX_SHORT_TEXT] or None


def _is_web_url(url: str) -> bool:
    return len(url) <= _MAX_URL and url.isprintable() and re.match(r"https?://[^/@\s]+(?:/|$)", url) is not None


# Fields of both APIs


def _parse_digests(entry: JsonObject, name: str) -> tuple[Digest, ...]:
    return _select_digests(entry.object(name).value) if name in entry else ()


def _select_digests(hashes: Mapping[str, Any]) -> tuple[Digest, ...]:
    """Return the digests with algorithms that are strong enough."""
    digests = []
    for algorithm in _ACCEPTED_ALGORITHMS:
        text = hashes.get(algorithm)
        if text is None or text == "":
            continue
        try:
            digests.append(Digest.parse(f"{algorithm}:{text}"))
        except PinwardenError as err:
            raise _protocol_error(f"the index states a malformed {algorithm} digest") from err
    return tuple(digests)


def _resolve_file_url(text: str, base: str) -> str:
    """Return an absolute URL without fragment."""
    if len(text) > _MAX_URL:
        _refuse("the index has a file URL that is too long")
    try:
        url = urljoin(base, text.partition("#")[0])
        parts = urlsplit(url)
    except ValueError as err:
        raise _protocol_error("the index has a malformed file URL") from err
    if parts.scheme not in ("http", "https") or "@" in parts.netloc:
        _refuse("the index has a file URL that is not a plain web address")
    return url


def _get_file_name(url: str) -> str:
    return unquote(urlsplit(url).path.rpartition("/")[2])


def _check_file_name(name: str) -> str:
    if not is_safe_file_name(name):
        _refuse(f"the index lists a file named {name[:120]!a}")
    return name


def _parse_size(entry: JsonObject) -> int | None:
    return None if entry.value.get("size") is None else entry.integer("size", maximum=(1 << 50) - 1)


def _parse_timestamp(value: Any) -> str | None:
    """Return a timestamp with its zone. The oldest timestamps of the JSON API have no zone and are in UTC."""
    if not isinstance(value, str) or not _TIMESTAMP.fullmatch(value):
        return None
    return value if value[-1] == "Z" or value[-6:-5] in ("+", "-") else f"{value}Z"


def _parse_yanked(value: Any) -> str | None:
    if value is None or value is False:
        return None
    return value[:_MAX_SHORT_TEXT] if isinstance(value, str) and value.strip() else "yanked"


def _truncate_text(value: Any) -> str | None:
    return value[:_MAX_SHORT_TEXT] if isinstance(value, str) and value else None


def _index_error(path: str, problem: str) -> PinwardenError:
    return _protocol_error(f"the index sent an invalid document: {path or 'the document'} {problem}")


def _protocol_error(message: str) -> PinwardenError:
    return PinwardenError("FETCH_FAILED", message, data={"reason": "protocol"})


def _refuse(message: str) -> NoReturn:
    raise _protocol_error(message)


# Provenance documents (PEP 740)


def parse_provenance(data: bytes) -> tuple[PypiAttestation, ...]:
    """Return all attestations of one provenance document."""
    document = JsonObject(strict_json.parse_json(data, PROVENANCE_LIMITS), "", _provenance_error)
    _check_format(document)
    attestations: list[PypiAttestation] = []
    for bundle in document.objects("attestation_bundles"):
        publisher = bundle.value.get("publisher")
        for attestation in bundle.objects("attestations"):
            attestations.append(_parse_attestation(attestation, publisher if isinstance(publisher, dict) else {}))
            if len(attestations) > _MAX_ATTESTATIONS:
                document.fail("attestation_bundles", f"has more than {_MAX_ATTESTATIONS} attestations")
    if not attestations:
        document.fail("attestation_bundles", "has no attestation")
    return tuple(attestations)


def _parse_attestation(attestation: JsonObject, publisher: Mapping[str, Any]) -> PypiAttestation:
    _check_format(attestation)
    material = attestation.object("verification_material")
    envelope = attestation.object("envelope")
    payload = _get_base64(envelope, "statement")
    verification: dict[str, Any] = {
        "certificate": {"rawBytes": _get_base64(material, "certificate")},
        "tlogEntries": [dict(entry.value) for entry in material.objects("transparency_entries")],
    }
    timestamps = material.array("timestamps", optional=True) if material.value.get("timestamps") else []
    if timestamps:
        # Log entries of version 2 do not include a timestamp.
        verification["timestampVerificationData"] = {
            "rfc3161Timestamps": [
                {"signedTimestamp": _check_base64(material, "timestamps", timestamp)} for timestamp in timestamps
            ]
        }
    bundle = {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": verification,
        "dsseEnvelope": {
            "payload": payload,
            "payloadType": "application/vnd.in-toto+json",
            "signatures": [{"sig": _get_base64(envelope, "signature")}],
        },
    }
    inner = JsonObject(strict_json.parse_json(b64decode(payload), PROVENANCE_LIMITS), "statement", _provenance_error)
    predicate_type = inner.string("predicateType")
    if not predicate_type:
        inner.fail("predicateType", "is empty")
    return PypiAttestation(
        predicate_type=predicate_type, bundle=json.dumps(bundle, ensure_ascii=False).encode(), publisher=publisher
    )


def _check_format(document: JsonObject) -> None:
    if document.value.get("version") != 1:
        document.fail("version", "is not 1")


def _get_base64(entry: JsonObject, name: str) -> str:
    return _check_base64(entry, name, entry.value.get(name))


def _check_base64(entry: JsonObject, name: str, value: object) -> str:
    try:
        b64decode(value, validate=True)  # type: ignore[arg-type]  # raises TypeError
    except (BinasciiError, ValueError, TypeError):
        entry.fail(name, "is not base64")
    return str(value)


def _provenance_error(path: str, problem: str) -> PinwardenError:
    return _protocol_error(f"a provenance document is invalid: {path or 'the document'} {problem}")
