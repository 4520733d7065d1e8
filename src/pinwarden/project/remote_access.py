"""Uses the remote servers that the user of this machine connected: for ``pinwarden run``, and for probes.

``identity/remote_tokens.py`` keeps and renews the tokens. Nothing of it is loaded unless the user connected a server,
or ``pinwarden.toml`` has a table ``[remotes.NAME]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.system.files import read_file
from pinwarden.system.secret_variables import add_secrets
from pinwarden.system.state_folder import find_database, find_state_folder, may_have_grants, read_host_id
from pinwarden.system.target import HttpTarget, expand_placeholders

if TYPE_CHECKING:
    from pinwarden.identity.grants import Grant, GrantOwner
    from pinwarden.identity.remote_settings import RemoteSettings
    from pinwarden.identity.remote_tokens import RemoteCredential, RemoteTarget
    from pinwarden.project.project import Project

_MAX_SETTINGS_BYTES = 1 << 20


def may_be_connected(project: Project, target: HttpTarget) -> bool:
    """Whether the user may have connected a remote server, or the project's settings say how to get a token."""
    return not any(name.lower() == "authorization" for name in target.headers) and uses_connections(project)


def uses_connections(project: Project) -> bool:
    """Whether the user may have connected a remote server, or ``pinwarden.toml`` says how to get a token for one."""
    if may_have_grants(project.variables, project.home):
        return True
    file = project.policy_file
    return file.exists() and _has_remotes(read_file(file, _MAX_SETTINGS_BYTES))


def _has_remotes(data: bytes) -> bool:
    """Whether ``pinwarden.toml`` has a table ``[remotes]``. The command that reads the policy reports invalid TOML."""
    if b"remotes" not in data:
        return False
    import tomllib

    try:
        return "remotes" in tomllib.loads(data.decode())
    except (ValueError, RecursionError):
        return False


def load_remote_settings(file: Path, variables: Mapping[str, str]) -> dict[str, RemoteSettings]:
    """Read ``[remotes.NAME]``, by the name of the server. Raises REMOTES_INVALID."""
    try:
        from pinwarden.identity.remote_settings import parse_remotes
        from pinwarden.identity.remote_tokens import RemoteTokens  # noqa: F401 - is PyJWT installed?
    except ImportError as err:
        raise PinwardenError(
            "USAGE",
            f"connected servers need the package {err.name}, which is not installed",
            hint='Install it from a checkout of Pinwarden: pip install ".[identity]"',
        ) from err
    return parse_remotes(read_file(file, _MAX_SETTINGS_BYTES), variables) if file.exists() else {}


def build_remote_target(
    project: Project, name: str, target: HttpTarget, *, allow_private: bool = False
) -> RemoteTarget:
    """Return a remote server with its settings. Raises if its entry has a credential of its own."""
    settings = load_remote_settings(project.policy_file, project.variables)
    from pinwarden.identity.remote_settings import RemoteSettings
    from pinwarden.identity.remote_tokens import RemoteTarget

    if any(header.lower() == "authorization" for header in target.headers):
        raise PinwardenError("USAGE", f"the entry of {name[:120]!a} has its own Authorization header")
    url = expand_placeholders(target.url, add_secrets(project.variables, project.home))
    return RemoteTarget(
        server=name, url=url, settings=settings.get(name, RemoteSettings()), allow_private=allow_private
    )


def find_local_owner(folder: Path) -> GrantOwner:
    """Return the owner of what the user of this machine connects, by the state folder."""
    from pinwarden.identity.grants import LOCAL, GrantOwner

    return GrantOwner(issuer=LOCAL, subject=read_host_id(folder))


def open_local_credential(
    target: RemoteTarget,
    variables: Mapping[str, str],
    home: Path,
    on_failed: Callable[[Grant, str], None] = lambda _grant, _reason: None,
) -> RemoteCredential:
    """Return the token of this user for a server. What all users of a gateway share is not used here."""
    from pinwarden.identity.grant_key import GrantKey
    from pinwarden.identity.grants import Grants
    from pinwarden.identity.remote_tokens import RemoteCredential, RemoteTokens
    from pinwarden.system.database import load_schema, open_database

    folder = find_state_folder(variables, home)
    if target.settings.account == "shared":
        target = replace(target, settings=replace(target.settings, account="person"))
    database = open_database(find_database(variables, home), load_schema("grants"))
    grants = Grants(database, lambda: GrantKey.load(variables, folder))
    tokens = RemoteTokens(grants, variables, on_failed=on_failed)
    return RemoteCredential(tokens, target, find_local_owner(folder))


def authorize_probe(project: Project, name: str, target: HttpTarget) -> HttpTarget:
    """Return the target with the user's token, if the user connected the server."""
    if not may_be_connected(project, target):
        return target
    remote = build_remote_target(project, name, target)
    token = open_local_credential(remote, project.variables, project.home).load()
    if token is None:
        return target
    return replace(target, headers={**target.headers, "Authorization": f"Bearer {token.access_token}"})
