"""Installed bundles: unpack and verify before a start, choose the sandbox, and check whether they were yanked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.artifacts.environments.store import Store
from pinwarden.artifacts.environments.tree import TREE
from pinwarden.bundle import environment as bundle_environment
from pinwarden.bundle.bundle_pin import BundlePin, find_bundle_pin
from pinwarden.bundle.platforms import refuse_other_platform
from pinwarden.bundle.trust_files import load_trust, log_state_path, trust_path
from pinwarden.core.errors import PinwardenError
from pinwarden.core.report import FindingKinds, Row, build_kind_table
from pinwarden.core.text import show_invisible
from pinwarden.project.writable_folders import check_writable_folders
from pinwarden.registry.log_client import load_log_state
from pinwarden.registry.names import YANKED_PREFIX
from pinwarden.registry.operator_documents import describe_takedown, find_ownership_change, find_takedown
from pinwarden.system.sandbox import Sandbox

if TYPE_CHECKING:
    from pinwarden.lock.entry import Entry
    from pinwarden.lock.policy import SandboxRule
    from pinwarden.project.project import Project


def ensure_bundle(pin: BundlePin, store: Store, *, notify: Callable[[str], None]) -> Path:
    """Return the folder of the unpacked bundle, verified against what was accepted. A changed one is unpacked again."""
    missing = bundle_environment.find_missing_files(pin, store)
    if pin.descriptor not in missing:  # always checked, because a lock could misstate the bundle
        descriptor = bundle_environment.check_pinned_descriptor(pin, store)
        refuse_other_platform(f"{pin.tool} {pin.version}", descriptor.supported)
    key = bundle_environment.derive_environment_key(pin)
    folder = store.get_environment_folder(key)
    if folder.is_dir() and pin.descriptor not in missing:
        problem = bundle_environment.find_tree_problem(folder, pin)
        if problem is None:
            return folder
        notify(f"the unpacked bundle differs from what was accepted ({problem}); unpacking it again")
    if missing:
        raise PinwardenError(
            "ARTIFACT_MISSING",
            f"{len(missing)} files of {pin.tool[:80]!a} are not in the store",
            data={"missing": [str(digest) for digest in missing]},
        )
    return store.build_environment(
        key,
        lambda place: bundle_environment.build_environment(place, pin, store),
        is_intact=lambda place: bundle_environment.find_tree_problem(place, pin) is None,
    )


def build_bundle_sandbox(
    project: Project, pin: BundlePin, folder: Path, rule: SandboxRule | None = None
) -> tuple[Sandbox, str]:
    """Return the sandbox of a bundle, and its working directory.

    The project's policy is part of a repository: it can restrict what was accepted, but not extend it.
    """
    own = (str(folder), *bundle_environment.list_readable_folders(pin))
    network = pin.policy.network == "allow" and (rule is None or rule.network)
    programs = pin.policy.exec == "allow"
    if pin.policy.filesystem == "deny":
        return Sandbox(readable=own, allow_network=network, allow_programs=programs), str(folder / TREE)
    read, write = _resolve_rule_paths(project, rule)
    if pin.policy.filesystem != "read_write":
        read, write = (*read, *write), ()
    _refuse_home(project, (*read, *write))
    cwd = next(iter((*write, *read)), str(folder / TREE))
    writable = check_writable_folders(project, write)
    return Sandbox(
        readable=(*own, *read),
        writable=writable.folders,
        read_only=writable.protected,
        forbidden_names=writable.forbidden,
        allow_network=network,
        allow_programs=programs,
    ), cwd


def find_yank_reason(pin: BundlePin, trust: Path) -> str | None:
    """Return why the locked version was yanked; None if the saved state of its registry's log does not say so."""
    for root in load_trust(trust).registries if pin.log_id is not None else ():
        if root.log.name != pin.log_id:
            continue
        state = load_log_state(log_state_path(trust, root.log))
        mark = state.find_pointer(pin.tool, f"{YANKED_PREFIX}{pin.version}") if state is not None else None
        if mark is not None and mark.root_cid == pin.root_cid:
            words = show_invisible(" ".join((mark.reason or "")[:_MAX_REASON].split()))
            from pinwarden.registry.log_verification import describe_yank

            return describe_yank(pin.tool, pin.version, mark.seq, words)
    return None


def find_operator_actions(pin: BundlePin, trust: Path) -> list[tuple[str, str]]:
    """Return the kind and message of what the registry's operator did to a locked bundle, as far as its log is known.

    That is a takedown, and a new or announced owner of the namespace since the version was locked.
    """
    found: list[tuple[str, str]] = []
    for root in load_trust(trust).registries if pin.log_id is not None else ():
        state = load_log_state(log_state_path(trust, root.log)) if root.log.name == pin.log_id else None
        if state is None:
            continue
        takedown = find_takedown(state.actions, pin.tool, pin.version)
        if takedown is not None:
            found.append(("version_taken_down", _shorten(describe_takedown(takedown))))
        owner = find_ownership_change(state.actions, pin.tool)
        if owner is not None and pin.log_index is not None and owner.seq > pin.log_index:
            message = f"{owner.action} of {owner.name} at {owner.issued_at_utc}: {owner.reason} (event {owner.seq})"
            found.append(("namespace_owner_changed", _shorten(message)))
    return found


def check_yanked_bundles(project: Project, entries: Iterable[Entry]) -> Iterator[Row]:
    """Return rows for bundles in the lock that were yanked or taken down, or whose namespace got another owner."""
    pins = {entry.name: pin for entry in entries if (pin := find_bundle_pin(entry)) is not None}
    yield from check_yanked_pins(project, pins.values(), "server")


def check_yanked_pins(project: Project, pins: Iterable[BundlePin], entity: str) -> Iterator[Row]:
    """Return rows for bundles that were yanked or taken down. Unreadable logs are skipped; ``update`` reports them."""
    trust = trust_path(project.home, project.variables)
    for pin in pins:
        try:
            reason, actions = find_yank_reason(pin, trust), find_operator_actions(pin, trust)
        except PinwardenError:
            continue
        for code, message in actions:
            severity = YANK_KINDS[code].severity
            yield Row(code=code, severity=severity, entity=entity, name=pin.tool, path="", message=message)
        if reason is not None:
            yield Row(code="version_yanked", severity="warning", entity=entity, name=pin.tool, path="", message=reason)


def _resolve_rule_paths(project: Project, rule: SandboxRule | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Resolve the readable and writable folders of a sandbox rule.

    Without a rule, a bundle can read the project but not write to it: the user must name the writable folders, because
    other programs may act on files in them.
    """
    if rule is None:
        return (str(project.root.resolve()),), ()
    return tuple(_resolve_folder(project, path) for path in rule.read), tuple(
        _resolve_folder(project, path) for path in rule.write
    )


def _resolve_folder(project: Project, path: str) -> str:
    """Return a folder of the rule. Raises POLICY_REFUSED if it is outside the project."""
    root = project.root.resolve()
    named = (root / path).resolve() if not path.startswith("~/") else (project.home / path[2:]).resolve()
    if not named.is_relative_to(root):
        raise PinwardenError(
            "POLICY_REFUSED", f"{path[:120]!a} is outside the project; a bundle may only use the project's folders"
        )
    return str(named)


def _refuse_home(project: Project, folders: tuple[str, ...]) -> None:
    for path in folders:
        if path == "/" or project.home.resolve().is_relative_to(path):
            raise PinwardenError(
                "POLICY_REFUSED",
                f"the project is {path[:120]}, which would give the bundle access to everything",
                hint="Run it from a project's own folder (--project).",
            )


def _shorten(message: str) -> str:
    return show_invisible(" ".join(message[:_MAX_MESSAGE].split()))


YANK_KINDS: FindingKinds = build_kind_table(
    critical=(
        (
            "version_taken_down",
            "The registry's operator took down the locked version or its bundle; the registry's log says why.",
        ),
    ),
    warning=(
        ("version_yanked", "The publisher yanked the locked version; its registry's log says why."),
        (
            "namespace_owner_changed",
            "The namespace of the locked bundle was given to another key, or a recovery of it was announced, since the "
            "version was locked.",
        ),
    ),
)
_MAX_MESSAGE = 500
_MAX_REASON = 200
