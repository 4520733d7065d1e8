"""From the name of a place to something to install from: an address, a folder, or ``oci://host/repository``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.install.sources import BundleSource, OciSource, RegistrySource
from pinwarden.registry.files import FolderRegistry, HttpRegistry, RegistryFiles

if TYPE_CHECKING:
    from pinwarden.core.digest import Digest
    from pinwarden.system.net.endpoint import Settings
    from pinwarden.system.net.fetch import Fetcher

OCI = "oci://"


class Places:
    """The network and the disk, as this user may use them. A place is named by the user, never by a project."""

    def __init__(self, fetcher: Fetcher, settings: Settings) -> None:
        self._fetcher, self._settings = fetcher, settings

    def files(self, place: str) -> RegistryFiles:
        """A registry of ours, live or exported."""
        if "://" in place:
            if place.startswith(OCI):
                raise PinwardenError("USAGE", f"{place[:120]} has no log; name the registry's own address")
            return HttpRegistry(place, self._fetcher)
        if not Path(place).is_dir():
            raise PinwardenError("FILE_UNREADABLE", f"{place[:200]} is neither an address nor a folder")
        return FolderRegistry(Path(place))

    def source(self, place: str, channel: str, log: str | None = None, digest: Digest | None = None) -> BundleSource:
        """Where to install from. In an OCI registry the channel is the tag, unless the place or a digest names one."""
        if not place.startswith(OCI):
            return RegistrySource(self.files(place), self.files(log) if log else None)
        from pinwarden.artifacts.endpoints.docker import registry_endpoint
        from pinwarden.artifacts.oci_reference import parse_reference
        from pinwarden.artifacts.oci_registry import Registry
        from pinwarden.bundle.archive import oci

        reference = parse_reference(place.removeprefix(OCI))
        if digest is not None:
            reference = reference.at(digest)
        elif not {":", "@"} & set(place.rpartition("/")[2]):
            reference = replace(reference, tag=channel)
        endpoint = registry_endpoint(reference, self._settings, said_by="argument")
        pulled = oci.pull(Registry(reference, self._fetcher, endpoint))
        return OciSource(pulled, f"{OCI}{reference}", self.files(log) if log else None)
