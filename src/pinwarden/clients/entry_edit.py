"""Replace the command or URL in a client's entry, in the entry format of the client.

`replace_command` replaces the command of an entry. `to_command_entry` replaces the URL of an entry by a command, and
stores the values of its headers as environment variables of the entry.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pinwarden.clients.config import normalize_entry, parse_target, unwrap_entry
from pinwarden.clients.table import Client, EntryFormat
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.text import lazy_pattern
from pinwarden.system.redaction import redact_entry
from pinwarden.system.target import HttpTarget

HEADER_VARIABLE = "PINWARDEN_HEADER_"
"""The prefix of environment variables that have the value of a header."""
ADDRESS_VARIABLE = "PINWARDEN_ADDRESS"

_REFERENCE = lazy_pattern(r"[$%{<]")
_SIGN_IN_MEMBERS = ("oauth", "auth", "authProviderType", "headersHelper", "targetAudience", "oauth_resource", "scopes")
"""Members that make the client itself sign in to the server. A command cannot use this sign-in."""
_ENV_REFERENCE = lazy_pattern(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class RemoteEntry(Record):
    """The URL of a client's entry, and the environment variables that a command needs to contact it."""

    target: HttpTarget
    url: str
    """The URL in the form in which a lock stores it."""
    headers: Mapping[str, str]
    """The name of the environment variable for each header."""
    url_variable: str | None
    variables: Mapping[str, str] = field(repr=False)
    """The values of the environment variables, as written in the client's file."""


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


def name_header_variable(name: str) -> str:
    """Return the name of the environment variable for a header."""
    return HEADER_VARIABLE + re.sub(r"[^A-Z0-9]", "_", name.upper())


def read_remote_entry(entry: Any, client: Client) -> RemoteEntry:
    """Parse the URL and headers of an entry. Raises NOTHING_TO_RUN if a command cannot contact the server."""
    target, problem = parse_target(entry, client)
    if not isinstance(target, HttpTarget) or problem is not None:
        raise PinwardenError("NOTHING_TO_RUN", problem or "it is not a remote address")
    sign_in = next((name for name in _SIGN_IN_MEMBERS if unwrap_entry(entry, client).get(name)), None)
    if sign_in is not None:
        raise PinwardenError("NOTHING_TO_RUN", f"{client.title} signs in to it ({sign_in}), which a command cannot use")
    headers = {name: name_header_variable(name) for name in target.headers}
    if len(set(headers.values())) != len(headers):
        raise PinwardenError("NOTHING_TO_RUN", "two of its headers differ only in punctuation")
    values = {headers[name]: value for name, value in target.headers.items()}
    url = redact_entry({"url": target.url})["url"]
    # The lock does not store secrets, and only the client fills in its placeholders.
    hidden = url != target.url or _REFERENCE.search(target.url) is not None
    if hidden:
        values[ADDRESS_VARIABLE] = target.url
    return RemoteEntry(
        target=target,
        url=url,
        headers=headers,
        url_variable=ADDRESS_VARIABLE if hidden else None,
        variables=values,
    )


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
