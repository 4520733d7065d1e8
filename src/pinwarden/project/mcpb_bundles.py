"""Locked MCPB bundles: fetched and verified, unpacked into the store, audited and started as their manifest says.

What a bundle asks its user for comes from variables, one for each setting, so no value ever stands in a lock.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.artifacts.environments.store import Store
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.lock.closure import ClosureFile
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import BUNDLE_TREE
from pinwarden.lock.record import extension_of
from pinwarden.project.environments import Environment

if TYPE_CHECKING:  # starting a server needs neither a network nor what comes from it
    from pinwarden.artifacts.environments.mcpb import BundleStart
    from pinwarden.project.fetch_context import Workshop

SETTING_PREFIX = "MCPB_USER_CONFIG_"
"""The setting ``api_key`` of a bundle is the variable ``MCPB_USER_CONFIG_API_KEY``."""


class PinnedMcpb(Record):
    """The file that an entry starts, and what unpacks from it."""

    url: str
    digest: Digest
    tree: Digest


def is_mcpb(entry: Entry) -> bool:
    """Whether an entry starts an MCPB bundle. The command that ToolPin writes for one does not say so."""
    return entry.selected_target.get("registryType") == "mcpb"


def pinned_mcpb(entry: Entry) -> PinnedMcpb:
    """The bundle that an entry pins."""
    extension, url = extension_of(entry), entry.selected_target.get("identifier")
    tree = extension.others.get(BUNDLE_TREE) if extension is not None else None
    if extension is None or len(extension.artifacts) != 1 or not isinstance(tree, str) or not isinstance(url, str):
        raise PinwardenError("BYTES_NOT_LOCKED", f"the bytes of {entry.name[:120]!a} are not locked yet")
    try:
        return PinnedMcpb(url=url, digest=extension.artifacts[0].digest, tree=Digest.parse(tree))
    except PinwardenError as err:
        raise PinwardenError("LOCK_INVALID", f"{BUNDLE_TREE} of {entry.name[:120]!a}: {err.message}") from err


def fetch_mcpb(url: str, digest: Digest, shop: Workshop) -> Path:
    """The bundle in the store, fetched if it is not there. Other bytes than the locked ones are refused."""
    from pinwarden.artifacts.artifact import PackageName
    from pinwarden.artifacts.local_files import taken_in

    found = shop.store.find(digest)
    if found is not None:
        return found
    with taken_in(PackageName(ecosystem="mcpb", name=url), shop.fetcher, None, into=None) as taken:
        if taken is None:
            raise PinwardenError("ARTIFACT_MISSING", f"there is no bundle at {url[:200]}")
        if taken.file.sha256 != digest:
            raise PinwardenError(
                "ARTIFACT_MISMATCH",
                f"{taken.file.name} is not the file that was locked",
                data={"locked": str(digest), "found": str(taken.file.sha256)},
            )
        return shop.store.keep_copy(taken.path, digest)


def tree_of(url: str, digest: Digest, shop: Workshop) -> Digest:
    """The digest of what unpacks from a bundle, whose bytes were verified."""
    from pinwarden.artifacts.environments import mcpb

    return mcpb.content_of(fetch_mcpb(url, digest, shop))


def mcpb_environment(bundle: PinnedMcpb, store: Store) -> Environment:
    """How a bundle becomes an environment."""
    from pinwarden.artifacts.environments import mcpb

    name = bundle.url.partition("?")[0].rpartition("/")[2] or "bundle"
    return Environment(
        key=mcpb.environment_key(bundle.digest),
        files=lambda: (ClosureFile(name=name, url=bundle.url, digest=bundle.digest, tree=bundle.tree),),
        build=lambda folder: mcpb.build(folder, bundle.digest, bundle.tree, store),
        problem=lambda folder: mcpb.audit(folder, bundle.tree),
        command=lambda _, __: [],
    )


def mcpb_start(folder: Path, home: Path, variables: Mapping[str, str]) -> BundleStart:
    """What starts the server of a built bundle, with the user's settings from variables."""
    from pinwarden.artifacts.environments import mcpb
    from pinwarden.artifacts.environments.python import Interpreter
    from pinwarden.system.programs import find_program

    runtimes = mcpb.Runtimes(node=find_program("node", variables.get("PATH", "")), python=Interpreter.here())
    settings = {
        name: tuple(value.split(os.pathsep)) if setting.multiple else value
        for name, setting in mcpb.manifest_in(folder).settings.items()
        if (value := variables.get(variable_of(name)))
    }
    places = {"HOME": str(home), **{each.upper(): str(home / each) for each in ("Desktop", "Documents", "Downloads")}}
    return mcpb.start_command(folder, runtimes, settings, places=places)


def variable_of(setting: str) -> str:
    """The variable that holds a setting; several values of one are separated as those of PATH are."""
    return SETTING_PREFIX + re.sub(r"[^A-Z0-9]", "_", setting.upper())
