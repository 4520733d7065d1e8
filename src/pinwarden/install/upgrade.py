"""Newer versions of installed bundles: resolved and judged like a first install, and held against what was approved.

The channel is asked again; the content hash and the API surface hash say whether anything changed, the texts say what.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pinwarden.bundle.bundle_pin import BundlePin, find_bundle_pin
from pinwarden.bundle.environment import check_pinned_descriptor
from pinwarden.bundle.trust import InstallerPolicy
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import COULD_NOT_CHECK, Report, Row, plural
from pinwarden.core.versions import compare_versions
from pinwarden.install.decision import Question, judge
from pinwarden.install.install import Placed, lock_bundle
from pinwarden.install.staging import Brought, api_surface_of, bring, pin_of
from pinwarden.lock import lock_store
from pinwarden.lock.extension import extension_of
from pinwarden.lock.locked_launch import locked_launch
from pinwarden.project.approvable import OPTION, Approvable, approvable
from pinwarden.project.installed_bundles import yanked_because
from pinwarden.project.update import NOTHING_CHANGED, NOTHING_TO_LOOK_UP
from pinwarden.surface import surface as surface_document
from pinwarden.surface.drift.compare import compare
from pinwarden.surface.rows import change_row

if TYPE_CHECKING:
    from pathlib import Path

    from pinwarden.artifacts.environments.store import Store
    from pinwarden.bundle.trust_store import TrustStore
    from pinwarden.install.sources import Places
    from pinwarden.install.staging import PinnedBundles
    from pinwarden.lock.entry import Entry
    from pinwarden.project.lock import LockWriting
    from pinwarden.project.project import Policies, Project
    from pinwarden.surface.surface import Surface

BLOCK, WARN = "block", "warn"
_STRENGTH = {"deny": 0, "read_only": 1, "read_write": 2, "allow": 2}


class Updating(Record):
    """By whose rules, and from where."""

    project: Project
    places: Places
    pinned: PinnedBundles
    log: str | None
    trusted: TrustStore
    trust_path: Path
    policy: InstallerPolicy
    store: Store
    policies: Policies
    writing: LockWriting
    now: str
    """The moment that the registry's word is judged at; what is written may bear another (``SOURCE_DATE_EPOCH``)."""
    agreed: bool
    ask: bool
    literal: bool = False
    """Whether what was installed by the letter of the rulebook is updated by it, too. A lock alone does not decide."""
    on_drift: str = BLOCK
    """Whether drift that looks like an attack stops an update that was agreed to, or is only told."""


class BundleUpdate(Record):
    """What an update would change for one installed bundle."""

    entries: tuple[Entry, ...]
    pin: BundlePin
    brought: Brought | None
    """What would be locked; None if nothing would."""
    rows: tuple[Row, ...]
    offered: Approvable | None = None
    """What it tells the model, with the warnings about it."""

    @property
    def failed(self) -> bool:
        """Whether it could not be looked at."""
        return any(row.code == COULD_NOT_CHECK for row in self.rows)


def update_bundles(names: Sequence[str], updating: Updating) -> list[BundleUpdate]:
    """Every installed bundle that is named, or all. Whatever is agreed to, and not blocked, is written."""
    lock, texts = lock_store.read_with_files(updating.project.lock)
    groups: dict[str, list[Entry]] = {}
    for entry in lock.entries if lock else ():
        if (not names or entry.name in names) and find_bundle_pin(entry) is not None:
            groups.setdefault(entry.name, []).append(entry)
    found = [_looked_at(entries, texts, updating) for entries in groups.values()]
    for each in found:
        if updating.agreed and each.brought is not None and not _blocked(each, updating.on_drift):
            _write(each, each.brought, updating)
    return found


def _blocked(each: BundleUpdate, on_drift: str) -> bool:
    return on_drift == BLOCK and (
        _has_open_warnings(each) or any(row.severity == "critical" and row.code != _REVOKED for row in each.rows)
    )


def _has_open_warnings(each: BundleUpdate) -> bool:
    return each.offered is not None and each.offered.blocked


def _write(each: BundleUpdate, brought: Brought, updating: Updating) -> None:
    """Lock the new version. Text with open warnings is not approved: what was approved before stays."""
    offered = None if _has_open_warnings(each) else each.offered
    for entry in each.entries:
        placed = Placed(
            clients=(entry.client,),
            scope="global" if entry.scope == "global" else "project",
            variables=locked_launch(entry).variables,
        )
        lock_bundle(updating.project, brought, offered, placed, updating.policies, updating.writing)


def _looked_at(entries: list[Entry], texts: dict[str, bytes], updating: Updating) -> BundleUpdate:
    pin = find_bundle_pin(entries[0])
    if pin is None:
        raise TypeError("only bundles are looked at")
    same = BundleUpdate(entries=tuple(entries), pin=pin, brought=None, rows=tuple(_revoked_rows(pin, updating.trusted)))
    try:
        brought = _newest(pin, updating)
    except PinwardenError as err:
        refused = err.exit_code == EXIT_REFUSED
        row = _row(pin, err.code if refused else COULD_NOT_CHECK, "critical" if refused else "review", err.message)
        return replace(same, rows=(*same.rows, row, *_yanked_rows(pin, updating.trust_path)))
    same = replace(same, rows=(*same.rows, *_yanked_rows(pin, updating.trust_path)))
    new = brought.pin
    if (new.root_cid, new.descriptor_cid) == (pin.root_cid, pin.descriptor_cid):
        return same
    approved = _approved(entries[0], texts)
    rows = (
        *same.rows,
        *_registry_rows(pin, new),
        *_content_rows(pin, new),
        *_permission_rows(pin, new),
        *_surface_rows(pin, approved, brought),
    )
    if brought.surface is None:
        return replace(same, brought=brought, rows=rows)
    approver = updating.writing.approver
    offered = approvable(
        pin.tool,
        brought.surface,
        () if approved is None else (approved,),
        warnings_approved=approver is not None and approver.approves_warnings,
    )
    return replace(same, brought=brought, rows=(*rows, *offered.warnings), offered=offered)


def _newest(pin: BundlePin, updating: Updating) -> Brought:
    """What the channel points to now, judged as for a first install. A refusal is raised under its own code."""
    place = updating.pinned.place_of(pin)
    source = updating.places.source(place, pin.channel, updating.log)
    literal = pin.literal and updating.literal
    question = Question(
        tool=pin.tool,
        channel=pin.channel,
        floor=pin.floor,
        literal=literal,
        policy=_policy(updating.policy, pin, updating.store),
        trusted=updating.trusted,
        trust_path=updating.trust_path,
        now=updating.now,
    )
    judged = judge(question, source)
    if judged.accepted is None:
        refusal = judged.refusal
        if refusal is None:
            raise TypeError("what is not accepted is refused")
        raise PinwardenError(refusal.code, refusal.what, hint=refusal.fix, data=dict(refusal.why))
    new = pin_of(judged.accepted, source, pin.floor, literal=literal)
    return bring(updating.project, judged.accepted, new, updating.store, source, ask=updating.ask)


def _policy(policy: InstallerPolicy, pin: BundlePin, store: Store) -> InstallerPolicy:
    """What the user allows, and what was approved for this tool before, if it is installed on this machine."""
    if not store.has(pin.descriptor):
        return policy
    check_pinned_descriptor(pin, store)
    return replace(
        policy,
        network=_stronger(policy.network, pin.policy.network),
        filesystem=_stronger(policy.filesystem, pin.policy.filesystem),
        exec=_stronger(policy.exec, pin.policy.exec),
    )


def _stronger(one: str, other: str) -> str:
    return one if _STRENGTH[one] >= _STRENGTH[other] else other


def _approved(entry: Entry, texts: dict[str, bytes]) -> Surface | None:
    extension = extension_of(entry)
    pin = extension.surface if extension else None
    return surface_document.parse_surface(texts[pin.path]) if pin is not None and pin.path in texts else None


# What is told


_REVOKED = "key_revoked"


def _revoked_rows(pin: BundlePin, trusted: TrustStore) -> Iterator[Row]:
    """A bundle that was accepted on the word of somebody whose key was revoked since."""
    for key_id in dict.fromkeys(pin.provenance.get("attestations_used", ())):
        gone = trusted.find_revoked(key_id)
        if gone is not None:
            told = f"{gone.name or key_id} vouched for it, and that key was revoked: {gone.why}"
            yield _row(pin, _REVOKED, "critical", told)


def _yanked_rows(pin: BundlePin, trust: Path) -> Iterator[Row]:
    """The locked version was yanked, as the log says that was read a moment ago."""
    why = yanked_because(pin, trust)
    if why is not None:
        yield _row(pin, "version_yanked", "review", why)


def _registry_rows(old: BundlePin, new: BundlePin) -> Iterator[Row]:
    """Two registries that are both trusted may have different tools under one name."""
    if old.log_id not in (None, new.log_id):
        told = f"another registry than before points to it: {new.log_id or 'one without a log'}, not {old.log_id}"
        yield _row(old, "registry_changes", "critical", told, (str(old.log_id), str(new.log_id)))


def _content_rows(old: BundlePin, new: BundlePin) -> Iterator[Row]:
    direction = compare_versions(new.version, old.version)
    if direction > 0:
        told = f"{old.version} is locked, {old.channel} is at {new.version}"
        yield _row(old, "newer_release", "info", told, (old.version, new.version))
    elif direction < 0:
        told = f"{old.channel} went back from {old.version} to {new.version}"
        yield _row(old, "older_release", "review", told, (old.version, new.version))
    else:
        told = f"{new.version} has other content than the one that was locked under that version"
        yield _row(old, "content_replaced", "critical", told, (str(old.archive), str(new.archive)))
        return
    yield _row(old, "content_changes", "info", "the content hash changes", (str(old.archive), str(new.archive)))


def _permission_rows(old: BundlePin, new: BundlePin) -> Iterator[Row]:
    for name in ("network", "filesystem", "exec"):
        before, after = getattr(old.policy, name), getattr(new.policy, name)
        if before != after:
            wider = _STRENGTH[after] > _STRENGTH[before]
            told = f"it asks for {'more' if wider else 'less'}: {name} {after} instead of {before}"
            yield _row(old, "permission_changes", "review" if wider else "info", told, (before, after))


def _surface_rows(old: BundlePin, approved: Surface | None, brought: Brought) -> Iterator[Row]:
    if approved is None or brought.surface is None:
        why = "nothing was approved before" if approved is None else brought.problem
        yield _row(old, "surface_unknown", "review", f"what it tells the model cannot be compared: {why}")
        return
    before, after = api_surface_of(approved), api_surface_of(brought.surface)
    if before != after:
        yield _row(old, "api_surface_changes", "review", "the API surface hash changes", (before, after))
    for change in compare(approved, brought.surface):
        row = change_row(change)
        yield replace(row, entity=f"{old.tool}: {row.entity}")


def _row(pin: BundlePin, code: str, level: str, message: str, texts: tuple[str, str] | None = None) -> Row:
    before, after = texts or (None, None)
    return Row(
        code=code, severity=level, entity="bundle", name=pin.tool, path="", message=message, before=before, after=after
    )


def merged(report: Report, found: Sequence[BundleUpdate], updating: Updating) -> Report:
    """The report of ``pinwarden update`` with what was found about bundles in it."""
    if not found:
        return report
    offered = [each for each in found if each.brought is not None]
    blocked = [each for each in offered if _blocked(each, updating.on_drift)]
    rows = tuple(row for each in found for row in each.rows)
    checked = tuple(row for row in rows if row.code != COULD_NOT_CHECK)
    failed = tuple(row for row in rows if row.code == COULD_NOT_CHECK)
    grave = any(row.severity == "critical" for row in checked) if updating.on_drift == BLOCK else False
    warned = [each for each in offered if _has_open_warnings(each)]
    refused = grave or bool(warned) or (bool(offered) and not updating.agreed)
    code = EXIT_REFUSED if refused else EXIT_UNCHECKED if failed else EXIT_CLEAN
    codes = {report.exit_code, code}
    told = f"{plural(len(found), 'bundle')} looked up, {len(offered)} with another version"
    notes = [f"{each.pin.tool} was not updated: what changed looks like an attack" for each in blocked]
    notes += [
        f"the new text of {each.pin.tool} is not approved, because of scan warnings; read it, then pinwarden approve "
        f"{each.pin.tool} --allow-execute, or repeat with {OPTION}"
        for each in warned
        if each not in blocked and updating.agreed
    ]
    if offered and not updating.agreed and NOTHING_CHANGED not in report.notes:
        notes.append(NOTHING_CHANGED)
    facts = report.facts
    updates = [
        {"name": entry.name, "client": entry.client, "from": each.pin.version, "to": each.brought.pin.version}
        for each in offered
        if each.brought is not None
        for entry in each.entries
    ]
    return replace(
        report,
        summary=told if report.summary.endswith(NOTHING_TO_LOOK_UP) else f"{report.summary}; {told}",
        exit_code=next(each for each in (EXIT_REFUSED, EXIT_UNCHECKED, EXIT_CLEAN) if each in codes),
        rows=(*report.rows, *rows),
        notes=(*report.notes, *notes),
        facts={
            **facts,
            "updates": [*facts["updates"], *updates],
            "written": facts["written"] or (updating.agreed and len(blocked) < len(offered)),
            "changes": [*facts["changes"], *({"code": r.code, "name": r.name, "message": r.message} for r in checked)],
            "unchecked": [*facts["unchecked"], *({"name": r.name, "message": r.message} for r in failed)],
        },
    )
