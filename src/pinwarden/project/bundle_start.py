"""Starting an installed bundle: unpacked as it was accepted, in a sandbox that holds it to what it was allowed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.artifacts.environments.store import Store
from pinwarden.artifacts.environments.tree import TREE
from pinwarden.bundle import environment as bundle_environment
from pinwarden.bundle.bundle_pin import BundlePin
from pinwarden.core.errors import PinwardenError
from pinwarden.project.writable_folders import writable_folders
from pinwarden.system.sandbox import Sandbox

if TYPE_CHECKING:
    from pinwarden.lock.policy import SandboxRule
    from pinwarden.project.project import Project


def ready_bundle(pin: BundlePin, store: Store, *, say: Callable[[str], None]) -> Path:
    """The folder of a bundle that is exactly what was accepted; a changed one is unpacked anew from the store."""
    missing = bundle_environment.missing_files(pin, store)
    if pin.descriptor not in missing:  # always needed: without it a lock could say what it likes of the bundle
        bundle_environment.check_described(pin, store)
    key = bundle_environment.environment_key(pin)
    folder = store.environment(key)
    if folder.is_dir() and pin.descriptor not in missing:
        problem = bundle_environment.audit(folder, pin)
        if problem is None:
            return folder
        say(f"the unpacked bundle is not what was accepted ({problem}); it is unpacked anew")
    if missing:
        raise PinwardenError(
            "ARTIFACT_MISSING",
            f"{len(missing)} files of {pin.tool[:80]!a} are not in the store",
            data={"missing": [str(each) for each in missing]},
        )
    return store.build(
        key,
        lambda place: bundle_environment.build(place, pin, store),
        good=lambda place: bundle_environment.audit(place, pin) is None,
    )


def bundle_sandbox(
    project: Project, pin: BundlePin, folder: Path, rule: SandboxRule | None = None
) -> tuple[Sandbox, str]:
    """The bounds of a bundle, and the folder that it is started in.

    The project's policy lies in a repository: it can take away from what was accepted, and add nothing.
    """
    own = (str(folder), *bundle_environment.shown_folders(pin))
    network = pin.policy.network == "allow" and (rule is None or rule.network)
    programs = pin.policy.exec == "allow"
    if pin.policy.filesystem == "deny":
        return Sandbox(readable=own, network=network, programs=programs), str(folder / TREE)
    read, write = _paths(project, rule)
    if pin.policy.filesystem != "read_write":
        read, write = (*read, *write), ()
    _refuse_everything(project, (*read, *write))
    cwd = next(iter((*write, *read)), str(folder / TREE))
    writable = writable_folders(project, write)
    return Sandbox(
        readable=(*own, *read),
        writable=writable.folders,
        kept=writable.kept,
        forbidden=writable.forbidden,
        network=network,
        programs=programs,
    ), cwd


def _paths(project: Project, rule: SandboxRule | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Without a rule a tool that may use files sees the project, and writes nothing: where it may write is the user's
    choice, because what it writes can be obeyed by other programs."""
    if rule is None:
        return (str(project.root.resolve()),), ()
    return tuple(_folder(project, each) for each in rule.read), tuple(_folder(project, each) for each in rule.write)


def _folder(project: Project, path: str) -> str:
    """A folder of the rule, if it is one of the project's own."""
    root = project.root.resolve()
    named = (root / path).resolve() if not path.startswith("~/") else (project.home / path[2:]).resolve()
    if not named.is_relative_to(root):
        raise PinwardenError(
            "POLICY_REFUSED", f"{path[:120]!a} is outside the project, which is all that a bundle may be shown"
        )
    return str(named)


def _refuse_everything(project: Project, shown: tuple[str, ...]) -> None:
    for path in shown:
        if path == "/" or project.home.resolve().is_relative_to(path):
            raise PinwardenError(
                "POLICY_REFUSED",
                f"the project is {path[:120]}, and to show that would be to show everything",
                hint="Run it from a project's own folder (--project).",
            )
