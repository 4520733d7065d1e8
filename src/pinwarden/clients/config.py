"""The servers in a client's configuration file, and what each of them would start or contact.

Reading a file always gives a value, whatever its format: a damaged file is a `ConfigFile` with a problem, and a server
that cannot be parsed is a `ConfiguredServer` with a problem, so one of them never hides the others. Values stay as
written; ``${VAR}`` is expanded when the server is started or contacted.

The second half parses one entry. Each client spells entries its own way; ``table.py`` says how.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, cast

from pinwarden.clients.table import CLIENTS, FORMATS, Client, Format, Place, Scope
from pinwarden.core.errors import PinwardenError
from pinwarden.core.json_values import escape_pointer_token
from pinwarden.core.record import Record, field, replace
from pinwarden.system.target import HttpTarget, StdioTarget, Target, Transport

_ROOTS = (("mcpServers",), ("servers",), ("context_servers",), ("mcp_servers",), ("mcp", "servers"), ("mcp",))


class ConfiguredServer(Record):
    """One server as a client's file names it."""

    client: str
    scope: Scope
    path: str
    """The file."""
    name: str
    pointer: str
    """JSON Pointer to the entry inside the file."""
    entry: Any = field(repr=False)
    """What stands in the file, verbatim. It may hold secrets, so it is not shown."""
    target: Target | None
    problem: str | None = None
    """Why the entry cannot be used as it stands, or what is ambiguous about it."""
    disabled: bool = False
    folder: str | None = None
    """The project that an entry of scope ``local`` is for; the user's file holds those of all projects."""


class DeclaredInput(Record):
    """A value that the client asks its user for; ``${input:id}`` stands for the answer."""

    id: str
    pointer: str
    """JSON Pointer to the declaration inside the file."""
    password: bool
    """The client hides what is typed."""
    literals: tuple[str, ...] = field(repr=False)
    """What the file offers as an answer: the default, and what can be picked. It may hold secrets."""
    command: str | None = None
    """The command of the client that gives the answer, where nobody is asked."""


class ConfigFile(Record):
    """A file that a client reads, as it was found."""

    client: str
    scope: Scope
    path: str
    servers: tuple[ConfiguredServer, ...] = ()
    document: Any = field(default=None, repr=False)
    """The whole file as values; ``None`` if it could not be read."""
    fault: Literal["unreadable", "invalid"] | None = None
    problem: str | None = None
    """What is wrong with the file, if it has a fault."""
    link: str | None = None
    """Where the path leads if it, or a folder on the way inside the project or home, is a symbolic link."""
    settings: bool = False
    """The file holds no servers but decides about them."""
    inputs: tuple[DeclaredInput, ...] = ()
    """What the user is asked for."""
    unread: tuple[str, ...] = ()
    """JSON Pointers to servers that the client is not known to read there, so that they are not among ``servers``."""
    code: bool = False
    """The file is a program that the client loads; it is not read."""


def format_of(path: str) -> Format:
    """The format of a file, by its name; JSON with comments where that says nothing."""
    return next((form for ending, form in FORMATS.items() if path.lower().endswith(ending)), "json")


def read_document(data: bytes, path: str) -> Any:
    """The values of a configuration file. An empty file is an empty object, as clients see it."""
    from pinwarden.clients.jsonc import decode_text

    form = format_of(path)
    if form == "json":
        return _read_json(data)
    text = decode_text(data)
    if form == "toml":
        from pinwarden.clients.toml_text import read_toml

        return read_toml(text)
    from pinwarden.clients.yaml_text import read_yaml

    document = read_yaml(text)
    return {} if document is None else document


def _front_matter(data: bytes) -> dict[str, Any]:
    from pinwarden.clients.yaml_text import read_front_matter

    return read_front_matter(data)


def _read_json(data: bytes) -> Any:
    from pinwarden.clients.jsonc import decode_text, read
    from pinwarden.core.strict_json import parse_json

    if not data.strip():
        return {}
    try:
        return parse_json(data)  # most files are plain JSON, and the strict reader is a hundred times faster
    except PinwardenError:
        return read(decode_text(data)).value


def read_config(data: bytes, *, client: Client, place: Place, path: str, link: str | None = None) -> ConfigFile:
    """A configuration file and its servers. It never raises: what is wrong is said in the result."""
    try:
        document = _front_matter(data) if place.agents else read_document(data, path)
        if type(document) is not dict:
            raise PinwardenError("CONFIG_INVALID", "the file does not hold an object")
        servers = () if place.settings else tuple(_servers(document, client, place, path))
        inputs = () if place.settings else tuple(_inputs(document, client, place))
    except PinwardenError as err:
        return ConfigFile(
            client=client.id,
            scope=place.scope,
            path=path,
            fault="invalid",
            problem=err.message,
            link=link,
            settings=place.settings,
        )
    return ConfigFile(
        client=client.id,
        scope=place.scope,
        path=path,
        servers=servers,
        document=document,
        link=link,
        settings=place.settings,
        inputs=inputs,
        unread=tuple(unread_servers(document, (server.pointer for server in servers))),
    )


def entry_in(document: Any, client: Client, name: str, root: tuple[str, ...] | None = None) -> Any:
    """The entry of one server in a configuration or a fragment of one; ``None`` if it is not there."""
    entries = document
    for step in root or client.root:
        entries = entries.get(step) if type(entries) is dict else None
    if type(entries) is list:
        return next((entry for entry in entries if type(entry) is dict and entry.get("name") == name), None)
    return entries.get(name) if type(entries) is dict else None


def config_with(client: Client, name: str, entry: Any) -> dict[str, Any]:
    """A configuration with one server in it, where its client looks for it: what ``entry_in`` finds again."""
    if not client.spelling.named_list:
        return nested(client.root, {name: entry})
    # Continue also reads files of other clients, where a server's name is not inside its entry.
    return nested(client.root, [{"name": name, **entry} if type(entry) is dict else entry])


def nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """An object that holds a value at a path of members."""
    for step in reversed(path):
        value = {step: value}
    return cast(dict[str, Any], value)


def servers_in(config: Any) -> dict[str, Target]:
    """Every server of a configuration whose client is not known, by its name. Unusable entries are left out."""
    if type(config) is not dict:
        raise PinwardenError("CONFIG_INVALID", "the configuration is not an object")
    found: dict[str, Target] = {}
    for root in _ROOTS:
        entries: Any = config
        for step in root:
            entries = entries.get(step) if type(entries) is dict else None
        for name, entry, _ in _named_entries(entries, root):
            target, _problem = target_of(entry, CLIENTS["generic"])
            if target is not None:
                found.setdefault(name, target)
    return found


def configured_server(name: str, entry: Any, client: Client, *, path: str = "") -> ConfiguredServer:
    """One entry of a project's file, understood in the spelling of its client."""
    target, problem = target_of(entry, client)
    if not name:
        problem = "the server has no name"
    return ConfiguredServer(
        client=client.id,
        scope="project",
        path=path,
        name=name,
        pointer=_pointer((*client.root, name)),
        entry=entry,
        target=target,
        problem=problem,
        disabled=type(entry) is dict and fields_of(entry, client)["disabled"] is True,
    )


def _servers(document: Mapping[str, Any], client: Client, place: Place, path: str) -> Iterator[ConfiguredServer]:
    if place.may_be_one_server and _looks_like_server(document) and (place.root or client.root)[0] not in document:
        yield replace(configured_server(_stem(path), document, client, path=path), scope=place.scope, pointer="")
        return
    within: list[tuple[Any, tuple[str, ...], Scope]] = [(document, (), place.scope)]
    folders = document.get(place.folders) if place.folders else None
    if place.folders and type(folders) is dict:
        within += [(value, (place.folders, folder), "local") for folder, value in folders.items()]
    for holder, before, scope in within:
        for entries, root in _holders(holder, client, place):
            if type(entries) is not dict and type(entries) is not list:
                raise PinwardenError("CONFIG_INVALID", f"{'/'.join((*before, *root))[:80]!a} does not hold servers")
            names = [name for name, _, _ in _named_entries(entries, root) if name]
            repeated = next((name for name in names if names.count(name) > 1), None) if type(entries) is list else None
            if repeated is not None:
                raise PinwardenError("CONFIG_INVALID", f"two servers have the name {repeated[:80]!a}")
            for name, entry, step in _named_entries(entries, root):
                if is_inside(entry, client):
                    continue
                pointer = _pointer((*before, *root, step))
                server = configured_server(name, entry, client, path=path)
                yield replace(server, scope=scope, pointer=pointer, folder=before[1] if before else None)


def is_inside(entry: Any, client: Client) -> bool:
    """Whether an entry is a part of the client itself, and starts or contacts nothing."""
    if not client.spelling.inside or type(entry) is not dict:
        return False
    words = unwrapped(entry, client)
    started = (client.spelling.command, *client.spelling.url)
    return words.get("type") in client.spelling.inside and not any(words.get(member) for member in started)


def _inputs(document: Mapping[str, Any], client: Client, place: Place) -> Iterator[DeclaredInput]:
    if client.spelling.inputs is None:
        return
    roots = (place.root or client.root, *place.more_roots)
    for holder in dict.fromkeys((*root[:-1], client.spelling.inputs) for root in roots):
        for declared, steps in _at(document, holder, dotted=place.dotted):
            for number, each in enumerate(declared if type(declared) is list else ()):
                if type(each) is not dict:
                    continue
                options = each.get("options")
                picked = [row.get("value") if type(row) is dict else row for row in _listed(options)]
                yield DeclaredInput(
                    id=each["id"] if type(each.get("id")) is str else "",
                    pointer=_pointer((*steps, str(number))),
                    password=each.get("password") is True,
                    literals=tuple(text for text in (each.get("default"), *picked) if type(text) is str),
                    command=str(each.get("command"))[:200] if each.get("type") == "command" else None,
                )


def _holders(document: Any, client: Client, place: Place) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Every object or list of servers that the file has, and the members on the way to it."""
    for root in (place.root or client.root, *place.more_roots):
        yield from ((found, steps) for found, steps in _at(document, root, dotted=place.dotted) if found is not None)


def _at(value: Any, path: tuple[str, ...], *, dotted: bool) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """What is at a path of members, with the members as they are written: ``a.b`` may stand for ``b`` in ``a``."""
    if not path:
        yield value, ()
        return
    if type(value) is not dict:
        return
    for count in range(1, len(path) + 1 if dotted else 2):
        member = ".".join(path[:count])
        if member in value:
            yield from ((found, (member, *rest)) for found, rest in _at(value[member], path[count:], dotted=dotted))
    if dotted and any(member.startswith(f"{'.'.join(path)}.") for member in value):
        raise PinwardenError("CONFIG_INVALID", f"{'.'.join(path)[:80]!a} is taken apart into members with dots")


def _listed(value: Any) -> list[Any]:
    return value if type(value) is list else []


def _stem(path: str) -> str:
    """The name of a file without its ending."""
    return path.replace("\\", "/").rpartition("/")[2].rpartition(".")[0]


def _named_entries(entries: Any, root: tuple[str, ...]) -> Iterator[tuple[str, Any, str]]:
    """Name, entry and last step of its pointer."""
    if type(entries) is dict:
        for name, entry in entries.items():
            # VS Code's old settings keep servers and inputs under "mcp"; opencode keeps servers there directly.
            if root == ("mcp",) and name in ("servers", "inputs") and not _looks_like_server(entry):
                continue
            yield name, entry, name
    elif type(entries) is list:
        for number, entry in enumerate(entries):
            name = entry.get("name") if type(entry) is dict else None
            yield name if type(name) is str else "", entry, str(number)


def _looks_like_server(entry: Any) -> bool:
    return type(entry) is dict and any(type(entry.get(member)) in (str, list) for member in ("command", "url"))


def _pointer(steps: tuple[str, ...]) -> str:
    return "".join("/" + escape_pointer_token(step) for step in steps)


_SERVER_MEMBERS = frozenset(
    {"mcpServers", "mcp_servers", "mcp-servers", "context_servers", "amp.mcpServers", "mcp.servers"}
)
_STARTS = ("command", "cmd", "url", "uri", "serverUrl", "httpUrl")
_MAX_DEPTH = 12
_MAX_VALUES = 50_000


def unread_servers(document: Any, read: Iterable[str]) -> Iterator[str]:
    """Pointers to members that hold servers, of which none is among those that were read."""
    holders = {pointer.rpartition("/")[0] for pointer in read}
    waiting: list[tuple[Any, str, int]] = [(document, "", 0)]
    seen = 0
    while waiting:
        value, pointer, depth = waiting.pop()
        seen += 1
        if type(value) is not dict or depth > _MAX_DEPTH or seen > _MAX_VALUES:
            continue
        for name, inner in value.items():
            below = f"{pointer}/{escape_pointer_token(name)}"
            if name in _SERVER_MEMBERS and _holds_servers(inner):
                if below not in holders:
                    yield below
            else:
                waiting.append((inner, below, depth + 1))


def _holds_servers(value: Any) -> bool:
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
_SPELLINGS = tuple(client.spelling for client in CLIENTS.values())
_URL_MEMBERS = tuple(dict.fromkeys(member for spelling in _SPELLINGS for member in spelling.url))
# A configuration of nobody in particular may be in anybody's words.
_ANY_ENV = tuple(dict.fromkeys((spelling.env,) for spelling in _SPELLINGS))
_ANY_HEADERS = tuple(dict.fromkeys(spelling.headers for spelling in _SPELLINGS))


def fields_of(entry: Mapping[str, Any], client: Client) -> dict[str, Any]:
    """An entry with the same words for the same things, whatever the client calls them.

    ``command``, ``args``, ``env``, ``cwd``, ``url``, ``headers``, ``transport`` and ``disabled`` mean the same for all
    clients; members that have no common name keep their own. Only the client's own words are understood: another
    client's word for the same thing stays what it is, a member that means nothing here, and so does a member that
    another one overrules. Where its name is taken it gets ``unused`` before it. Nothing is refused here: a value of a
    wrong type stays.
    """
    rest = unwrapped(entry, client)
    words = _words(rest, client)
    url, url_member = _url(rest, client)
    kind = rest.pop("type", None)
    fields: dict[str, Any] = {
        "command": words[0] if words else None,
        "args": words[1:],
        "env": _env(rest, client),
        "cwd": rest.pop("cwd", None),
        "url": url,
        "headers": _headers(rest, client),
        "transport": _transport(kind, url_member, client) if url is not None else None,
        "disabled": _switched_off(rest, client),
    }
    if client.spelling.named_list:
        rest.pop("name", None)
    if kind is not None and not _is_known(kind):
        rest["type"] = kind
    others = {f"unused {name}" if name in fields else name: value for name, value in rest.items()}
    return {**others, **fields}


def target_of(entry: Any, client: Client) -> tuple[Target | None, str | None]:
    """What an entry would start or contact, and what is wrong with it."""
    if type(entry) is not dict:
        return None, "the entry is not an object"
    fields = fields_of(entry, client)
    kind = unwrapped(entry, client).get("type")
    remote = _is_known(kind) and kind in _TRANSPORTS
    both = fields["command"] is not None and fields["url"] is not None
    try:
        if fields["url"] is not None and (fields["command"] is None or remote):
            target: Target = _http(fields)
        elif fields["command"] is not None:
            target = _stdio(fields)
        else:
            return None, "the entry has neither a command nor an address"
    except PinwardenError as err:
        return None, err.message
    return target, "the entry has a command and an address; clients differ in which one they use" if both else None


def unwrapped(entry: Mapping[str, Any], client: Client) -> dict[str, Any]:
    """A copy of an entry, with what a member holds for it in its place (Goose keeps a server under ``config``)."""
    inner = entry.get(client.spelling.wrapped) if client.spelling.wrapped else None
    if type(inner) is not dict:
        return dict(entry)
    return {**{name: value for name, value in entry.items() if name != client.spelling.wrapped}, **inner}


def _words(rest: dict[str, Any], client: Client) -> list[Any]:
    """Program and arguments, taken out of the entry: one string, one list, or (Zed, before 2025) an object."""
    command = rest.pop(client.spelling.command, None)
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
            rest["command"] = inner  # what is not used there is still said
    first = command if type(command) is list else [] if command is None else [command]
    return [*first, *(arguments if type(arguments) is list else [] if arguments is None else [arguments])]


def _url(rest: dict[str, Any], client: Client) -> tuple[Any, str | None]:
    ordered = (*client.spelling.url, *(member for member in _URL_MEMBERS if member not in client.spelling.url))
    present = [member for member in ordered if rest.get(member) is not None]
    if not present:
        return None, None
    return rest.pop(present[0]), present[0]


def _is_known(kind: Any) -> bool:
    return type(kind) is str and (kind in _LOCAL_TYPES or kind in _TRANSPORTS)


def _transport(kind: Any, member: str | None, client: Client) -> str:
    if type(kind) is str and kind in _TRANSPORTS:
        return _TRANSPORTS[kind]
    if member == "httpUrl":
        return "streamable-http"
    return client.spelling.url_transport


def _env_places(client: Client) -> tuple[tuple[str, ...], ...]:
    return _ANY_ENV if client.id == "generic" else ((client.spelling.env,),)


def _env(rest: dict[str, Any], client: Client) -> Any:
    """The variables of a server. Codex names those that it hands on, which is what a placeholder does elsewhere."""
    env = _taken(rest, _env_places(client))
    named = rest.get("env_vars")
    if type(env) is not dict or type(named) is not list or client.id not in ("codex", "generic"):
        return env
    if not all(type(name) is str and name.isidentifier() for name in named):
        return env
    del rest["env_vars"]
    return {**{name: f"${{{name}}}" for name in named}, **env}


def _header_places(client: Client) -> tuple[tuple[str, ...], ...]:
    return _ANY_HEADERS if client.id == "generic" else (client.spelling.headers,)


def _taken(rest: dict[str, Any], places: tuple[tuple[str, ...], ...]) -> Any:
    """What is at the first of these places that is there, taken out of the entry; an empty object if none is."""
    for place in places:
        *outer, last = place
        holder: Any = rest
        for step in outer:
            holder = holder.get(step) if type(holder) is dict else None
        if type(holder) is not dict or holder.get(last) is None:
            continue
        found = holder[last]
        if not outer:
            del rest[last]
        else:
            left = {name: value for name, value in holder.items() if name != last}
            rest[outer[0]] = left
            if not left:
                del rest[outer[0]]
        return dict(found) if type(found) is dict else found
    return {}


def _switched_off(rest: dict[str, Any], client: Client) -> bool:
    member, value = client.spelling.off
    if type(rest.get(member)) not in (bool, type(None)):
        return False  # the client may see in it what it likes, so it is compared as it stands
    return rest.pop(member, None) is value


def _headers(rest: dict[str, Any], client: Client) -> Any:
    headers = _taken(rest, _header_places(client))
    if type(headers) is not dict or client.id not in ("codex", "generic"):
        return headers
    # Codex names the variables that hold a header's value, which is what a placeholder does elsewhere.
    known = {name.lower() for name in headers}
    named = rest.get("env_http_headers")
    if type(named) is dict:
        headers |= {name: f"${{{variable}}}" for name, variable in named.items() if name.lower() not in known}
        rest["env_http_headers"] = {name: variable for name, variable in named.items() if name.lower() in known}
        if not rest["env_http_headers"]:
            del rest["env_http_headers"]
    if type(rest.get("bearer_token_env_var")) is str and "authorization" not in {name.lower() for name in headers}:
        headers["Authorization"] = f"Bearer ${{{rest.pop('bearer_token_env_var')}}}"
    return headers


def _stdio(fields: Mapping[str, Any]) -> StdioTarget:
    words = [fields["command"], *fields["args"]]
    if not all(type(word) is str for word in words):
        raise PinwardenError("TARGET_INVALID", "the command or an argument is not text")
    cwd = fields["cwd"]
    if cwd is not None and type(cwd) is not str:
        raise PinwardenError("TARGET_INVALID", "the working folder is not text")
    return StdioTarget(command=tuple(words), env=_texts(fields["env"], "environment variable"), cwd=cwd)


def _http(fields: Mapping[str, Any]) -> HttpTarget:
    if type(fields["url"]) is not str:
        raise PinwardenError("TARGET_INVALID", "the address is not text")
    return HttpTarget(
        url=fields["url"], headers=_texts(fields["headers"], "header"), transport=fields["transport"] or "auto"
    )


def _texts(values: Any, what: str) -> dict[str, str]:
    """Names and texts; a whole number counts as its digits, and null as not there, as in VS Code."""
    if type(values) is not dict:
        raise PinwardenError("TARGET_INVALID", f"the {what}s are not an object")
    texts: dict[str, str] = {}
    for name, value in values.items():
        if type(value) is int:
            texts[name] = str(value)
        elif type(value) is str:
            texts[name] = value
        elif value is not None:
            raise PinwardenError("TARGET_INVALID", f"the value of {what} {name[:80]!a} is not text")
    return texts
