"""Locked container images: a verified layout in the store, and the name by which an engine starts exactly that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.artifacts.environments.store import Store
from pinwarden.clients.launch.values import Launched
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.lock.entry import Entry
from pinwarden.lock.record import extension_of

if TYPE_CHECKING:
    from pinwarden.artifacts.environments.images import Engine
    from pinwarden.project.fetch_context import Workshop


def locked_digest(entry: Entry, runs: Launched) -> Digest:
    """The digest that an entry pins: of its index, or of its only manifest."""
    extension = extension_of(entry)
    image = extension.image if extension else None
    if image is not None:
        found = image.index or next(iter(image.platforms.values()), None)
    else:
        found = Digest.parse(runs.digest) if runs.digest else None
    if found is None:
        raise PinwardenError("BYTES_NOT_LOCKED", f"the image of {entry.name[:120]!a} is not locked by its digest yet")
    return found


def fetch_image(entry: Entry, runs: Launched, shop: Workshop) -> Path:
    """The layout of a locked image in the store, as this machine's platform needs it; fetched if it is not there."""
    from pinwarden.artifacts.environments.images import platform_here, stored_image
    from pinwarden.artifacts.environments.store import remove_tree
    from pinwarden.artifacts.oci import save_layout
    from pinwarden.artifacts.oci_reference import parse_reference
    from pinwarden.artifacts.oci_registry import Registry

    digest = locked_digest(entry, runs)
    extension = extension_of(entry)
    listed = extension.image.platforms if extension is not None and extension.image is not None else {}
    here = tuple(each for each in (platform_here(),) if any(_same(each, name) for name in listed))
    reference = f"{runs.identity}@{digest}"
    registry = Registry(parse_reference(reference), shop.fetcher, shop.sources.image(reference, by_project=True))
    with shop.store.image(digest) as folder:
        if stored_image(folder, digest) is None:
            remove_tree(folder)
            has_index = extension is not None and extension.image is not None and extension.image.index is not None
            save_layout(registry, digest, folder, platforms=here if has_index else ())
    return folder


def _same(asked: str, listed: str) -> bool:
    return listed == asked or listed.startswith(f"{asked}/")


def name_to_start(entry: Entry, runs: Launched, engine: Engine, store: Store, say: Callable[[str], None]) -> str:
    """What an engine is told to start: by digest, always; from the store, if the image was fetched."""
    from pinwarden.artifacts.environments.images import name_in_engine, stored_image

    digest = locked_digest(entry, runs)
    folder = store.image_folder(digest)
    if folder.is_dir():
        image = stored_image(folder, digest)
        if image is None:
            say("the image in the store is not what was locked; the engine has to fetch it itself")
        else:
            name = name_in_engine(engine, folder, image, say)
            if name is not None:
                return name
    return f"{runs.identity}@{digest}"
