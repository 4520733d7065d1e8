"""Say how a client's file can refer to a secret instead of containing it as plain text."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pinwarden.clients.entry_edit import HEADER_VARIABLE
from pinwarden.clients.table import get_client
from pinwarden.system.secret_variables import SECRETS_FILE

VARIABLE_REFERENCES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("claude", "gemini", "generic", "kiro", "amp", "crush", "qwen", "copilot-cli"), "${{{}}}"),
        **dict.fromkeys(("cursor", "vscode", "windsurf", "roo", "cline", "kilo"), "${{env:{}}}"),
        "opencode": "{{env:{}}}",
        "continue": "${{{{ secrets.{} }}}}",
    }
)
"""How each client writes a reference to an environment variable. Other clients do not expand variables."""

_PROMPTING_CLIENTS = ("vscode", "visual-studio")
_MAX_NAME = 40  # characters of a server's or header's name that become part of the name of a variable


def describe_secret_fix(client: str, server: str, source: str, name: str) -> str:
    """Return what to write instead of a plaintext secret of a server in a file of this client.

    ``source`` is where the secret is: env, header, args, url, input or member. ``name`` is the name of the variable or
    header. The server can still be pinned, approved and enforced after the edit.
    """
    title = get_client(client).title
    if source == "input":
        return "Remove the default value; the client asks for it."
    if source == "env" and name.startswith(HEADER_VARIABLE):  # the header of a remote server that is enforced
        source, name = "enforced header", name.removeprefix(HEADER_VARIABLE)
    variable = name if source == "env" else _name_variable(server, name, source)
    if client == "codex" and source in ("env", "header"):
        return _describe_codex_fix(variable, name, source)
    if client == "goose" and source == "env":
        return f"Move {name} from envs to env_keys, and store it with goose configure; Goose reads it from the keyring."
    if client in _PROMPTING_CLIENTS:
        written = f"${{input:{variable.lower()}}}"
        return f"Write {written} and declare that input with password: true; {title} asks for it."
    reference = VARIABLE_REFERENCES.get(client)
    if reference is None:
        return (
            f"{title} expands no variables, but pinwarden run does: write ${{{variable}}}, put {variable}=VALUE into "
            f"{SECRETS_FILE}, and enforce the server."
        )
    value = reference.format(variable)
    if client == "continue":
        return f"Write {value} and store the value as a secret of Continue."
    return f"Write {value} and set {variable} where {title} starts."


def _describe_codex_fix(variable: str, name: str, source: str) -> str:
    if source == "env":
        return f'Remove it from env and write env_vars = ["{name}"]; Codex then passes the variable on.'
    if name.lower() == "authorization":
        return f'Write bearer_token_env_var = "{variable}" instead of the header.'
    return f'Write env_http_headers = {{ "{name}" = "{variable}" }} instead of the header.'


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
