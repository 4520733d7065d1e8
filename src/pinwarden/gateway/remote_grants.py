"""Remote servers that people connect: which ones, whose grants, and what the audit log says about them.

``identity/remote_tokens.py`` gets and renews the tokens. This module finds the servers in the lock and the settings in
``pinwarden.toml``, opens the grants in the gateway's database, and records when one is added, removed or fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.report import Report, ReportTable
from pinwarden.core.text import plural
from pinwarden.gateway.audit.event import GRANT_ADDED, GRANT_FAILED, GRANT_REMOVED, AuditEvent
from pinwarden.identity.grant_key import GrantKey
from pinwarden.identity.grants import EVERYONE, LOCAL, SHARED, STATIC, Grant, GrantOwner, Grants
from pinwarden.identity.remote_tokens import PendingGrant, RemoteTarget, RemoteTokens
from pinwarden.project.remote_access import build_remote_target, load_remote_settings
from pinwarden.system.clock import now
from pinwarden.system.target import strip_query

if TYPE_CHECKING:
    from pinwarden.gateway.state import GatewayState
    from pinwarden.project.project import Project

_MAX_SETTINGS_BYTES = 1 << 20
_HEADINGS = ("SERVER", "OWNER", "STATE", "SCOPES", "CONNECTED", "ID")


def open_remote_tokens(
    state: GatewayState,
    variables: Mapping[str, str],
    *,
    create_key: bool = False,
    record: Callable[[AuditEvent], None] | None = None,
) -> RemoteTokens:
    """Return the grants in the gateway's database. ``create_key`` makes a key, on a machine with its own database.

    ``record`` records an event in the audit log that is open already.
    """
    load_key = GrantKey.create if create_key and state.is_on_this_machine else GrantKey.load

    def fail(grant: Grant, reason: str) -> None:
        event = build_grant_event(GRANT_FAILED, grant, reason=reason)
        if record is not None:
            record(event)
        else:
            record_grant_event(state, event)

    return RemoteTokens(
        Grants(state.grants_database, lambda: load_key(variables, state.folder)), variables, on_failed=fail
    )


def find_remote_target(project: Project, name: str, *, allow_private: bool = False) -> RemoteTarget:
    """Return a locked remote server with its settings. Raises if it is not remote, or has its own credential."""
    from pinwarden.lock.locked_launch import is_remote
    from pinwarden.project.run import find_entry, find_remote_target

    entry = find_entry(project, name, None)
    if not is_remote(entry):
        raise PinwardenError("USAGE", f"{name[:120]!a} is not a remote server, so there is nothing to connect")
    return build_remote_target(project, name, find_remote_target(project, entry), allow_private=allow_private)


def list_remote_targets(project: Project) -> list[RemoteTarget]:
    """Return the locked remote servers that a person could connect, by name."""
    from pinwarden.lock import lock_store

    lock = lock_store.read(project.lock)
    targets: dict[str, RemoteTarget] = {}
    for entry in () if lock is None else lock.entries:
        if entry.name not in targets:
            try:
                targets[entry.name] = find_remote_target(project, entry.name)
            except PinwardenError as err:
                if err.code == "REMOTES_INVALID":
                    raise
    return list(targets.values())


def build_grant_event(kind: str, grant: Grant, *, by: str = "", reason: str = "") -> AuditEvent:
    """Return the event about a grant. It has no token."""
    about = f"of {describe_owner(grant.owner)}, issued by {grant.issuer}"
    return AuditEvent(
        kind=kind, server=grant.server, item=grant.id, by=by, reason=f"{about}: {reason}" if reason else about
    )


def record_grant_event(state: GatewayState, event: AuditEvent) -> None:
    """Record an event about a grant, before it takes effect."""
    with state.open_audit_log() as log:
        log.record_durably(event)
        if log.problem is not None:
            raise log.problem


def describe_owner(owner: GrantOwner) -> str:
    """Return whose grant it is, for people."""
    if owner.issuer == LOCAL:
        return "the user of this machine" if not owner.subject else f"the user of {owner.subject.partition('#')[0]}"
    if owner.issuer == SHARED:
        return "all users"
    return f"the client {owner.subject}" if owner.issuer == STATIC else f"{owner.subject} at {owner.issuer}"


def finish_connecting(state: GatewayState, tokens: RemoteTokens, pending: PendingGrant, query: str, by: str) -> Grant:
    """Store the grant of a person who comes back from the issuer, and record it."""
    grant = tokens.finish(pending, query, by, now())
    try:
        record_grant_event(state, build_grant_event(GRANT_ADDED, grant, by=by))
    except PinwardenError:
        tokens.grants.remove(grant.id)
        raise
    return grant


def forget_grants(
    state: GatewayState, tokens: RemoteTokens, grants: Sequence[Grant], targets: Mapping[str, RemoteTarget], by: str
) -> Report:
    """Delete grants with their tokens, and ask the issuers to revoke them."""
    revoked = 0
    for grant in grants:
        record_grant_event(state, build_grant_event(GRANT_REMOVED, grant, by=by))
        target = targets.get(grant.server)
        revoked += tokens.forget(grant, target if target is not None and target.address == grant.address else None)
    notes = () if revoked == len(grants) else ("not every issuer revoked its tokens; they are valid until they expire",)
    return Report(
        command="remote forget",
        subject=", ".join(dict.fromkeys(grant.server for grant in grants)),
        summary=f"{plural(len(grants), 'grant')} forgotten; running gateways stop using it within seconds",
        exit_code=EXIT_CLEAN,
        facts={"grants": [grant_to_json(grant) for grant in grants], "revoked": revoked},
        notes=notes,
    )


def report_connected(grant: Grant) -> Report:
    """Build the report about a server that was connected."""
    return Report(
        command="remote connect",
        subject=grant.server,
        summary=f"{grant.server} is connected for {describe_owner(grant.owner)}",
        exit_code=EXIT_CLEAN,
        facts={"grant": grant_to_json(grant)},
    )


def report_grants(grants: Sequence[Grant], missing: Sequence[str]) -> Report:
    """Build the list of grants. ``missing`` are the configured servers that the user has not connected."""
    rows = [
        (
            grant.server,
            describe_owner(grant.owner),
            "connect again" if grant.problem else "needs more scopes" if grant.wanted else "connected",
            grant.scopes or "-",
            grant.connected_at[:10],
            grant.id,
        )
        for grant in grants
    ]
    return Report(
        command="remote list",
        subject="remote servers",
        summary=f"{plural(len(grants), 'grant')} of remote servers" if grants else "no remote server is connected",
        exit_code=EXIT_CLEAN,
        facts={"grants": [grant_to_json(grant) for grant in grants], "missing": list(missing)},
        notes=tuple(f"{name} is not connected; run: pinwarden remote connect {name}" for name in missing),
        table=ReportTable(headings=_HEADINGS, rows=tuple(rows)) if rows else None,
    )


def grant_to_json(grant: Grant) -> dict[str, Any]:
    """Return a grant for output. It has no token."""
    expires = datetime.fromtimestamp(grant.expires_at, UTC).isoformat() if grant.expires_at else None
    return {
        "id": grant.id,
        "server": grant.server,
        "address": strip_query(grant.address),
        "owner": {"issuer": grant.owner_issuer, "subject": grant.owner_subject},
        "issuer": grant.issuer,
        "client_id": grant.client_id,
        "resource": grant.resource,
        "scopes": grant.scopes.split(),
        "wanted_scopes": grant.wanted.split(),
        "token_expires_at": expires,
        "connected_at": grant.connected_at,
        "connected_by": grant.connected_by,
        "problem": grant.problem or None,
    }


def list_missing(project: Project, grants: Sequence[Grant], owner: GrantOwner) -> list[str]:
    """Return the configured servers that an owner has to connect, or connect again."""
    usable = {grant.server for grant in grants if grant.owner in (owner, EVERYONE) and not grant.problem}
    broken = {grant.server for grant in grants if grant.owner == owner and grant.problem}
    configured = {
        name
        for name, settings in load_remote_settings(project.policy_file, project.variables).items()
        if settings.account != "machine"
    }
    return sorted((configured | broken) - usable)
