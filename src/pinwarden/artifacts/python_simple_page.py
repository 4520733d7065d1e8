"""The page of one Python project in the simple API, as HTML (PEP 503) or JSON (PEP 691)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin

from pinwarden.artifacts.python_index import (
    DOCUMENT_LIMITS,
    MAX_FILES,
    ReleaseFile,
    byte_count,
    claimed_digests,
    file_address,
    last_segment,
    malformed,
    moment,
    note,
    object_of,
    optional_address,
    protocol_error,
    rows_of,
    safe_file_name,
    text_of,
    yank_reason,
)
from pinwarden.artifacts.python_package import is_safe_file_name
from pinwarden.core import strict_json
from pinwarden.core.digest import Digest
from pinwarden.core.record import Record

SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"
SIMPLE_ACCEPT = f"{SIMPLE_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


class SimplePage(Record):
    """The page of one project."""

    files: tuple[ReleaseFile, ...]
    says_provenance: bool = False
    """Whether a file without ``provenance`` has none, because the index speaks of it (PEP 740)."""


def parse_simple_page(body: bytes, content_type: str, page_url: str) -> SimplePage:
    """The page of one project, in JSON or HTML as its content type says."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in (SIMPLE_JSON, "application/json"):
        return _json_page(body, page_url)
    if kind in ("text/html", "application/vnd.pypi.simple.v1+html", "application/xhtml+xml"):
        return _html_page(body, page_url)
    malformed(f"an index page is of the type {kind[:80]!a}")


def _json_page(body: bytes, page_url: str) -> SimplePage:
    document = object_of(strict_json.parse(body, DOCUMENT_LIMITS), "an index page")
    api = object_of(document.get("meta", {}), "meta").get("api-version", "1.0")
    if not isinstance(api, str) or not re.fullmatch(r"1\.[0-9]{1,4}", api):
        malformed(f"an index page is of the API version {str(api)[:20]!a}")
    rows = rows_of(document.get("files"), "files")
    files = tuple(_json_file(object_of(row, "a file"), page_url) for row in rows)
    return SimplePage(files=files, says_provenance=int(api.partition(".")[2]) >= 3)


def _json_file(row: Mapping[str, Any], page_url: str) -> ReleaseFile:
    name, url = text_of(row.get("filename"), "filename"), file_address(text_of(row.get("url"), "url"), page_url)
    if last_segment(url) != name:
        # pip goes by the address and uv by the name, so each would install something else.
        malformed(f"the file {name[:120]!a} is at an address of another name")
    return ReleaseFile(
        name=safe_file_name(name),
        url=url,
        claims=claimed_digests(row.get("hashes", {})),
        size=byte_count(row.get("size")),
        uploaded_at=moment(row.get("upload-time")),
        requires_python=note(row.get("requires-python")),
        yanked=yank_reason(row.get("yanked")),
        provenance=optional_address(row.get("provenance"), page_url),
    )


def _html_page(body: bytes, page_url: str) -> SimplePage:
    if len(body) > DOCUMENT_LIMITS.max_bytes:
        malformed("an index page is too large")
    reader = _Links(page_url)
    try:
        for tag in _tags(body.decode("utf-8")):
            reader.feed(tag)
        reader.close()
    except (UnicodeDecodeError, AssertionError, ValueError) as err:  # html.parser asserts on some broken declarations
        raise protocol_error("an index page is not HTML in UTF-8") from err
    return SimplePage(files=tuple(reader.files), says_provenance=reader.version >= 3)


# Each character can be read in one way only, so that a failed match goes back over it once. Possessive quantifiers
# would say so, but early releases of Python 3.11 get them wrong.
_TAG = re.compile(r"""<([A-Za-z][A-Za-z0-9-]*)(?![A-Za-z0-9-])(?:[^<>"']|"[^"]*"|'[^']*')*>""")
# Readers end a comment in different places if it holds two dashes, so one with a link in it could be one or not.
_OTHER_MARK = re.compile(r"<!--(?:(?!--|<a[\s/>]).)*-->|<(?!!--)[/!?][^<>]*>", re.DOTALL | re.IGNORECASE)
_RAW_TEXT = re.compile(r"</(?:script|style)\s*>", re.IGNORECASE)
_MAX_TAG = 32 * 1024  # an address, a reason and two or three other attributes


def _tags(text: str) -> Iterator[str]:
    """The tags of a page that matter here, each whole.

    html.parser takes quadratic time for tags that do not end, so that a small page could keep us busy for hours. It
    gets only whole tags, and a page with something else is refused at the first one.
    """
    place, count = text.find("<"), 0
    while place >= 0:
        following = text[place + 1 : place + 2]
        if following in ("/", "!", "?") or (following.isascii() and following.isalpha()):
            found = _TAG.match(text, place, place + _MAX_TAG + 1) or _OTHER_MARK.match(text, place)
            if found is None or found.end() - place > _MAX_TAG:
                malformed("an index page has a tag that does not end")
            name = found[1].lower() if found.re is _TAG else ""
            if name in ("a", "base", "meta"):
                count += 1
                if count > 2 * MAX_FILES:
                    malformed("an index page has too many links")
                yield found[0]
            place = found.end()
            if name in ("script", "style"):
                closing = _RAW_TEXT.search(text, place)
                if closing is None:
                    malformed("an index page has a tag that does not end")
                place = closing.end()
        else:
            place += 1
        place = text.find("<", place)


class _Links(HTMLParser):
    """Every link of a page is a file, as installers read it."""

    def __init__(self, page_url: str) -> None:
        super().__init__(convert_charrefs=True)
        self._base = page_url
        self.files: list[ReleaseFile] = []
        self.version = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found: dict[str, str] = {}
        for name, value in attrs:
            found.setdefault(name, value or "")  # the first counts, for browsers and installers
        if tag == "a" and "href" in found:
            self._link(found)
        elif tag == "base" and "href" in found and not self.files:
            self._base = urljoin(self._base, found["href"])
        elif tag == "meta" and found.get("name", "").lower() == "pypi:repository-version":
            api = re.fullmatch(r"1\.([0-9]{1,4})", found.get("content", ""))
            if api is None:
                malformed("an index page is of an API version that is not read here")
            self.version = int(api[1])

    def _link(self, found: Mapping[str, str]) -> None:
        if len(self.files) >= MAX_FILES:
            malformed("an index page lists too many files")
        href, _, fragment = found["href"].strip().partition("#")
        if re.match(r"(?:mailto|javascript|data):", href, re.IGNORECASE):
            return
        url = file_address(href, self._base)
        name = last_segment(url)
        if not is_safe_file_name(name):
            return  # a link to somewhere else on the page; no installer takes it for a file
        self.files.append(
            ReleaseFile(
                name=name,
                url=url,
                claims=_fragment_hashes(fragment),
                size=None,
                uploaded_at=moment(found.get("data-upload-time")),
                requires_python=note(found.get("data-requires-python")),
                yanked=yank_reason(found["data-yanked"] or True) if "data-yanked" in found else None,
                provenance=optional_address(found.get("data-provenance") or None, self._base),
            )
        )


def _fragment_hashes(fragment: str) -> tuple[Digest, ...]:
    found: dict[str, str] = {}
    for part in fragment.split("&")[:16]:
        algorithm, _, value = part.partition("=")
        if algorithm in found and found[algorithm] != value:
            malformed("a link names two digests of one kind")
        found[algorithm] = value
    return claimed_digests(found)
