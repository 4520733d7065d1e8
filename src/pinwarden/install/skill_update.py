"""Update skills that were installed from bundles. A new version is checked like a first install, and shown as words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pinwarden.bundle.bundle_pin import BundlePin, parse_bundle_pin
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import COULD_NOT_CHECK, Report, Row, collect_kind_reasons
from pinwarden.core.text import plural
from pinwarden.install.bundle_update import (
    BLOCK,
    build_content_rows,
    build_permission_rows,
    build_registry_rows,
    build_revoked_rows,
    build_update_row,
    build_yanked_rows,
    download_newest,
)
from pinwarden.install.skill_install import SkillPlaces, read_skills_of, scan_bundle, write_bundle
from pinwarden.install.staging import build_bundle_pin, store_files
from pinwarden.project.skills import NO_SKILLS, read_skills_lock
from pinwarden.skills.skill import Skill
from pinwarden.skills.skill_drift import SKILL_KINDS, build_skill_row, compare_skill
from pinwarden.skills.skills_file import LockedSkill

if TYPE_CHECKING:
    from pinwarden.install.bundle_update import UpdateContext


class SkillUpdate(Record):
    """The available update of one bundle of skills, with the rows for the report."""

    pin: BundlePin
    bundle: SkillPlaces | None
    """The version to install; None if the locked version is the newest, or if the check failed."""
    rows: tuple[Row, ...]
    warnings: tuple[Row, ...] = ()
    written: bool = False


def update_skills(names: Sequence[str], context: UpdateContext) -> list[SkillUpdate]:
    """Update the named bundles of skills, or all of them if no name is given.

    1. Group the locked skills by bundle.
    2. Download and check the version that the channel points to now, and compare each skill with the approved one.
    3. If the update is confirmed, write the folders and the lock together, unless a change looks like an attack.
    """
    lock = read_skills_lock(context.project) or NO_SKILLS
    groups: dict[str, list[LockedSkill]] = {}
    for locked in lock.skills:
        if locked.bundle is not None and (not names or locked.bundle["tool"] in names):
            groups.setdefault(str(locked.bundle["tool"]), []).append(locked)
    return [_confirm(_prepare(group, context), context) for group in groups.values()]


def merge_skill_updates(report: Report, updates: Sequence[SkillUpdate], context: UpdateContext) -> Report:
    """Add the updates of skills to the report of ``pinwarden update``."""
    if not updates:
        return report
    available = [update for update in updates if update.bundle is not None]
    rows = tuple(row for update in updates for row in (*update.rows, *update.warnings))
    failed = any(row.code == COULD_NOT_CHECK for row in rows)
    open_updates = [update for update in available if not update.written]
    code = EXIT_REFUSED if open_updates or _has_critical(rows) else EXIT_UNCHECKED if failed else EXIT_CLEAN
    summary = f"{plural(len(updates), 'bundle')} of skills checked, {plural(len(available), 'update')} available"
    codes = {report.exit_code, code}
    notes = [
        f"{update.pin.tool} was not updated: the changes look like an attack"
        for update in open_updates
        if context.confirmed
    ]
    changes = [{"code": row.code, "name": row.name, "message": row.message} for row in rows]
    return replace(
        report,
        summary=f"{report.summary}; {summary}" if report.summary else summary,
        exit_code=next(one for one in (EXIT_REFUSED, EXIT_UNCHECKED, EXIT_CLEAN) if one in codes),
        rows=(*report.rows, *rows),
        notes=(*report.notes, *notes),
        facts={
            **report.facts,
            "skills": [_to_json(update, update.bundle.pin) for update in available if update.bundle is not None],
            "written": report.facts["written"] or any(update.written for update in updates),
            "changes": [*report.facts["changes"], *changes],
        },
        rule_texts={**report.rule_texts, **collect_kind_reasons(SKILL_KINDS)},
    )


def _to_json(update: SkillUpdate, newest: BundlePin) -> dict[str, object]:
    return {"name": update.pin.tool, "from": update.pin.version, "to": newest.version, "written": update.written}


def _prepare(group: Sequence[LockedSkill], context: UpdateContext) -> SkillUpdate:
    pin = parse_bundle_pin(dict(group[0].bundle or {}), group[0].skill.name)
    rows = tuple(build_revoked_rows(pin, context.trusted))
    try:
        accepted, source = download_newest(pin, context)
        skills = read_skills_of(accepted)
        new_pin = build_bundle_pin(accepted, source, pin.floor, literal=pin.literal and context.literal)
        store_files(accepted, new_pin, context.store)
    except PinwardenError as err:
        refused = err.exit_code == EXIT_REFUSED
        code, severity = (err.code, "critical") if refused else (COULD_NOT_CHECK, "review")
        yanked = build_yanked_rows(pin, context.trust_path)
        return SkillUpdate(
            pin=pin, bundle=None, rows=(*rows, build_update_row(pin, code, severity, err.message), *yanked)
        )
    rows = (*rows, *build_yanked_rows(pin, context.trust_path))
    if (new_pin.root_cid, new_pin.descriptor_cid) == (pin.root_cid, pin.descriptor_cid):
        return SkillUpdate(pin=pin, bundle=None, rows=rows)
    roots = context.project.skill_roots
    user = context.project.scope == "user"
    folders = dict.fromkeys(
        roots.locate_installed(place, user=user).parent for locked in group for place in locked.places
    )
    bundle = SkillPlaces(pin=new_pin, skills=skills, folders=tuple(folders))
    rows = (
        *rows,
        *build_registry_rows(pin, new_pin),
        *build_content_rows(pin, new_pin),
        *build_permission_rows(pin, new_pin),
        *_compare(group, bundle),
    )
    return SkillUpdate(pin=pin, bundle=bundle, rows=rows, warnings=scan_bundle(context.project, bundle))


def _compare(group: Sequence[LockedSkill], bundle: SkillPlaces) -> list[Row]:
    """Compare the skills of the new version with the approved ones."""
    approved = {locked.places[0].rpartition("/")[2]: locked.skill for locked in group}
    rows: list[Row] = []
    for one in bundle.skills:
        before = approved.pop(one.folder, Skill(name=one.skill.name, files=()))
        if before.files:
            rows += compare_skill(before, one.skill, one.folder)
        else:
            rows.append(build_skill_row("skill_file_added", one.skill.name, "", "the update brings a new skill"))
    for gone in approved.values():
        rows.append(build_skill_row("skill_file_missing", gone.name, "", "the update removes the skill"))
    return rows


def _confirm(update: SkillUpdate, context: UpdateContext) -> SkillUpdate:
    """Write the update if it was confirmed and nothing in it looks like an attack."""
    if update.bundle is None or not context.confirmed:
        return update
    approver = context.lock_options.approver
    if update.warnings and not (approver is not None and approver.approves_warnings):
        return update
    if context.on_drift == BLOCK and _has_critical(update.rows):
        return update
    try:
        write_bundle(context.project, update.bundle, context.lock_options)
    except PinwardenError as err:
        row = build_update_row(update.pin, err.code, "critical", err.message)
        return replace(update, rows=(*update.rows, row))
    return replace(update, written=True)


def _has_critical(rows: Sequence[Row]) -> bool:
    return any(row.severity == "critical" for row in rows)
