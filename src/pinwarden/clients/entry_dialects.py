"""One server as a client spells it: what its entry means, whatever the words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.clients.table import CLIENTS, Client
from pinwarden.core.errors import PinwardenError
from pinwarden.system.target import HttpTarget, StdioTarget, Target, Transport

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
