"""Say how a client's file can refer to a secret instead of containing it as plain text."""

from __future__ import annotations

from pinwarden.clients.enforceable import HEADER_VARIABLE
from pinwarden.clients.table import EntryFormat, get_client
from pinwarden.system.secret_variables import SECRETS_FILE

_MAX_NAME = 40  # characters of a server's or header's name that become part of the name of a variable


def describe_secret_fix(client: str, server: str, source: str, name: str) -> str:
    """Return what to write instead of a plaintext secret of a server in a file of this client.

    ``source`` is where the secret is: env, header, args, url, input or member. ``name`` is the name of the variable or
    header. The server can still be pinned, approved and enforced after the edit.
    """
    reader = get_client(client)
    title, form = reader.title, reader.entry_format
    if source == "input":
        return "Remove the default value; the client asks for it."
    if source == "env" and name.startswith(HEADER_VARIABLE):  # the header of a remote server that is enforced
        source, name = "enforced header", name.removeprefix(HEADER_VARIABLE)
    variable = name if source == "env" else _name_variable(server, name, source)
    if source == "env" and reader.env_fix is not None:
        return reader.env_fix.format(name)
    if source == "header" and form.names_variables:
        return _describe_header_fix(variable, name, form)
    if form.inputs_member is not None:
        written = f"${{input:{variable.lower()}}}"
        return f"Write {written} and declare that input with password: true; {title} asks for it."
    if form.variable_reference is None:
        return (
            f"{title} expands no variables, but pinwarden run does: write ${{{variable}}}, put {variable}=VALUE into "
            f"{SECRETS_FILE}, and enforce the server."
        )
    store = reader.value_storage or f"set {variable} where {title} starts"
    return f"Write {form.variable_reference.format(variable)} and {store}."


def _describe_header_fix(variable: str, name: str, form: EntryFormat) -> str:
    if name.lower() == "authorization" and form.bearer_variable_member is not None:
        return f'Write {form.bearer_variable_member} = "{variable}" instead of the header.'
    return f'Write {form.header_variables_member} = {{ "{name}" = "{variable}" }} instead of the header.'


def _name_variable(server: str, name: str, source: str) -> str:
    """Return a name for the environment variable that replaces a secret without a variable name of its own.

    It begins with the name of the server, because each server has another secret.
    """
    words = _to_variable(name) if source.endswith("header") else ""
    what = "TOKEN" if words == "AUTHORIZATION" else words or "SECRET"
    prefix = _to_variable(server)
    return f"{prefix}_{what}" if prefix and not prefix[0].isdigit() else f"MCP_{what}"


def _to_variable(name: str) -> str:
    return "".join(char if char.isascii() and char.isalnum() else "_" for char in name[:_MAX_NAME]).upper().strip("_")
