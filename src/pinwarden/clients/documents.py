"""Configuration files as documents: parse them by format, and get, put or remove the entry of one server.

Each format has its own text editor (``jsonc.py``, ``toml_text.py``, ``yaml_text.py``), which is imported when it is
needed. The result of an edit is always parsed again and must be the old document with exactly this server changed;
otherwise the edit is refused.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, cast

from pinwarden.clients.table import FORMATS, Client, Format
from pinwarden.core.errors import PinwardenError


def read_document(data: bytes, path: str) -> Any:
    """Parse a configuration file. An empty file is an empty object, as for clients."""
    from pinwarden.clients.jsonc import decode_text

    form = detect_format(path)
    if form == "json":
        return _read_json(data)
    text = decode_text(data)
    if form == "toml":
        from pinwarden.clients.toml_text import read_toml

        return read_toml(text)
    from pinwarden.clients.yaml_text import read_yaml

    document = read_yaml(text)
    return {} if document is None else document


def detect_format(path: str) -> Format:
    """The format of a file by its name; JSON with comments if the name has no known suffix."""
    return next((form for ending, form in FORMATS.items() if path.lower().endswith(ending)), "json")


def _read_json(data: bytes) -> Any:
    from pinwarden.clients.jsonc import decode_text, parse_jsonc
    from pinwarden.core.strict_json import parse_json

    if not data.strip():
        return {}
    try:
        return parse_json(data)  # most files are plain JSON, and the strict parser is a hundred times faster
    except PinwardenError:
        return parse_jsonc(decode_text(data)).value


def find_entry(document: Any, client: Client, name: str, root: tuple[str, ...] | None = None) -> Any:
    """The entry of a server in a configuration or fragment; None if it is missing."""
    entries = document
    for step in root or client.root:
        entries = entries.get(step) if type(entries) is dict else None
    if type(entries) is list:
        return next((entry for entry in entries if type(entry) is dict and entry.get("name") == name), None)
    return entries.get(name) if type(entries) is dict else None


def build_config(client: Client, name: str, entry: Any) -> dict[str, Any]:
    """A configuration with only this server, at the path that its client reads. The inverse of ``find_entry``."""
    if not client.spelling.named_list:
        return wrap_in_path(client.root, {name: entry})
    # Continue also reads files of other clients, where a server's name is not inside its entry.
    return wrap_in_path(client.root, [{"name": name, **entry} if type(entry) is dict else entry])


def wrap_in_path(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """An object with a value at a path of members."""
    for step in reversed(path):
        value = {step: value}
    return cast(dict[str, Any], value)


def set_entry(data: bytes, *, form: Format, client: Client, name: str, fragment: Any) -> bytes:
    """The configuration with the server of the fragment. Other members of the fragment are used only in new files."""
    from pinwarden.clients.jsonc import decode_text, put_value

    before = read_document(data, f"x.{form}")
    entry = find_entry(fragment, client, name)
    if type(before) is not dict:
        raise PinwardenError("CONFIG_UNEDITABLE", "the file does not contain an object")
    current = find_entry(before, client, name)
    if current is not None and _drop_empty_members(current) == _drop_empty_members(entry):
        return data
    text = decode_text(data)
    if not text.strip():
        return _check_edit(_render_new_file(form, client, name, fragment), form, {**fragment}).encode()
    expected = _build_expected_document(before, client, name, entry)
    for member in _list_missing_schema_members(before, fragment, client) if form == "json" else ():
        text = put_value(text, (member,), fragment[member])
        expected[member] = fragment[member]
    return _check_edit(_put_entry(text, form, client, name, entry), form, expected).encode()


def _put_entry(text: str, form: Format, client: Client, name: str, entry: Any) -> str:
    if form == "json":
        from pinwarden.clients.jsonc import put_value

        return put_value(text, (*client.root, name), entry) if not client.spelling.named_list else _refuse_list()
    if form == "toml":
        from pinwarden.clients.toml_text import put_table

        return put_table(text, (*client.root, name), entry)
    from pinwarden.clients.yaml_text import put_list_item

    return put_list_item(text, client.root[0], name, entry)


def set_entry_at(data: bytes, *, form: Format, steps: tuple[str, ...], entry: dict[str, Any]) -> bytes:
    """The configuration with the server at one path replaced. Only for JSON files."""
    from pinwarden.clients.jsonc import decode_text, put_value

    before = read_document(data, f"x.{form}")
    expected = deepcopy(before)
    holder: Any = expected
    for step in steps[:-1]:
        holder = holder.get(step) if type(holder) is dict else None
    if form != "json" or type(holder) is not dict or steps[-1] not in holder:
        raise PinwardenError("CONFIG_UNEDITABLE", f"the server at /{'/'.join(steps)[:120]} cannot be edited in place")
    holder[steps[-1]] = entry
    return _check_edit(put_value(decode_text(data), steps, entry), form, expected).encode()


def delete_entry(data: bytes, *, form: Format, client: Client, name: str) -> bytes:
    """The configuration without that server."""
    from pinwarden.clients.jsonc import decode_text

    expected = _build_expected_document(read_document(data, f"x.{form}"), client, name, None)
    return _check_edit(_remove_entry(decode_text(data), form, client, name), form, expected).encode()


def _remove_entry(text: str, form: Format, client: Client, name: str) -> str:
    if form == "json":
        from pinwarden.clients.jsonc import remove_value

        return remove_value(text, (*client.root, name)) if not client.spelling.named_list else _refuse_list()
    if form == "toml":
        from pinwarden.clients.toml_text import remove_table

        return remove_table(text, (*client.root, name))
    from pinwarden.clients.yaml_text import remove_list_item

    return remove_list_item(text, client.root[0], name)


def _render_new_file(form: Format, client: Client, name: str, fragment: dict[str, Any]) -> str:
    if form == "json":
        from pinwarden.clients.jsonc import render_file

        return render_file(fragment)
    if form == "toml":
        return _put_entry("", form, client, name, find_entry(fragment, client, name))
    from pinwarden.clients.yaml_text import render_yaml

    return render_yaml(fragment)


def _list_missing_schema_members(before: dict[str, Any], fragment: dict[str, Any], client: Client) -> list[str]:
    """Members next to the servers that are added if the file has none: opencode states its schema."""
    return [name for name in fragment if name == "$schema" and name not in before and name not in client.root]


def _build_expected_document(before: dict[str, Any], client: Client, name: str, entry: Any) -> dict[str, Any]:
    """The document that the edited text must contain; without an entry, the server is removed."""
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


def _check_edit(text: str, form: Format, expected: Any) -> str:

    try:
        document = read_document(text.encode(), f"x.{form}")
    except PinwardenError as err:
        raise PinwardenError("CONFIG_UNEDITABLE", "the edited file could not be parsed") from err
    if _drop_empty_members(document) != _drop_empty_members(expected):
        raise PinwardenError("CONFIG_UNEDITABLE", "the server cannot be edited without changing other content")
    return text


def _drop_empty_members(value: Any) -> Any:
    """The value without empty objects and null members, which TOML does not have; true and 1 are different."""
    if type(value) is dict:
        members = {name: _drop_empty_members(item) for name, item in value.items()}
        return {name: item for name, item in members.items() if item not in ({}, ("NoneType", None))}
    if type(value) is list:
        return [_drop_empty_members(item) for item in value]
    return (type(value).__name__, value)


def _refuse_list() -> str:
    raise PinwardenError("CONFIG_UNEDITABLE", "a list of servers in a JSON file cannot be edited")
