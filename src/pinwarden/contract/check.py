"""Check a server against the contracts in its lockfile.

MCP Fusion compares one digest and trusts the rest of the file, so it does not notice an edited body. Pinwarden first
verifies the file's own digests, then compares the contracts. ``compat`` gives the same result as MCP Fusion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from pinwarden.contract.contract import Contracts, PromptContract, ToolContract
from pinwarden.contract.dialect import Dialect, detect_dialects
from pinwarden.contract.digests import combine_tool_digests, compute_file_digest, sort_by_utf16
from pinwarden.contract.extension import SOURCE, UNKNOWN, ContractExtension, check_body, read_contracts, read_surface
from pinwarden.contract.lockfile import Lockfile, LockfileCheckResult, generate_lockfile
from pinwarden.contract.normal_form import compute_normalised_digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.javascript import list_in_property_order
from pinwarden.core.json_values import is_json_equal
from pinwarden.core.record import replace
from pinwarden.surface.surface import PROMPT, RESOURCE, TEMPLATE, TOOL, ItemKind, Surface

UP_TO_DATE = "Lockfile is up to date."
_FRAMEWORKS = ("mcp", "fastmcp")
_NO_TIME = ""  # the comparison ignores the generation time


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

    1. Verify the digests in the file. Raises ``LOCK_TAMPERED`` for an edited file. If only another release of the SDK
       generates other parts of the schemas, take those of the lock.
    2. Generate a lockfile from the current contracts. If both have the same digest, no tool or prompt changed.
    3. Otherwise compare tools and prompts one by one.
    4. Check that the readable members of unchanged tools and prompts match their digests.
    5. Compare ``current`` with the facts that only the extension records.

    With ``compat``, only steps 2 and 3 run, as in MCP Fusion.
    """
    used_dialect = dialect or detect_dialects(lockfile.document)[0]
    sealed = not compat and check_body(lockfile)
    generated_only = sealed and current is not None and _differs_by_sdk_alone(lockfile, current)
    if generated_only:
        contracts = _with_locked_surfaces(lockfile, contracts)
    fresh = generate_lockfile(
        lockfile.server_name, contracts, prompts or (), generated_at=_NO_TIME, dialect=used_dialect, compat=compat
    )
    if compat:
        return _compare_lockfiles(lockfile, fresh, contracts, f"{used_dialect.program} lock")
    _check_own_digests(lockfile)
    result = _compare_lockfiles(lockfile, fresh, contracts, "pinwarden contract lock")
    _check_readable_parts(lockfile, fresh)
    if not sealed or current is None:
        return result
    return _add_extension_changes(result, lockfile, current, compare_items=not generated_only)


def _differs_by_sdk_alone(lockfile: Lockfile, current: ContractExtension) -> bool:
    """Whether another release of the SDK generates other parts of the same surface, such as titles in schemas."""
    locked, recorded = read_surface(lockfile), (lockfile.extension or {}).get("versions")
    if locked is None or not isinstance(recorded, Mapping) or locked.digest == current.surface.digest:
        return False
    if all(recorded.get(name) == current.versions.get(name) for name in _FRAMEWORKS):
        return False
    return compute_normalised_digest(locked) == compute_normalised_digest(current.surface)


def _with_locked_surfaces(lockfile: Lockfile, contracts: Contracts) -> Contracts:
    """Return the contracts with what the lock records of their schemas. Facts about the code stay those of now."""
    locked = read_contracts(lockfile) or {}
    return {
        name: _with_locked_surface(locked[name], contract) if name in locked else contract
        for name, contract in contracts.items()
    }


def _with_locked_surface(locked: ToolContract, now: ToolContract) -> ToolContract:
    if locked.surface.actions.keys() != now.surface.actions.keys():
        return now
    fresh = now.surface.actions
    actions = {
        name: replace(action, has_middleware=fresh[name].has_middleware, presenter_name=fresh[name].presenter_name)
        for name, action in locked.surface.actions.items()
    }
    return replace(
        now,
        surface=replace(locked.surface, actions=actions),
        behavior=replace(now.behavior, egress_schema_digest=locked.behavior.egress_schema_digest),
        token_economics=locked.token_economics,
    )


# MCP Fusion's comparison


def _compare_lockfiles(
    lockfile: Lockfile, fresh: Lockfile, contracts: Contracts, update_command: str
) -> LockfileCheckResult:
    if lockfile.integrity_digest == fresh.integrity_digest:
        return LockfileCheckResult(
            ok=True,
            message=UP_TO_DATE,
            unchanged=tuple(sort_by_utf16(contracts)),
            unchanged_prompts=tuple(sort_by_utf16(fresh.prompts)),
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
    return replace(result, message=describe_changes(result, update_command))


def describe_changes(result: LockfileCheckResult, update_command: str) -> str:
    """Return a message that lists the changes and names the command that updates the lockfile."""
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
    return f"Lockfile is stale. {parts}. Run `{update_command}` to update."


_Names = tuple[str, ...]


def _compare_names(locked: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[_Names, _Names, _Names, _Names]:
    """Return the names that were added, removed, changed and unchanged, each in JavaScript's property order."""
    added: list[str] = []
    changed: list[str] = []
    unchanged: list[str] = []
    for name, entry in list_in_property_order(now):
        if name not in locked:
            added.append(name)
        elif _read_digest(locked[name], name) == entry["integrityDigest"]:
            unchanged.append(name)
        else:
            changed.append(name)
    removed = tuple(name for name, _ in list_in_property_order(locked) if name not in now)
    return tuple(added), removed, tuple(changed), tuple(unchanged)


def _read_digest(entry: Any, name: str) -> Any:
    if not isinstance(entry, Mapping):  # MCP Fusion fails with a TypeError here
        raise PinwardenError("LOCK_INVALID", f"the lockfile's entry for {name[:80]!a} is not an object")
    return entry.get("integrityDigest")


# Checks that MCP Fusion does not have


def _check_own_digests(lockfile: Lockfile) -> None:
    """Verify the file's digest, which covers the digests of its tools and prompts."""
    server = combine_tool_digests(
        {name: entry["integrityDigest"].removeprefix("sha256:") for name, entry in lockfile.tools.items()}
    )
    prompts = [(name, lockfile.prompts[name]["integrityDigest"]) for name in sort_by_utf16(lockfile.prompts)]
    if lockfile.integrity_digest != f"sha256:{compute_file_digest(server, prompts)}":
        _raise_tampered("the lockfile's digest does not match its tools and prompts")


def _check_readable_parts(lockfile: Lockfile, fresh: Lockfile) -> None:
    """Check that the readable members of each unchanged tool and prompt match its digest."""
    for entity, locked, now in (("tool", lockfile.tools, fresh.tools), ("prompt", lockfile.prompts, fresh.prompts)):
        for name, entry in locked.items():
            if (
                name in now
                and entry["integrityDigest"] == now[name]["integrityDigest"]
                and not _includes_members(_with_unknown_flags(entry, now[name]), now[name])
            ):
                _raise_tampered(f"the entry of the {entity} {name[:80]!a} does not match its digest")


def _with_unknown_flags(entry: Mapping[str, Any], fresh: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a locked entry with null for unknown flags. Older lockfiles wrote false; the digest is the same."""
    locked, now = entry.get("entitlements"), fresh.get("entitlements")
    if not isinstance(locked, Mapping) or not isinstance(now, Mapping):
        return entry
    flags = {name: None if flag is False and now.get(name, False) is None else flag for name, flag in locked.items()}
    return {**entry, "entitlements": flags}


def _includes_members(entry: Any, fresh: Any) -> bool:
    """Whether a locked entry has all members of a generated one. Further, unknown members are allowed."""
    if isinstance(fresh, Mapping):
        return isinstance(entry, Mapping) and all(
            name in entry and _includes_members(entry[name], member) for name, member in fresh.items()
        )
    return is_json_equal(entry, fresh)


def _add_extension_changes(
    result: LockfileCheckResult, lockfile: Lockfile, current: ContractExtension, *, compare_items: bool
) -> LockfileCheckResult:
    locked = read_surface(lockfile)
    tools: set[str] = _find_hidden_changes(lockfile, current)
    prompts: set[str] = set()
    other: tuple[str, ...] = ()
    if locked is not None and locked.digest != current.surface.digest:
        if compare_items:
            tools |= _find_changed_items(locked, current.surface, TOOL)
            prompts = _find_changed_items(locked, current.surface, PROMPT)
        other = _list_other_changes(locked, current.surface)
        if "serverInfo" in other and _has_framework_version(lockfile, locked, current):
            other = tuple(name for name in other if name != "serverInfo")
    other += _list_changed_startup(lockfile, current) + _list_changed_reach(lockfile, current)
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
    return replace(stale, message=describe_changes(stale, "pinwarden contract lock"))


def _find_changed_items(locked: Surface, now: Surface, kind: ItemKind) -> set[str]:
    before, after = _group_digests(locked, kind), _group_digests(now, kind)
    return {key for key in before.keys() & after.keys() if before[key] != after[key]}


def _group_digests(surface: Surface, kind: ItemKind) -> dict[str, list[str]]:
    digests: dict[str, list[str]] = {}
    for item in surface.items_of_kind(kind):
        # An item without a digest becomes "None", which matches no locked item: every locked item has a digest.
        digests.setdefault(item.key, []).append(str(item.digest))
    return {key: sorted(values) for key, values in digests.items()}


def _list_other_changes(locked: Surface, now: Surface) -> tuple[str, ...]:
    """Return the names of changed server properties, resources and templates."""
    before, after = locked.server or {}, now.server or {}
    changed = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    for kind in (RESOURCE, TEMPLATE):
        old, new = _group_digests(locked, kind), _group_digests(now, kind)
        changed += [f"{kind.entity} {key}" for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
        if (kind.member in locked.items) != (kind.member in now.items):
            changed.append(kind.member)
    return tuple(changed)


def _has_framework_version(lockfile: Lockfile, locked: Surface, current: ContractExtension) -> bool:
    """Whether the server names only the version of its SDK, then and now, and nothing else about it changed.

    A server without a version of its own reports the one of its SDK, which is not a change of the server.
    """
    before, after = (surface.server or {} for surface in (locked, current.surface))
    old, new = before.get("serverInfo"), after.get("serverInfo")
    recorded = (lockfile.extension or {}).get("versions")
    if not (isinstance(old, Mapping) and isinstance(new, Mapping) and isinstance(recorded, Mapping)):
        return False
    same_otherwise = is_json_equal({**old, "version": ""}, {**new, "version": ""})
    return same_otherwise and any(
        old.get("version") == recorded.get(name) and new.get("version") == current.versions.get(name)
        for name in _FRAMEWORKS
        if name in recorded
    )


def _find_hidden_changes(lockfile: Lockfile, current: ContractExtension) -> set[str]:
    """Return the tools whose entitlements, middleware or limits changed. No client sees these changes."""
    locked = (lockfile.extension or {}).get("tools", {})
    changed: set[str] = set()
    for name, tool in current.tools.items():
        before = locked.get(name)
        if not isinstance(before, Mapping):
            continue
        known = {fact: level for fact, level in tool.evidence.items() if level != UNKNOWN}
        levels = before.get("evidence", {})
        if any(levels.get(fact, UNKNOWN) == UNKNOWN for fact in known):
            changed.add(name)  # otherwise an attacker could mark a tool as unknown in the lock to skip this check
        locked_reach = summarize_reach(before.get("entitlements"))
        if "entitlements" in known and locked_reach != summarize_reach(tool.entitlements):
            changed.add(name)
        if "middlewareChain" in known and (
            before.get("middleware") != [dict(layer) for layer in tool.middleware]
            or _select_comparable_details(before.get("details")) != _select_comparable_details(tool.details)
        ):
            changed.add(name)
    return changed


def _list_changed_reach(lockfile: Lockfile, current: ContractExtension) -> tuple[str, ...]:
    """Return the prompts and resources whose code has other entitlements than the lock records."""
    extension = lockfile.extension or {}
    if current.evidence != SOURCE or extension.get("evidence") != SOURCE:
        return ()
    details = extension.get("details")
    changes: list[str] = []
    for member in ("prompts", "resources"):
        locked = details.get(member) if isinstance(details, Mapping) else None
        before: Mapping[str, Any] = locked if isinstance(locked, Mapping) else {}
        for name, facts in current.details.get(member, {}).items():
            if summarize_reach(before.get(name)) != summarize_reach(facts):
                changes.append(f"code of {member.removesuffix('s')} {name}")
    return tuple(changes)


def _list_changed_startup(lockfile: Lockfile, current: ContractExtension) -> tuple[str, ...]:
    """Return ``("startup",)`` if the entitlements of the code that runs on import changed since the lock."""
    details = (lockfile.extension or {}).get("details")
    before = details.get("startup") if isinstance(details, Mapping) else None
    analysed = current.evidence == SOURCE and (lockfile.extension or {}).get("evidence") == SOURCE
    return (
        ("startup",) if analysed and summarize_reach(before) != summarize_reach(current.details.get("startup")) else ()
    )


def summarize_reach(entitlements: Any) -> dict[str, frozenset[tuple[str, str]]]:
    """Return the entitlements without code locations, which change when unrelated code moves."""
    members = entitlements if isinstance(entitlements, Mapping) else {}
    return {
        "kinds": frozenset((str(kind), "") for kind in _read_list(members, "kinds")),
        "findings": _collect_pairs(_read_list(members, "findings"), "kind"),
        "unknown": _collect_pairs(_read_list(members, "unknown"), "reason"),
    }


def _collect_pairs(rows: list[Any], member: str) -> frozenset[tuple[str, str]]:
    return frozenset((str(row.get(member)), str(row.get("what"))) for row in rows if isinstance(row, Mapping))


def _read_list(names: Mapping[str, Any], member: str) -> list[Any]:
    rows = names.get(member)
    return rows if isinstance(rows, list) else []


def _select_comparable_details(details: Any) -> dict[str, Any]:
    """Return a tool's details without the location of its handler, which changes when unrelated code moves."""
    if not isinstance(details, Mapping):
        return {}
    return {name: value for name, value in details.items() if name != "handler"}


def _raise_tampered(problem: str) -> NoReturn:
    raise PinwardenError("LOCK_TAMPERED", problem)
