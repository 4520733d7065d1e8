"""Read the servers in a client's configuration file, and the command or URL of each server.

Reading a file never raises. An invalid file becomes a `ConfigFile` with a problem, and an invalid entry becomes a
`ConfiguredServer` with a problem, so the valid entries next to it are still read. Values stay as written: ``${VAR}`` is
expanded only when Pinwarden starts or contacts the server.

The second half of the module parses one entry. ``table.py`` describes the entry format of each client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from pinwarden.clients.documents import read_document
from pinwarden.clients.table import CLIENTS, GENERIC_CLIENT, Client, ConfigLocation, FileScope
from pinwarden.core.errors import PinwardenError
from pinwarden.core.json_values import escape_pointer_token
from pinwarden.core.record import Record, field, replace
from pinwarden.system.target import HttpTarget, StdioTarget, Target, Transport

_ROOTS = (("mcpServers",), ("servers",), ("context_servers",), ("mcp_servers",), ("mcp", "servers"), ("mcp",))


class ConfiguredServer(Record):
    """One server in a client's configuration file."""

    client: str
    scope: FileScope
    path: str
    """The path of the configuration file."""
    name: str
    pointer: str
    """JSON Pointer to the entry inside the file."""
    entry: Any = field(repr=False)
    """The entry as written in the file. It may contain secrets, so ``repr`` leaves it out."""
    target: Target | None
    problem: str | None = None
    """Why the entry is invalid or ambiguous."""
    disabled: bool = False
    folder: str | None = None
    """The project folder, if the scope is ``local``: one file of the user has the local entries of all projects."""


class DeclaredInput(Record):
    """An input that a file declares: the client asks the user for a value and replaces ``${input:id}`` by it."""

    id: str
    pointer: str
    """JSON Pointer to the declaration inside the file."""
    password: bool
    """Whether the client hides the value while the user types it."""
    literals: tuple[str, ...] = field(repr=False)
    """The default and the options that the file proposes. They may be secrets."""
    command: str | None = None
    """The client's command that computes the value, if the client does not ask the user."""


class ConfigFile(Record):
    """A configuration file that a client reads, with the servers in it."""

    client: str
    scope: FileScope
    path: str
    servers: tuple[ConfiguredServer, ...] = ()
    document: Any = field(default=None, repr=False)
    """The parsed file; ``None`` if it could not be read."""
    fault: Literal["unreadable", "invalid"] | None = None
    problem: str | None = None
    """Why the file is unreadable or invalid."""
    link: str | None = None
    """The resolved path, if the file or a parent folder inside the project or home is a symbolic link."""
    settings: bool = False
    """Whether the file has only settings that apply to servers, and no servers."""
    inputs: tuple[DeclaredInput, ...] = ()
    unread: tuple[str, ...] = ()
    """JSON Pointers to members that look like servers, but that the client is not known to read."""
    code: bool = False
    """Whether the file is a program that the client loads. Pinwarden does not read it."""


def _read_front_matter(data: bytes) -> dict[str, Any]:
    from pinwarden.clients.yaml_text import read_front_matter

    return read_front_matter(data)


def read_config(
    data: bytes, *, client: Client, location: ConfigLocation, path: str, link: str | None = None
) -> ConfigFile:
    """Parse a configuration file. Never raises; a ``ConfigFile`` with a fault describes the problem."""
    try:
        document = _read_front_matter(data) if location.agents else read_document(data, path)
        if type(document) is not dict:
            raise PinwardenError("CONFIG_INVALID", "the file does not contain an object")
        servers = () if location.settings else tuple(_parse_servers(document, client, location, path))
        inputs = () if location.settings else tuple(_parse_inputs(document, client, location))
    except PinwardenError as err:
        return ConfigFile(
            client=client.id,
            scope=location.scope,
            path=path,
            fault="invalid",
            problem=err.message,
            link=link,
            settings=location.settings,
        )
    return ConfigFile(
        client=client.id,
        scope=location.scope,
        path=path,
        servers=servers,
        document=document,
        link=link,
        settings=location.settings,
        inputs=inputs,
        unread=tuple(find_unread_servers(document, (server.pointer for server in servers))),
    )


def parse_targets(config: Any) -> dict[str, Target]:
    """Parse the servers of a configuration whose client is unknown, by name. Invalid entries are left out."""
    if type(config) is not dict:
        raise PinwardenError("CONFIG_INVALID", "the configuration is not an object")
    targets: dict[str, Target] = {}
    for root in _ROOTS:
        entries: Any = config
        for step in root:
            entries = entries.get(step) if type(entries) is dict else None
        for name, entry, _ in _iter_entries(entries, root):
            target, _problem = parse_target(entry, CLIENTS[GENERIC_CLIENT])
            if target is not None:
                targets.setdefault(name, target)
    return targets


def parse_configured_server(name: str, entry: Any, client: Client, *, path: str = "") -> ConfiguredServer:
    """Parse one entry of a project's file in the entry format of its client."""
    target, problem = parse_target(entry, client)
    if not name:
        problem = "the server has no name"
    return ConfiguredServer(
        client=client.id,
        scope="project",
        path=path,
        name=name,
        pointer=_build_pointer((*client.root, name)),
        entry=entry,
        target=target,
        problem=problem,
        disabled=type(entry) is dict and normalize_entry(entry, client)["disabled"] is True,
    )


def _parse_servers(
    document: Mapping[str, Any], client: Client, location: ConfigLocation, path: str
) -> Iterator[ConfiguredServer]:
    if (
        location.may_be_one_server
        and _looks_like_server(document)
        and (location.root or client.root)[0] not in document
    ):
        yield replace(
            parse_configured_server(_get_stem(path), document, client, path=path), scope=location.scope, pointer=""
        )
        return
    within: list[tuple[Any, tuple[str, ...], FileScope]] = [(document, (), location.scope)]
    folders = document.get(location.projects_member) if location.projects_member else None
    if location.projects_member and type(folders) is dict:
        within += [(value, (location.projects_member, folder), "local") for folder, value in folders.items()]
    for holder, before, scope in within:
        for entries, root in _find_server_lists(holder, client, location):
            if type(entries) is not dict and type(entries) is not list:
                raise PinwardenError("CONFIG_INVALID", f"{'/'.join((*before, *root))[:80]!a} is not an object or list")
            names = [name for name, _, _ in _iter_entries(entries, root) if name]
            repeated = next((name for name in names if names.count(name) > 1), None) if type(entries) is list else None
            if repeated is not None:
                raise PinwardenError("CONFIG_INVALID", f"two servers have the name {repeated[:80]!a}")
            for name, entry, step in _iter_entries(entries, root):
                if is_client_builtin(entry, client):
                    continue
                pointer = _build_pointer((*before, *root, step))
                server = parse_configured_server(name, entry, client, path=path)
                yield replace(server, scope=scope, pointer=pointer, folder=before[1] if before else None)


def is_client_builtin(entry: Any, client: Client) -> bool:
    """Whether an entry is a built-in feature of the client instead of an MCP server."""
    if not client.entry_format.builtin_types or type(entry) is not dict:
        return False
    words = unwrap_entry(entry, client)
    started = (client.entry_format.command_member, *client.entry_format.url_members)
    return words.get("type") in client.entry_format.builtin_types and not any(words.get(member) for member in started)


def _parse_inputs(document: Mapping[str, Any], client: Client, location: ConfigLocation) -> Iterator[DeclaredInput]:
    if client.entry_format.inputs_member is None:
        return
    roots = (location.root or client.root, *location.more_roots)
    for holder in dict.fromkeys((*root[:-1], client.entry_format.inputs_member) for root in roots):
        for declared, steps in _resolve_path(document, holder, dotted=location.dotted):
            for index, declaration in enumerate(declared if type(declared) is list else ()):
                if type(declaration) is not dict:
                    continue
                options = declaration.get("options")
                picked = [row.get("value") if type(row) is dict else row for row in _list_or_empty(options)]
                yield DeclaredInput(
                    id=declaration["id"] if type(declaration.get("id")) is str else "",
                    pointer=_build_pointer((*steps, str(index))),
                    password=declaration.get("password") is True,
                    literals=tuple(text for text in (declaration.get("default"), *picked) if type(text) is str),
                    command=str(declaration.get("command"))[:200] if declaration.get("type") == "command" else None,
                )


def _find_server_lists(
    document: Any, client: Client, location: ConfigLocation
) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Yield every object or list of servers in the file, with its member path."""
    for root in (location.root or client.root, *location.more_roots):
        yield from (
            (entries, steps)
            for entries, steps in _resolve_path(document, root, dotted=location.dotted)
            if entries is not None
        )


def _resolve_path(value: Any, path: tuple[str, ...], *, dotted: bool) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Yield the values at a member path, with the member names as written in the file.

    If ``dotted``, the member ``"a.b"`` also stands for ``b`` inside ``a``.
    """
    if not path:
        yield value, ()
        return
    if type(value) is not dict:
        return
    for count in range(1, len(path) + 1 if dotted else 2):
        member = ".".join(path[:count])
        if member in value:
            yield from (
                (inner, (member, *rest)) for inner, rest in _resolve_path(value[member], path[count:], dotted=dotted)
            )
    if dotted and any(member.startswith(f"{'.'.join(path)}.") for member in value):
        raise PinwardenError("CONFIG_INVALID", f"{'.'.join(path)[:80]!a} is split into several members with dots")


def _list_or_empty(value: Any) -> list[Any]:
    return value if type(value) is list else []


def _get_stem(path: str) -> str:
    """Return the name of a file without its folder and suffix."""
    return path.replace("\\", "/").rpartition("/")[2].rpartition(".")[0]


def _iter_entries(entries: Any, root: tuple[str, ...]) -> Iterator[tuple[str, Any, str]]:
    """Yield the name and entry of each server, and the last token of its JSON Pointer."""
    if type(entries) is dict:
        for name, entry in entries.items():
            # VS Code's old settings keep servers and inputs under "mcp"; opencode keeps servers there directly.
            if root == ("mcp",) and name in ("servers", "inputs") and not _looks_like_server(entry):
                continue
            yield name, entry, name
    elif type(entries) is list:
        for index, entry in enumerate(entries):
            name = entry.get("name") if type(entry) is dict else None
            yield name if type(name) is str else "", entry, str(index)


def _looks_like_server(entry: Any) -> bool:
    return type(entry) is dict and any(type(entry.get(member)) in (str, list) for member in ("command", "url"))


def _build_pointer(steps: tuple[str, ...]) -> str:
    return "".join("/" + escape_pointer_token(step) for step in steps)


_SERVER_MEMBERS = frozenset(
    {"mcpServers", "mcp_servers", "mcp-servers", "context_servers", "amp.mcpServers", "mcp.servers"}
)
_STARTS = ("command", "cmd", "url", "uri", "serverUrl", "httpUrl")
_MAX_DEPTH = 12
_MAX_VALUES = 50_000


def find_unread_servers(document: Any, read: Iterable[str]) -> Iterator[str]:
    """Yield JSON Pointers to members that look like lists of servers and were not read.

    ``read`` has the JSON Pointers of the servers that were read.
    """
    holders = {pointer.rpartition("/")[0] for pointer in read}
    pending: list[tuple[Any, str, int]] = [(document, "", 0)]
    seen = 0
    while pending:
        value, pointer, depth = pending.pop()
        seen += 1
        if type(value) is not dict or depth > _MAX_DEPTH or seen > _MAX_VALUES:
            continue
        for name, inner in value.items():
            below = f"{pointer}/{escape_pointer_token(name)}"
            if name in _SERVER_MEMBERS and _contains_servers(inner):
                if below not in holders:
                    yield below
            else:
                pending.append((inner, below, depth + 1))


def _contains_servers(value: Any) -> bool:
    entries = list(value.values()) if type(value) is dict else value if type(value) is list else []
    return any(type(entry) is dict and any(entry.get(member) for member in _STARTS) for entry in entries)


_LOCAL_TYPES = ("stdio", "local")
_TRANSPORTS: Mapping[str, Transport] = {
    "http": "streamable-http",
    "streamable-http": "streamable-http",
    "streamableHttp": "streamable-http",
    "streamable_http": "streamable-http",
    "sse": "sse",
    "remote": "auto",
}
_ENTRY_FORMATS = tuple(client.entry_format for client in CLIENTS.values())
_URL_MEMBERS = tuple(dict.fromkeys(member for entry_format in _ENTRY_FORMATS for member in entry_format.url_members))
# A generic configuration may use any client's format.
_ANY_ENV = tuple(dict.fromkeys((entry_format.env_member,) for entry_format in _ENTRY_FORMATS))
_ANY_HEADERS = tuple(dict.fromkeys(entry_format.headers_path for entry_format in _ENTRY_FORMATS))


def normalize_entry(entry: Mapping[str, Any], client: Client) -> dict[str, Any]:
    """Convert an entry to common member names, independent of the client's format.

    The common names are ``command``, ``args``, ``env``, ``cwd``, ``url``, ``headers``, ``transport`` and ``disabled``.
    Members that this client does not use, or that another member overrides, are kept. If such a member has a common
    name, it gets the prefix ``unused``. Values of a wrong type are kept too; this function never raises.
    """
    rest = unwrap_entry(entry, client)
    words = _pop_command_line(rest, client)
    url, url_member = _pop_url(rest, client)
    kind = rest.pop("type", None)
    fields: dict[str, Any] = {
        "command": words[0] if words else None,
        "args": words[1:],
        "env": _pop_env(rest, client),
        "cwd": rest.pop("cwd", None),
        "url": url,
        "headers": _pop_headers(rest, client),
        "transport": _choose_transport(kind, url_member, client) if url is not None else None,
        "disabled": _pop_disabled(rest, client),
    }
    if client.entry_format.named_list:
        rest.pop("name", None)
    if kind is not None and not _is_known_type(kind):
        rest["type"] = kind
    others = {f"unused {name}" if name in fields else name: value for name, value in rest.items()}
    return {**others, **fields}


def parse_target(entry: Any, client: Client) -> tuple[Target | None, str | None]:
    """Parse the command or URL of an entry. Returns the target and the problem; an ambiguous entry has both."""
    if type(entry) is not dict:
        return None, "the entry is not an object"
    fields = normalize_entry(entry, client)
    kind = unwrap_entry(entry, client).get("type")
    remote = _is_known_type(kind) and kind in _TRANSPORTS
    both = fields["command"] is not None and fields["url"] is not None
    try:
        if fields["url"] is not None and (fields["command"] is None or remote):
            target: Target = _build_http_target(fields)
        elif fields["command"] is not None:
            target = _build_stdio_target(fields)
        else:
            return None, "the entry has neither a command nor an address"
    except PinwardenError as err:
        return None, err.message
    return target, "the entry has a command and an address; clients differ in which one they use" if both else None


def unwrap_entry(entry: Mapping[str, Any], client: Client) -> dict[str, Any]:
    """Copy an entry, with the members inside its wrapper moved to the top. Goose uses the wrapper ``config``."""
    inner = entry.get(client.entry_format.wrapper_member) if client.entry_format.wrapper_member else None
    if type(inner) is not dict:
        return dict(entry)
    return {**{name: value for name, value in entry.items() if name != client.entry_format.wrapper_member}, **inner}


def _pop_command_line(rest: dict[str, Any], client: Client) -> list[Any]:
    """Remove the program and its arguments from the entry, and return them as words.

    The program is a string, a list with the arguments, or an object (in Zed before 2025).
    """
    command = rest.pop(client.entry_format.command_member, None)
    arguments = rest.pop("args", None)
    if type(command) is dict and "path" in command:
        inner = dict(command)
        command = inner.pop("path")
        if "args" in inner:
            if arguments is not None:
                rest["args"] = arguments
            arguments = inner.pop("args")
        if "env" in inner and "env" not in rest:
            rest["env"] = inner.pop("env")
        if inner:
            rest["command"] = inner  # members that the client does not use are kept for comparison
    first = command if type(command) is list else [] if command is None else [command]
    return [*first, *(arguments if type(arguments) is list else [] if arguments is None else [arguments])]


def _pop_url(rest: dict[str, Any], client: Client) -> tuple[Any, str | None]:
    ordered = (
        *client.entry_format.url_members,
        *(member for member in _URL_MEMBERS if member not in client.entry_format.url_members),
    )
    present = [member for member in ordered if rest.get(member) is not None]
    if not present:
        return None, None
    return rest.pop(present[0]), present[0]


def _is_known_type(kind: Any) -> bool:
    return type(kind) is str and (kind in _LOCAL_TYPES or kind in _TRANSPORTS)


def _choose_transport(kind: Any, member: str | None, client: Client) -> str:
    if type(kind) is str and kind in _TRANSPORTS:
        return _TRANSPORTS[kind]
    if member == "httpUrl":
        return "streamable-http"
    return client.entry_format.url_transport


def _list_env_paths(client: Client) -> tuple[tuple[str, ...], ...]:
    return _ANY_ENV if client.entry_format.mixed else ((client.entry_format.env_member,),)


def _pop_env(rest: dict[str, Any], client: Client) -> Any:
    """Remove the environment variables from the entry and return them.

    Codex and Goose list the names of variables to pass on: those of their own environment or those in the keyring. They
    become placeholders such as ``${NAME}``, as other clients write.
    """
    env = _pop_first(rest, _list_env_paths(client))
    member = client.entry_format.passed_variables_member
    named = None if member is None else rest.get(member)
    if member is None or type(env) is not dict or type(named) is not list:
        return env
    if not all(type(name) is str and name.isidentifier() for name in named):
        return env
    del rest[member]
    return {**{name: f"${{{name}}}" for name in named}, **env}


def _list_header_paths(client: Client) -> tuple[tuple[str, ...], ...]:
    return _ANY_HEADERS if client.entry_format.mixed else (client.entry_format.headers_path,)


def _pop_first(rest: dict[str, Any], paths: tuple[tuple[str, ...], ...]) -> Any:
    """Remove the value at the first existing path from the entry and return it; an empty object if no path exists."""
    for path in paths:
        *outer, last = path
        holder: Any = rest
        for step in outer:
            holder = holder.get(step) if type(holder) is dict else None
        if type(holder) is not dict or holder.get(last) is None:
            continue
        value = holder[last]
        if not outer:
            del rest[last]
        else:
            remaining = {name: value for name, value in holder.items() if name != last}
            rest[outer[0]] = remaining
            if not remaining:
                del rest[outer[0]]
        return dict(value) if type(value) is dict else value
    return {}


def _pop_disabled(rest: dict[str, Any], client: Client) -> bool:
    member, value = client.entry_format.disabling_member
    if type(rest.get(member)) not in (bool, type(None)):
        return False  # a value of another type stays in the entry and is compared as written
    return rest.pop(member, None) is value


def _pop_headers(rest: dict[str, Any], client: Client) -> Any:
    headers = _pop_first(rest, _list_header_paths(client))
    if type(headers) is not dict:
        return headers
    # Codex names the environment variable that has the value of a header; other clients use placeholders.
    known = {name.lower() for name in headers}
    member = client.entry_format.header_variables_member
    named = None if member is None else rest.get(member)
    if member is not None and type(named) is dict:
        headers |= {name: f"${{{variable}}}" for name, variable in named.items() if name.lower() not in known}
        rest[member] = {name: variable for name, variable in named.items() if name.lower() in known}
        if not rest[member]:
            del rest[member]
    bearer = client.entry_format.bearer_variable_member
    token = rest.get(bearer) if bearer is not None else None
    if bearer is not None and type(token) is str and "authorization" not in {name.lower() for name in headers}:
        headers["Authorization"] = f"Bearer ${{{token}}}"
        del rest[bearer]
    return headers


def _build_stdio_target(fields: Mapping[str, Any]) -> StdioTarget:
    words = [fields["command"], *fields["args"]]
    if not all(type(word) is str for word in words):
        raise PinwardenError("TARGET_INVALID", "the command or an argument is not a string")
    cwd = fields["cwd"]
    if cwd is not None and type(cwd) is not str:
        raise PinwardenError("TARGET_INVALID", "the working folder is not a string")
    return StdioTarget(command=tuple(words), env=_parse_string_map(fields["env"], "environment variable"), cwd=cwd)


def _build_http_target(fields: Mapping[str, Any]) -> HttpTarget:
    if type(fields["url"]) is not str:
        raise PinwardenError("TARGET_INVALID", "the address is not a string")
    return HttpTarget(
        url=fields["url"],
        headers=_parse_string_map(fields["headers"], "header"),
        transport=fields["transport"] or "auto",
    )


def _parse_string_map(values: Any, what: str) -> dict[str, str]:
    """Parse an object of strings. As in VS Code, an integer is converted to a string, and null counts as missing."""
    if type(values) is not dict:
        raise PinwardenError("TARGET_INVALID", f"the {what}s are not an object")
    texts: dict[str, str] = {}
    for name, value in values.items():
        if type(value) is int:
            texts[name] = str(value)
        elif type(value) is str:
            texts[name] = value
        elif value is not None:
            raise PinwardenError("TARGET_INVALID", f"the value of {what} {name[:80]!a} is not a string")
    return texts
