"""Python packages as indexes list them: names, versions, file names, the simple API (PEP 503, 691) and the JSON API.

Everything here was written by an index or an uploader. What two installers could read differently is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any, Literal, NoReturn
from urllib.parse import quote, unquote, urljoin, urlsplit

from pinwarden.core import strict_json
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.limits import Limits
from pinwarden.core.record import Record

if TYPE_CHECKING:
    from packaging.version import Version

Kind = Literal["wheel", "sdist", "other"]

SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"
SIMPLE_ACCEPT = f"{SIMPLE_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
DOCUMENT_LIMITS = Limits(max_bytes=64 * 1024 * 1024)
"""The largest project documents of public indexes have some twenty megabytes."""

_MAX_FILES = 100_000  # projects with nightly builds list about ten thousand
_MAX_NAME = 255
_MAX_URL = 8192
_MAX_NOTE = 500
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_FILE_NAME = re.compile(r"[A-Za-z0-9._+!-]+")
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
)
_SDIST_ENDINGS = (".tar.gz", ".zip", ".tar.bz2", ".tar.xz", ".tgz", ".tar.Z", ".tar")
_OTHER_ENDINGS = (".egg", ".exe", ".msi", ".rpm", ".deb", ".dmg")
_ALGORITHMS = ("sha256", "sha384", "sha512")


class ReleaseFile(Record):
    """One file as an index lists it. All of it is a claim."""

    name: str
    url: str
    """Absolute, without fragment."""
    claims: tuple[Digest, ...] = ()
    size: int | None = None
    uploaded_at: str | None = None
    requires_python: str | None = None
    yanked: str | None = None
    """The reason, ``yanked`` where none is given; None if it is not withdrawn."""
    provenance: str | None = None
    """The address of the PEP 740 document."""

    def claim(self, algorithm: str) -> Digest | None:
        """What the index says the bytes are, by one algorithm."""
        return next((each for each in self.claims if each.algorithm == algorithm), None)


class SimplePage(Record):
    """The page of one project."""

    files: tuple[ReleaseFile, ...]
    says_provenance: bool = False
    """Whether a file without ``provenance`` has none, because the index speaks of it (PEP 740)."""


class JsonRelease(Record):
    """What the JSON API says about one release and its project."""

    files: tuple[ReleaseFile, ...]
    publisher: str | None = None
    project_urls: Mapping[str, str]


# Names and versions


def normalized_name(name: str) -> str:
    """A project's name as it stands in addresses (PEP 503)."""
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        raise PinwardenError("PACKAGE_INVALID", f"{name[:120]!a} is not the name of a Python package")
    return re.sub(r"[-_.]+", "-", name).lower()


def exact_version(text: str) -> Version:
    """A version that names one release (PEP 440): no range, no wildcard."""
    found = _version(text)
    if found is None:
        raise PinwardenError("PACKAGE_INVALID", f"{text[:120]!a} is not the exact version of a Python package")
    return found


def same_version(one: str, other: str) -> bool:
    """Whether two spellings mean the same release. Texts that are no versions are the same as nothing."""
    first, second = _version(one), _version(other)
    return first is not None and first == second


def _version(text: str) -> Version | None:
    from packaging.version import InvalidVersion, Version

    if len(text) > _MAX_NAME or not text.isascii() or text != text.strip():
        return None
    try:
        return Version(text)
    except InvalidVersion:
        return None


# File names


def is_safe_file_name(name: str) -> bool:
    """Whether a name can stand in a path and an address without meaning anything else."""
    return len(name) <= _MAX_NAME and _FILE_NAME.fullmatch(name) is not None and not name.startswith(".")


def file_kind(name: str) -> Kind:
    """What a file is, by the end of its name, as installers look at it."""
    if name.endswith(".whl"):
        return "wheel"
    return "sdist" if name.endswith(_SDIST_ENDINGS) else "other"


def belongs_to(file_name: str, project: str, version: str) -> bool:
    """Whether a file is one of a release: the same project and, by PEP 440, the same version.

    ``1.0`` and ``1.0.0`` are one release, so a file of either spelling counts.
    """
    project, wanted = normalized_name(project), exact_version(version)
    if file_name.endswith(".whl"):
        return _wheel_belongs(file_name, project, wanted)
    for ending in _SDIST_ENDINGS:
        if file_name.endswith(ending):
            return any(_version(rest) == wanted for rest in _after_project(file_name.removesuffix(ending), project))
    for ending in _OTHER_ENDINGS:
        if file_name.endswith(ending):
            rests = _after_project(file_name.removesuffix(ending), project)
            return any(_starts_with_version(rest, wanted) for rest in rests)
    return False


def _wheel_belongs(file_name: str, project: str, wanted: Version) -> bool:
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        name, version, _, _ = parse_wheel_filename(file_name)
    except InvalidWheelFilename:
        return False
    return name == project and version == wanted


def _after_project(stem: str, project: str) -> list[str]:
    """What may follow the project's name; old names hold dashes themselves."""
    dashes = [place for place, character in enumerate(stem) if character == "-"]
    return [stem[place + 1 :] for place in dashes if re.sub(r"[-_.]+", "-", stem[:place]).lower() == project]


def _starts_with_version(rest: str, wanted: Version) -> bool:
    """Windows installers and eggs go on after the version, with a platform or a Python version."""
    parts = re.split(r"([-.])", rest)
    return any(_version("".join(parts[:count])) == wanted for count in range(1, len(parts) + 1, 2))


# The simple API


def parse_simple_page(body: bytes, content_type: str, page_url: str) -> SimplePage:
    """The page of one project, in JSON or HTML as its content type says."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in (SIMPLE_JSON, "application/json"):
        return _json_page(body, page_url)
    if kind in ("text/html", "application/vnd.pypi.simple.v1+html", "application/xhtml+xml"):
        return _html_page(body, page_url)
    _malformed(f"an index page is of the type {kind[:80]!a}")


def _json_page(body: bytes, page_url: str) -> SimplePage:
    document = _object(strict_json.parse(body, DOCUMENT_LIMITS), "an index page")
    api = _object(document.get("meta", {}), "meta").get("api-version", "1.0")
    if not isinstance(api, str) or not re.fullmatch(r"1\.[0-9]{1,4}", api):
        _malformed(f"an index page is of the API version {str(api)[:20]!a}")
    rows = _rows(document.get("files"), "files")
    files = tuple(_json_file(_object(row, "a file"), page_url) for row in rows)
    return SimplePage(files=files, says_provenance=int(api.partition(".")[2]) >= 3)


def _json_file(row: Mapping[str, Any], page_url: str) -> ReleaseFile:
    name, url = _text(row.get("filename"), "filename"), _file_url(_text(row.get("url"), "url"), page_url)
    if _last_segment(url) != name:
        # pip goes by the address and uv by the name, so each would install something else.
        _malformed(f"the file {name[:120]!a} is at an address of another name")
    return ReleaseFile(
        name=_file_name(name),
        url=url,
        claims=_hashes(row.get("hashes", {})),
        size=_size(row.get("size")),
        uploaded_at=_time(row.get("upload-time")),
        requires_python=_note(row.get("requires-python")),
        yanked=_yanked(row.get("yanked")),
        provenance=_optional_url(row.get("provenance"), page_url),
    )


def _html_page(body: bytes, page_url: str) -> SimplePage:
    if len(body) > DOCUMENT_LIMITS.max_bytes:
        _malformed("an index page is too large")
    reader = _Links(page_url)
    try:
        for tag in _tags(body.decode("utf-8")):
            reader.feed(tag)
        reader.close()
    except (UnicodeDecodeError, AssertionError, ValueError) as err:  # html.parser asserts on some broken declarations
        raise _error("an index page is not HTML in UTF-8") from err
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
                _malformed("an index page has a tag that does not end")
            name = found[1].lower() if found.re is _TAG else ""
            if name in ("a", "base", "meta"):
                count += 1
                if count > 2 * _MAX_FILES:
                    _malformed("an index page has too many links")
                yield found[0]
            place = found.end()
            if name in ("script", "style"):
                closing = _RAW_TEXT.search(text, place)
                if closing is None:
                    _malformed("an index page has a tag that does not end")
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
                _malformed("an index page is of an API version that is not read here")
            self.version = int(api[1])

    def _link(self, found: Mapping[str, str]) -> None:
        if len(self.files) >= _MAX_FILES:
            _malformed("an index page lists too many files")
        href, _, fragment = found["href"].strip().partition("#")
        if re.match(r"(?:mailto|javascript|data):", href, re.IGNORECASE):
            return
        url = _file_url(href, self._base)
        name = _last_segment(url)
        if not is_safe_file_name(name):
            return  # a link to somewhere else on the page; no installer takes it for a file
        self.files.append(
            ReleaseFile(
                name=name,
                url=url,
                claims=_fragment_hashes(fragment),
                size=None,
                uploaded_at=_time(found.get("data-upload-time")),
                requires_python=_note(found.get("data-requires-python")),
                yanked=_yanked(found["data-yanked"] or True) if "data-yanked" in found else None,
                provenance=_optional_url(found.get("data-provenance") or None, self._base),
            )
        )


def _fragment_hashes(fragment: str) -> tuple[Digest, ...]:
    found: dict[str, str] = {}
    for part in fragment.split("&")[:16]:
        algorithm, _, value = part.partition("=")
        if algorithm in found and found[algorithm] != value:
            _malformed("a link names two digests of one kind")
        found[algorithm] = value
    return _hashes(found)


# The JSON API


def parse_json_release(body: bytes, document_url: str, version: str) -> JsonRelease | None:
    """One release of a project, from the document of the release or of the whole project. None if it is not there."""
    document = _object(strict_json.parse(body, DOCUMENT_LIMITS), "a project")
    info = _object(document.get("info"), "info")
    rows: Any = None
    releases = document.get("releases")
    if isinstance(releases, dict) and releases:
        found = [listed for each, listed in releases.items() if same_version(each, version)]
        rows = [row for listed in found for row in _rows(listed, "releases")] if found else None
    elif same_version(str(info.get("version", "")), version):
        rows = document.get("urls")
    if rows is None:
        return None
    files = tuple(_json_api_file(_object(row, "a file"), document_url) for row in _rows(rows, "urls"))
    urls = info.get("project_urls") or {}
    named = {str(label)[:80]: url for label, url in _object(urls, "project_urls").items() if isinstance(url, str)}
    home = info.get("home_page")
    if isinstance(home, str) and home:
        named.setdefault("Homepage", home)
    return JsonRelease(files=files, publisher=_publisher(document.get("ownership")), project_urls=named)


def _json_api_file(row: Mapping[str, Any], document_url: str) -> ReleaseFile:
    reason = row.get("yanked_reason") or True
    return ReleaseFile(
        name=_file_name(_text(row.get("filename"), "filename")),
        url=_file_url(_text(row.get("url"), "url"), document_url),
        claims=_hashes(row.get("digests", {})),
        size=_size(row.get("size")),
        uploaded_at=_time(row.get("upload_time_iso_8601") or row.get("upload_time")),
        requires_python=_note(row.get("requires_python")),
        yanked=_yanked(reason) if row.get("yanked") else None,
    )


def _publisher(ownership: Any) -> str | None:
    """The organisation, or the people who own the project."""
    if not isinstance(ownership, dict):
        return None
    organization = ownership.get("organization")
    if isinstance(organization, str) and organization:
        return organization[:_MAX_NOTE]
    roles = ownership.get("roles")
    rows = [row for row in roles if isinstance(row, dict)] if isinstance(roles, list) else []
    owners = {str(row.get("user")) for row in rows if row.get("role") == "Owner" and row.get("user")}
    return ", ".join(sorted(owners))[:_MAX_NOTE] or None


_SOURCE_LABELS = ("source", "repository", "sourcecode", "github", "code", "scm")
_HOMEPAGE_LABELS = ("homepage", "home")


def source_repository(project_urls: Mapping[str, str]) -> str | None:
    """The source repository among a project's addresses (labels by PEP 753); a homepage only if code lives there."""
    labelled = {re.sub(r"[^a-z0-9]", "", label.lower()): url for label, url in project_urls.items()}
    for label in _SOURCE_LABELS:
        if _is_web_address(labelled.get(label, "")):
            return labelled[label]
    for label in _HOMEPAGE_LABELS:
        url = labelled.get(label, "")
        if _is_web_address(url) and re.search(r"://(?:www\.)?(?:github|gitlab|codeberg|bitbucket)\.[a-z]+/", url):
            return url
    return None


def _is_web_address(url: str) -> bool:
    return len(url) <= _MAX_URL and url.isprintable() and re.match(r"https?://[^/@\s]+(?:/|$)", url) is not None


# Small parts


def path_segment(text: str) -> str:
    """A name as one step of an address."""
    return quote(text, safe="")


def distinct_files(files: Iterable[ReleaseFile]) -> tuple[tuple[ReleaseFile, ...], tuple[str, ...]]:
    """Each file once, and the names under which different bytes are claimed."""
    kept: dict[str, ReleaseFile] = {}
    torn: list[str] = []
    for file in files:
        first = kept.setdefault(file.name, file)
        if first is not file and disagree(first.claims, file.claims) and file.name not in torn:
            torn.append(file.name)
    return tuple(kept.values()), tuple(torn)


def disagree(one: Sequence[Digest], other: Sequence[Digest]) -> bool:
    """Whether two claims about one file cannot both be true."""
    named = {each.algorithm: each for each in one}
    return any(each.algorithm in named and named[each.algorithm] != each for each in other)


def _hashes(value: Any) -> tuple[Digest, ...]:
    found = _object(value, "hashes")
    claims = []
    for algorithm in _ALGORITHMS:
        text = found.get(algorithm)
        if text is None or text == "":
            continue
        try:
            claims.append(Digest.parse(f"{algorithm}:{text}"))
        except PinwardenError as err:
            raise _error(f"a file has a {algorithm} that is not one") from err
    return tuple(claims)


def _file_url(text: str, base: str) -> str:
    if len(text) > _MAX_URL:
        _malformed("the address of a file is too long")
    try:
        url = urljoin(base, text.partition("#")[0])
        parts = urlsplit(url)
    except ValueError as err:
        raise _error("the address of a file is malformed") from err
    if parts.scheme not in ("http", "https") or "@" in parts.netloc:
        _malformed("a file is at something that is not a plain web address")
    return url


def _optional_url(value: Any, base: str) -> str | None:
    return None if value is None else _file_url(_text(value, "provenance"), base)


def _last_segment(url: str) -> str:
    return unquote(urlsplit(url).path.rpartition("/")[2])


def _file_name(name: str) -> str:
    if not is_safe_file_name(name):
        _malformed(f"a file is called {name[:120]!a}")
    return name


def _size(value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 1 << 50:
        _malformed("the size of a file is not a number of bytes")
    return value


def _time(value: Any) -> str | None:
    """A point in time in UTC; the JSON API's oldest spelling has no zone and means UTC."""
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        return None
    return value if value[-1] == "Z" or value[-6:-5] in ("+", "-") else f"{value}Z"


def _yanked(value: Any) -> str | None:
    if value is None or value is False:
        return None
    return value[:_MAX_NOTE] if isinstance(value, str) and value.strip() else "yanked"


def _note(value: Any) -> str | None:
    return value[:_MAX_NOTE] if isinstance(value, str) and value else None


def _text(value: Any, what: str) -> str:
    return value if isinstance(value, str) else _malformed(f"an index has no text as {what}")


def _object(value: Any, what: str) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else _malformed(f"an index has no object as {what}")


def _rows(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > _MAX_FILES:
        _malformed(f"an index has no list of a sensible length as {what}")
    return value


def _error(why: str) -> PinwardenError:
    return PinwardenError("FETCH_FAILED", why, data={"reason": "protocol"})


def _malformed(why: str) -> NoReturn:
    raise _error(why)
