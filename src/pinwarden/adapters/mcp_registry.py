"""MCP registries: the official API, compatible ones, local files, and ToolPin's cache as it lies.

Everything a registry says is a claim. Entries come back as they were answered, with the id of the source they came
from; what they are worth is judged elsewhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from pinwarden.adapters.files import read_file, write_atomically
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.limits import Limits
from pinwarden.core.strict_json import parse
from pinwarden.documents.target import Address

OFFICIAL = "official"
_OFFICIAL_URL = "https://registry.modelcontextprotocol.io"
_MAX_ANSWER = 16 * 1024 * 1024  # one page of 100 entries stays below 1 MiB
_MAX_PAGES = 500  # 50,000 servers; the official registry has a fifth of that
_PAGE = 100
_TIMEOUT = 30.0
_CACHE_FILE = Path(".toolpin/registry-cache.json")
_SOURCES_FILE = Path(".toolpin/registries.json")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_OWN_VARIABLES = ("PINWARDEN_", "TOOLPIN_")
_ALLOW_AUTH = "PINWARDEN_REGISTRY_AUTH_ENV"
_ALLOW_PRIVATE = "PINWARDEN_ALLOW_PRIVATE_REGISTRIES"

Entry = dict[str, Any]
"""One answer: ``server``, ``_meta`` and our ``source``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySource:
    """Where entries come from: an address or a local file or folder."""

    id: str
    url: str | None = None
    path: Path | None = None
    auth_env: str | None = None
    """The environment variable that holds the bearer token; its value is read when a request is made."""
    allow_http: bool = False
    allow_private: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Registries:
    """The sources of one project. Offline, only local files and caches are looked at."""

    sources: tuple[RegistrySource, ...]
    cached: tuple[Entry, ...] = ()
    offline: bool = False
    cache_folder: Path | None = None

    def find(self, name: str, version: str | None = None, source: str | None = None) -> Entry:
        """The entry of that name, and version if one is given, from the first source that has it."""
        unreached: PinwardenError | None = None
        for candidate in self._wanted(source):
            try:
                found = newest(entry for entry in self._entries(candidate, name, version) if _is(entry, name, version))
            except PinwardenError as err:
                if err.code != "REGISTRY_UNAVAILABLE":
                    raise
                unreached = err
                continue
            if found is not None:
                return found
        found = newest(
            entry for entry in self.cached if _is(entry, name, version) and source in (None, entry.get("source"))
        )
        if found is not None:
            return found
        if unreached is not None:
            raise unreached
        wanted = f"{name} {version}" if version else name
        raise PinwardenError("SERVER_NOT_FOUND", f"no registry has {wanted[:120]!a}")

    def versions(self, name: str, source: str | None = None) -> list[Entry]:
        """Every version of a server that the sources know."""
        found = [
            entry
            for candidate in self._wanted(source)
            for entry in self._entries(candidate, name, None)
            if _is(entry, name, None)
        ]
        found += [entry for entry in self.cached if _is(entry, name, None) and source in (None, entry.get("source"))]
        return found

    def _wanted(self, source: str | None) -> list[RegistrySource]:
        chosen = [each for each in self.sources if source in (None, each.id)]
        return [each for each in chosen if each.path is not None or not self.offline]

    def _entries(self, source: RegistrySource, name: str, version: str | None) -> Iterator[Entry]:
        if source.path is not None:
            yield from _local_entries(source)
            return
        base = (source.url or "").rstrip("/")
        roots = [base] if base.endswith(("/v0", "/v0.1")) else [f"{base}/v0.1", f"{base}/v0"]
        for root in roots:
            if root.endswith("/v0.1"):
                wanted = quote(version or "latest", safe="")
                answer = self._get(source, f"{root}/servers/{quote(name, safe='')}/versions/{wanted}")
                if isinstance(answer, dict) and "server" in answer:
                    yield {**answer, "source": source.id}
                    return
            listed = list(self._listed(source, root, name))
            if listed:
                yield from listed
                return

    def _listed(self, source: RegistrySource, root: str, name: str) -> Iterator[Entry]:
        cursor: str | None = None
        seen: set[str] = set()
        for _ in range(_MAX_PAGES):
            query = {"search": name, "limit": str(_PAGE)} | ({"cursor": cursor} if cursor is not None else {})
            answer = self._get(source, f"{root}/servers?{urlencode(query)}")
            if answer is None:
                return
            servers = answer.get("servers") if isinstance(answer, dict) else None
            if not isinstance(servers, list):
                raise _unavailable(source, "it answered something that is not a list of servers")
            for entry in servers:
                if isinstance(entry, dict):
                    yield {**(entry if "server" in entry else {"server": entry, "_meta": {}}), "source": source.id}
            metadata = answer.get("metadata")
            cursor = metadata.get("nextCursor", metadata.get("next_cursor")) if isinstance(metadata, dict) else None
            if not isinstance(cursor, str) or not servers:
                return
            if cursor in seen:
                raise _unavailable(source, "its pages go round in a circle")
            seen.add(cursor)
        raise _unavailable(source, "its list does not end")

    def _get(self, source: RegistrySource, url: str) -> Any:
        kept = self._kept(url)
        headers = {"Accept": "application/json"} | ({"If-None-Match": kept["etag"]} if kept else {})
        status, etag, body = _request(source, url, headers)
        if status == 304 and kept:
            return kept["body"]
        if status == 404:
            return None
        if status != 200:
            raise _unavailable(source, f"it answered with status {status}")
        answer = parse(body, Limits(max_bytes=_MAX_ANSWER))
        if etag and self.cache_folder is not None:
            self.cache_folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._cache_path(url), json.dumps({"etag": etag, "body": answer}).encode())
        return answer

    def _kept(self, url: str) -> dict[str, Any] | None:
        if self.cache_folder is None or not self._cache_path(url).is_file():
            return None
        try:
            kept = parse(read_file(self._cache_path(url), _MAX_ANSWER))
        except PinwardenError:
            return None  # only a cache: asking again is always right
        return kept if isinstance(kept, dict) and isinstance(kept.get("etag"), str) and "body" in kept else None

    def _cache_path(self, url: str) -> Path:
        return (self.cache_folder or Path()) / f"{Digest.of(url.encode()).hex}.json"


def load_registries(project: Path, *, offline: bool = False, cache_folder: Path | None = None) -> Registries:
    """The registries of a project: those in ToolPin's files, and the official one unless it is switched off."""
    sources: list[RegistrySource] = []
    switches: Mapping[str, Any] = {}
    path = project / _SOURCES_FILE
    if path.is_file():
        document = parse(read_file(path))
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


def newest(entries: Iterator[Entry]) -> Entry | None:
    """The entry that its registry calls the latest, else the one of the highest version."""
    from pinwarden.rules.versions import compare_versions

    best: Entry | None = None
    for entry in entries:
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
    return Address.parse(url).host in _LOOPBACK or os.environ.get(_ALLOW_PRIVATE) == "1"


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
    return secret


def _cached_entries(project: Path) -> tuple[Entry, ...]:
    path = project / _CACHE_FILE
    if not path.is_file():
        return ()
    document = parse(read_file(path))
    entries = document.get("entries") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise PinwardenError("CONFIG_INVALID", f"{path} is not a registry cache")
    return tuple(entries)


def _local_entries(source: RegistrySource) -> Iterator[Entry]:
    root = source.path or Path()
    files = sorted(root.glob("*.json")) if root.is_dir() else [root]
    for path in files:
        document = parse(read_file(path))
        rows = document if isinstance(document, list) else [document]
        if isinstance(document, dict):
            rows = document.get("servers") or document.get("entries") or [document]
        for row in rows if isinstance(rows, list) else []:
            if isinstance(row, dict):
                yield {**(row if "server" in row else {"server": row, "_meta": {}}), "source": source.id}


def _request(source: RegistrySource, url: str, headers: dict[str, str]) -> tuple[int, str | None, bytes]:
    from pinwarden.adapters.http_client import HttpClient, HttpOptions, Request, Unanswered
    from pinwarden.adapters.network_guard import NetworkRules
    from pinwarden.adapters.probe.limits import Allowance, ProbeLimits

    if source.auth_env:
        headers = {**headers, "Authorization": f"Bearer {_bearer(source, source.auth_env)}"}
    address = Address.parse(url)
    rules = NetworkRules(allow_private=source.allow_private, allow_plain_http=source.allow_http)
    limits = ProbeLimits(max_message_bytes=_MAX_ANSWER)
    client = HttpClient(HttpOptions(address=address, headers={}, rules=rules), Allowance(limits, _TIMEOUT))
    try:
        response = client.request(Request(method="GET", address=address, headers=headers))
        return response.status, response.header("etag"), response.body(_MAX_ANSWER)
    except Unanswered as err:
        raise _unavailable(source, "it gave no complete answer") from err
    except PinwardenError as err:
        if err.code == "PROBE_FAILED":
            raise _unavailable(source, err.message) from err
        raise
    finally:
        client.close()


def _unavailable(source: RegistrySource, why: str) -> PinwardenError:
    return PinwardenError("REGISTRY_UNAVAILABLE", f"the registry {source.id} could not be asked: {why}")


def _is(entry: Entry, name: str, version: str | None) -> bool:
    server = entry.get("server")
    return isinstance(server, dict) and server.get("name") == name and version in (None, server.get("version"))


def _version(entry: Entry) -> str:
    version = entry["server"].get("version")
    return version if isinstance(version, str) else ""


def _official_meta(entry: Entry) -> Mapping[str, Any]:
    meta = entry.get("_meta")
    official = meta.get("io.modelcontextprotocol.registry/official") if isinstance(meta, dict) else None
    return official if isinstance(official, dict) else {}
