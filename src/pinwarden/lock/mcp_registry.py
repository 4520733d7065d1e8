"""MCP registries: the official API, compatible ones, local files, and ToolPin's cache.

Everything a registry says is a claim. Entries come back as they were answered, with the id of the source they came
from; what they are worth is judged elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.strict_json import Limits, parse_json
from pinwarden.system.files import read_file, write_atomically
from pinwarden.system.target import HttpAddress

OFFICIAL = "official"
_OFFICIAL_URL = "https://registry.modelcontextprotocol.io"
_MAX_ANSWER = 16 * 1024 * 1024  # one page of 100 entries stays below 1 MiB
_MAX_PAGES = 500  # 50,000 servers; the official registry has a fifth of that
_PAGE = 100
_SECONDS = 60.0  # one question is two or three requests, and the official registry answers each in one
_CACHE_FILE = Path(".toolpin/registry-cache.json")
_SOURCES_FILE = Path(".toolpin/registries.json")
_HEADER_TEXT = re.compile(r"[\x21-\x7e]{1,8000}")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_OWN_VARIABLES = ("PINWARDEN_", "TOOLPIN_")
_ALLOW_AUTH = "PINWARDEN_REGISTRY_AUTH_ENV"
_ALLOW_PRIVATE = "PINWARDEN_ALLOW_PRIVATE_REGISTRIES"

RegistryAnswer = dict[str, Any]
"""One answer: ``server``, ``_meta`` and our ``source``."""


class RegistrySource(Record):
    """Where entries come from: an address or a local file or folder."""

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
    cached: tuple[RegistryAnswer, ...] = ()
    offline: bool = False
    cache_folder: Path | None = None
    seconds: float = _SECONDS
    """How long one registry may take for all the requests that one question needs."""

    def find(self, name: str, version: str | None = None, source: str | None = None) -> RegistryAnswer:
        """The entry of that name, and version if one is given, from the first source that has it.

        A source that cannot be asked ends the search: it may be the one that has it, and the next one somebody else's.
        """
        for candidate in self._wanted(source):
            rows = [entry for entry in self._entries(candidate, name, version) if _is(entry, name, version)]
            _refuse_two_answers(candidate, rows)
            result = newest(iter(rows))
            if result is not None:
                return result
        result = newest(entry for entry in self._from_cache(source) if _is(entry, name, version))
        if result is not None:
            return result
        wanted = f"{name} {version}" if version else name
        raise PinwardenError("SERVER_NOT_FOUND", f"no registry has {wanted[:120]!a}")

    def _wanted(self, source: str | None) -> list[RegistrySource]:
        chosen = [known for known in self.sources if source in (None, known.id)]
        return [source for source in chosen if source.path is not None or not self.offline]

    def _from_cache(self, source: str | None) -> Iterator[RegistryAnswer]:
        """ToolPin's cache is a file of the project: what a source that was asked does not have, it does not prove.

        Nor is it the official registry, whatever it calls itself, where that one is only switched off.
        """
        queried = {handler.id for handler in self._wanted(None)} | (set() if self.offline else {OFFICIAL})
        return (
            entry
            for entry in self.cached
            if source in (None, entry.get("source")) and entry.get("source", OFFICIAL) not in queried
        )

    def _entries(self, source: RegistrySource, name: str, version: str | None) -> list[RegistryAnswer]:
        if source.path is not None:
            return list(_local_entries(source))
        base = (source.url or "").rstrip("/")
        roots = [base] if base.endswith(("/v0", "/v0.1")) else [f"{base}/v0.1", f"{base}/v0"]
        with _Conversation(source, self.cache_folder, self.seconds) as conversation:
            for root in roots:
                if root.endswith("/v0.1"):
                    wanted = quote(version or "latest", safe="")
                    answer = conversation.get(f"{root}/servers/{quote(name, safe='')}/versions/{wanted}")
                    if answer is not None:
                        return [_answered(source, answer, name, version)]
                listed = list(_listed(conversation, root, name))
                if listed:
                    return listed
        return []


def _answered(source: RegistrySource, answer: Any, name: str, version: str | None) -> RegistryAnswer:
    """The one entry that was asked for; an answer about anything else is none."""
    entry = _entry(source, answer)
    if entry is None:
        raise _unavailable(source, "it answered something that is not a server")
    if not _is(entry, name, version):
        raise _unavailable(source, "it answered for another server or version than it was asked for")
    return entry


def _listed(conversation: _Conversation, root: str, name: str) -> Iterator[RegistryAnswer]:
    """Every page of the list; one that cannot be followed to its end is no list."""
    source = conversation.source
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(_MAX_PAGES):
        query = {"search": name, "limit": str(_PAGE)} | ({"cursor": cursor} if cursor else {})
        answer = conversation.get(f"{root}/servers?{urlencode(query)}")
        if answer is None and cursor is None:
            return
        servers = answer.get("servers") if isinstance(answer, dict) else None
        rows = [_entry(source, server) for server in servers] if isinstance(servers, list) else [None]
        for row in rows:
            if row is None:
                raise _unavailable(source, "it answered something that is not a list of servers")
            yield row
        cursor = _next_cursor(source, answer.get("metadata"))
        if not cursor:
            return
        if cursor in seen:
            raise _unavailable(source, "its pages go round in a circle")
        seen.add(cursor)
    raise _unavailable(source, "its list does not end")


def _next_cursor(source: RegistrySource, metadata: Any) -> str | None:
    cursor = metadata.get("nextCursor", metadata.get("next_cursor")) if isinstance(metadata, dict) else None
    if cursor is not None and not isinstance(cursor, str):
        raise _unavailable(source, "its next page cannot be followed")
    return cursor


def _entry(source: RegistrySource, row: Any) -> RegistryAnswer | None:
    """A row of an answer, with our word for where it came from; a bare ``server.json`` is one as well."""
    if not isinstance(row, dict):
        return None
    if isinstance(row.get("server"), dict):
        return {**row, "source": source.id}
    return {"server": row, "_meta": {}, "source": source.id} if isinstance(row.get("name"), str) else None


def _refuse_two_answers(source: RegistrySource, rows: list[RegistryAnswer]) -> None:
    """The same version twice, and not the same: whichever is taken, the other may be the one that was reviewed."""
    known: dict[str, Any] = {}
    for row in rows:
        if known.setdefault(_version(row), row["server"]) != row["server"]:
            raise _unavailable(source, f"it has two different entries for version {_version(row)[:80]!a}")


class _Conversation:
    """All requests to one registry for one question: one connection, one deadline, answers kept by their ETag."""

    def __init__(self, source: RegistrySource, cache_folder: Path | None, seconds: float) -> None:
        from pinwarden.system.net.connections import NetworkRules
        from pinwarden.system.net.http_client import HttpClient, HttpOptions
        from pinwarden.system.probe_budget import ProbeBudget, ProbeLimits

        self.source = source
        self._cache = cache_folder
        self._headers = {"Accept": "application/json"}
        if source.auth_env:
            self._headers["Authorization"] = f"Bearer {_bearer(source, source.auth_env)}"
        rules = NetworkRules(allow_private=source.allow_private, allow_plain_http=source.allow_http)
        # Redirects are not followed: the user did not name the target, and a token must not be sent there.
        options = HttpOptions(address=HttpAddress.parse(source.url or ""), headers={}, rules=rules)
        self._client = HttpClient(options, ProbeBudget(ProbeLimits(max_message_bytes=_MAX_ANSWER), seconds))

    def __enter__(self) -> _Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, url: str) -> Any:
        """The value at an address; None if the registry has nothing there."""
        kept = self._kept(url)
        status, etag, body = self._request(url, kept["etag"] if kept else None)
        if status == 304 and kept:
            return kept["body"]
        if status == 404:
            return None
        if status != 200:
            raise _unavailable(self.source, f"it answered with status {status}")
        try:
            answer = parse_json(body, Limits(max_bytes=_MAX_ANSWER))
        except PinwardenError as err:
            raise _unavailable(self.source, f"its answer is not strict JSON: {err.message}") from err
        if answer is None:
            raise _unavailable(self.source, "it answered with nothing")
        if etag:
            self._keep(url, etag, answer)
        return answer

    def _request(self, url: str, etag: str | None) -> tuple[int, str | None, bytes]:
        from pinwarden.system.net.http_client import HttpRequest, NoResponse

        headers = self._headers | ({"If-None-Match": etag} if etag else {})
        try:
            response = self._client.request(HttpRequest(method="GET", address=HttpAddress.parse(url), headers=headers))
            return response.status, response.header("etag"), response.body(_MAX_ANSWER)
        except NoResponse as err:
            raise _unavailable(self.source, "it gave no complete answer") from err
        except PinwardenError as err:
            if err.code in ("PROBE_FAILED", "PROBE_LIMIT"):
                raise _unavailable(self.source, err.message) from err
            raise

    def _keep(self, url: str, etag: str, answer: Any) -> None:
        if self._cache is None:
            return
        try:
            self._cache.mkdir(parents=True, exist_ok=True, mode=0o700)
            kept = {"url": url, "etag": etag, "body": answer, "digest": _digest(answer)}
            write_atomically(self._cache_path(url), json.dumps(kept).encode())
        except (OSError, PinwardenError):
            return  # only a cache: without one, everything is asked for again

    def _kept(self, url: str) -> dict[str, Any] | None:
        """An answer that was kept. One that is damaged, another's, or open to others is asked for again."""
        if self._cache is None:
            return None
        path = self._cache_path(url)
        try:
            if not _is_ours(path):
                return None
            kept = parse_json(read_file(path, 2 * _MAX_ANSWER), Limits(max_bytes=2 * _MAX_ANSWER))
            whole = kept["url"] == url and kept["digest"] == _digest(kept["body"])
        except (OSError, PinwardenError, KeyError, TypeError):
            return None
        return kept if whole and isinstance(kept["etag"], str) and _HEADER_TEXT.fullmatch(kept["etag"]) else None

    def _cache_path(self, url: str) -> Path:
        return (self._cache or Path()) / f"{Digest.of_bytes(url.encode()).hex}.json"


def _digest(answer: Any) -> str:
    return str(Digest.of_bytes(json.dumps(answer, sort_keys=True).encode()))


def _is_ours(path: Path) -> bool:
    """Whether only this user can have written the file."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        return False
    if not hasattr(os, "getuid"):
        return True
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def load_registries(project: Path, *, offline: bool = False, cache_folder: Path | None = None) -> Registries:
    """The registries of a project: those in ToolPin's files, and the official one unless it is switched off."""
    sources: list[RegistrySource] = []
    switches: Mapping[str, Any] = {}
    path = project / _SOURCES_FILE
    if path.is_file():
        document = parse_json(read_file(path))
        rows = document.get("registries", []) if isinstance(document, dict) else None
        switches = document.get("sources", {}) if isinstance(document, dict) else {}
        if not isinstance(rows, list) or not isinstance(switches, dict):
            raise PinwardenError("CONFIG_INVALID", f"{path} is not a list of registries")
        sources = [_source(row, path) for row in rows if not isinstance(row, dict) or row.get("enabled", True)]
    official = switches.get(OFFICIAL)
    if not isinstance(official, dict) or official.get("enabled", True):
        sources.append(RegistrySource(id=OFFICIAL, url=_OFFICIAL_URL))
    return Registries(
        sources=tuple(sources), cached=_cached_entries(project), offline=offline, cache_folder=cache_folder
    )


def newest(entries: Iterator[RegistryAnswer]) -> RegistryAnswer | None:
    """The entry that its registry calls the latest, else the one of the highest version.

    One that was deleted is taken only where there is no other: it is there to be told about.
    """
    from pinwarden.core.versions import compare_versions

    best: RegistryAnswer | None = None
    for entry in sorted(entries, key=_is_deleted):
        if best is not None and _is_deleted(entry) and not _is_deleted(best):
            break
        if _official_meta(entry).get("isLatest") is True:
            return entry
        if best is None or compare_versions(_version(entry), _version(best)) > 0:
            best = entry
    return best


def _source(row: Any, path: Path) -> RegistrySource:
    if not isinstance(row, dict) or not isinstance(row.get("id"), str) or not isinstance(row.get("url"), str):
        raise PinwardenError("CONFIG_INVALID", f"{path}: a registry has an id and a url")
    if row["id"] == OFFICIAL:
        raise PinwardenError("CONFIG_INVALID", f"{path}: only the official registry has the id {OFFICIAL}")
    auth = row.get("authEnv")
    if not row["url"].startswith(("https://", "http://")):
        return RegistrySource(id=row["id"], path=path.parent.parent / row["url"].removeprefix("file://"))
    return RegistrySource(
        id=row["id"],
        url=row["url"],
        auth_env=auth if isinstance(auth, str) else None,
        allow_http=row.get("allowHttp") is True and _may_be_near(row["url"]),
        allow_private=row.get("allowPrivateHosts") is True and _may_be_near(row["url"]),
    )


def _may_be_near(url: str) -> bool:
    """Whether a file of the project may lead to this host without protection: to this machine, else if the user says.

    A repository can come from anybody, and must not choose which hosts of the user's network are asked.
    """
    return HttpAddress.parse(url).host in _LOOPBACK or os.environ.get(_ALLOW_PRIVATE) == "1"


def _bearer(source: RegistrySource, variable: str) -> str:
    """The token for a registry. The file that names the variable can come from anybody."""
    allowed = [name.strip() for name in os.environ.get(_ALLOW_AUTH, "").split(",")]
    if not variable.startswith(_OWN_VARIABLES) and variable not in allowed:
        raise PinwardenError(
            "CONSENT_REQUIRED",
            f"not sent to registry {source.id[:80]!a} without consent: the variable {variable[:80]!a}",
            hint=f"If that registry may have it, name it in {_ALLOW_AUTH}, separated by commas.",
            data={"variable": variable, "registry": source.id},
        )
    secret = os.environ.get(variable)
    if not secret:
        raise PinwardenError("VARIABLE_MISSING", f"the variable {variable} of registry {source.id} is not set")
    if not _HEADER_TEXT.fullmatch(secret):
        raise PinwardenError("VARIABLE_MISSING", f"the variable {variable} of registry {source.id} holds no token")
    return secret


def _cached_entries(project: Path) -> tuple[RegistryAnswer, ...]:
    path = project / _CACHE_FILE
    if not path.is_file():
        return ()
    document = parse_json(read_file(path))
    entries = document.get("entries") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise PinwardenError("CONFIG_INVALID", f"{path} is not a registry cache")
    return tuple(entries)


def _local_entries(source: RegistrySource) -> Iterator[RegistryAnswer]:
    root = source.path or Path()
    files = sorted(root.glob("*.json")) if root.is_dir() else [root]
    for path in files:
        document = parse_json(read_file(path))
        rows = document
        if isinstance(document, dict):
            rows = next((document[member] for member in ("servers", "entries") if member in document), [document])
        for row in rows if isinstance(rows, list) else [None]:
            entry = _entry(source, row)
            if entry is None:
                raise PinwardenError("CONFIG_INVALID", f"{path}: not a server, and not a list of servers")
            yield entry


def _unavailable(source: RegistrySource, why: str) -> PinwardenError:
    return PinwardenError("REGISTRY_UNAVAILABLE", f"the registry {source.id} could not be asked: {why}")


def _is(entry: RegistryAnswer, name: str, version: str | None) -> bool:
    server = entry.get("server")
    return isinstance(server, dict) and server.get("name") == name and version in (None, server.get("version"))


def _version(entry: RegistryAnswer) -> str:
    version = entry["server"].get("version")
    return version if isinstance(version, str) else ""


def _is_deleted(entry: RegistryAnswer) -> bool:
    return _official_meta(entry).get("status") == "deleted"


def _official_meta(entry: RegistryAnswer) -> Mapping[str, Any]:
    meta = entry.get("_meta")
    official = meta.get("io.modelcontextprotocol.registry/official") if isinstance(meta, dict) else None
    return official if isinstance(official, dict) else {}
