"""One release of a Python project, as the JSON API of an index tells it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pinwarden.artifacts.python_index import (
    DOCUMENT_LIMITS,
    MAX_NOTE,
    MAX_URL,
    ReleaseFile,
    byte_count,
    claimed_digests,
    file_address,
    moment,
    note,
    object_of,
    rows_of,
    safe_file_name,
    text_of,
    yank_reason,
)
from pinwarden.artifacts.python_package import same_version
from pinwarden.core import strict_json
from pinwarden.core.record import Record


class JsonRelease(Record):
    """What the JSON API says about one release and its project."""

    files: tuple[ReleaseFile, ...]
    publisher: str | None = None
    project_urls: Mapping[str, str]


def parse_json_release(body: bytes, document_url: str, version: str) -> JsonRelease | None:
    """One release of a project, from the document of the release or of the whole project. None if it is not there."""
    document = object_of(strict_json.parse(body, DOCUMENT_LIMITS), "a project")
    info = object_of(document.get("info"), "info")
    rows: Any = None
    releases = document.get("releases")
    if isinstance(releases, dict) and releases:
        found = [listed for each, listed in releases.items() if same_version(each, version)]
        rows = [row for listed in found for row in rows_of(listed, "releases")] if found else None
    elif same_version(str(info.get("version", "")), version):
        rows = document.get("urls")
    if rows is None:
        return None
    files = tuple(_json_api_file(object_of(row, "a file"), document_url) for row in rows_of(rows, "urls"))
    urls = info.get("project_urls") or {}
    named = {str(label)[:80]: url for label, url in object_of(urls, "project_urls").items() if isinstance(url, str)}
    home = info.get("home_page")
    if isinstance(home, str) and home:
        named.setdefault("Homepage", home)
    return JsonRelease(files=files, publisher=_publisher(document.get("ownership")), project_urls=named)


def _json_api_file(row: Mapping[str, Any], document_url: str) -> ReleaseFile:
    reason = row.get("yanked_reason") or True
    return ReleaseFile(
        name=safe_file_name(text_of(row.get("filename"), "filename")),
        url=file_address(text_of(row.get("url"), "url"), document_url),
        claims=claimed_digests(row.get("digests", {})),
        size=byte_count(row.get("size")),
        uploaded_at=moment(row.get("upload_time_iso_8601") or row.get("upload_time")),
        requires_python=note(row.get("requires_python")),
        yanked=yank_reason(reason) if row.get("yanked") else None,
    )


def _publisher(ownership: Any) -> str | None:
    """The organisation, or the people who own the project."""
    if not isinstance(ownership, dict):
        return None
    organization = ownership.get("organization")
    if isinstance(organization, str) and organization:
        return organization[:MAX_NOTE]
    roles = ownership.get("roles")
    rows = [row for row in roles if isinstance(row, dict)] if isinstance(roles, list) else []
    owners = {str(row.get("user")) for row in rows if row.get("role") == "Owner" and row.get("user")}
    return ", ".join(sorted(owners))[:MAX_NOTE] or None


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
    return len(url) <= MAX_URL and url.isprintable() and re.match(r"https?://[^/@\s]+(?:/|$)", url) is not None
