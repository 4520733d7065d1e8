"""Compare the skills on disk with the approved ones. Every difference becomes a row of a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pinwarden.clients.similar_names import find_similar_name
from pinwarden.clients.table import get_client
from pinwarden.core.record import replace
from pinwarden.core.report import FindingKinds, Row, build_kind_table
from pinwarden.skills.powers import find_widened_powers
from pinwarden.skills.skill import FoundSkill, Skill, SkillFile
from pinwarden.skills.skill_scan import scan_skill
from pinwarden.skills.skills_file import SkillsLock
from pinwarden.surface.drift.approved_text import ApprovedText
from pinwarden.surface.drift.changes import CHANGE_KINDS
from pinwarden.surface.drift.new_cues import Alarm, find_new_alarms, find_steering_alarm
from pinwarden.surface.drift.text_diff import keep_differences, shorten_middle

SKILL_KINDS: FindingKinds = build_kind_table(
    critical=(
        ("skill_unlocked", "Clients read a skill that was not approved."),
        ("skill_look_alike", "Clients read a skill that was not approved, and its name is easily mistaken."),
        ("skill_power_widened", "A skill does more without being asked than was approved: commands, hooks, tools."),
        ("skill_opaque_changed", "A file of a skill that no person can review was changed, so nothing can be shown."),
        ("skill_link", "Something in a skill is not a plain file: a link, a device, or a name that is not portable."),
        ("skills_unpinned", "The file with the approved skills exists, but no seal of the lock covers it."),
    ),
    review=(
        (
            "skill_text_changed",
            "The text of a skill differs from the approved text. Critical if it looks like an attack.",
        ),
        ("skill_code_changed", "A program or script of a skill differs from the approved one, or can be run now."),
        ("skill_file_added", "A skill has a file that was not approved. Critical unless it is plain text."),
        ("skill_file_missing", "An approved skill, or a file of one, is missing. Critical unless it was plain text."),
        ("skill_shadowed", "Clients read two different skills with one name, and each client chooses its own."),
    ),
    info=(
        ("skill_line_ends", "Only the line ends of a text differ from the approved ones."),
        ("skills_not_locked", "The skills of this project are not locked, so changes of them are not detected."),
    ),
)

_MAX_SHOWN = 20_000  # characters of what differs; more is shown by ``git diff``
_ORDINARY = frozenset({"destination", "oversized_text"})  # links and long texts are common in skills
_MIN_STEERING = 2.0  # the evidence that a new sentence without any other sign needs; skills are full of orders


def compare_skills(lock: SkillsLock, found: Sequence[FoundSkill], *, has_modes: bool = True) -> tuple[Row, ...]:
    """Compare all skills on disk with the approved ones.

    ``has_modes`` says whether the file system has executable bits. Without them, the approved ones count. Skills of
    the user (``FoundSkill.of_user``) are only compared by name, because another lock has them.
    """
    rows: list[Row] = []
    own = [one if has_modes else _with_approved_modes(lock, one) for one in found if not one.of_user]
    for group in group_places(lock, own):
        rows += compare_group(lock, group)
    present = {one.place for one in own}
    for locked in lock.skills:
        for place in locked.places:
            if place not in present:
                message = f"the {locked.skill.noun} is approved for {place}, but is not there"
                rows.append(build_row("skill_file_missing", locked.skill, "", message, file=place))
    return (*rows, *_find_shadowed(found))


def compare_skill(approved: Skill, present: Skill, place: str) -> tuple[Row, ...]:
    """Compare one skill with its approved version."""
    rows: list[Row] = []
    widened = find_widened_powers(approved, present)
    if widened:
        message = "; ".join(map(str, widened))
        rows.append(build_row("skill_power_widened", approved, "", f"the {approved.noun} now {message}", file=place))
    before = {file.path: file for file in approved.files}
    after = {file.path: file for file in present.files}
    alarms = _find_new_findings(approved, present)
    for path in sorted(before | after):
        row = _compare_file(approved, before.get(path), after.get(path), alarms.get(path, ()))
        if row is not None:
            rows.append(replace(row, file=approved.locate(place, path)))
    if approved.name != present.name:
        message = f"the skill is named {present.name[:100]!a} now, not {approved.name[:100]!a}"
        rows.append(build_row("skill_text_changed", approved, "", message, file=place))
    return tuple(rows)


def build_row(code: str, skill: Skill, path: str, message: str, *, file: str | None = None) -> Row:
    """Build a row about a skill or about instructions."""
    row = build_skill_row(code, skill.name, path, message, file=file)
    return row if skill.kind == "skill" else replace(row, entity=skill.noun, path="" if path == skill.name else path)


def build_skill_row(  # noqa: PLR0913  the parts of a row
    code: str, name: str, path: str, message: str, *, severity: str | None = None, file: str | None = None
) -> Row:
    """Build a row about a skill. By default it has the severity of its code."""
    level = severity or SKILL_KINDS[code].severity
    return Row(code=code, severity=level, entity="skill", name=name, path=path, message=message, file=file)


def group_places(lock: SkillsLock, found: Iterable[FoundSkill]) -> list[list[FoundSkill]]:
    """Group the skills that are equal and were approved together, such as a folder and a link to it."""
    groups: list[list[FoundSkill]] = []
    for one in found:
        locked = lock.find_at(one.place)
        same = (group for group in groups if group[0].skill == one.skill and lock.find_at(group[0].place) == locked)
        group = next(same, None)
        if group is None:
            groups.append([one])
        else:
            group.append(one)
    return groups


def compare_group(lock: SkillsLock, group: Sequence[FoundSkill]) -> Iterator[Row]:
    """Compare equal skills, as `group_places` returns them, with what is approved for their places."""
    one = group[0]
    name, place = one.skill.name, one.place
    for other in group:
        for problem in other.problems:
            yield build_row("skill_link", one.skill, "", f"cannot be locked: {problem}", file=other.place)
    locked = lock.find_at(place)
    also = ", ".join(other.place for other in group[1:])
    if locked is not None:
        for row in compare_skill(locked.skill, one.skill, place):
            yield replace(row, message=f"{row.message} (also in {also})") if also else row
        return
    if any(other.skill == one.skill for other in lock.skills):
        return  # another place of an approved skill
    clients = dict.fromkeys(client for other in group for client in other.clients)
    readers = ", ".join(get_client(client).title for client in clients) or "a client"
    where = f" (also in {also})" if also else ""
    similar = find_similar_name(name, lock.names) if one.skill.kind == "skill" else None
    if similar is not None:
        message = f"not approved, and easily mistaken for the approved skill {similar}; read by {readers}{where}"
        yield build_skill_row("skill_look_alike", name, "", message, file=place)
        return
    again = f"; another {one.skill.noun} with this name is approved" if name in lock.names else ""
    yield build_row("skill_unlocked", one.skill, "", f"not approved, and read by {readers}{again}{where}", file=place)


def _compare_file(skill: Skill, before: SkillFile | None, after: SkillFile | None, alarms: Sequence[str]) -> Row | None:
    if before is None and after is not None:
        row = build_row("skill_file_added", skill, after.path, f"not approved: {after.path} ({after.kind})")
        return _with_texts(_raise(row, alarms, critical=after.kind != "prompt"), "", after.text)
    if after is None and before is not None:
        row = build_row("skill_file_missing", skill, before.path, f"approved, but missing: {before.path}")
        return _raise(row, (), critical=before.kind != "prompt")
    if before is None or after is None or (before.digest, before.executable) == (after.digest, after.executable):
        return None
    if before.text is None or after.text is None:
        return build_row("skill_opaque_changed", skill, after.path, f"{after.path} changed; it cannot be shown")
    if "power" in (before.kind, after.kind):
        row = build_row("skill_power_widened", skill, after.path, f"{after.path} changed, which clients act on")
    elif "code" in (before.kind, after.kind):
        gained = " and can be run now" if after.executable and not before.executable else ""
        row = build_row("skill_code_changed", skill, after.path, f"{after.path} changed{gained}")
    elif before.text.replace("\r\n", "\n") == after.text.replace("\r\n", "\n"):
        return build_row("skill_line_ends", skill, after.path, f"only the line ends of {after.path} changed")
    else:
        row = build_row("skill_text_changed", skill, after.path, f"{after.path} changed")
        alarms = (*alarms, *_find_text_alarms(before.text, after.text))
    return _with_texts(_raise(row, alarms), before.text, after.text)


def _raise(row: Row, alarms: Iterable[str], *, critical: bool = False) -> Row:
    reasons = list(dict.fromkeys(reason[:1].lower() + reason[1:] for reason in alarms))
    if reasons:
        row = replace(row, message=f"{row.message}: {'; '.join(reasons)}")
    return replace(row, severity="critical") if reasons or critical else row


def _with_texts(row: Row, before: str | None, after: str | None) -> Row:
    if after is None or before is None:
        return row
    shown_before, shown_after = keep_differences(before, after)
    return replace(row, before=shorten_middle(shown_before, _MAX_SHOWN), after=shorten_middle(shown_after, _MAX_SHOWN))


def _find_text_alarms(before: str, after: str) -> Iterator[str]:
    approved = ApprovedText(before)
    alarms: list[Alarm] = [
        *find_new_alarms([after], approved, _ORDINARY, skip_quoted=True),
        *find_steering_alarm([after], approved, _MIN_STEERING),
    ]
    yield from (CHANGE_KINDS[alarm.kind].reason.rstrip(".") for alarm in alarms)


def _find_new_findings(approved: Skill, present: Skill) -> dict[str, tuple[str, ...]]:
    """Return what the scan finds in the present files and did not find in the approved ones, by path."""
    known = {(finding.code, finding.path, finding.excerpt) for finding in scan_skill(approved)}
    found: dict[str, tuple[str, ...]] = {}
    for finding in scan_skill(present):
        if finding.severity == "warning" and (finding.code, finding.path, finding.excerpt) not in known:
            found[finding.path] = (*found.get(finding.path, ()), finding.message)
    return found


def _find_shadowed(found: Sequence[FoundSkill]) -> Iterator[Row]:
    by_name: dict[str, list[FoundSkill]] = {}
    for one in (one for one in found if one.skill.kind == "skill"):
        by_name.setdefault(one.skill.name.casefold(), []).append(one)
    for group in by_name.values():
        if len({one.skill.digest for one in group}) < 2 or all(one.of_user for one in group):
            continue
        readers = list(dict.fromkeys(client for one in group for client in one.clients))
        confused = [client for client in readers if sum(client in one.clients for one in group) > 1]
        places = ", ".join(sorted(one.place for one in group))
        who = f"; {', '.join(get_client(client).title for client in confused)} read several of them" if confused else ""
        name = group[0].skill.name
        yield build_skill_row("skill_shadowed", name, "", f"two different skills have this name: {places}{who}")


def _with_approved_modes(lock: SkillsLock, one: FoundSkill) -> FoundSkill:
    locked = lock.find_at(one.place)
    if locked is None:
        return one
    modes = {file.path: file for file in locked.skill.files}
    files = tuple(
        replace(file, executable=modes[file.path].executable, kind=modes[file.path].kind)
        if file.path in modes and modes[file.path].digest == file.digest
        else file
        for file in one.skill.files
    )
    return replace(one, skill=replace(one.skill, files=files))
