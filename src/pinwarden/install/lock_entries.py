"""An installed bundle in the lock: one entry per client, its provenance and its approved text, in one write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pinwarden.bundle.bundle_pin import BUNDLE, REGISTRY_TYPE, bundle_value
from pinwarden.clients.launch.launched import PROGRAM
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.install.staging import Brought
from pinwarden.lock import entry as lock_entry
from pinwarden.lock.configured import INSTALLED
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import PUBLISHED, Extension, extended
from pinwarden.lock.plan import Installation, Scope, install_plan
from pinwarden.lock.server_entry import from_value
from pinwarden.project.approvable import Approvable
from pinwarden.project.enforce import start_words
from pinwarden.project.lock import LockWriting, extension_for, write_entries
from pinwarden.project.policy_rules import broken_rules
from pinwarden.project.project import Policies, Project


class Placed(Record):
    """For whom a bundle is locked."""

    clients: tuple[str, ...] = ("generic",)
    scope: Scope = "project"
    variables: tuple[str, ...] = ()
    """Names of the variables that it is given."""


def lock_bundle(  # noqa: PLR0913, PLR0917  what was accepted, for whom, and by whose rules
    project: Project,
    brought: Brought,
    offered: Approvable | None,
    placed: Placed,
    policies: Policies,
    writing: LockWriting,
) -> list[Entry]:
    """Write the entries. What the project's policy forbids is not written, and neither is text with open warnings."""
    made = [_entry(project, brought, offered, client, placed, writing) for client in placed.clients]
    refuse_forbidden(policies, made, writing.now)
    write_entries(project, made, offered, writing)
    return made


def _entry(  # noqa: PLR0913, PLR0917  the same, for one client
    project: Project, brought: Brought, offered: Approvable | None, client: str, placed: Placed, writing: LockWriting
) -> Entry:
    pin = brought.pin
    package: dict[str, Any] = {
        "registryType": REGISTRY_TYPE,
        "identifier": pin.tool,
        "version": pin.version,
        "fileSha256": pin.archive.hex,
        "transport": {"type": "stdio"},
        "command": PROGRAM,
        "args": start_words(project, pin.tool, client, placed.scope)[1:],
        "environmentVariables": [{"name": name, "isRequired": True} for name in placed.variables],
    }
    server = {"name": pin.tool, "description": brought.description, "version": pin.version, "packages": [package]}
    made_up = from_value({"server": server, "_meta": {}}, source=INSTALLED)
    plan = install_plan(made_up, client, now=writing.now, how=Installation(scope=placed.scope, dialect="modern"))
    key = lock_entry.entry_key(pin.tool, client)
    entry = lock_entry.with_integrity(Entry(key=key, document=plan))
    return extended(entry, _extension(project, brought, offered, writing))


def _extension(project: Project, brought: Brought, offered: Approvable | None, writing: LockWriting) -> Extension:
    pin = brought.pin
    return replace(
        extension_for(offered, project, pin.tool, writing),
        registry=pin.registry,
        others={BUNDLE: bundle_value(pin), **({PUBLISHED: brought.published_at} if brought.published_at else {})},
    )


def refuse_forbidden(policies: Policies, entries: Sequence[Entry], now: str) -> None:
    """Stop at what the project's policy does not allow."""
    for entry in entries:
        broken = [rule for rule in broken_rules(policies, entry.document, now) if rule.refuses]
        if broken:
            raise PinwardenError(
                "POLICY_REFUSED",
                f"{broken[0].message} ({broken[0].code})",
                data={"refusals": [{"code": rule.code, "message": rule.message} for rule in broken]},
            )
