"""One entry of an MCP registry: a ``server.json`` (schema 2025-12-11), the registry's metadata, and the source.

The value is kept verbatim; rules use the typed members. Parsing refuses ambiguous values (a package without identifier,
``isSecret: "yes"``) with an error that names the member. Unknown members are kept in ``raw``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

from pinwarden.core.errors import PinwardenError
from pinwarden.core.javascript import parse_whatwg_host, sort_by_locale
from pinwarden.core.record import Record
from pinwarden.core.typed_json import JsonObject

OFFICIAL_META = "io.modelcontextprotocol.registry/official"
SOURCE_META = "dev.toolpin/source"
ATTESTATIONS_META = "dev.toolpin/attestations"
CAPABILITIES_META = "dev.toolpin/capabilities"
EVIDENCE_META = "dev.toolpin/evidence"
Status = Literal["active", "deprecated", "deleted"]
_STATUSES: tuple[Status, ...] = ("active", "deprecated", "deleted")


class Input(Record):
    """A value that the user may have to supply: an environment variable, a header or a template variable."""

    name: str
    value: str | None
    """A fixed value, which may contain ``{variable}``."""
    default: Any
    """The default value as the entry has it, usually a string; None if there is none."""
    is_required: bool
    is_secret: bool
    format: str
    """``string``, ``number``, ``boolean`` or ``filepath``."""
    choices: tuple[str, ...]
    """The allowed values; empty if any is allowed."""
    variables: tuple[Input, ...]
    raw: Mapping[str, Any]


class DeclaredArgument(Record):
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


class DeclaredPackage(Record):
    """A package that contains the server.

    ``command`` and ``args`` are not in the schema of server.json. If present, they take precedence, as in ToolPin.
    """

    registry_type: str
    identifier: str
    version: str | None
    registry_base_url: str | None
    file_sha256: str | None
    runtime_hint: str | None
    transport: str | None
    endpoint: Remote | None
    """The URL of the running server, if it does not use stdio."""
    runtime_arguments: tuple[DeclaredArgument, ...]
    package_arguments: tuple[DeclaredArgument, ...]
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
    """The id of the registry that was queried. A cached entry states its source itself."""
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
    is_discovery_only: bool
    """Whether the registry lists this server for discovery only, without install instructions."""
    packages: tuple[DeclaredPackage, ...]
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
        return _remove_duplicates(package.registry_type for package in self.packages)

    @property
    def remote_types(self) -> tuple[str, ...]:
        """The transports of the remotes, each once."""
        return _remove_duplicates(remote.type for remote in self.remotes)

    @property
    def transports(self) -> tuple[str, ...]:
        """All transports, those of packages first."""
        of_packages = [package.transport for package in self.packages if package.transport is not None]
        return _remove_duplicates([*of_packages, *self.remote_types])

    @property
    def requires_secrets(self) -> bool:
        """Whether any environment variable or header is marked as secret."""
        return any(variable.is_secret for variable in (*self._list_variables(), *self._list_headers()))

    def find_meta(self, name: str) -> Any:
        """Return a ``_meta`` member of the ``server.json``, or else of the registry's metadata. None if absent."""
        own = self.server.get("_meta")
        member = own.get(name) if isinstance(own, dict) else None
        return self.meta.get(name) if member is None else member

    def list_secrets(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the inputs that the user must supply, as in ToolPin's manifest, and whether their order is exact.

        The order is that of JavaScript's ``localeCompare`` (`sort_by_locale`). Duplicate names are kept.
        """
        declared = [("env", variable) for variable in self._list_variables()] + [
            ("header", header) for header in self._list_headers()
        ]
        rows = [
            {"name": item.name, "source": source, "required": item.is_required}
            for source, item in declared
            if item.is_secret or item.is_required
        ]
        return sort_by_locale(rows, lambda row: f"{row['source']}:{row['name']}")

    def _list_variables(self) -> Iterable[Input]:
        return (variable for package in self.packages for variable in package.environment_variables)

    def _list_headers(self) -> Iterable[Input]:
        return (header for remote in self.remotes for header in remote.headers)


def parse_server_entry(value: Any, *, source: str | None = None) -> ServerEntry:
    """Parse an entry. ``source`` is the registry that was queried; without it the entry must name its source."""
    entry = _EntryObject(value, "entry")
    server = entry.optional_object("server")
    if server is None:
        raise _entry_error("entry.server", "is missing")
    meta = entry.optional_object("_meta")
    stated_source = entry.optional_string("source")
    source_id = source if source is not None else stated_source
    if not source_id:
        # ToolPin would treat such an entry as one of the official registry.
        raise _entry_error("entry.source", "is missing")
    return _parse_server(server, _EntryObject({}, "entry._meta") if meta is None else meta, source_id)


def find_install_problem(entry: ServerEntry) -> str | None:
    """Return why this entry cannot be installed, in ToolPin's words; None if it can."""
    if entry.is_discovery_only and entry.source == "glama":
        return "Glama entries require official registry re-resolution before install"
    if not entry.packages and not entry.remotes:
        return "registry entry has no package or remote install target"
    return None


def build_capability_manifest(entry: ServerEntry, *, now: str) -> dict[str, Any]:
    """Return the capability manifest from metadata: package types, transports, hosts and secrets."""
    addresses = [parse_whatwg_host(remote.url) for remote in entry.remotes]
    secrets, _ = entry.list_secrets()
    manifest: dict[str, Any] = {
        "version": 1,
        "serverName": entry.name,
        "serverVersion": entry.version,
        "registrySource": entry.source,
        "packageTypes": _sort_like_javascript(entry.package_types),
        "transports": _sort_like_javascript(entry.transports),
        "remoteHosts": _sort_like_javascript(address.host for address in addresses if address is not None),
        "secrets": secrets,
        "generatedAt": now,
    }
    return {name: member for name, member in manifest.items() if member is not None}


def _sort_like_javascript(names: Iterable[str]) -> list[str]:
    return sorted(dict.fromkeys(names), key=lambda name: name.encode("utf-16-be", "surrogatepass"))


def _remove_duplicates(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


# Parsing


def _parse_server(server: _EntryObject, meta: _EntryObject, source: str) -> ServerEntry:
    official = meta.optional_object(OFFICIAL_META) or _EntryObject({}, "official")
    listing = meta.optional_object(SOURCE_META) or _EntryObject({}, "source")
    name = server.required_text("name")
    repository = server.value.get("repository")
    title = server.optional_string("title")
    return ServerEntry(
        source=source,
        name=name,
        title=name if title is None else title,
        description=server.optional_string("description") or "",
        version=server.optional_string("version"),
        # ToolPin reads a repository only from an object with a url; a bare string is not in the schema.
        repository_url=_EntryObject(repository, "server.repository").optional_string("url")
        if isinstance(repository, dict)
        else None,
        website_url=server.optional_string("websiteUrl"),
        status="active" if official.value.get("status") is None else official.one_of("status", _STATUSES),
        status_message=official.optional_string("statusMessage"),
        is_latest=official.flag("isLatest"),
        published_at=official.optional_string("publishedAt"),
        is_discovery_only=listing.value.get("mode") == "discovery",
        packages=tuple(map(_parse_package, server.objects("packages", optional=True))),
        remotes=tuple(map(_parse_remote, server.objects("remotes", optional=True))),
        server=server.value,
        meta=meta.value,
    )


def _parse_package(value: _EntryObject) -> DeclaredPackage:
    transport = value.optional_object("transport")
    args = value.value.get("args")
    return DeclaredPackage(
        registry_type=value.required_text("registryType"),
        identifier=value.required_text("identifier"),
        version=value.optional_string("version"),
        registry_base_url=value.optional_string("registryBaseUrl"),
        file_sha256=value.optional_string("fileSha256"),
        runtime_hint=value.optional_string("runtimeHint"),
        transport=None if transport is None else transport.optional_string("type"),
        endpoint=None if transport is None or transport.value.get("url") is None else _parse_remote(transport),
        runtime_arguments=value.arguments("runtimeArguments"),
        package_arguments=value.arguments("packageArguments"),
        environment_variables=tuple(map(_parse_input, value.objects("environmentVariables", optional=True))),
        command=value.optional_string("command"),
        args=tuple(item for item in args if isinstance(item, str)) if isinstance(args, list) else (),
        raw=value.value,
    )


def _parse_remote(value: _EntryObject) -> Remote:
    return Remote(
        type=value.required_text("type"),
        url=value.required_text("url"),
        headers=tuple(map(_parse_input, value.objects("headers", optional=True))),
        variables=value.variables(),
        raw=value.value,
    )


def _parse_input(value: _EntryObject) -> Input:
    return _parse_named_input(value.required_text("name"), value)


def _parse_named_input(name: str, value: _EntryObject) -> Input:
    return Input(
        name=name,
        value=value.optional_string("value"),
        default=value.value.get("default"),
        is_required=value.flag("isRequired"),
        is_secret=value.flag("isSecret"),
        format=value.optional_string("format") or "string",
        choices=value.strings("choices", optional=True),
        variables=value.variables(),
        raw=value.value,
    )


def _parse_argument(value: _EntryObject) -> DeclaredArgument:
    kind = value.optional_string("type")
    if kind not in ("positional", "named"):
        value.fail("type", "is neither positional nor named")
    return DeclaredArgument(
        kind="named" if kind == "named" else "positional",
        name=value.required_text("name") if kind == "named" else value.optional_string("name"),
        value=value.optional_string("value"),
        default=value.value.get("default"),
        value_hint=value.optional_string("valueHint"),
        is_required=value.flag("isRequired"),
        is_secret=value.flag("isSecret"),
        is_repeated=value.flag("isRepeated"),
        format=value.optional_string("format") or "string",
        choices=value.strings("choices", optional=True),
        variables=value.variables(),
        raw=value.value,
    )


def _build_text_argument(text: str) -> DeclaredArgument:
    return DeclaredArgument(
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


class _EntryObject(JsonObject):
    """An object of an entry. Null counts as missing."""

    __slots__ = ()

    def __init__(self, value: Any, path: str) -> None:
        super().__init__(value, path, _entry_error, separator=".")

    def required_text(self, name: str) -> str:
        text = self.optional_string(name)
        if not text:
            self.fail(name, "is missing or empty")
        return text

    def flag(self, name: str) -> bool:
        return self.value.get(name) is not None and self.boolean(name)

    def arguments(self, name: str) -> tuple[DeclaredArgument, ...]:
        return tuple(
            _build_text_argument(item)
            if isinstance(item, str)
            else _parse_argument(_EntryObject(item, f"{self.path_of(name)}[{index}]"))
            for index, item in enumerate(self.array(name, optional=True))
        )

    def variables(self) -> tuple[Input, ...]:
        variables = self.optional_object("variables")
        return (
            () if variables is None else tuple(_parse_named_input(name, value) for name, value in variables.members())
        )

    def _wrap(self, value: Any, path: str) -> Self:
        return type(self)(value, path)


def _entry_error(path: str, problem: str) -> PinwardenError:
    return PinwardenError("SERVER_ENTRY_INVALID", f"{path[:200]} {problem}", data={"member": path})
