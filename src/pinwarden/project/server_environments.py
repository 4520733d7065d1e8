"""Builds the environments of locked servers from verified files, and checks them before every use."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.artifacts.environments.store import Store
from pinwarden.clients.launchers import Launch
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.lock.closure import Closure, ClosureFile, ClosurePackage
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import read_extension

if TYPE_CHECKING:
    from pinwarden.artifacts.environments.images import ContainerEngine
    from pinwarden.artifacts.environments.mcpb import BundleStart
    from pinwarden.project.fetch_context import FetchContext


class ServerEnvironment(Record):
    """The functions that build, check and start the environment of one server on this machine."""

    key: str
    list_files: Callable[[], tuple[ClosureFile, ...]]
    """Returns the archives that the environment is built from."""
    build: Callable[[Path], None]
    find_problem: Callable[[Path], str | None]
    build_command: Callable[[Path, str | None], list[str]]
    readable_folders: tuple[str, ...] = ()
    """Folders outside the environment that the server must be able to read."""


class ScriptPermissions(Record):
    """The install scripts that may run, and whether they may run without a sandbox."""

    approved: frozenset[Digest] = frozenset()
    """The archive digests of packages whose scripts the user approved."""
    without_sandbox: bool = False


def plan_environment(
    closure: Closure, digest: Digest, store: Store, search_path: str, scripts: ScriptPermissions
) -> ServerEnvironment:
    """Return the environment for a closure. ``digest`` is the digest of the closure file."""
    if closure.ecosystem == "npm":
        return _plan_node(closure, digest, store, search_path, scripts)
    return _plan_python(closure, digest, store)


def _plan_node(
    closure: Closure, digest: Digest, store: Store, search_path: str, scripts: ScriptPermissions
) -> ServerEnvironment:
    from pinwarden.artifacts.environments import node

    current = node.NodePlatform.current()
    packages = node.choose_packages(closure, current)
    script_packages = tuple(
        package for package in packages if package.has_install_scripts and package.files[0].digest in scripts.approved
    )
    key = node.compute_environment_key(digest, current, script_packages)

    def build(folder: Path) -> None:
        if not script_packages:
            return node.build(folder, key, packages, store)
        from pinwarden.artifacts.environments.node import ScriptApprovals

        approvals = ScriptApprovals(
            packages=script_packages, search_path=search_path, without_sandbox=scripts.without_sandbox
        )
        return node.build(folder, key, packages, store, approvals)

    def build_command(folder: Path, program: str | None) -> list[str]:
        from pinwarden.system.files import find_program

        interpreter = find_program("node", search_path)
        if interpreter is None:
            from pinwarden.system.program_installers import describe_installation

            raise PinwardenError(
                "PROGRAM_UNKNOWN",
                f"{closure.root.name} cannot start, because node is not installed",
                hint=f"To install it: {describe_installation('node', {'PATH': search_path})}",
            )
        return node.build_start_command(folder, closure.root, program, interpreter)

    return ServerEnvironment(
        key=key,
        list_files=lambda: tuple(package.files[0] for package in packages),
        build=build,
        find_problem=lambda folder: node.audit(folder, packages, store, script_packages),
        build_command=build_command,
    )


def _plan_python(closure: Closure, digest: Digest, store: Store) -> ServerEnvironment:
    from pinwarden.artifacts.environments import python

    current = python.Interpreter.current()
    key = python.compute_environment_key(digest, current)
    closure = replace(closure, packages=tuple(_add_stored_digests(package, store) for package in closure.packages))
    return ServerEnvironment(
        key=key,
        list_files=lambda: tuple(file for _, file in python.choose_packages(closure)),
        build=lambda folder: python.build(
            folder, store.get_environment_folder(key), python.choose_packages(closure), current, store
        ),
        find_problem=lambda folder: python.audit(folder, closure, current, store),
        build_command=lambda folder, program: python.build_start_command(folder, closure.root, program),
        readable_folders=(sys.base_prefix,),
    )


def _add_stored_digests(package: ClosurePackage, store: Store) -> ClosurePackage:
    """Add tree digests from the store to a package, if the lock has no tree digests for this platform."""
    if any(file.tree is not None for file in package.files):
        return package
    return replace(
        package, files=tuple(replace(file, tree=store.read_tree_digest(file.digest)) for file in package.files)
    )


def ensure_environment(environment: ServerEnvironment, store: Store, *, notify: Callable[[str], None]) -> Path:
    """Return the folder of the environment after checking it against the lock.

    Builds the environment if it does not exist or was changed. Raises ``ARTIFACT_MISSING`` if the store lacks a file.
    """
    folder = store.get_environment_folder(environment.key)
    if folder.is_dir():
        problem = environment.find_problem(folder)
        if problem is None:
            return folder
        notify(f"the built environment differs from the lock ({problem}); building it again")
    missing = [file.name for file in environment.list_files() if not store.has(file.digest)]
    if missing:
        raise PinwardenError(
            "ARTIFACT_MISSING",
            f"{len(missing)} locked files are not in the store, for example {missing[0]}",
            data={"missing": missing[:100]},
        )
    return store.build_environment(
        environment.key,
        environment.build,
        is_intact=lambda built_folder: environment.find_problem(built_folder) is None,
    )


SETTING_PREFIX = "MCPB_USER_CONFIG_"
"""The prefix of environment variables for a bundle's settings: ``api_key`` is ``MCPB_USER_CONFIG_API_KEY``."""


class PinnedMcpb(Record):
    """The URL and digests of a locked MCPB bundle."""

    url: str
    digest: Digest
    tree: Digest
    """The tree digest of the files in the bundle."""


def is_mcpb(entry: Entry) -> bool:
    """Whether an entry is for an MCPB bundle. The command in the entry does not show this."""
    return entry.selected_target.get("registryType") == "mcpb"


def find_pinned_mcpb(entry: Entry) -> PinnedMcpb:
    """Return the bundle that an entry pins. Raises ``BYTES_NOT_LOCKED`` if its digest is not locked."""
    extension, url = read_extension(entry), entry.selected_target.get("identifier")
    tree = extension.bundle_tree if extension is not None else None
    if extension is None or len(extension.artifacts) != 1 or tree is None or not isinstance(url, str):
        raise PinwardenError("BYTES_NOT_LOCKED", f"the bytes of {entry.name[:120]!a} are not locked yet")
    return PinnedMcpb(url=url, digest=extension.artifacts[0].digest, tree=tree)


def fetch_mcpb(url: str, digest: Digest, context: FetchContext) -> Path:
    """Return the path of a bundle in the store. Downloads the bundle if the store does not have it.

    Raises ``ARTIFACT_MISMATCH`` if the downloaded file does not have the locked digest.
    """
    from pinwarden.artifacts.artifact import PackageRef
    from pinwarden.artifacts.downloads import stage_file

    archive = context.store.find(digest)
    if archive is not None:
        return archive
    with stage_file(PackageRef(ecosystem="mcpb", name=url), context.fetcher, None, save_folder=None) as staged:
        if staged is None:
            raise PinwardenError("ARTIFACT_MISSING", f"there is no bundle at {url[:200]}")
        if staged.file.sha256 != digest:
            raise PinwardenError(
                "ARTIFACT_MISMATCH",
                f"the digest of {staged.file.name} differs from the lock",
                data={"locked": str(digest), "found": str(staged.file.sha256)},
            )
        return context.store.add_copy(staged.path, digest)


def compute_bundle_tree(url: str, digest: Digest, context: FetchContext) -> Digest:
    """Return the tree digest of the files in a bundle. Downloads the bundle if the store does not have it."""
    from pinwarden.artifacts.environments import mcpb

    return mcpb.compute_bundle_digest(fetch_mcpb(url, digest, context))


def plan_mcpb_environment(bundle: PinnedMcpb, store: Store) -> ServerEnvironment:
    """Return the environment for an MCPB bundle."""
    from pinwarden.artifacts.environments import mcpb

    name = bundle.url.partition("?")[0].rpartition("/")[2] or "bundle"
    return ServerEnvironment(
        key=mcpb.compute_environment_key(bundle.digest),
        list_files=lambda: (ClosureFile(name=name, url=bundle.url, digest=bundle.digest, tree=bundle.tree),),
        build=lambda folder: mcpb.build(folder, bundle.digest, bundle.tree, store),
        find_problem=lambda folder: mcpb.audit(folder, bundle.tree),
        build_command=lambda _, __: [],
    )


def build_mcpb_start(folder: Path, home: Path, variables: Mapping[str, str]) -> BundleStart:
    """Return the command that starts a built bundle. The user's settings come from environment variables."""
    from pinwarden.artifacts.environments import mcpb
    from pinwarden.artifacts.environments.python import Interpreter
    from pinwarden.system.files import find_program

    runtimes = mcpb.Runtimes(node=find_program("node", variables.get("PATH", "")), python=Interpreter.current())
    settings = {
        # Several values are separated like the folders in PATH.
        name: tuple(value.split(os.pathsep)) if setting.multiple else value
        for name, setting in mcpb.read_built_manifest(folder).settings.items()
        if (value := variables.get(get_setting_variable(name)))
    }
    folders = {
        "HOME": str(home),
        **{folder_name.upper(): str(home / folder_name) for folder_name in ("Desktop", "Documents", "Downloads")},
    }
    return mcpb.build_start_command(folder, runtimes, settings, folders=folders)


def get_setting_variable(setting: str) -> str:
    """Return the environment variable for a bundle's setting."""
    return SETTING_PREFIX + re.sub(r"[^A-Z0-9]", "_", setting.upper())


def find_locked_digest(entry: Entry, launch: Launch) -> Digest:
    """Return the locked digest of an image: of its index, if it has one. Raises ``BYTES_NOT_LOCKED`` without one."""
    extension = read_extension(entry)
    image = extension.image if extension else None
    if image is not None:
        digest = image.index or next(iter(image.platforms.values()), None)
    else:
        digest = Digest.parse(launch.digest) if launch.digest else None
    if digest is None:
        raise PinwardenError("BYTES_NOT_LOCKED", f"the digest of the image of {entry.name[:120]!a} is not locked yet")
    return digest


def fetch_image(entry: Entry, launch: Launch, context: FetchContext) -> Path:
    """Return the image layout of a locked image in the store. Downloads it for this platform if it is not there."""
    from pinwarden.artifacts.environments.images import detect_container_platform, read_stored_image
    from pinwarden.artifacts.environments.store import remove_tree
    from pinwarden.artifacts.oci import save_layout
    from pinwarden.artifacts.oci_reference import parse_reference
    from pinwarden.artifacts.oci_registry import OciRegistry

    digest = find_locked_digest(entry, launch)
    extension = read_extension(entry)
    listed = extension.image.platforms if extension is not None and extension.image is not None else {}
    current = tuple(
        platform
        for platform in (detect_container_platform(),)
        if any(_is_same_platform(platform, name) for name in listed)
    )
    reference = f"{launch.identity}@{digest}"
    registry = OciRegistry(
        parse_reference(reference), context.fetcher, context.sources.find_image_registry(reference, by_project=True)
    )
    with context.store.lock_image_folder(digest) as folder:
        if read_stored_image(folder, digest) is None:
            remove_tree(folder)
            has_index = extension is not None and extension.image is not None and extension.image.index is not None
            save_layout(registry, digest, folder, platforms=current if has_index else ())
    return folder


def _is_same_platform(platform: str, listed: str) -> bool:
    return listed == platform or listed.startswith(f"{platform}/")


def choose_image(
    entry: Entry, launch: Launch, engine: ContainerEngine, store: Store, notify: Callable[[str], None]
) -> str:
    """Return the image name to start, which always has a digest. Loads the image from the store if it is there."""
    from pinwarden.artifacts.environments.images import ensure_loaded, read_stored_image

    digest = find_locked_digest(entry, launch)
    folder = store.get_image_folder(digest)
    if folder.is_dir():
        image = read_stored_image(folder, digest)
        if image is None:
            notify("the image in the store differs from the lock; the container engine downloads the locked image")
        else:
            name = ensure_loaded(engine, folder, image, notify)
            if name is not None:
                return name
    return f"{launch.identity}@{digest}"
