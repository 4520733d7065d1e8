"""``pinwarden identity check`` and ``identity login``: try the configured issuer before others depend on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.report import Report
from pinwarden.core.text import plural
from pinwarden.identity.access_tokens import build_token_rules, verify_access_token
from pinwarden.identity.code_flow import LOGIN_SECONDS, LoginFlow, belongs_to_login
from pinwarden.identity.issuer import Issuer
from pinwarden.identity.loopback import LoopbackRedirect
from pinwarden.identity.settings import IdentitySettings, parse_identity
from pinwarden.system.files import read_file

_MAX_BYTES = 1 << 20


def load_identity(path: Path, variables: Mapping[str, str]) -> IdentitySettings:
    """Read ``[identity]`` from a file. Raises IDENTITY_INVALID without such a table."""
    settings = parse_identity(read_file(path, _MAX_BYTES), variables) if path.exists() else None
    if settings is None:
        raise PinwardenError("IDENTITY_INVALID", f"{path} has no table [identity]", data={"key": "identity"})
    return settings


def open_issuer(settings: IdentitySettings, variables: Mapping[str, str]) -> Issuer:
    """Return the configured issuer. Nothing is requested yet."""
    ca_file = None if settings.ca_file is None else Path(settings.ca_file)
    return Issuer(settings.issuer, variables=variables, ca_file=ca_file)


def check_identity(settings: IdentitySettings, issuer: Issuer, token: str, now: float) -> Report:
    """Ask the issuer for its metadata and keys, and verify a token if there is one."""
    metadata = issuer.load_metadata()
    clients = settings.clients
    facts: dict[str, Any] = {
        "issuer": settings.issuer,
        "keys": [{"id": key.key_id, "algorithm": key.algorithm} for key in issuer.keys],
        "audiences": [] if clients is None else sorted(build_token_rules(settings, clients).audiences),
        "login": settings.login is not None,
        "pkce": "S256" in metadata.code_challenge_methods,
    }
    notes = []
    if settings.login is not None and not facts["pkce"]:
        notes.append("people cannot log in, because the issuer does not announce PKCE with S256")
    summary = f"{settings.issuer} has {plural(len(issuer.keys), 'usable key')}"
    if token:
        if clients is None:
            raise PinwardenError("IDENTITY_INVALID", "identity.clients is missing, so no token of a client is valid")
        verified = verify_access_token(token, issuer, build_token_rules(settings, clients), now)
        facts["token"] = {
            "subject": verified.subject,
            "client_id": verified.client_id,
            "scopes": sorted(verified.scopes),
            "groups": list(verified.groups),
            "audiences": sorted(verified.audiences),
            "expires_at": verified.expires_at,
        }
        summary += f"; the token of {verified.subject} is valid"
    return Report(
        command="identity check",
        subject=settings.issuer,
        summary=summary,
        exit_code=EXIT_CLEAN,
        facts=facts,
        notes=tuple(notes),
    )


def log_in(
    settings: IdentitySettings,
    issuer: Issuer,
    show_url: Callable[[str], None],
    clock: Callable[[], float],
    port: int,
) -> Report:
    """Log a person in through their browser, and report who they are and which role they have."""
    if settings.login is None:
        raise PinwardenError("IDENTITY_INVALID", "identity.login is missing, so people cannot log in")
    flow = LoginFlow(issuer, settings.login)
    with LoopbackRedirect(port) as redirect:
        request, url = flow.begin(redirect.uri, "/", clock())
        show_url(url)
        query = redirect.wait(lambda query: belongs_to_login(query, request.state), LOGIN_SECONDS)
    person = flow.finish(request, query, clock())
    return Report(
        command="identity login",
        subject=person.name,
        summary=f"{person.name} has the role {person.role}",
        exit_code=EXIT_CLEAN,
        facts={
            "subject": person.subject,
            "name": person.name,
            "email": person.email,
            "groups": list(person.groups),
            "role": person.role,
        },
    )
