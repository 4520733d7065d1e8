"""Parse configuration files of all formats, and read, replace or remove the entry of one server in them.

Each format has its own editor (``jsonc.py``, ``toml_text.py``, ``yaml_text.py``), which is imported only when needed.
Pinwarden parses the text again after every edit. It refuses the edit if anything but this server's entry changed.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, cast

from pinwarden.clients.table import FORMATS, Client, Format
from pinwarden.core.errors import PinwardenError

_MAX_OCCURRENCES = 50  # of the replaced string in a file; the file is parsed once for each of them


def read_document(data: bytes, path: str) -> Any:
    """Parse a configuration file. An empty file gives an empty object, because clients also accept empty files."""
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
    """Return the format of a file by the suffix of its name. Unknown suffixes count as JSON with comments."""
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
    """Return the entry of a server in a parsed configuration; None if it is missing."""
    entries = document
    for step in root or client.root:
        entries = entries.get(step) if type(entries) is dict else None
    if type(entries) is list:
        return next((entry for entry in entries if type(entry) is dict and entry.get("name") == name), None)
    return entries.get(name) if type(entries) is dict else None


def build_config(client: Client, name: str, entry: Any) -> dict[str, Any]:
    """Build a configuration with only this server, at the path that its client reads. Reverses ``find_entry``."""
    if not client.entry_format.named_list:
        return wrap_in_path(client.root, {name: entry})
    # An entry that Continue reads from another client's file has no "name" member yet.
    return wrap_in_path(client.root, [{"name": name, **entry} if type(entry) is dict else entry])


def wrap_in_path(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return nested objects with this value at this member path: ``("a", "b")`` gives ``{"a": {"b": value}}``."""
    for step in reversed(path):
        value = {step: value}
    return cast(dict[str, Any], value)


def set_entry(data: bytes, *, form: Format, client: Client, name: str, fragment: Any) -> bytes:
    """Return the configuration with the server of the fragment added or replaced.

    If the file is empty, the result has all members of the fragment.
    """
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

        return put_value(text, (*client.root, name), entry) if not client.entry_format.named_list else _refuse_list()
    if form == "toml":
        from pinwarden.clients.toml_text import put_table

        return put_table(text, (*client.root, name), entry)
    from pinwarden.clients.yaml_text import put_list_item, put_mapping

    if not client.entry_format.named_list:
        return put_mapping(text, (*client.root, name), entry)
    return put_list_item(text, client.root[0], name, entry)


def set_entry_at(data: bytes, *, form: Format, steps: tuple[str, ...], entry: dict[str, Any]) -> bytes:
    """Return the configuration with the entry at one member path replaced. Raises for files other than JSON."""
    from pinwarden.clients.jsonc import decode_text, put_value

    before = read_document(data, f"x.{form}")
    expected = deepcopy(before)
    holder: Any = expected
    for step in steps[:-1]:
        holder = holder.get(step) if type(holder) is dict else None
    if form != "json" or type(holder) is not dict or steps[-1] not in holder:
        raise PinwardenError("CONFIG_UNEDITABLE", f"Pinwarden cannot edit the server at /{'/'.join(steps)[:120]}")
    holder[steps[-1]] = entry
    return _check_edit(put_value(decode_text(data), steps, entry), form, expected).encode()


def replace_string(
    data: bytes, words: tuple[str, str], *, form: Format, steps: tuple[str, ...], entry: Any
) -> bytes | None:
    """Replace one string by another, so that the server at ``steps`` becomes ``entry``.

    Only the characters of that string change, which keeps comments and layout in every format. None if no single
    occurrence of the string gives this entry.
    """
    from pinwarden.clients.jsonc import decode_text

    expected = deepcopy(read_document(data, f"x.{form}"))
    if not _set_at(expected, steps, entry):
        return None
    text, position = decode_text(data), -1
    old, new = words
    for _ in range(_MAX_OCCURRENCES):
        position = text.find(old, position + 1)
        if position < 0:
            return None
        edited = text[:position] + new + text[position + len(old) :]
        try:
            return _check_edit(edited, form, expected).encode()
        except PinwardenError:
            continue
    return None


def _set_at(document: Any, steps: tuple[str, ...], value: Any) -> bool:
    """Replace the value at a path of members, names and indexes. Returns False if there is no value."""
    holder = document
    for step in steps[:-1]:
        holder = holder.get(step) if type(holder) is dict else None
    if type(holder) is list:
        index = next((i for i, item in enumerate(holder) if type(item) is dict and item.get("name") == steps[-1]), None)
        if index is None and steps[-1].isdecimal() and int(steps[-1]) < len(holder):
            index = int(steps[-1])
        if index is None:
            return False
        holder[index] = value
        return True
    if type(holder) is not dict or steps[-1] not in holder:
        return False
    holder[steps[-1]] = value
    return True


def delete_entry(data: bytes, *, form: Format, client: Client, name: str) -> bytes:
    """Return the configuration without the server ``name``."""
    from pinwarden.clients.jsonc import decode_text

    expected = _build_expected_document(read_document(data, f"x.{form}"), client, name, None)
    return _check_edit(_remove_entry(decode_text(data), form, client, name), form, expected).encode()


def _remove_entry(text: str, form: Format, client: Client, name: str) -> str:
    if form == "json":
        from pinwarden.clients.jsonc import remove_value

        return remove_value(text, (*client.root, name)) if not client.entry_format.named_list else _refuse_list()
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
    """List the fragment's ``$schema``, which opencode expects next to the servers, if the file has none yet."""
    return [name for name in fragment if name == "$schema" and name not in before and name not in client.root]


def _build_expected_document(before: dict[str, Any], client: Client, name: str, entry: Any) -> dict[str, Any]:
    """Build the document that the edited text must contain. If ``entry`` is None, the server is removed."""
    expected: dict[str, Any] = deepcopy(before)
    holder: Any = expected
    for step in client.root[:-1]:
        holder = holder.setdefault(step, {})
    last = client.root[-1]
    if client.entry_format.named_list:
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
        raise PinwardenError("CONFIG_UNEDITABLE", f"editing would make the file invalid {form.upper()}") from err
    if _drop_empty_members(document) != _drop_empty_members(expected):
        raise PinwardenError("CONFIG_UNEDITABLE", "the server cannot be edited without changing other content")
    return text


def _drop_empty_members(value: Any) -> Any:
    """Remove empty objects and null members, which TOML cannot represent, so that formats can be compared.

    Scalars become pairs of type and value, because ``True == 1`` in Python.
    """
    if type(value) is dict:
        members = {name: _drop_empty_members(item) for name, item in value.items()}
        return {name: item for name, item in members.items() if item not in ({}, ("NoneType", None))}
    if type(value) is list:
        return [_drop_empty_members(item) for item in value]
    return (type(value).__name__, value)


def _refuse_list() -> str:
    raise PinwardenError("CONFIG_UNEDITABLE", "Pinwarden cannot edit a list of servers in a JSON file")
