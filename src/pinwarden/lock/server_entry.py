"""One entry of an MCP registry: a ``server.json`` (schema 2025-12-11), the registry's metadata, and the source.

The value is kept verbatim; rules use the typed members. Parsing refuses ambiguous values (a package without identifier,
``isSecret: "yes"``) with an error that names the member. Unknown members are kept in ``raw``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NoReturn, TypeVar, cast

from pinwarden.core.errors import PinwardenError
from pinwarden.core.javascript import locale_sorted, parse_whatwg_host
from pinwarden.core.record import Record

OFFICIAL_META = "io.modelcontextprotocol.registry/official"
SOURCE_META = "dev.toolpin/source"
ATTESTATIONS_META = "dev.toolpin/attestations"
CAPABILITIES_META = "dev.toolpin/capabilities"
EVIDENCE_META = "dev.toolpin/evidence"
Status = Literal["active", "deprecated", "deleted"]
_STATUSES = ("active", "deprecated", "deleted")
_Read = TypeVar("_Read")


class Input(Record):
    """A value that the user may have to supply: an environment variable, a header or a template variable."""

    name: str
    value: str | None
    """A fixed value, which may contain ``{variable}``."""
    default: Any
    """As written, usually a string; None if there is no default."""
    is_required: bool
    is_secret: bool
    format: str
    """``string``, ``number``, ``boolean`` or ``filepath``."""
    choices: tuple[str, ...]
    """The allowed values; empty if any is allowed."""
    variables: tuple[Input, ...]
    raw: Mapping[str, Any]


class Argument(Record):
    """One argument of a command line: plain text (not in the schema, but in use), positional or named."""

    kind: Literal["text", "positional", "named"]
    name: str | None
    """The flag of a named argument, dashes included."""
    value: str | None
    default: Any
    value_hint: str | None
    is_required: bool
    is_secret: bool
    is_repeated: bool
    format: str
    choices: tuple[str, ...]
    variables: tuple[Input, ...]
    raw: str | Mapping[str, Any]


class Package(Record):
    """A package that contains the server. ``command`` and ``args`` are not in the schema; ToolPin reads them first."""

    registry_type: str
    identifier: str
    version: str | None
    registry_base_url: str | None
    file_sha256: str | None
    runtime_hint: str | None
    transport: str | None
    serves: Remote | None
    """The URL of the running server, if it does not use stdio."""
    runtime_arguments: tuple[Argument, ...]
    package_arguments: tuple[Argument, ...]
    environment_variables: tuple[Input, ...]
    command: str | None
    args: tuple[str, ...]
    raw: Mapping[str, Any]


class Remote(Record):
    """A remote server. Its URL may contain ``{variable}``."""

    type: str
    url: str
    headers: tuple[Input, ...]
    variables: tuple[Input, ...]
    raw: Mapping[str, Any]


class ServerEntry(Record):
    """A server as one registry describes it."""

    source: str
    """The id of the registry that was queried. Only for cached entries it is a claim of the entry."""
    name: str
    title: str
    description: str
    version: str | None
    repository_url: str | None
    website_url: str | None
    status: Status
    status_message: str | None
    is_latest: bool
    published_at: str | None
    discovery_only: bool
    """The registry lists servers without install instructions."""
    packages: tuple[Package, ...]
    remotes: tuple[Remote, ...]
    server: Mapping[str, Any]
    """The ``server.json``, verbatim."""
    meta: Mapping[str, Any]
    """The registry's metadata about the entry, verbatim."""

    @property
    def raw(self) -> dict[str, Any]:
        """The entry as it is stored in a cache."""
        return {"server": dict(self.server), "_meta": dict(self.meta), "source": self.source}

    @property
    def namespace(self) -> str:
        """The part of the name before the slash; the whole name if there is none."""
        return self.name.partition("/")[0]

    @property
    def package_types(self) -> tuple[str, ...]:
        """The kinds of packages, each once, in the order of the entry."""
        return _unique(package.registry_type for package in self.packages)

    @property
    def remote_types(self) -> tuple[str, ...]:
        """The transports of the remotes, each once."""
        return _unique(remote.type for remote in self.remotes)

    @property
    def transports(self) -> tuple[str, ...]:
        """All transports, those of packages first."""
        of_packages = [package.transport for package in self.packages if package.transport is not None]
        return _unique([*of_packages, *self.remote_types])

    @property
    def requires_secrets(self) -> bool:
        """Whether any environment variable or header is marked as secret."""
        return any(variable.is_secret for variable in (*self._variables(), *self._headers()))

    def extension(self, name: str) -> Any:
        """A ``_meta`` member of the ``server.json``, or else of the registry's metadata. None if absent."""
        own = self.server.get("_meta")
        member = own.get(name) if isinstance(own, dict) else None
        return self.meta.get(name) if member is None else member

    def secrets(self) -> tuple[list[dict[str, Any]], bool]:
        """The inputs that the user must supply, as in ToolPin's capability manifest; and whether their order is exact.

        The order is that of JavaScript's ``localeCompare`` (`locale_sorted`). Duplicate names are kept.
        """
        declared = [("env", variable) for variable in self._variables()] + [
            ("header", header) for header in self._headers()
        ]
        rows = [
            {"name": item.name, "source": source, "required": item.is_required}
            for source, item in declared
            if item.is_secret or item.is_required
        ]
        return locale_sorted(rows, lambda row: f"{row['source']}:{row['name']}")

    def _variables(self) -> Iterable[Input]:
        return (variable for package in self.packages for variable in package.environment_variables)

    def _headers(self) -> Iterable[Input]:
        return (header for remote in self.remotes for header in remote.headers)


def from_value(value: Any, *, source: str | None = None) -> ServerEntry:
    """Parse an entry. ``source`` is the registry that was queried; without it the entry must name its source."""
    entry = _Object(value, "entry")
    server = entry.object("server")
    if server is None:
        _invalid("entry.server", "is missing")
    meta = entry.object("_meta")
    stated_source = entry.text("source")
    source_id = source if source is not None else stated_source
    if not source_id:
        # ToolPin would treat such an entry as one of the official registry.
        _invalid("entry.source", "is missing")
    return _entry(server, _Object({}, "entry._meta") if meta is None else meta, source_id)


def installable_problem(entry: ServerEntry) -> str | None:
    """Why this entry cannot be installed, in ToolPin's words; None if it can."""
    if entry.discovery_only and entry.source == "glama":
        return "Glama entries require official registry re-resolution before install"
    if not entry.packages and not entry.remotes:
        return "registry entry has no package or remote install target"
    return None


def capability_manifest(entry: ServerEntry, *, now: str) -> dict[str, Any]:
    """The capability manifest from metadata: package types, transports, hosts and secrets."""
    addresses = [parse_whatwg_host(remote.url) for remote in entry.remotes]
    secrets, _ = entry.secrets()
    manifest: dict[str, Any] = {
        "version": 1,
        "serverName": entry.name,
        "serverVersion": entry.version,
        "registrySource": entry.source,
        "packageTypes": _sorted(entry.package_types),
        "transports": _sorted(entry.transports),
        "remoteHosts": _sorted(address.host for address in addresses if address is not None),
        "secrets": secrets,
        "generatedAt": now,
    }
    return {name: member for name, member in manifest.items() if member is not None}


def _sorted(names: Iterable[str]) -> list[str]:
    return sorted(dict.fromkeys(names), key=lambda name: name.encode("utf-16-be", "surrogatepass"))


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


# Parsing


def _entry(server: _Object, meta: _Object, source: str) -> ServerEntry:
    official = meta.object(OFFICIAL_META) or _Object({}, "official")
    listing = meta.object(SOURCE_META) or _Object({}, "source")
    name = server.required_text("name")
    repository = server.value.get("repository")
    title = server.text("title")
    return ServerEntry(
        source=source,
        name=name,
        title=name if title is None else title,
        description=server.text("description") or "",
        version=server.text("version"),
        # ToolPin reads a repository only from an object with a url; a bare string is not in the schema.
        repository_url=_Object(repository, "server.repository").text("url") if isinstance(repository, dict) else None,
        website_url=server.text("websiteUrl"),
        status=_status(official),
        status_message=official.text("statusMessage"),
        is_latest=official.flag("isLatest"),
        published_at=official.text("publishedAt"),
        discovery_only=listing.value.get("mode") == "discovery",
        packages=server.items("packages", _package),
        remotes=server.items("remotes", _remote),
        server=server.value,
        meta=meta.value,
    )


def _status(official: _Object) -> Status:
    status = official.text("status")
    if status is None:
        return "active"
    if status not in _STATUSES:
        official.refuse("status", f"is {status[:40]!a}, not one of {', '.join(_STATUSES)}")
    return cast(Status, status)


def _package(value: _Object) -> Package:
    transport = value.object("transport")
    args = value.value.get("args")
    return Package(
        registry_type=value.required_text("registryType"),
        identifier=value.required_text("identifier"),
        version=value.text("version"),
        registry_base_url=value.text("registryBaseUrl"),
        file_sha256=value.text("fileSha256"),
        runtime_hint=value.text("runtimeHint"),
        transport=None if transport is None else transport.text("type"),
        serves=None if transport is None or transport.value.get("url") is None else _remote(transport),
        runtime_arguments=value.items("runtimeArguments", _argument),
        package_arguments=value.items("packageArguments", _argument),
        environment_variables=value.items("environmentVariables", _input),
        command=value.text("command"),
        args=tuple(item for item in args if isinstance(item, str)) if isinstance(args, list) else (),
        raw=value.value,
    )


def _remote(value: _Object) -> Remote:
    return Remote(
        type=value.required_text("type"),
        url=value.required_text("url"),
        headers=value.items("headers", _input),
        variables=value.variables(),
        raw=value.value,
    )


def _input(value: _Object) -> Input:
    return _named_input(value.required_text("name"), value)


def _named_input(name: str, value: _Object) -> Input:
    return Input(
        name=name,
        value=value.text("value"),
        default=value.value.get("default"),
        is_required=value.flag("isRequired"),
        is_secret=value.flag("isSecret"),
        format=value.text("format") or "string",
        choices=value.texts("choices"),
        variables=value.variables(),
        raw=value.value,
    )


def _argument(value: _Object) -> Argument:
    kind = value.text("type")
    if kind not in ("positional", "named"):
        value.refuse("type", "is neither positional nor named")
    return Argument(
        kind="named" if kind == "named" else "positional",
        name=value.required_text("name") if kind == "named" else value.text("name"),
        value=value.text("value"),
        default=value.value.get("default"),
        value_hint=value.text("valueHint"),
        is_required=value.flag("isRequired"),
        is_secret=value.flag("isSecret"),
        is_repeated=value.flag("isRepeated"),
        format=value.text("format") or "string",
        choices=value.texts("choices"),
        variables=value.variables(),
        raw=value.value,
    )


def _text_argument(text: str) -> Argument:
    return Argument(
        kind="text",
        name=None,
        value=text,
        default=None,
        value_hint=None,
        is_required=True,
        is_secret=False,
        is_repeated=False,
        format="string",
        choices=(),
        variables=(),
        raw=text,
    )


class _Object:
    """An object and its path, for errors that name the member."""

    __slots__ = ("path", "value")

    def __init__(self, value: Any, path: str) -> None:
        if not isinstance(value, dict):
            _invalid(path, "is not an object")
        self.value: dict[str, Any] = value
        self.path = path

    def text(self, member: str) -> str | None:
        value = self.value.get(member)
        if value is not None and not isinstance(value, str):
            self.refuse(member, "is not a string")
        return value

    def required_text(self, member: str) -> str:
        text = self.text(member)
        if not text:
            self.refuse(member, "is missing or empty")
        return text

    def texts(self, member: str) -> tuple[str, ...]:
        value = self.value.get(member)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.refuse(member, "is not a list of strings")
        return tuple(value)

    def flag(self, member: str) -> bool:
        value = self.value.get(member)
        if value is not None and not isinstance(value, bool):
            self.refuse(member, "is neither true nor false")
        return value is True

    def object(self, member: str) -> _Object | None:
        value = self.value.get(member)
        return None if value is None else _Object(value, f"{self.path}.{member}")

    def items(self, member: str, read: Callable[[_Object], _Read]) -> tuple[_Read, ...]:
        value = self.value.get(member)
        if value is None:
            return ()
        if not isinstance(value, list):
            self.refuse(member, "is not a list")
        parsed: list[_Read] = []
        for index, item in enumerate(value):
            if read is _argument and isinstance(item, str):
                parsed.append(cast(_Read, _text_argument(item)))
            else:
                parsed.append(read(_Object(item, f"{self.path}.{member}[{index}]")))
        return tuple(parsed)

    def variables(self) -> tuple[Input, ...]:
        result = self.object("variables")
        if result is None:
            return ()
        return tuple(
            _named_input(name, _Object(item, f"{result.path}.{name[:40]}")) for name, item in result.value.items()
        )

    def refuse(self, member: str, why: str) -> NoReturn:
        _invalid(f"{self.path}.{member}", why)


def _invalid(path: str, why: str) -> NoReturn:
    raise PinwardenError("SERVER_ENTRY_INVALID", f"{path[:200]} {why}", data={"member": path})
