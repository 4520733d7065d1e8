"""Check a server against the contracts in its lockfile.

MCP Fusion compares one digest and trusts the rest of the file, so an edited body passes. Pinwarden checks the file's
own digests first, then the contracts. ``compat`` gives MCP Fusion's result, including its defects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from pinwarden.contract.contract import Contracts, PromptContract
from pinwarden.contract.dialect import Dialect, dialects_of
from pinwarden.contract.digests import file_digest, server_digest_of, utf16_sorted
from pinwarden.contract.extension import SOURCE, UNKNOWN, ContractExtension, check_body, surface_of
from pinwarden.contract.lockfile import Lockfile, LockfileCheckResult, generate_lockfile
from pinwarden.core.errors import PinwardenError
from pinwarden.core.javascript import list_in_property_order
from pinwarden.core.json_values import is_json_equal
from pinwarden.core.record import replace
from pinwarden.surface.surface import PROMPT, RESOURCE, TEMPLATE, TOOL, ItemKind, Surface

UP_TO_DATE = "Lockfile is up to date."
_NO_TIME = ""  # the generation time is not compared


def check_lockfile(  # noqa: PLR0913  all but the first two have a default
    lockfile: Lockfile,
    contracts: Contracts,
    prompts: Iterable[PromptContract] | None = None,
    *,
    current: ContractExtension | None = None,
    dialect: Dialect | None = None,
    compat: bool = False,
) -> LockfileCheckResult:
    """Compare a lockfile with the current contracts.

    1. Check the file's own digests: the body digest, or else those that can be recomputed. An edited file raises
       ``LOCK_TAMPERED``. (MCP Fusion does not.)
    2. If the digests are equal, the lockfile is up to date.
    3. Otherwise compare tools and prompts one by one.
    4. Compare what only the extension pins (``current``). (MCP Fusion does not.)
    """
    used_dialect = dialect or dialects_of(lockfile.document)[0]
    sealed = not compat and check_body(lockfile)
    fresh = generate_lockfile(
        lockfile.server_name, contracts, prompts or (), generated_at=_NO_TIME, dialect=used_dialect, compat=compat
    )
    if compat:
        return _compared(lockfile, fresh, contracts, f"{used_dialect.program} lock")
    _check_own_digests(lockfile)
    result = _compared(lockfile, fresh, contracts, "pinwarden contract lock")
    _check_visible(lockfile, fresh)
    if not sealed or current is None:
        return result
    return _with_extension_changes(result, lockfile, current)


# MCP Fusion's comparison


def _compared(lockfile: Lockfile, fresh: Lockfile, contracts: Contracts, update: str) -> LockfileCheckResult:
    if lockfile.integrity_digest == fresh.integrity_digest:
        return LockfileCheckResult(
            ok=True,
            message=UP_TO_DATE,
            unchanged=tuple(utf16_sorted(contracts)),
            unchanged_prompts=tuple(utf16_sorted(fresh.prompts)),
        )
    tools = _compare_names(lockfile.tools, {name: fresh.tools[name] for name, _ in list_in_property_order(contracts)})
    prompts = _compare_names(lockfile.prompts, fresh.prompts)
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
    """A sentence with the changes and the command that updates the lockfile."""
    changes = (
        ("tools added", result.added),
        ("tools removed", result.removed),
        ("tools changed", result.changed),
        ("prompts added", result.added_prompts),
        ("prompts removed", result.removed_prompts),
        ("prompts changed", result.changed_prompts),
        ("also changed", result.other),
    )
    parts = "; ".join(f"{label}: [{', '.join(names)}]" for label, names in changes if names)
    return f"Lockfile is stale. {parts}. Run `{update}` to update."


_Names = tuple[str, ...]


def _compare_names(locked: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[_Names, _Names, _Names, _Names]:
    """Names added, removed, changed and unchanged, in JavaScript's property order."""
    added: list[str] = []
    changed: list[str] = []
    unchanged: list[str] = []
    for name, entry in list_in_property_order(now):
        if name not in locked:
            added.append(name)
        elif _digest(locked[name], name) == entry["integrityDigest"]:
            unchanged.append(name)
        else:
            changed.append(name)
    removed = tuple(name for name, _ in list_in_property_order(locked) if name not in now)
    return tuple(added), removed, tuple(changed), tuple(unchanged)


def _digest(entry: Any, name: str) -> Any:
    if not isinstance(entry, Mapping):  # MCP Fusion fails with a TypeError here
        raise PinwardenError("LOCK_INVALID", f"the entry of {name[:80]!a} is not an object")
    return entry.get("integrityDigest")


# Checks that MCP Fusion does not have


def _check_own_digests(lockfile: Lockfile) -> None:
    """Check that the file's digest follows from the digests of its entries."""
    server = server_digest_of(
        {name: entry["integrityDigest"].removeprefix("sha256:") for name, entry in lockfile.tools.items()}
    )
    prompts = [(name, lockfile.prompts[name]["integrityDigest"]) for name in utf16_sorted(lockfile.prompts)]
    if lockfile.integrity_digest != f"sha256:{file_digest(server, prompts)}":
        _tampered("the lockfile's digest does not match its tools and prompts")


def _check_visible(lockfile: Lockfile, fresh: Lockfile) -> None:
    """Check that the readable part of each unchanged tool and prompt matches its digest."""
    for entity, locked, now in (("tool", lockfile.tools, fresh.tools), ("prompt", lockfile.prompts, fresh.prompts)):
        for name, entry in locked.items():
            if (
                name in now
                and entry["integrityDigest"] == now[name]["integrityDigest"]
                and not _includes(_with_unknown_flags(entry, now[name]), now[name])
            ):
                _tampered(f"the entry of the {entity} {name[:80]!a} does not match its digest")


def _with_unknown_flags(entry: Mapping[str, Any], fresh: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entry with null for unknown flags. Older files have false there, with the same digest."""
    locked, now = entry.get("entitlements"), fresh.get("entitlements")
    if not isinstance(locked, Mapping) or not isinstance(now, Mapping):
        return entry
    flags = {name: None if flag is False and now.get(name, False) is None else flag for name, flag in locked.items()}
    return {**entry, "entitlements": flags}


def _includes(entry: Any, fresh: Any) -> bool:
    """Whether an entry has all members of a fresh one. It may have further, unknown members."""
    if isinstance(fresh, Mapping):
        return isinstance(entry, Mapping) and all(
            name in entry and _includes(entry[name], member) for name, member in fresh.items()
        )
    return is_json_equal(entry, fresh)


def _with_extension_changes(
    result: LockfileCheckResult, lockfile: Lockfile, current: ContractExtension
) -> LockfileCheckResult:
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
        digests.setdefault(item.key, []).append(
            str(item.digest)
        )  # "None" if the item has no digest; such items are never locked
    return {key: sorted(values) for key, values in digests.items()}


def _other_changes(locked: Surface, now: Surface) -> tuple[str, ...]:
    """The names of changed server properties, resources and templates."""
    before, after = locked.server or {}, now.server or {}
    changed = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    for kind in (RESOURCE, TEMPLATE):
        old, new = _digests(locked, kind), _digests(now, kind)
        changed += [f"{kind.entity} {key}" for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
        if (kind.member in locked.items) != (kind.member in now.items):
            changed.append(kind.member)
    return tuple(changed)


def _changed_facts(lockfile: Lockfile, current: ContractExtension) -> set[str]:
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
            changed.add(name)  # otherwise an attacker could exclude a fact by marking it unknown in the lock
        if "entitlements" in known and reach(before.get("entitlements")) != reach(facts.entitlements):
            changed.add(name)
        if "middlewareChain" in known and (
            before.get("middleware") != [dict(layer) for layer in facts.middleware]
            or _limits(before.get("details")) != _limits(facts.details)
        ):
            changed.add(name)
    return changed


def _changed_reach(lockfile: Lockfile, current: ContractExtension) -> tuple[str, ...]:
    """Prompts and resources whose code reaches something that the lock does not record. Older locks record nothing."""
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


def _changed_startup(lockfile: Lockfile, current: ContractExtension) -> tuple[str, ...]:
    """``("startup",)`` if the code that runs on import reaches something else, and its source was analysed."""
    details = (lockfile.extension or {}).get("details")
    before = details.get("startup") if isinstance(details, Mapping) else None
    analysed = current.evidence == SOURCE and (lockfile.extension or {}).get("evidence") == SOURCE
    return ("startup",) if analysed and reach(before) != reach(current.details.get("startup")) else ()


def reach(entitlements: Any) -> dict[str, frozenset[tuple[str, str]]]:
    """The comparable part of entitlements: what is reached, known and unknown, without code locations."""
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
    """The comparable part of a tool's details, without the handler's location."""
    if not isinstance(details, Mapping):
        return {}
    return {name: value for name, value in details.items() if name != "handler"}


def _tampered(problem: str) -> NoReturn:
    raise PinwardenError("LOCK_TAMPERED", problem)
