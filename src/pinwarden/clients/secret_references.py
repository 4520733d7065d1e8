"""Say how a client's file can refer to a secret instead of containing it as plain text."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pinwarden.clients.table import get_client

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
_DESCRIBED_HEADERS = 40  # characters of a header's name that become the name of a variable


def describe_secret_fix(client: str, source: str, name: str) -> str:
    """Return what to write instead of a plaintext secret in a file of this client.

    ``source`` is where the secret is: env, header, args, url, input or member. ``name`` is the name of the variable or
    header.
    """
    title = get_client(client).title
    variable = name if source == "env" else _name_variable(name, source)
    if source == "input":
        return "Remove the default value; the client asks for it."
    if client == "codex" and source in ("env", "header"):
        return _describe_codex_fix(variable, name, source)
    if client == "goose" and source == "env":
        return f"Move {name} from envs to env_keys; Goose then reads it from the keyring."
    if client in _PROMPTING_CLIENTS:
        return f"Write ${{input:{variable.lower()}}} and declare that input with password: true; {title} asks for it."
    reference = VARIABLE_REFERENCES.get(client)
    if reference is None:
        return f"{title} expands no variables: start the server through a secret store, such as op run -- COMMAND."
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


def _name_variable(name: str, source: str) -> str:
    """Return a name for the environment variable that replaces a secret without a variable name of its own."""
    if source != "header":
        return "SECRET"
    words = "".join(char if char.isascii() and char.isalnum() else "_" for char in name[:_DESCRIBED_HEADERS]).upper()
    return "API_TOKEN" if words == "AUTHORIZATION" else words.strip("_") or "SECRET"
