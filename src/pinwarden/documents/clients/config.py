"""The servers in a client's configuration file, and what each of them would start or contact.

Whatever form a file has, reading it gives a value: a damaged file is a ``ConfigFile`` that says so, and a server that
cannot be understood is a ``ConfiguredServer`` with a problem, so that one of them never hides the others. Values stay
as they are written; ``${VAR}`` is resolved by whoever connects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast

from pinwarden.core.errors import PinwardenError
from pinwarden.core.pointer import pointer_step
from pinwarden.core.record import Record, field, replace
from pinwarden.documents.clients.table import CLIENTS, FORMATS, Client, Format, Place, Scope
from pinwarden.documents.target import HttpTarget, StdioTarget, Target, Transport

_URL_MEMBERS = ("url", "serverUrl", "httpUrl")
_LOCAL_TYPES = ("stdio", "local")
_TRANSPORTS: Mapping[str, Transport] = {
    "http": "streamable-http",
    "streamable-http": "streamable-http",
    "streamableHttp": "streamable-http",
    "sse": "sse",
    "remote": "auto",
}
# A configuration of nobody in particular may be in anybody's words.
_ANY_ENV = (("environment",),)
_ANY_HEADERS = (("http_headers",), ("requestOptions", "headers"))
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


def format_of(path: str) -> Format:
    """The format of a file, by its name; JSON with comments where that says nothing."""
    return next((form for ending, form in FORMATS.items() if path.lower().endswith(ending)), "json")


def read_document(data: bytes, path: str) -> Any:
    """The values of a configuration file. An empty file is an empty object, as clients see it."""
    from pinwarden.documents.clients.jsonc import decode

    form = format_of(path)
    if form == "json":
        return _read_json(data)
    text = decode(data)
    if form == "toml":
        from pinwarden.documents.clients.toml_text import read_toml

        return read_toml(text)
    from pinwarden.documents.clients.yaml_text import read_yaml

    document = read_yaml(text)
    return {} if document is None else document


def _read_json(data: bytes) -> Any:
    from pinwarden.core.strict_json import parse
    from pinwarden.documents.clients.jsonc import decode, read

    if not data.strip():
        return {}
    try:
        return parse(data)  # most files are plain JSON, and the strict reader is a hundred times faster
    except PinwardenError:
        return read(decode(data)).value


def read_config(data: bytes, *, client: Client, place: Place, path: str, link: str | None = None) -> ConfigFile:
    """A configuration file and its servers. It never raises: what is wrong is said in the result."""
    try:
        document = read_document(data, path)
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
    """One entry of a project's file, understood in the dialect of its client."""
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


def fields_of(entry: Mapping[str, Any], client: Client) -> dict[str, Any]:
    """An entry with the same words for the same things, whatever the client calls them.

    ``command``, ``args``, ``env``, ``cwd``, ``url``, ``headers``, ``transport`` and ``disabled`` mean the same for all
    clients; members that have no common name keep their own. Only the client's own words are understood: another
    client's word for the same thing stays what it is, a member that means nothing here, and so does a member that
    another one overrules. Where its name is taken it gets ``unused`` before it. Nothing is refused here: a value of a
    wrong type stays.
    """
    rest = dict(entry)
    words = _words(rest)
    url, url_member = _url(rest, client)
    kind = rest.pop("type", None)
    fields: dict[str, Any] = {
        "command": words[0] if words else None,
        "args": words[1:],
        "env": _taken(rest, _env_places(client)),
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
    kind = entry.get("type")
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
                pointer = _pointer((*before, *root, step))
                server = configured_server(name, entry, client, path=path)
                yield replace(server, scope=scope, pointer=pointer, folder=before[1] if before else None)


def _inputs(document: Mapping[str, Any], client: Client, place: Place) -> Iterator[DeclaredInput]:
    if client.spelling.inputs is None:
        return
    for root in (place.root or client.root, *place.more_roots):
        for declared, steps in _at(document, (*root[:-1], client.spelling.inputs), dotted=place.dotted):
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


def _words(rest: dict[str, Any]) -> list[Any]:
    """Program and arguments, taken out of the entry: one string, one list, or (Zed, before 2025) an object."""
    command = rest.pop("command", None)
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
    return (client.spelling.env,), *(_ANY_ENV if client.id == "generic" else ())


def _header_places(client: Client) -> tuple[tuple[str, ...], ...]:
    return client.spelling.headers, *(_ANY_HEADERS if client.id == "generic" else ())


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


def _pointer(steps: tuple[str, ...]) -> str:
    return "".join("/" + pointer_step(step) for step in steps)
