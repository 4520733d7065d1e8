"""Add, replace or remove one server in the text of a client's configuration.

Each format has its own text editor. The result is always parsed again and must be the old configuration with exactly
this one server changed; otherwise the edit is refused.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from pinwarden.clients.config import entry_in, read_document
from pinwarden.clients.jsonc import decode_text, put_value, remove_value, render_file
from pinwarden.clients.table import Client, Format
from pinwarden.clients.toml_text import put_table, remove_table
from pinwarden.clients.yaml_text import put_named, remove_named, render_yaml
from pinwarden.core.errors import PinwardenError


def with_entry(data: bytes, *, form: Format, client: Client, name: str, fragment: Any) -> bytes:
    """The configuration with the server of the fragment in it. Its other members count only where a file is new."""
    before = read_document(data, f"x.{form}")
    entry = entry_in(fragment, client, name)
    if type(before) is not dict:
        raise PinwardenError("CONFIG_UNEDITABLE", "the file does not hold an object")
    current = entry_in(before, client, name)
    if current is not None and _pruned(current) == _pruned(entry):
        return data
    text = decode_text(data)
    if not text.strip():
        return _checked(_new_file(form, client, name, fragment), form, {**fragment}).encode()
    expected = _with_value(before, client, name, entry)
    if form == "json":
        for member in _accompanying(before, fragment, client):
            text = put_value(text, (member,), fragment[member])
            expected[member] = fragment[member]
        edited = put_value(text, (*client.root, name), entry) if not client.spelling.named_list else _refuse_list()
    elif form == "toml":
        edited = put_table(text, (*client.root, name), entry)
    else:
        edited = put_named(text, client.root[0], name, entry)
    return _checked(edited, form, expected).encode()


def with_entry_at(data: bytes, *, form: Format, steps: tuple[str, ...], entry: dict[str, Any]) -> bytes:
    """The configuration with the server at one place exchanged, wherever in a JSON file its client looks for it."""
    before = read_document(data, f"x.{form}")
    expected = deepcopy(before)
    holder: Any = expected
    for step in steps[:-1]:
        holder = holder.get(step) if type(holder) is dict else None
    if form != "json" or type(holder) is not dict or steps[-1] not in holder:
        raise PinwardenError("CONFIG_UNEDITABLE", f"the server at /{'/'.join(steps)[:120]} is not edited there")
    holder[steps[-1]] = entry
    return _checked(put_value(decode_text(data), steps, entry), form, expected).encode()


def without_entry(data: bytes, *, form: Format, client: Client, name: str) -> bytes:
    """The configuration without that server."""
    before = read_document(data, f"x.{form}")
    text = decode_text(data)
    expected = _with_value(before, client, name, None)
    if form == "json":
        edited = remove_value(text, (*client.root, name)) if not client.spelling.named_list else _refuse_list()
    elif form == "toml":
        edited = remove_table(text, (*client.root, name))
    else:
        edited = remove_named(text, client.root[0], name)
    return _checked(edited, form, expected).encode()


def _new_file(form: Format, client: Client, name: str, fragment: dict[str, Any]) -> str:
    if form == "json":
        return render_file(fragment)
    if form == "toml":
        return put_table("", (*client.root, name), entry_in(fragment, client, name))
    return render_yaml(fragment)


def _accompanying(before: dict[str, Any], fragment: dict[str, Any], client: Client) -> list[str]:
    """Members beside the servers that a file gets if it has none of its own: opencode names its schema."""
    return [name for name in fragment if name == "$schema" and name not in before and name not in client.root]


def _with_value(before: dict[str, Any], client: Client, name: str, entry: Any) -> dict[str, Any]:
    """What the edited text has to mean; without an entry, the server is gone."""
    expected: dict[str, Any] = deepcopy(before)
    holder: Any = expected
    for step in client.root[:-1]:
        holder = holder.setdefault(step, {})
    last = client.root[-1]
    if client.spelling.named_list:
        servers = holder.get(last) or []
        named = [type(server) is dict and server.get("name") == name for server in servers]
        if entry is None:
            holder[last] = [server for server, is_it in zip(servers, named, strict=True) if not is_it]
        elif any(named):
            holder[last] = [entry if is_it else server for server, is_it in zip(servers, named, strict=True)]
        else:
            holder[last] = [*servers, entry]
        return expected
    servers = holder.get(last)
    if servers is None:
        servers = holder[last] = {}
    if type(servers) is not dict:
        raise PinwardenError("CONFIG_UNEDITABLE", f"{last} is not an object")
    if entry is None:
        servers.pop(name, None)
    else:
        servers[name] = entry
    return expected


def _checked(text: str, form: Format, expected: Any) -> str:
    try:
        found = read_document(text.encode(), f"x.{form}")
    except PinwardenError as err:
        raise PinwardenError("CONFIG_UNEDITABLE", "the edited file could not be read again") from err
    if _pruned(found) != _pruned(expected):
        raise PinwardenError("CONFIG_UNEDITABLE", "the server cannot be edited without touching anything else")
    return text


def _pruned(value: Any) -> Any:
    """The value without empty objects and absent members, which TOML does not write; true and 1 are different."""
    if type(value) is dict:
        members = {name: _pruned(item) for name, item in value.items()}
        return {name: item for name, item in members.items() if item not in ({}, ("NoneType", None))}
    if type(value) is list:
        return [_pruned(item) for item in value]
    return (type(value).__name__, value)


def _refuse_list() -> str:
    raise PinwardenError("CONFIG_UNEDITABLE", "a list of servers in a JSON file is not edited")
