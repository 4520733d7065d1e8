"""What the registries say today about the locked versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.finding_kinds import Kinds, kind_table
from pinwarden.core.report import UNCHECKED, Row
from pinwarden.lock.configured import UNLISTED
from pinwarden.lock.entry import HASHED_MANIFEST, Entry
from pinwarden.lock.lockfile import Lock
from pinwarden.lock.tier import tier_rank
from pinwarden.project.gate.unreviewed import in_vain

if TYPE_CHECKING:
    from pinwarden.lock.launch_choice import LaunchTarget
    from pinwarden.lock.server_entry import ServerEntry
    from pinwarden.project.gate.options import Gate


REGISTRY_KINDS: Kinds = kind_table(
    critical=(
        ("version_gone", "No registry has the locked version any more."),
        ("entry_deleted", "The registry calls the locked version deleted."),
        ("no_install_target", "The locked version declares nothing any more that could be installed."),
        ("target_changed", "The locked version names another package or address than was approved."),
        ("config_changed", "The locked version would be configured otherwise than was approved."),
        ("manifest_changed", "The locked version declares other secrets, hosts or transports than were approved."),
        ("tier_decreased", "What is known of the locked version is trusted less than when it was approved."),
    ),
    review=(
        ("entry_deprecated", "The registry calls the locked version deprecated."),
        ("score_decreased", "What is known of the locked version scores lower than when it was approved."),
    ),
)


_NOTHING_LISTED = (
    "no entry came from a registry of servers, so there is nothing to look up; --bytes looks at the packages that "
    "configurations name"
)


def registry_rows(lock: Lock, gate: Gate) -> Iterator[Row]:
    """Every version that came from a registry, looked up again."""
    from pinwarden.lock.server_entry import from_value

    registries = gate.registries
    if registries is None:
        return
    if gate.registry_wanted and lock.entries and all(entry.source in UNLISTED for entry in lock.entries):
        yield in_vain("--registry", _NOTHING_LISTED)
    for entry in lock.entries:
        if entry.source in UNLISTED:
            continue
        try:
            found = from_value(registries.find(entry.name, entry.version, entry.source))
        except PinwardenError as err:
            if err.code == "SERVER_NOT_FOUND":
                message = f"no registry has version {entry.version} any more"
                yield _registry_row(entry, "version_gone", message)
            else:
                yield _registry_row(entry, UNCHECKED, err.message)
            continue
        if found.status != "active":
            yield _registry_row(entry, f"entry_{found.status}", f"the registry calls this version {found.status}")
        yield from _metadata_rows(entry, found, gate.now)


def _metadata_rows(entry: Entry, found: ServerEntry, now: str) -> Iterator[Row]:
    """What the same version says today, held against what was approved. In ToolPin's words where it has some."""
    from pinwarden.lock.plan import Installation, install_plan
    from pinwarden.lock.verification import same_json

    approved = entry.selected_target
    target = _target_today(found, approved)
    try:
        how = Installation(scope="global" if entry.scope == "global" else "project", target=target)
        plan = install_plan(found, entry.client, now=now, how=how)
    except PinwardenError as err:
        yield _registry_row(entry, "no_install_target", err.message)
        return
    if not same_json(plan["selectedTarget"], dict(approved)):
        yield _registry_row(entry, "target_changed", "selected install target changed")
    if not same_json(plan["config"], entry.config):
        yield _registry_row(entry, "config_changed", "client config changed")
    if not same_json(_lasting(plan["capabilityManifest"]), _lasting(entry.manifest)):
        yield _registry_row(entry, "manifest_changed", "capability manifest changed")
    before, after = entry.trust.get("score"), plan["trust"]["score"]
    if isinstance(before, int) and after < before:
        yield _registry_row(entry, "score_decreased", f"trust score decreased {before} -> {after}")
    old, new = entry.trust.get("tier"), plan["trust"]["tier"]
    # What we hash ourselves makes an entry verified; metadata alone never does, so one step down from there is no news.
    best_without_bytes = min(tier_rank(old), tier_rank("conditional"))
    if tier_rank(new) < best_without_bytes:
        yield _registry_row(entry, "tier_decreased", f"trust tier decreased {old} -> {new}")


def _target_today(found: ServerEntry, approved: Mapping[str, Any]) -> LaunchTarget | None:
    """What would be launched now: what was approved if it is what comes first, else the first of its kind, else any."""
    from pinwarden.lock.launch_choice import choose_target, selected_target
    from pinwarden.lock.verification import same_json

    target = choose_target(found)
    if target is not None and same_json(selected_target(target), dict(approved)):
        return target
    try:
        return choose_target(found, "remote" if approved.get("kind") == "remote" else str(approved.get("registryType")))
    except PinwardenError:  # it offers nothing of that kind any more
        return target


def _lasting(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest without its time, and without what only a live server can tell."""
    return {name: manifest[name] for name in HASHED_MANIFEST if name in manifest}


def _registry_row(entry: Entry, code: str, message: str) -> Row:
    level = "review" if code == UNCHECKED else REGISTRY_KINDS[code].severity
    return Row(code=code, level=level, entity="registry", name=entry.name, path="", message=message)
