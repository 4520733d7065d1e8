"""MCP registries: the official API, compatible ones, local files, and ToolPin's cache.

Entries are returned as the registry sent them, with the id of their source. ``server_entry.py`` parses them strictly.

The reader in this module is lenient, and does not use ``core/typed_json.py``: registries that claim compatibility wrap
an entry in ``server`` or not, name the next page ``nextCursor`` or ``next_cursor``, and add members of their own. The
reader uses only the members that it needs to find an entry, and treats a value of another type as missing.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.strict_json import Limits, parse_json
from pinwarden.system.files import read_file, write_atomically
from pinwarden.system.target import HttpAddress

if TYPE_CHECKING:
    from pinwarden.system.net.fetch import RequestPace
    from pinwarden.system.net.http_client import HttpRequest, HttpResponse

OFFICIAL = "official"
_OFFICIAL_URL = "https://registry.modelcontextprotocol.io"
_MAX_RESPONSE = 16 * 1024 * 1024  # one page of 100 entries stays below 1 MiB
_MAX_PAGES = 500  # enough for 50,000 servers; the official registry has a fifth of that
_PAGE = 100
_SECONDS = 60.0  # time for one lookup: two or three requests, of about a second each at the official registry
_LONGEST_PAUSE = 60.0  # seconds that a registry may ask for
_CACHE_FILE = Path(".toolpin/registry-cache.json")
_SOURCES_FILE = Path(".toolpin/registries.json")
_HEADER_TEXT = re.compile(r"[\x21-\x7e]{1,8000}")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_REGISTRY_VARIABLES = "TOOLPIN_"
_OWN_VARIABLES = "PINWARDEN_"
"""Variables of Pinwarden itself, such as its tokens and the headers of enforced servers. They are never sent."""
_ALLOW_AUTH = "PINWARDEN_REGISTRY_AUTH_ENV"
_ALLOW_PRIVATE = "PINWARDEN_ALLOW_PRIVATE_REGISTRIES"
RegistryEntry = dict[str, Any]
"""``server`` and ``_meta`` as the registry sent them, and the id of the ``source``."""


class RegistrySource(Record):
    """A source of entries: the URL of a registry, or a local file or folder."""

    id: str
    url: str | None = None
    path: Path | None = None
    auth_env: str | None = None
    """The environment variable that holds the bearer token; its value is read when a request is made."""
    allow_http: bool = False
    allow_private: bool = False


class Registries(Record):
    """The registries of one project. Offline, only local files and caches are read."""

    sources: tuple[RegistrySource, ...]
    cached_entries: tuple[RegistryEntry, ...] = ()
    offline: bool = False
    cache_folder: Path | None = None
    timeout_seconds: float = _SECONDS
    """The time limit for all requests of one lookup at one registry."""
    pace: RequestPace | None = None
    user_agent: str = "pinwarden"

    def find(self, name: str, version: str | None = None, source: str | None = None) -> RegistryEntry:
        """Return the entry of this name and version (default: the latest) from the first source that has it.

        Raises REGISTRY_UNAVAILABLE if a source cannot be reached, because the next source may have another publisher's
        server under the same name.
        """
        for candidate in self._select_sources(source):
            rows = [entry for entry in self._find_entries(candidate, name, version) if _matches(entry, name, version)]
            _refuse_duplicates(candidate, rows)
            result = choose_newest(iter(rows))
            if result is not None:
                return result
        result = choose_newest(entry for entry in self._filter_cached_entries(source) if _matches(entry, name, version))
        if result is not None:
            return result
        server = f"{name} {version}" if version else name
        raise PinwardenError("SERVER_NOT_FOUND", f"no registry has {server[:120]!a}")

    def list_servers(self, source: RegistrySource, updated_since: str = "") -> Iterator[RegistryEntry]:
        """Yield the latest version of every server in a registry, or of those that were updated since a time."""
        base = (source.url or "").rstrip("/")
        roots = [base] if base.endswith(("/v0", "/v0.1")) else [f"{base}/v0.1", f"{base}/v0"]
        query = {"version": "latest"} | ({"updated_since": updated_since} if updated_since else {})
        with _RegistryLookup(source, self) as lookup:
            for root in roots:
                pages = _list_entries(lookup, root, query)
                first = next(pages, None)
                if first is not None:
                    yield first
                    yield from pages
                if lookup.was_answered:
                    return
        raise _unavailable_error(source, "it does not serve the API of MCP registries")

    def _select_sources(self, source: str | None) -> list[RegistrySource]:
        chosen = [candidate for candidate in self.sources if source in (None, candidate.id)]
        return [source for source in chosen if source.path is not None or not self.offline]

    def _filter_cached_entries(self, source: str | None) -> Iterator[RegistryEntry]:
        """Return the entries of ToolPin's cache, without those of sources that were queried and did not have the entry.

        The cache is a file of the project, so it cannot replace the official registry if the project switched that off.
        """
        queried = {candidate.id for candidate in self._select_sources(None)} | (set() if self.offline else {OFFICIAL})
        return (
            entry
            for entry in self.cached_entries
            if source in (None, entry.get("source")) and entry.get("source", OFFICIAL) not in queried
        )

    def _find_entries(self, source: RegistrySource, name: str, version: str | None) -> list[RegistryEntry]:
        if source.path is not None:
            return list(_read_local_entries(source))
        base = (source.url or "").rstrip("/")
        roots = [base] if base.endswith(("/v0", "/v0.1")) else [f"{base}/v0.1", f"{base}/v0"]
        with _RegistryLookup(source, self) as lookup:
            for root in roots:
                if root.endswith("/v0.1"):
                    wanted_version = quote(version or "latest", safe="")
                    response = lookup.get(f"{root}/servers/{quote(name, safe='')}/versions/{wanted_version}")
                    if response is not None:
                        return [_parse_requested_entry(source, response, name, version)]
                listed = list(_list_entries(lookup, root, {"search": name}))
                if listed:
                    return listed
        return []


def choose_newest(entries: Iterator[RegistryEntry]) -> RegistryEntry | None:
    """Return the entry that the registry marks as latest, else the one with the highest version.

    A deleted entry is returned only if there is no other, so that the user learns that it was deleted.
    """
    from pinwarden.core.versions import compare_versions

    best: RegistryEntry | None = None
    for entry in sorted(entries, key=_is_deleted):
        if best is not None and _is_deleted(entry) and not _is_deleted(best):
            break
        if _read_official_meta(entry).get("isLatest") is True:
            return entry
        if best is None or compare_versions(_read_version(entry), _read_version(best)) > 0:
            best = entry
    return best


def load_registries(project: Path, *, offline: bool = False, cache_folder: Path | None = None) -> Registries:
    """Return the registries in ToolPin's files of a project, and the official one unless it is switched off."""
    sources: list[RegistrySource] = []
    switches: Mapping[str, Any] = {}
    path = project / _SOURCES_FILE
    if path.is_file():
        document = parse_json(read_file(path))
        rows = document.get("registries", []) if isinstance(document, dict) else None
        switches = document.get("sources", {}) if isinstance(document, dict) else {}
        if not isinstance(rows, list) or not isinstance(switches, dict):
            raise PinwardenError("CONFIG_INVALID", f"{path} is not a list of registries")
        sources = [_parse_source(row, path) for row in rows if not isinstance(row, dict) or row.get("enabled", True)]
    official = switches.get(OFFICIAL)
    if not isinstance(official, dict) or official.get("enabled", True):
        sources.append(RegistrySource(id=OFFICIAL, url=_OFFICIAL_URL))
    return Registries(
        sources=tuple(sources), cached_entries=_read_toolpin_cache(project), offline=offline, cache_folder=cache_folder
    )


# A project's files


def _parse_source(row: Any, path: Path) -> RegistrySource:
    if not isinstance(row, dict) or not isinstance(row.get("id"), str) or not isinstance(row.get("url"), str):
        raise PinwardenError("CONFIG_INVALID", f"{path}: every registry needs an id and a url")
    if row["id"] == OFFICIAL:
        raise PinwardenError("CONFIG_INVALID", f"{path}: the id {OFFICIAL} is reserved for the official registry")
    auth = row.get("authEnv")
    if not row["url"].startswith(("https://", "http://")):
        return RegistrySource(id=row["id"], path=path.parent.parent / row["url"].removeprefix("file://"))
    return RegistrySource(
        id=row["id"],
        url=row["url"],
        auth_env=auth if isinstance(auth, str) else None,
        allow_http=row.get("allowHttp") is True and _may_allow_insecure(row["url"]),
        allow_private=row.get("allowPrivateHosts") is True and _may_allow_insecure(row["url"]),
    )


def _may_allow_insecure(url: str) -> bool:
    """Whether a project's file may allow plain HTTP or a private address for this URL.

    It may for loopback addresses, and otherwise only if the user allows it: a repository must not choose which hosts of
    the user's network receive requests.
    """
    return HttpAddress.parse(url).host in _LOOPBACK or os.environ.get(_ALLOW_PRIVATE) == "1"


def _read_toolpin_cache(project: Path) -> tuple[RegistryEntry, ...]:
    path = project / _CACHE_FILE
    if not path.is_file():
        return ()
    document = parse_json(read_file(path))
    entries = document.get("entries") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise PinwardenError("CONFIG_INVALID", f"{path} is not a registry cache")
    return tuple(entries)


def _read_local_entries(source: RegistrySource) -> Iterator[RegistryEntry]:
    root = source.path or Path()
    files = sorted(root.glob("*.json")) if root.is_dir() else [root]
    for path in files:
        document = parse_json(read_file(path))
        rows = document
        if isinstance(document, dict):
            rows = next((document[member] for member in ("servers", "entries") if member in document), [document])
        if not isinstance(rows, list):
            raise PinwardenError("CONFIG_INVALID", f"{path} is neither a server nor a list of servers")
        for index, row in enumerate(rows):
            entry = _parse_entry(source, row)
            if entry is None:
                raise PinwardenError("CONFIG_INVALID", f"{path}: element {index} is not a server")
            yield entry


# Requests


class _RegistryLookup:
    """All requests of one lookup: one connection, one deadline, responses cached by ETag."""

    def __init__(self, source: RegistrySource, registries: Registries) -> None:
        from pinwarden.system.net.connections import NetworkRules
        from pinwarden.system.net.http_client import HttpClient, HttpOptions
        from pinwarden.system.probe_budget import ProbeBudget, ProbeLimits

        self.source = source
        self.was_answered = False
        """Whether the registry had one of the documents."""
        self._pace = registries.pace
        self._cache = registries.cache_folder
        self._headers = {"Accept": "application/json", "User-Agent": registries.user_agent}
        if source.auth_env:
            self._headers["Authorization"] = f"Bearer {_read_bearer_token(source, source.auth_env)}"
        rules = NetworkRules(allow_private=source.allow_private, allow_plain_http=source.allow_http)
        # Redirects are not followed, because the token must not be sent to a host that the user did not name.
        options = HttpOptions(address=HttpAddress.parse(source.url or ""), headers={}, rules=rules)
        limits = ProbeLimits(max_message_bytes=_MAX_RESPONSE)
        self._client = HttpClient(options, ProbeBudget(limits, registries.timeout_seconds))

    def __enter__(self) -> _RegistryLookup:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, url: str) -> Any:
        """Return the JSON at a URL; None for 404."""
        cached = self._read_cached(url)
        status, etag, body = self._request(url, cached["etag"] if cached else None)
        self.was_answered = self.was_answered or status in (200, 304)
        if status == 304 and cached:
            return cached["body"]
        if status == 404:
            return None
        if status != 200:
            raise _unavailable_error(self.source, f"it responded with status {status}")
        try:
            response = parse_json(body, Limits(max_bytes=_MAX_RESPONSE))
        except PinwardenError as err:
            raise _unavailable_error(self.source, f"its response is not strict JSON: {err.message}") from err
        if response is None:
            raise _unavailable_error(self.source, "its response is null")
        if etag:
            self._write_cached(url, etag, response)
        return response

    def _request(self, url: str, etag: str | None) -> tuple[int, str | None, bytes]:
        from pinwarden.system.net.http_client import HttpRequest, NoResponse

        headers = self._headers | ({"If-None-Match": etag} if etag else {})
        address = HttpAddress.parse(url)
        try:
            reply = self._send(HttpRequest(method="GET", address=address, headers=headers))
            return reply.status, reply.header("etag"), reply.body(_MAX_RESPONSE)
        except NoResponse as err:
            raise _unavailable_error(self.source, "it sent no complete response") from err
        except PinwardenError as err:
            if err.code in ("PROBE_FAILED", "PROBE_LIMIT"):
                raise _unavailable_error(self.source, err.message) from err
            raise

    def _send(self, request: HttpRequest) -> HttpResponse:
        """Send a request. With a pace, it is repeated once after the pause that an overloaded registry asks for."""
        if self._pace is None:
            return self._client.request(request)
        host = request.address.host
        self._pace.wait(host)
        reply = self._client.request(request)
        if reply.status not in (429, 503):
            return reply
        reply.body(_MAX_RESPONSE)
        asked = reply.header("retry-after") or ""
        self._pace.defer(host, min(float(asked), _LONGEST_PAUSE) if asked.isdecimal() and len(asked) < 6 else 1.0)
        self._pace.wait(host)
        return self._client.request(request)

    def _write_cached(self, url: str, etag: str, response: Any) -> None:
        if self._cache is None:
            return
        try:
            self._cache.mkdir(parents=True, exist_ok=True, mode=0o700)
            cached = {"url": url, "etag": etag, "body": response, "digest": _digest_response(response)}
            write_atomically(self._get_cache_path(url), json.dumps(cached).encode())
        except (OSError, PinwardenError):
            return  # the next lookup downloads the response again

    def _read_cached(self, url: str) -> dict[str, Any] | None:
        """Return the cached response; None if it is damaged, of another URL, or writable by other users."""
        if self._cache is None:
            return None
        path = self._get_cache_path(url)
        try:
            if not _is_private_file(path):
                return None
            cached = parse_json(read_file(path, 2 * _MAX_RESPONSE), Limits(max_bytes=2 * _MAX_RESPONSE))
            valid = cached["url"] == url and cached["digest"] == _digest_response(cached["body"])
        except (OSError, PinwardenError, KeyError, TypeError):
            return None
        return cached if valid and isinstance(cached["etag"], str) and _HEADER_TEXT.fullmatch(cached["etag"]) else None

    def _get_cache_path(self, url: str) -> Path:
        return (self._cache or Path()) / f"{Digest.of_bytes(url.encode()).hex}.json"


def _read_bearer_token(source: RegistrySource, variable: str) -> str:
    """Return the token for a registry. The user must allow the variable, because a file of the project names it."""
    allowed = [name.strip() for name in os.environ.get(_ALLOW_AUTH, "").split(",")]
    if variable.upper().startswith(_OWN_VARIABLES):  # the names of variables ignore case on Windows
        raise PinwardenError(
            "CONFIG_INVALID",
            f"the registry {source.id[:80]!a} must not get {variable[:80]!a}, a variable of Pinwarden itself",
            hint=f"Use a variable whose name begins with {_REGISTRY_VARIABLES} as authEnv in {_SOURCES_FILE}.",
            data={"variable": variable, "registry": source.id},
        )
    if not variable.startswith(_REGISTRY_VARIABLES) and variable not in allowed:
        raise PinwardenError(
            "CONSENT_REQUIRED",
            f"sending the variable {variable[:80]!a} to the registry {source.id[:80]!a} needs your consent",
            hint=f"To allow it, add the variable to {_ALLOW_AUTH}, separated by commas.",
            data={"variable": variable, "registry": source.id},
        )
    secret = os.environ.get(variable)
    if not secret:
        raise PinwardenError("VARIABLE_MISSING", f"the variable {variable} of registry {source.id} is not set")
    if not _HEADER_TEXT.fullmatch(secret):
        raise PinwardenError(
            "VARIABLE_MISSING", f"the variable {variable} of registry {source.id} does not contain a token"
        )
    return secret


def _digest_response(response: Any) -> str:
    return str(Digest.of_bytes(json.dumps(response, sort_keys=True).encode()))


def _is_private_file(path: Path) -> bool:
    """Whether only this user can write the file."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        return False
    if not hasattr(os, "getuid"):
        return True
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _unavailable_error(source: RegistrySource, why: str) -> PinwardenError:
    return PinwardenError("REGISTRY_UNAVAILABLE", f"the registry {source.id} is unavailable: {why}")


# Responses


def _parse_requested_entry(source: RegistrySource, response: Any, name: str, version: str | None) -> RegistryEntry:
    """Return the requested entry. Raises if the registry sent another server or version."""
    entry = _parse_entry(source, response)
    if entry is None:
        raise _unavailable_error(source, "its response is not a server entry")
    if not _matches(entry, name, version):
        raise _unavailable_error(source, "its response describes another server or version")
    return entry


def _list_entries(lookup: _RegistryLookup, root: str, wanted: Mapping[str, str]) -> Iterator[RegistryEntry]:
    """Yield the entries of all pages. Raises if the list cannot be read to its end."""
    source = lookup.source
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(_MAX_PAGES):
        query = {**wanted, "limit": str(_PAGE)} | ({"cursor": cursor} if cursor else {})
        response = lookup.get(f"{root}/servers?{urlencode(query)}")
        if response is None and cursor is None:
            return
        servers = response.get("servers") if isinstance(response, dict) else None
        rows = [_parse_entry(source, server) for server in servers] if isinstance(servers, list) else [None]
        for row in rows:
            if row is None:
                raise _unavailable_error(source, "its response is not a list of servers")
            yield row
        cursor = _read_next_cursor(source, response.get("metadata"))
        if not cursor:
            return
        if cursor in seen:
            raise _unavailable_error(source, "its pages form a loop")
        seen.add(cursor)
    raise _unavailable_error(source, f"its list has more than {_MAX_PAGES} pages")


def _read_next_cursor(source: RegistrySource, metadata: Any) -> str | None:
    cursor = metadata.get("nextCursor", metadata.get("next_cursor")) if isinstance(metadata, dict) else None
    if cursor is not None and not isinstance(cursor, str):
        raise _unavailable_error(source, "its cursor is not a string")
    return cursor


def _parse_entry(source: RegistrySource, row: Any) -> RegistryEntry | None:
    """Return an entry with its source. A bare ``server.json`` is accepted too; None for anything else."""
    if not isinstance(row, dict):
        return None
    if isinstance(row.get("server"), dict):
        return {**row, "source": source.id}
    return {"server": row, "_meta": {}, "source": source.id} if isinstance(row.get("name"), str) else None


def _refuse_duplicates(source: RegistrySource, rows: list[RegistryEntry]) -> None:
    """Refuse two different entries for one version, because only one of them was reviewed."""
    servers: dict[str, Any] = {}
    for row in rows:
        if servers.setdefault(_read_version(row), row["server"]) != row["server"]:
            raise _unavailable_error(source, f"it has two different entries for version {_read_version(row)[:80]!a}")


def _matches(entry: RegistryEntry, name: str, version: str | None) -> bool:
    server = entry.get("server")
    return isinstance(server, dict) and server.get("name") == name and version in (None, server.get("version"))


def _read_version(entry: RegistryEntry) -> str:
    version = entry["server"].get("version")
    return version if isinstance(version, str) else ""


def _is_deleted(entry: RegistryEntry) -> bool:
    return _read_official_meta(entry).get("status") == "deleted"


def _read_official_meta(entry: RegistryEntry) -> Mapping[str, Any]:
    meta = entry.get("_meta")
    official = meta.get("io.modelcontextprotocol.registry/official") if isinstance(meta, dict) else None
    return official if isinstance(official, dict) else {}
