"""Skills in a bundle: one folder per skill, each with a ``SKILL.md``, and no server.

Such a bundle has the documents of a server's bundle. Its descriptor has the runtime ``skills``, so that a reader that
knows only servers refuses it, and its permission ``exec`` says whether a skill has code or acts without being asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pinwarden.bundle.bundle_archive import FileContents
from pinwarden.bundle.bundle_documents import (
    NO_LICENSE,
    SKILLS_RUNTIME,
    BundleDescriptor,
    ManifestEntry,
    SecurityPolicy,
)
from pinwarden.bundle.document import build_default_profile
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.skills.front_matter import read_front_matter
from pinwarden.skills.powers import find_powers
from pinwarden.skills.skill import MAIN_FILE, MAX_BYTES, MAX_FILES, FileBytes, Skill, build_skill

_FOLDER = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


class BundledSkill(Record):
    """One skill of a bundle."""

    folder: str
    """The name of its folder, also where it is installed."""
    skill: Skill
    files: Mapping[str, FileBytes] = field(repr=False)
    """The bytes of its files, by their path below the folder."""

    @property
    def needs_exec(self) -> bool:
        """Whether it has code, or acts without being asked."""
        return any(file.kind == "code" for file in self.skill.files) or bool(find_powers(self.skill))


def read_bundled_skills(entries: Iterable[ManifestEntry], contents: FileContents) -> tuple[BundledSkill, ...]:
    """Return the skills of a verified bundle. Raises BUNDLE_NOT_SKILLS if a file belongs to none."""
    files = {entry.path: FileBytes(data=bytes(contents[entry.path]), executable=entry.executable) for entry in entries}
    return group_skills(files)


def group_skills(files: Mapping[str, FileBytes]) -> tuple[BundledSkill, ...]:
    """Group files by the folder of their skill. Raises BUNDLE_NOT_SKILLS if a file belongs to none."""
    folders: dict[str, dict[str, FileBytes]] = {}
    for path, content in files.items():
        folder, slash, rest = path.partition("/")
        if not slash or not _FOLDER.fullmatch(folder):
            raise _not_skills(f"{path[:120]!a} is in no folder of a skill (a-z, 0-9 and hyphens)")
        folders.setdefault(folder, {})[rest] = content
    for folder, below in folders.items():
        if MAIN_FILE not in below:
            raise _not_skills(f"the folder {folder[:64]} has no {MAIN_FILE}")
        if len(below) > MAX_FILES or sum(len(file.data) for file in below.values()) > MAX_BYTES:
            raise _not_skills(f"the skill {folder[:64]} has more than {MAX_FILES} files or {MAX_BYTES} bytes")
    if not folders:
        raise _not_skills("it has no files")
    return tuple(
        BundledSkill(folder=folder, skill=build_skill(folder, below), files=below)
        for folder, below in sorted(folders.items())
    )


def build_skills_descriptor(  # noqa: PLR0913  the members of a descriptor
    name: str,
    version: str,
    skills: tuple[BundledSkill, ...],
    policy: Mapping[str, str],
    *,
    root_cid: str,
    media_type: str,
    size: int,
) -> BundleDescriptor:
    """Describe a bundle of skills. Permissions that ``policy`` omits are what the skills need."""
    main = skills[0].skill.find_file(MAIN_FILE)
    front = read_front_matter((main.text if main is not None else None) or "")
    needed = {"exec": "allow"} if any(skill.needs_exec for skill in skills) else {}
    return BundleDescriptor(
        name=name,
        display_name=name,
        version=version,
        description=front.description[:_MAX_DESCRIPTION],
        license=front.license or NO_LICENSE,
        root_cid=root_cid,
        cid_profile=build_default_profile(),
        media_type=media_type,
        size_bytes=size,
        runtime=SKILLS_RUNTIME,
        target=f"{skills[0].folder}/{MAIN_FILE}",
        policy=SecurityPolicy(**{**needed, **policy}),
    )


def refuse_undeclared_powers(descriptor: BundleDescriptor, skills: Iterable[BundledSkill]) -> None:
    """Raise BUNDLE_NOT_SKILLS if a skill acts or has code, and the bundle does not ask for the permission ``exec``."""
    acting = [skill.folder for skill in skills if skill.needs_exec]
    if acting and descriptor.policy.exec != "allow":
        raise _not_skills(f"{', '.join(acting)} can run code, but the bundle does not ask for exec")


def _not_skills(problem: str) -> PinwardenError:
    return PinwardenError("BUNDLE_NOT_SKILLS", f"the bundle is not one of skills: {problem}")


_MAX_DESCRIPTION = 1024
