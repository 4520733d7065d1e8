"""Replace the command or URL in a client's entry, in the entry format of the client.

`replace_command` replaces the command of an entry. `to_command_entry` replaces the URL of an entry by a command, and
stores the values of its headers as environment variables of the entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinwarden.clients.config import normalize_entry
from pinwarden.clients.enforceable import RemoteEntry
from pinwarden.clients.table import Client, EntryFormat
from pinwarden.core.errors import PinwardenError
from pinwarden.core.text import lazy_pattern

_ENV_REFERENCE = lazy_pattern(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def replace_command(entry: Any, client: Client, words: Sequence[str]) -> dict[str, Any]:
    """Replace the command of a client's entry, in the form that the entry uses."""
    form = client.entry_format
    if not isinstance(entry, dict):
        raise _unknown_form_error(client)
    inner = entry.get(form.wrapper_member) if form.wrapper_member else None
    if isinstance(inner, dict) and form.command_member in inner:
        return {**entry, str(form.wrapper_member): _replace_words(inner, client, words)}
    return _replace_words(entry, client, words)


def _replace_words(entry: dict[str, Any], client: Client, words: Sequence[str]) -> dict[str, Any]:
    member = client.entry_format.command_member
    command = entry.get(member)
    if isinstance(command, list) and "args" not in entry:
        return {**entry, member: list(words)}
    if isinstance(command, str):
        return _put_after(entry, member, {member: words[0], "args": list(words[1:])})
    if isinstance(command, dict) and isinstance(command.get("path"), str):
        return {**entry, member: {**command, "path": words[0], "args": list(words[1:])}}
    raise _unknown_form_error(client)


def to_command_entry(
    entry: dict[str, Any], client: Client, remote: RemoteEntry, words: Sequence[str]
) -> dict[str, Any]:
    """Return the entry with a command instead of its URL and headers. Other members stay."""
    form = client.entry_format
    inner = entry.get(form.wrapper_member) if form.wrapper_member else None
    if isinstance(inner, dict) and any(member in inner for member in form.url_members):
        return {**entry, str(form.wrapper_member): to_command_entry(inner, client, remote, words)}
    added: dict[str, Any] = {}
    if form.local_type is not None or "type" in entry:
        added["type"] = form.local_type or "stdio"
    if form.command_list:
        added[form.command_member] = list(words)
    else:
        added |= {form.command_member: words[0], "args": list(words[1:])}
    kept = {name: value for name, value in entry.items() if name not in ("type", "transport", form.headers_path[0])}
    fields = normalize_entry(entry, client)
    kept = {name: value for name, value in kept.items() if not (value == fields["url"] and isinstance(value, str))}
    kept |= _keep_other_headers_members(entry, form.headers_path)
    if form.names_variables:
        kept = {name: value for name, value in kept.items() if name not in _list_variable_members(form)}
    env = kept.pop(form.env_member, None)
    values = {**(env if isinstance(env, dict) else {}), **remote.variables}
    if form.names_variables and (passed := _list_references(remote.variables)):
        member = str(form.passed_variables_member)
        added[member] = [*(entry.get(member) or ()), *passed]  # the client passes on only these
    name = {"name": kept.pop("name")} if form.named_list and "name" in kept else {}
    return {**name, **added, **({form.env_member: values} if values else {}), **kept}


def _list_variable_members(form: EntryFormat) -> tuple[str | None, ...]:
    """Return the members that name environment variables. The command's own variables replace them."""
    return (form.header_variables_member, form.bearer_variable_member, form.passed_variables_member)


def _keep_other_headers_members(entry: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Return the object around the headers without them, such as Continue's ``requestOptions``, if it is not empty."""
    holder = entry.get(path[0])
    if len(path) == 1 or not isinstance(holder, dict):
        return {}
    rest = {name: value for name, value in holder.items() if name != path[1]}
    return {path[0]: rest} if rest else {}


def _list_references(variables: Mapping[str, str]) -> list[str]:
    return list(dict.fromkeys(match[1] for value in variables.values() for match in _ENV_REFERENCE.finditer(value)))


def _put_after(entry: dict[str, Any], member: str, added: dict[str, Any]) -> dict[str, Any]:
    """Return the entry with these members replaced in place. New members are inserted directly after ``member``."""
    changed: dict[str, Any] = {}
    for name, value in entry.items():
        changed[name] = added.get(name, value)
        if name == member:
            changed |= {new: item for new, item in added.items() if new not in entry}
    return changed


def _unknown_form_error(client: Client) -> PinwardenError:
    return PinwardenError("CONFIG_UNEDITABLE", f"the command of an entry of {client.title} has an unknown form")
