"""Check a server against the contracts in its lockfile.

The original compares one digest and believes the file for the rest, so an edited body passes. Here the file is held
against itself first, then against the contracts. ``compat`` gives the original's answer, defects included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from pinwarden.contract.contract import Contracts, PromptContract
from pinwarden.contract.dialect import Dialect, dialects_of
from pinwarden.contract.digests import file_digest, server_digest_of, utf16_sorted
from pinwarden.contract.extension import SOURCE, UNKNOWN, Extension, check_body, surface_of
from pinwarden.contract.lockfile import Lockfile, LockfileCheckResult, generate_lockfile
from pinwarden.core.errors import PinwardenError
from pinwarden.core.javascript import in_property_order
from pinwarden.core.json_values import json_equal
from pinwarden.core.record import replace
from pinwarden.surface.surface import PROMPT, RESOURCE, TEMPLATE, TOOL, Item, ItemKind, Surface

UP_TO_DATE = "Lockfile is up to date."
_NO_TIME = ""  # the time of generation is not compared


def check_lockfile(  # noqa: PLR0913  all but the first two have a usual value
    lockfile: Lockfile,
    contracts: Contracts,
    prompts: Iterable[PromptContract] | None = None,
    *,
    current: Extension | None = None,
    dialect: Dialect | None = None,
    compat: bool = False,
) -> LockfileCheckResult:
    """Compare a lockfile with the contracts as they are now.

    1. The file is held against itself: body digest, or else the digests that can be recomputed. An edited one raises
       ``LOCK_TAMPERED``. (Not in the original.)
    2. Equal digests: up to date, and nothing else of the format is looked at.
    3. Otherwise tools and prompts are compared one by one.
    4. What only the extension pins (``current``) is compared. (Not in the original.)
    """
    spoken = dialect or dialects_of(lockfile.document)[0]
    sealed = not compat and check_body(lockfile)
    fresh = generate_lockfile(
        lockfile.server_name, contracts, prompts or (), generated_at=_NO_TIME, dialect=spoken, compat=compat
    )
    if compat:
        return _compared(lockfile, fresh, contracts, f"{spoken.program} lock")
    _check_own_digests(lockfile)
    result = _compared(lockfile, fresh, contracts, "pinwarden contract lock")
    _check_visible(lockfile, fresh)
    if not sealed or current is None:
        return result
    return _with_extension_changes(result, lockfile, current)


# The original's comparison


def _compared(lockfile: Lockfile, fresh: Lockfile, contracts: Contracts, update: str) -> LockfileCheckResult:
    if lockfile.integrity_digest == fresh.integrity_digest:
        return LockfileCheckResult(
            ok=True,
            message=UP_TO_DATE,
            unchanged=tuple(utf16_sorted(contracts)),
            unchanged_prompts=tuple(utf16_sorted(fresh.prompts)),
        )
    tools = _sorted_out(lockfile.tools, {name: fresh.tools[name] for name, _ in in_property_order(contracts)})
    prompts = _sorted_out(lockfile.prompts, fresh.prompts)
    result = LockfileCheckResult(
        ok=False,
        message="",
        added=tools[0],
        removed=tools[1],
        changed=tools[2],
        unchanged=tools[3],
        added_prompts=prompts[0],
        removed_prompts=prompts[1],
        changed_prompts=prompts[2],
        unchanged_prompts=prompts[3],
    )
    return replace(result, message=stale_message(result, update))


def stale_message(result: LockfileCheckResult, update: str) -> str:
    """The sentence that tells people what moved and what to run."""
    moved = (
        ("tools added", result.added),
        ("tools removed", result.removed),
        ("tools changed", result.changed),
        ("prompts added", result.added_prompts),
        ("prompts removed", result.removed_prompts),
        ("prompts changed", result.changed_prompts),
        ("also changed", result.other),
    )
    parts = "; ".join(f"{what}: [{', '.join(names)}]" for what, names in moved if names)
    return f"Lockfile is stale. {parts}. Run `{update}` to update."


_Names = tuple[str, ...]


def _sorted_out(locked: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[_Names, _Names, _Names, _Names]:
    """Names added, removed, changed and unchanged, in the order in which JavaScript would come upon them."""
    added: list[str] = []
    changed: list[str] = []
    unchanged: list[str] = []
    for name, entry in in_property_order(now):
        if name not in locked:
            added.append(name)
        elif _digest(locked[name], name) == entry["integrityDigest"]:
            unchanged.append(name)
        else:
            changed.append(name)
    removed = tuple(name for name, _ in in_property_order(locked) if name not in now)
    return tuple(added), removed, tuple(changed), tuple(unchanged)


def _digest(entry: Any, name: str) -> Any:
    if not isinstance(entry, Mapping):  # here the original ends with a TypeError
        raise PinwardenError("LOCK_INVALID", f"the entry of {name[:80]!a} is not an object")
    return entry.get("integrityDigest")


# What the original does not look at


def _check_own_digests(lockfile: Lockfile) -> None:
    """The digest of the file follows from those of its entries, with or without our extension."""
    server = server_digest_of(
        {name: entry["integrityDigest"].removeprefix("sha256:") for name, entry in lockfile.tools.items()}
    )
    prompts = [(name, lockfile.prompts[name]["integrityDigest"]) for name in utf16_sorted(lockfile.prompts)]
    if lockfile.integrity_digest != f"sha256:{file_digest(server, prompts)}":
        _tampered("the digest of the file is not that of its tools and prompts")


def _check_visible(lockfile: Lockfile, fresh: Lockfile) -> None:
    """What a reviewer reads of an unchanged tool or prompt is what its digest stands for."""
    for what, locked, now in (("tool", lockfile.tools, fresh.tools), ("prompt", lockfile.prompts, fresh.prompts)):
        for name, entry in locked.items():
            if (
                name in now
                and entry["integrityDigest"] == now[name]["integrityDigest"]
                and not _holds(_with_unknown_flags(entry, now[name]), now[name])
            ):
                _tampered(f"the entry of {what} {name[:80]!a} does not say what its digest stands for")


def _with_unknown_flags(entry: Mapping[str, Any], fresh: Mapping[str, Any]) -> Mapping[str, Any]:
    """An entry with null for flags that are not known; older files say false there, and both have one digest."""
    known, now = entry.get("entitlements"), fresh.get("entitlements")
    if not isinstance(known, Mapping) or not isinstance(now, Mapping):
        return entry
    flags = {name: None if flag is False and now.get(name, False) is None else flag for name, flag in known.items()}
    return {**entry, "entitlements": flags}


def _holds(entry: Any, fresh: Any) -> bool:
    """Whether an entry says all that a fresh one says. Members that we do not know may stand beside it."""
    if isinstance(fresh, Mapping):
        return isinstance(entry, Mapping) and all(
            name in entry and _holds(entry[name], member) for name, member in fresh.items()
        )
    return json_equal(entry, fresh)


def _with_extension_changes(result: LockfileCheckResult, lockfile: Lockfile, current: Extension) -> LockfileCheckResult:
    locked = surface_of(lockfile)
    tools: set[str] = _changed_facts(lockfile, current)
    prompts: set[str] = set()
    other: tuple[str, ...] = ()
    if locked is not None and locked.digest != current.surface.digest:
        tools |= _changed_items(locked, current.surface, TOOL)
        prompts = _changed_items(locked, current.surface, PROMPT)
        other = _other_changes(locked, current.surface)
    other += _changed_startup(lockfile, current) + _changed_reach(lockfile, current)
    changed = (*result.changed, *(name for name in result.unchanged if name in tools))
    changed_prompts = (*result.changed_prompts, *(name for name in result.unchanged_prompts if name in prompts))
    if (changed, changed_prompts, other) == (result.changed, result.changed_prompts, ()):
        return result
    stale = replace(
        result,
        ok=False,
        changed=changed,
        unchanged=tuple(name for name in result.unchanged if name not in tools),
        changed_prompts=changed_prompts,
        unchanged_prompts=tuple(name for name in result.unchanged_prompts if name not in prompts),
        other=other,
    )
    return replace(stale, message=stale_message(stale, "pinwarden contract lock"))


def _changed_items(locked: Surface, now: Surface, kind: ItemKind) -> set[str]:
    before, after = _digests(locked, kind), _digests(now, kind)
    return {key for key in before.keys() & after.keys() if before[key] != after[key]}


def _digests(surface: Surface, kind: ItemKind) -> dict[str, list[str]]:
    digests: dict[str, list[str]] = {}
    for item in surface.items_of_kind(kind):
        digests.setdefault(item.key, []).append(_mark(item))
    return {key: sorted(marks) for key, marks in digests.items()}


def _mark(item: Item) -> str:
    return str(item.digest)  # "None" for one that cannot be digested: never equal to a locked one


def _other_changes(locked: Surface, now: Surface) -> tuple[str, ...]:
    """Whatever is neither tool nor prompt, by name."""
    before, after = locked.server or {}, now.server or {}
    changed = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    for kind in (RESOURCE, TEMPLATE):
        gone, come = _digests(locked, kind), _digests(now, kind)
        changed += [f"{kind.entity} {key}" for key in sorted({*gone, *come}) if gone.get(key) != come.get(key)]
        if (kind.member in locked.items) != (kind.member in now.items):
            changed.append(kind.member)
    return tuple(changed)


def _changed_facts(lockfile: Lockfile, current: Extension) -> set[str]:
    """Tools with changes that no client sees: entitlements of the source, or middleware code."""
    locked = (lockfile.extension or {}).get("tools", {})
    changed: set[str] = set()
    for name, facts in current.tools.items():
        before = locked.get(name)
        if not isinstance(before, Mapping):
            continue
        known = {fact: level for fact, level in facts.evidence.items() if level != UNKNOWN}
        levels = before.get("evidence", {})
        if any(levels.get(fact, UNKNOWN) == UNKNOWN for fact in known):
            changed.add(name)  # who edits a lock could otherwise call unknown what is not to be compared
        if "entitlements" in known and reach(before.get("entitlements")) != reach(facts.entitlements):
            changed.add(name)
        if "middlewareChain" in known and (
            before.get("middleware") != [dict(layer) for layer in facts.middleware]
            or _limits(before.get("details")) != _limits(facts.details)
        ):
            changed.add(name)
    return changed


def _changed_reach(lockfile: Lockfile, current: Extension) -> tuple[str, ...]:
    """Prompts and resources whose code reaches something else than the lock records. An older lock records nothing."""
    extension = lockfile.extension or {}
    if current.evidence != SOURCE or extension.get("evidence") != SOURCE:
        return ()
    details = extension.get("details")
    changes: list[str] = []
    for member in ("prompts", "resources"):
        locked = details.get(member) if isinstance(details, Mapping) else None
        before: Mapping[str, Any] = locked if isinstance(locked, Mapping) else {}
        for name, facts in current.details.get(member, {}).items():
            if reach(before.get(name)) != reach(facts):
                changes.append(f"code of {member.removesuffix('s')} {name}")
    return tuple(changes)


def _changed_startup(lockfile: Lockfile, current: Extension) -> tuple[str, ...]:
    """Whether the code that runs when the server is imported reaches something else, where its source was read."""
    details = (lockfile.extension or {}).get("details")
    before = details.get("startup") if isinstance(details, Mapping) else None
    read = current.evidence == SOURCE and (lockfile.extension or {}).get("evidence") == SOURCE
    return ("startup",) if read and reach(before) != reach(current.details.get("startup")) else ()


def reach(entitlements: Any) -> dict[str, frozenset[tuple[str, str]]]:
    """What is compared of findings: what is reached, known and unknown, and not where in the code that stands."""
    stated = entitlements if isinstance(entitlements, Mapping) else {}
    return {
        "kinds": frozenset((str(kind), "") for kind in _listed(stated, "kinds")),
        "findings": _pairs(_listed(stated, "findings"), "kind"),
        "unknown": _pairs(_listed(stated, "unknown"), "reason"),
    }


def _pairs(rows: list[Any], member: str) -> frozenset[tuple[str, str]]:
    return frozenset((str(row.get(member)), str(row.get("what"))) for row in rows if isinstance(row, Mapping))


def _listed(names: Mapping[str, Any], member: str) -> list[Any]:
    rows = names.get(member)
    return rows if isinstance(rows, list) else []


def _limits(details: Any) -> dict[str, Any]:
    """What is compared of a tool's details: not where its handler is."""
    return {name: each for name, each in details.items() if name != "handler"} if isinstance(details, Mapping) else {}


def _tampered(why: str) -> NoReturn:
    raise PinwardenError("LOCK_TAMPERED", why)
