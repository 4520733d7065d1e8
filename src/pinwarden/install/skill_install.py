"""Install skills from an accepted bundle into the skill folders of clients, and lock them there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.bundle.acceptance import rejection_from_error
from pinwarden.bundle.bundle_pin import BundlePin, bundle_pin_to_json
from pinwarden.bundle.bundled_skills import BundledSkill, read_bundled_skills, refuse_undeclared_powers
from pinwarden.clients.table import GENERIC_CLIENT
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.report import Report, Row
from pinwarden.core.text import plural
from pinwarden.install.decision import (
    AcceptedBundle,
    InstallDecision,
    InstallRequest,
    build_acceptance_facts,
    build_refusal_report,
)
from pinwarden.install.folder_writes import FolderWrite, write_folders
from pinwarden.install.staging import build_bundle_pin, store_files
from pinwarden.project.skills import NO_SKILLS, build_scan_rows, read_skills_lock, write_skills
from pinwarden.skills.powers import find_powers
from pinwarden.skills.skill_reader import read_skill_folder
from pinwarden.skills.skills_file import LockedSkill, SkillsLock, put_skills, remove_places

if TYPE_CHECKING:
    from pinwarden.install.install import InstallContext
    from pinwarden.project.lock import Approver, LockOptions
    from pinwarden.project.project import Project


class SkillPlaces(Record):
    """The skills of a bundle, and the folders that they are written to."""

    pin: BundlePin
    skills: tuple[BundledSkill, ...]
    folders: tuple[Path, ...]
    """The skill folders of the clients."""

    def list_targets(self) -> list[Path]:
        """Return the folder of each skill."""
        return [folder / skill.folder for folder in self.folders for skill in self.skills]


def install_skills(request: InstallRequest, context: InstallContext, decision: InstallDecision) -> Report:
    """Install the skills of an accepted bundle, and return the report of ``pinwarden install``.

    1. Find the skill folder of each client.
    2. If the bundle is already locked, refuse any other version.
    3. Scan the skills. Warnings stop the install, unless they are approved.
    4. Write the folders and the lock together, or nothing. A folder that is not from this bundle is never replaced.
    """
    warnings: tuple[Row, ...] = ()
    if decision.accepted is None:
        raise TypeError("the decision has no accepted bundle")
    try:
        bundle = open_skills(context, decision.accepted, request)
        _refuse_other_version(context.project, bundle.pin)
        warnings = scan_bundle(context.project, bundle)
        refuse_open_warnings(bundle.pin, warnings, context.lock_options.approver)
        store_files(decision.accepted, bundle.pin, context.store)
        written = write_bundle(context.project, bundle, context.lock_options)
    except PinwardenError as err:
        refused = InstallDecision(checks=decision.checks, refusal=rejection_from_error(err), exit_code=err.exit_code)
        return build_refusal_report(request, refused, warnings)
    return _build_report(context, request, decision, bundle, written)


def open_skills(context: InstallContext, accepted: AcceptedBundle, request: InstallRequest) -> SkillPlaces:
    """Read the skills of an accepted bundle, and find the folders of the requested clients."""
    skills = read_skills_of(accepted)
    clients = [client for client in context.target.clients if client != GENERIC_CLIENT]
    if not clients:
        raise PinwardenError(
            "USAGE",
            f"{request.tool} has skills, and no client was named",
            hint=f"Name the clients: pinwarden install {request.tool} --client claude --client codex",
        )
    roots, user = context.project.skill_roots, context.project.scope == "user"
    folders = dict.fromkeys(roots.find_install_folder(client, user=user) for client in clients)
    return SkillPlaces(
        pin=build_bundle_pin(accepted, context.source, request.floor, literal=request.literal),
        skills=skills,
        folders=tuple(folders),
    )


def read_skills_of(accepted: AcceptedBundle) -> tuple[BundledSkill, ...]:
    """Return the skills of a bundle whose bytes are verified."""
    documents = accepted.documents
    skills = read_bundled_skills(documents.manifest.entries, accepted.opened.contents)
    refuse_undeclared_powers(documents.descriptor, skills)
    return skills


def find_bundled(project: Project, tool: str) -> list[LockedSkill]:
    """Return the locked skills that were installed from a bundle."""
    lock = read_skills_lock(project) or NO_SKILLS
    return [locked for locked in lock.skills if locked.bundle is not None and locked.bundle.get("tool") == tool]


def scan_bundle(project: Project, bundle: SkillPlaces) -> tuple[Row, ...]:
    """Return the scan warnings about text that the locked version of the bundle does not have."""
    approved = {locked.skill.name: locked.skill for locked in find_bundled(project, bundle.pin.tool)}
    rows = (build_scan_rows(one.skill, one.folder, approved.get(one.skill.name)) for one in bundle.skills)
    return tuple(row for group in rows for row in group if row.severity == "warning")


def refuse_open_warnings(pin: BundlePin, warnings: Sequence[Row], approver: Approver | None) -> None:
    """Raise WARNINGS_NOT_APPROVED unless there are no warnings, or the approver approved them."""
    if warnings and not (approver is not None and approver.approves_warnings):
        count = plural(len(warnings), "scan warning")
        raise PinwardenError("WARNINGS_NOT_APPROVED", f"{pin.tool}: {count} in skills not approved yet")


def write_bundle(project: Project, bundle: SkillPlaces, lock_options: LockOptions) -> list[str]:
    """Write the skills of a bundle and lock them. Returns the places that were written.

    A skill that the locked version of the bundle had in these folders and the new one has not is removed.
    """
    roots, earlier = project.skill_roots, find_bundled(project, bundle.pin.tool)
    user = project.scope == "user"
    targets = bundle.list_targets()
    dropped = [
        target
        for locked in earlier
        for place in locked.places
        if (target := roots.locate_installed(place, user=user)) not in targets and target.parent in bundle.folders
    ]
    written: list[str] = []

    def plan() -> list[FolderWrite]:
        writes = [
            write
            for folder in bundle.folders
            for one in bundle.skills
            if (write := _plan_write(project, folder / one.folder, one, earlier)) is not None
        ]
        writes += [
            FolderWrite(target=target, files=None) for target in dropped if is_as_locked(project, target, earlier)
        ]
        written.extend(roots.display(write.target) for write in writes)
        return writes

    def commit() -> None:
        write_skills(project, lambda lock: _put_bundle(project, lock, bundle, dropped, lock_options), lock_options.now)

    write_folders(project, plan, commit, [*targets, *dropped])
    return written


def _refuse_other_version(project: Project, pin: BundlePin) -> None:
    for locked in find_bundled(project, pin.tool):
        known = locked.bundle or {}
        if (known.get("rootCid"), known.get("descriptorCid")) != (pin.root_cid, pin.descriptor_cid):
            raise PinwardenError(
                "VERSION_LOCKED",
                f"{pin.tool} {known.get('version')} is locked, but channel {pin.channel} is at {pin.version}",
                data={"locked": known.get("rootCid"), "offered": pin.root_cid},
            )


def _plan_write(
    project: Project, target: Path, one: BundledSkill, earlier: Iterable[LockedSkill]
) -> FolderWrite | None:
    """Return how a skill gets into its folder; None if it is there. Raises FILE_EXISTS for a folder of others."""
    _refuse_linked_folder(project, target)
    if target.is_symlink() or target.exists():
        if _is_same(target, one):
            return None
        if not is_as_locked(project, target, earlier):
            shown = project.display_path(target)
            raise PinwardenError(
                "FILE_EXISTS",
                f"{shown} exists, and is not what was installed there",
                hint=f"Compare it: pinwarden ci. If you do not need it, remove {shown}, and run the command again.",
            )
    return FolderWrite(target=target, files=one.files)


def _refuse_linked_folder(project: Project, target: Path) -> None:
    """Raise if a folder above the skill is a link, which could lead to files of another project."""
    for folder in (target.parent, target.parent.parent):
        if folder.is_symlink():
            raise PinwardenError(
                "FILE_UNREADABLE",
                f"{project.display_path(folder)} is a symbolic link",
                hint="Replace it with a folder.",
            )


def _is_same(target: Path, one: BundledSkill) -> bool:
    found = None if target.is_symlink() else read_skill_folder(target)
    return found is not None and not found.problems and found.skill.digest == one.skill.digest


def is_as_locked(project: Project, target: Path, earlier: Iterable[LockedSkill]) -> bool:
    """Whether a folder has exactly what this bundle's locked version installed there."""
    if target.is_symlink() or not target.is_dir():
        return False
    place, found = project.skill_roots.display(target), read_skill_folder(target)
    if found is None or found.problems:
        return False
    return any(place in locked.places and locked.skill.digest == found.skill.digest for locked in earlier)


def _put_bundle(
    project: Project, lock: SkillsLock, bundle: SkillPlaces, dropped: Sequence[Path], lock_options: LockOptions
) -> SkillsLock:
    roots, approver = project.skill_roots, lock_options.approver
    if approver is None:
        raise TypeError("an install has an approver")
    pin = bundle_pin_to_json(bundle.pin)
    fresh = [
        LockedSkill(
            skill=one.skill,
            places=tuple(sorted(roots.display(folder / one.folder) for folder in bundle.folders)),
            by=approver.by,
            why=approver.reason,
            bundle=pin,
        )
        for one in bundle.skills
    ]
    return put_skills(remove_places(lock, map(roots.display, dropped)), fresh)


def _build_report(
    context: InstallContext, request: InstallRequest, decision: InstallDecision, bundle: SkillPlaces, written: list[str]
) -> Report:
    pin, accepted = bundle.pin, decision.accepted
    if accepted is None:
        raise TypeError("the decision has no accepted bundle")
    roots = context.project.skill_roots
    powers = [f"{one.skill.name} {power}" for one in bundle.skills for power in find_powers(one.skill)]
    places = [roots.display(target) for target in bundle.list_targets()]
    facts: dict[str, Any] = {
        **build_acceptance_facts(request, decision, accepted, pin),
        "skills": [{"name": one.skill.name, "digest": str(one.skill.digest)} for one in bundle.skills],
        "places": places,
        "written": written,
    }
    return Report(
        command="install",
        subject=pin.tool,
        summary=f"ACCEPT {pin.tool} {pin.version} on {pin.channel}; {plural(len(bundle.skills), 'skill')} in "
        f"{', '.join(places)}",
        exit_code=EXIT_CLEAN,
        notes=(*map(str, decision.checks), *powers),
        facts=facts,
    )
