"""The part of a lock entry that pins an installed bundle: digests, permissions and provenance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.bundle.bundle_documents import RUNTIMES, SecurityPolicy
from pinwarden.core.digest import Cid, Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import read_extension

REGISTRY_TYPE = "mcp-toolbundle"
"""The package type in the lock, the same as in the registry's listing."""
_STRING_MEMBERS = ("tool", "version", "channel", "rootCid", "descriptorCid", "registry", "runtime", "target")
_PERMISSIONS = {
    "network": ("deny", "allow"),
    "filesystem": ("deny", "read_only", "read_write"),
    "exec": ("deny", "allow"),
}


class BundlePin(Record):
    """The pin of one installed bundle."""

    tool: str
    version: str
    channel: str
    root_cid: str
    descriptor_cid: str
    archive: Digest
    """The content hash of the archive."""
    archive_cid: str
    size: int
    descriptor: Digest
    """The digest of the descriptor's bytes."""
    manifest: Digest
    tree: Digest
    """The digest of the unpacked files."""
    runtime: str
    target: str
    policy: SecurityPolicy
    """The requested permissions, all of which were allowed."""
    registry: str
    """The address of the registry, for display only. Pinwarden never downloads from an address in a lock."""
    log_id: str | None
    log_index: int | None
    floor: str | None = None
    """The lowest version that updates accept; None for no limit."""
    oci_digest: Digest | None = None
    """The digest of the OCI artifact, if it came from an OCI registry."""
    literal: bool = False
    """Whether the bundle was accepted in literal mode."""
    surface_from: str | None = None
    """Where the surface was probed: ``here`` (on this machine) or ``registry``; None if it was not probed."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """The provenance of the acceptance, as JSON."""

    @property
    def entry_path(self) -> str:
        """The path of the file that starts the server."""
        return self.target.partition(":")[0]


def bundle_pin_to_json(pin: BundlePin) -> dict[str, Any]:
    """Return a pin as JSON for the lock."""
    value: dict[str, Any] = {
        "tool": pin.tool,
        "version": pin.version,
        "channel": pin.channel,
        "rootCid": pin.root_cid,
        "descriptorCid": pin.descriptor_cid,
        "contentHash": str(pin.archive),
        "archiveCid": pin.archive_cid,
        "size": pin.size,
        "descriptor": str(pin.descriptor),
        "manifest": str(pin.manifest),
        "tree": str(pin.tree),
        "runtime": pin.runtime,
        "target": pin.target,
        "policy": {"network": pin.policy.network, "filesystem": pin.policy.filesystem, "exec": pin.policy.exec},
        "registry": pin.registry,
        "log": None if pin.log_id is None else {"id": pin.log_id, "index": pin.log_index},
        "provenance": dict(pin.provenance),
    }
    if pin.floor is not None:
        value["floor"] = pin.floor
    if pin.oci_digest is not None:
        value["ociDigest"] = str(pin.oci_digest)
    if pin.literal:
        value["literal"] = True
    if pin.surface_from is not None:
        value["surfaceFrom"] = pin.surface_from
    return value


def find_bundle_pin(entry: Entry) -> BundlePin | None:
    """Return the bundle pin of a lock entry; None if the server is not a bundle. Raises if the pin is damaged."""
    extension = read_extension(entry)
    value = extension.bundle if extension is not None else None
    if value is None:
        return None
    return parse_bundle_pin(value, entry.name)


def parse_bundle_pin(value: Mapping[str, Any], name: str) -> BundlePin:
    """Parse the pin of a bundle in the lock. Raises LOCK_INVALID, with the name of the entry, if it is damaged."""
    try:
        return _parse_pin(value)
    except (KeyError, TypeError, AttributeError, PinwardenError) as err:
        raise PinwardenError("LOCK_INVALID", f"the bundle pin of {name[:120]!a} is damaged: {err}") from err


def _parse_pin(value: Any) -> BundlePin:
    if any(type(value[name]) is not str for name in _STRING_MEMBERS) or type(value["size"]) is not int:
        raise TypeError("a member has the wrong type")
    log, policy = value["log"], value["policy"]
    if any(policy[name] not in allowed for name, allowed in _PERMISSIONS.items()) or value["runtime"] not in RUNTIMES:
        raise TypeError("unknown permission or runtime")
    return BundlePin(
        tool=value["tool"],
        version=value["version"],
        channel=value["channel"],
        root_cid=str(Cid.parse(value["rootCid"])),
        descriptor_cid=str(Cid.parse(value["descriptorCid"])),
        archive=Digest.parse(value["contentHash"]),
        archive_cid=str(Cid.parse(value["archiveCid"])),
        size=value["size"],
        descriptor=Digest.parse(value["descriptor"]),
        manifest=Digest.parse(value["manifest"]),
        tree=Digest.parse(value["tree"]),
        runtime=value["runtime"],
        target=value["target"],
        policy=SecurityPolicy(**{name: policy[name] for name in _PERMISSIONS}),
        registry=value["registry"],
        log_id=None if log is None else str(log["id"]),
        log_index=None if log is None else int(log["index"]),
        floor=value.get("floor"),
        oci_digest=Digest.parse(value["ociDigest"]) if "ociDigest" in value else None,
        literal=value.get("literal") is True,
        surface_from=value.get("surfaceFrom"),
        provenance=dict(value["provenance"].items()),
    )
