"""An install plan: all that a lockfile records about one server in one client, before its integrity is computed."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Literal

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.lock.entry import LOCK_INTEGRITY_EVIDENCE
from pinwarden.lock.fragments import fragment
from pinwarden.lock.launch_choice import Dialect, LaunchTarget, require_target, selected_target
from pinwarden.lock.server_entry import ServerEntry, installable_problem
from pinwarden.lock.target_verification import VerificationReport, capability_manifest
from pinwarden.lock.trust_tiers import judge, with_evidence

Scope = Literal["project", "global"]


class Installation(Record):
    """How a server is to be installed, where that is not the usual way."""

    scope: Scope = "project"
    target: LaunchTarget | None = None
    """What is launched, if not the default."""
    dialect: Dialect = "toolpin"


USUAL = Installation()


def install_plan(
    entry: ServerEntry,
    client: str,
    *,
    now: str,
    verification: VerificationReport | None = None,
    how: Installation = USUAL,
) -> dict[str, Any]:
    """The lockfile entry of a server in a client, in ToolPin's member order and without ``integrity``.

    ``now`` is when the entry was resolved and locked. What a verification found is in it: its evidence, and the hashes
    of live tools in the manifest.
    """
    problem = installable_problem(entry)
    if problem is not None:
        raise PinwardenError("NO_INSTALL_TARGET", f"cannot install {entry.name[:120]}: {problem}")
    chosen = require_target(entry) if how.target is None else how.target
    made = fragment(entry, client, target=chosen, dialect=how.dialect)
    trust = judge(entry, now=now) if verification is None else verification.trust
    manifest = capability_manifest(entry, now=now) if verification is None else dict(verification.manifest)
    locked = {
        "selectedTarget": selected_target(chosen),
        "config": made.config,
        "capabilityManifest": manifest,
    }
    plan: dict[str, Any] = {
        "name": entry.name,
        "version": entry.version,
        "client": client,
        "scope": how.scope,
        "selectedTarget": selected_target(chosen),
        # The row is there before the digest is, so that it is part of what the digest covers.
        "trust": with_evidence(trust, LOCK_INTEGRITY_EVIDENCE, now=now).to_json(),
        "config": made.config,
        "notes": list(made.notes),
        "capabilityManifest": manifest,
        "resolvedAt": now,
        "lockedAt": now,
        "resolved": {"source": entry.source, "name": entry.name, "version": entry.version},
        "original": {"name": entry.name, "version": entry.version, "client": client},
        "locked": deepcopy(locked),
    }
    return _without_absent(plan)


def _without_absent(plan: dict[str, Any]) -> dict[str, Any]:
    """An entry without a version has none in its copies either."""
    for copy in (plan, plan["resolved"], plan["original"]):
        if copy["version"] is None:
            del copy["version"]
    return plan
