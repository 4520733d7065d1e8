"""``mcp-lock.skills.json``: the approved skills, with the text of their files, sorted and without times.

The seal of the lock next to it has its digest (`lock/lockfile.py`), so that signatures of the lock cover it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pinwarden.core.digest import Digest
from pinwarden.core.record import Record, field
from pinwarden.core.strict_json import parse_json
from pinwarden.core.typed_json import JsonObject
from pinwarden.lock.entry import LOCK_LIMITS, lock_error
from pinwarden.skills.skill import FileKind, Skill, SkillFile

FORMAT = "pinwarden-skills/1"
_KINDS: tuple[FileKind, ...] = ("prompt", "power", "code", "opaque")


class LockedSkill(Record):
    """An approved skill, and where it may be."""

    skill: Skill
    places: tuple[str, ...]
    """The paths of its folders, as in ``FoundSkill.place``."""
    by: str
    """Who approved it."""
    why: str
    bundle: Mapping[str, Any] | None = None
    """The pin of the bundle that it was installed from; ``bundle/bundle_pin.py`` reads it."""


class SkillsLock(Record):
    """All approved skills of a project or user."""

    skills: tuple[LockedSkill, ...] = field(default=())

    def find_at(self, place: str) -> LockedSkill | None:
        """Return the skill that is approved for a place; None if there is none."""
        return next((locked for locked in self.skills if place in locked.places), None)

    @property
    def has_instructions(self) -> bool:
        """Whether instruction files are locked, so that those that are not are reported."""
        return any(locked.skill.kind == "instructions" for locked in self.skills)

    @property
    def names(self) -> frozenset[str]:
        """The names of all approved skills."""
        return frozenset(locked.skill.name for locked in self.skills)


def put_skills(lock: SkillsLock, approved: Iterable[LockedSkill]) -> SkillsLock:
    """Return the lock with these skills, which replace what was approved for their places."""
    skills = list(lock.skills)
    for fresh in approved:
        skills = [kept for locked in skills if (kept := _without_places(locked, fresh.places)) is not None]
        twin = next((one for one in skills if one.skill == fresh.skill and one.bundle == fresh.bundle), None)
        if twin is not None:
            skills.remove(twin)
            fresh = LockedSkill(  # noqa: PLW2901
                skill=fresh.skill,
                places=tuple(sorted({*twin.places, *fresh.places})),
                by=fresh.by,
                why=fresh.why,
                bundle=fresh.bundle,
            )
        skills.append(fresh)
    return _sorted(skills)


def remove_places(lock: SkillsLock, places: Iterable[str]) -> SkillsLock:
    """Return the lock without these places, and without the skills that had only these."""
    gone = tuple(places)
    return _sorted(kept for locked in lock.skills if (kept := _without_places(locked, gone)) is not None)


def _without_places(locked: LockedSkill, gone: tuple[str, ...]) -> LockedSkill | None:
    places = tuple(place for place in locked.places if place not in gone)
    if places == locked.places:
        return locked
    if not places:
        return None
    return LockedSkill(skill=locked.skill, places=places, by=locked.by, why=locked.why, bundle=locked.bundle)


def _sorted(skills: Iterable[LockedSkill]) -> SkillsLock:
    return SkillsLock(skills=tuple(sorted(skills, key=lambda locked: (locked.skill.name, locked.places))))


def encode_skills(lock: SkillsLock) -> bytes:
    """Return the file. The text of files is a list of lines, so that a review shows which lines change."""
    import json

    document = {"format": FORMAT, "skills": [_skill_to_json(locked) for locked in lock.skills]}
    return (json.dumps(document, ensure_ascii=False, indent=2) + "\n").encode()


def parse_skills(data: bytes) -> SkillsLock:
    """Parse the file strictly. Every digest in it is computed again."""
    document = JsonObject(parse_json(data, LOCK_LIMITS), "/skills", lock_error)
    if document.string("format") != FORMAT:
        document.fail("format", f"is not {FORMAT}; a newer Pinwarden wrote it")
    skills = tuple(map(_parse_skill, document.objects("skills")))
    places = [place for locked in skills for place in locked.places]
    if len(set(places)) != len(places):
        document.fail("skills", "has two skills for one place")
    return SkillsLock(skills=skills)


def _skill_to_json(locked: LockedSkill) -> dict[str, Any]:
    source: dict[str, Any] = {"kind": "local"} if locked.bundle is None else {"kind": "bundle", **locked.bundle}
    return {
        "name": locked.skill.name,
        **({} if locked.skill.kind == "skill" else {"kind": locked.skill.kind}),
        "digest": str(locked.skill.digest),
        "places": list(locked.places),
        "source": source,
        "approval": {"by": locked.by, "why": locked.why},
        "files": [_file_to_json(file) for file in locked.skill.files],
    }


def _file_to_json(file: SkillFile) -> dict[str, Any]:
    executable = {"executable": True} if file.executable else {}
    lines = {} if file.text is None else {"lines": file.text.split("\n")}
    about = {"path": file.path, "digest": str(file.digest), "size": file.size, "kind": file.kind}
    return {**about, **executable, **lines}


def _parse_skill(record: JsonObject) -> LockedSkill:
    skill = Skill(
        name=record.string("name"),
        files=tuple(map(_parse_file, record.objects("files"))),
        kind=record.one_of("kind", ("skill", "instructions"), default="skill"),
    )
    if record.parse_string("digest", Digest.parse) != skill.digest:
        record.fail("digest", "is not the digest of its files")
    source, approval = record.object("source"), record.object("approval")
    kind = source.one_of("kind", ("local", "bundle"))
    places = record.strings("places", default=[])
    if not places:
        record.fail("places", "is empty")
    return LockedSkill(
        skill=skill,
        places=places,
        by=approval.string("by"),
        why=approval.string("why"),
        bundle={name: value for name, value in source.value.items() if name != "kind"} if kind == "bundle" else None,
    )


def _parse_file(record: JsonObject) -> SkillFile:
    text = "\n".join(record.strings("lines", default=[])) if "lines" in record else None
    digest, size = record.parse_string("digest", Digest.parse), record.integer("size")
    if text is not None:
        data = text.encode("utf-8", "surrogatepass")
        if (Digest.of_bytes(data), len(data)) != (digest, size):
            record.fail("lines", "do not have the digest and size of the file")
    kind: FileKind = record.one_of("kind", _KINDS)
    if (kind == "opaque") != (text is None):
        record.fail("kind", "does not fit the text")
    return SkillFile(
        path=record.string("path"),
        digest=digest,
        size=size,
        kind=kind,
        executable=record.boolean("executable", default=False),
        text=text,
    )
