"""A bundle's two documents, and the limits on a bundle.

``tool.descriptor`` has the bundle's identity, its entry point and the permissions it requests;
``toolbundle.manifest`` lists every file by the CID of its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from pinwarden.bundle.document import (
    BLOB_CID,
    DocumentReader,
    build_default_profile,
    read_json,
    read_profile,
)
from pinwarden.bundle.server_manifest import MANIFEST_NAME, ServerManifest
from pinwarden.core.digest import manifest_root_cid
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.text import lazy_pattern

# Descriptor

DESCRIPTOR_SCHEMA = "tool.descriptor.v0.1"
CAR_MEDIA_TYPE = "application/vnd.mcp.toolbundle+car"
TAR_ZSTD_MEDIA_TYPE = "application/vnd.mcp.toolbundle+tar+zstd"
MEDIA_TYPES = (CAR_MEDIA_TYPE, TAR_ZSTD_MEDIA_TYPE)
SKILLS_RUNTIME = "skills"
"""The runtime of a bundle that has skills and no server."""
RUNTIMES = ("node", "deno", "python", "native", SKILLS_RUNTIME)
TOOL_NAME_PATTERN = lazy_pattern(r"[a-z][a-z0-9._-]*")
MAX_TOOL_NAME = 214
VERSION_PATTERN = lazy_pattern(
    r"(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)(?:-[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)


_NAME_PATTERN = lazy_pattern(r"[a-z0-9][a-z0-9._/-]{0,39}")
_MAX_NAMES = 50


class SecurityPolicy(Record):
    """The permissions that a bundle requests."""

    network: str = "deny"
    filesystem: str = "deny"
    exec: str = "deny"


class SupportedRuntimes(Record):
    """The platforms (``linux/amd64``) and versions of Python (``3.11``) that a bundle is for; empty for all."""

    platforms: tuple[str, ...] = ()
    python: tuple[str, ...] = ()


class SchemaLink(Record):
    """A request or response schema, by CID."""

    name: str
    cid: str


class BundleDescriptor(Record):
    """One version of a bundle."""

    name: str
    display_name: str
    version: str
    description: str
    license: str
    root_cid: str
    cid_profile: Mapping[str, Any]
    media_type: str
    size_bytes: int
    """The size of the archive."""
    runtime: str
    target: str
    """A file of the bundle, optionally followed by a colon and the name to call in it."""
    policy: SecurityPolicy
    supported: SupportedRuntimes = SupportedRuntimes()
    request_schemas: tuple[SchemaLink, ...] = ()
    response_schemas: tuple[SchemaLink, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The whole document, including members that Pinwarden does not know."""

    @property
    def entry_path(self) -> str:
        """The path of the file that starts the server."""
        return self.target.partition(":")[0]

    @property
    def author(self) -> str | None:
        """The author that the document states; None without one. The schema does not define the member."""
        author = self.document["tool"].get("author") if self.document else None
        name = author.get("name") if isinstance(author, dict) else author
        return name if isinstance(name, str) and name else None


def parse_descriptor(data: bytes) -> BundleDescriptor:
    """Parse a descriptor."""
    return descriptor_from_json(read_json(data))


def descriptor_from_json(document: Any) -> BundleDescriptor:
    """Build a descriptor from a strictly parsed value."""
    reader = DocumentReader.for_schema(document, DESCRIPTOR_SCHEMA)
    tool, artifact, entrypoint = reader.object("tool"), reader.object("artifact"), reader.object("entrypoint")
    schemas, policy = reader.object("schemas"), reader.object("security").object("policy")
    return BundleDescriptor(
        name=_read_matching(tool, "name", TOOL_NAME_PATTERN),
        display_name=tool.text("display_name"),
        version=_read_matching(tool, "version", VERSION_PATTERN),
        description=_read_description(tool),
        license=tool.text("license"),
        root_cid=artifact.cid("root_cid"),
        cid_profile=read_profile(artifact),
        media_type=artifact.one_of("media_type", MEDIA_TYPES),
        size_bytes=artifact.integer("size_bytes"),
        runtime=entrypoint.one_of("runtime", RUNTIMES),
        target=entrypoint.text("target"),
        policy=SecurityPolicy(
            network=policy.one_of("network", ("deny", "allow")),
            filesystem=policy.one_of("filesystem", ("deny", "read_only", "read_write")),
            exec=policy.one_of("exec", ("deny", "allow")),
        ),
        supported=SupportedRuntimes(
            platforms=_read_names(entrypoint, "platforms"), python=_read_names(entrypoint, "python")
        ),
        request_schemas=tuple(_read_schema_link(link) for link in schemas.objects("request")),
        response_schemas=tuple(_read_schema_link(link) for link in schemas.objects("response")),
        document=document,
    )


def _read_description(tool: DocumentReader) -> str:
    value = tool.value.get("description")
    return value if type(value) is str and not value else tool.text("description")


def _read_matching(reader: DocumentReader, member: str, pattern: re.Pattern[str]) -> str:
    value = reader.text(member)
    if len(value) > MAX_TOOL_NAME or not pattern.fullmatch(value):
        reader.fail(member, f"is malformed: {value[:80]!a}")
    return value


def _read_names(reader: DocumentReader, member: str) -> tuple[str, ...]:
    """Return a list of names that the schema allows but does not define; empty without it."""
    values = reader.value.get(member, [])
    if not isinstance(values, list) or len(values) > _MAX_NAMES or not all(map(_is_name, values)):
        reader.fail(member, "is not a list of names")
    return tuple(values)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _NAME_PATTERN.fullmatch(value) is not None


def _read_schema_link(reader: DocumentReader) -> SchemaLink:
    return SchemaLink(name=reader.text("name"), cid=reader.text("cid"))


def descriptor_to_json(descriptor: BundleDescriptor) -> dict[str, Any]:
    """Return a descriptor as a JSON document, without unknown members."""
    return {
        "schema_version": DESCRIPTOR_SCHEMA,
        "tool": {
            "name": descriptor.name,
            "display_name": descriptor.display_name,
            "version": descriptor.version,
            "description": descriptor.description,
            "license": descriptor.license,
        },
        "artifact": {
            "root_cid": descriptor.root_cid,
            "cid_profile": dict(descriptor.cid_profile),
            "media_type": descriptor.media_type,
            "size_bytes": descriptor.size_bytes,
        },
        "entrypoint": {
            "runtime": descriptor.runtime,
            "target": descriptor.target,
            **({"platforms": list(descriptor.supported.platforms)} if descriptor.supported.platforms else {}),
            **({"python": list(descriptor.supported.python)} if descriptor.supported.python else {}),
        },
        "schemas": {
            "request": [{"name": schema.name, "cid": schema.cid} for schema in descriptor.request_schemas],
            "response": [{"name": schema.name, "cid": schema.cid} for schema in descriptor.response_schemas],
        },
        "security": {
            "policy": {
                "network": descriptor.policy.network,
                "filesystem": descriptor.policy.filesystem,
                "exec": descriptor.policy.exec,
            }
        },
    }


# The descriptor of a server


NO_LICENSE = "NOASSERTION"
"""SPDX's value for an unstated license."""
_DESCRIBED_RUNTIMES = {"bun": "node"}
"""Descriptors have no runtime ``bun``. A bun server is described as ``node``, with ``entrypoint.engine: bun``."""
_PERMISSIONS = ("network", "filesystem", "exec")


def to_tool_name(server: str) -> str:
    """Convert a server's name to a bundle name: ``@acme/notes`` becomes ``acme.notes``."""
    name = server.removeprefix("@").replace("/", ".")
    if len(name) > MAX_TOOL_NAME or not TOOL_NAME_PATTERN.fullmatch(name):
        raise PinwardenError(
            "SERVER_ENTRY_INVALID",
            f"{MANIFEST_NAME}: name is not a valid tool name: {name[:80]!a}",
            hint="Start with a lowercase letter; then use lowercase letters, digits, dots, hyphens and underscores.",
            data={"member": "name"},
        )
    return name


def build_descriptor(  # noqa: PLR0913  every part of a descriptor
    server: ServerManifest,
    policy: Mapping[str, str],
    *,
    target: str,
    supported: SupportedRuntimes,
    root_cid: str,
    media_type: str,
    size: int,
) -> BundleDescriptor:
    """Describe a server's bundle. Permissions that ``policy`` omits come from its server.json."""
    name = to_tool_name(server.name)
    return BundleDescriptor(
        name=name,
        display_name=_read_text(server, "display_name") or server.name,
        version=server.version,
        description=server.description or "",
        license=_read_text(server, "license") or NO_LICENSE,
        root_cid=root_cid,
        cid_profile=build_default_profile(),
        media_type=media_type,
        size_bytes=size,
        runtime=_DESCRIBED_RUNTIMES.get(server.runtime, server.runtime),
        target=target,
        supported=supported,
        policy=_read_requested_policy(server, policy),
    )


def build_descriptor_extras(server: ServerManifest) -> dict[str, Any]:
    """Return members that the schema allows but does not define: the engine, and the `BundleDescriptor.author`."""
    return {
        "entrypoint": {"engine": server.runtime} if server.runtime in _DESCRIBED_RUNTIMES else {},
        "tool": {"author": server.author} if server.author else {},
    }


def _read_requested_policy(server: ServerManifest, given: Mapping[str, str]) -> SecurityPolicy:
    security = server.document.get("security", {})
    stated = security.get("policy", {}) if isinstance(security, dict) else None
    if not isinstance(stated, dict) or stated.keys() - set(_PERMISSIONS):
        raise PinwardenError(
            "SERVER_ENTRY_INVALID",
            f"{MANIFEST_NAME}: security.policy may contain only {', '.join(_PERMISSIONS)}",
            data={"member": "security"},
        )
    return SecurityPolicy(**{**stated, **given})


def _read_text(server: ServerManifest, member: str) -> str | None:
    value = server.document.get(member)
    if value is not None and not isinstance(value, str):
        raise PinwardenError("SERVER_ENTRY_INVALID", f"{MANIFEST_NAME}: {member} is not text", data={"member": member})
    return value


# Manifest


MANIFEST_SCHEMA = "toolbundle.manifest.v0.1"
_BLOB_CIDS = lazy_pattern(r"(?:bafkrei[a-h][a-z2-7]{50}[aeimquy4](?: |\Z))+")
"""A sequence of blob CIDs: a constant prefix of four bytes, 32 bytes of hash, and two padding bits."""
_get_entry_members = itemgetter("path", "blob_cid", "size_bytes", "executable")


class ManifestEntry(NamedTuple):
    """One file of a bundle. A tuple, because manifests have thousands of entries and creating a Record is slower."""

    path: str
    blob_cid: str
    size_bytes: int
    executable: bool = False


class Manifest(Record):
    """The files of a bundle, linked to its descriptor."""

    cid_profile: Mapping[str, Any]
    entries: tuple[ManifestEntry, ...]
    descriptor_cid: str
    root_cid: str
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The whole document, including members that Pinwarden does not know."""


def parse_manifest(data: bytes) -> Manifest:
    """Parse a manifest. `acceptance` checks its paths, and its CIDs against the other documents."""
    return manifest_from_json(read_json(data))


def manifest_from_json(document: Any) -> Manifest:
    """Build a manifest from a strictly parsed value."""
    reader = DocumentReader.for_schema(document, MANIFEST_SCHEMA)
    return Manifest(
        cid_profile=read_profile(reader),
        entries=_read_entries(reader),
        descriptor_cid=reader.cid("descriptor_cid"),
        root_cid=reader.cid("root_cid"),
        document=document,
    )


def _read_entries(reader: DocumentReader) -> tuple[ManifestEntry, ...]:
    """Read all entries, validated in bulk. If the validation fails, repeat it one by one to name the invalid entry."""
    rows = _read_entries_in_bulk(reader.array("entries"))
    if rows is None:
        return tuple(map(_read_entry, reader.objects("entries")))
    return tuple(map(ManifestEntry._make, rows))


def _read_entries_in_bulk(items: list[Any]) -> list[tuple[str, str, int, bool]] | None:
    """Return the members of all entries; None if a member is missing or has the wrong type."""
    try:
        rows = list(map(_get_entry_members, items))
    except (KeyError, TypeError):
        return None
    if not rows:
        return rows
    paths, cids, sizes, executables = zip(*rows, strict=True)
    kinds = tuple(set(map(type, column)) for column in (paths, cids, sizes, executables))
    if kinds != ({str}, {str}, {int}, {bool}) or not all(paths) or min(sizes) < 0 or set(map(type, items)) != {dict}:
        return None
    return rows if _BLOB_CIDS.fullmatch(" ".join(cids)) else None


def _read_entry(reader: DocumentReader) -> ManifestEntry:
    return ManifestEntry(
        path=reader.text("path"),
        blob_cid=reader.cid("blob_cid", BLOB_CID),
        size_bytes=reader.integer("size_bytes"),
        executable=reader.boolean("executable"),
    )


def build_unlinked_manifest(entries: Iterable[ManifestEntry]) -> dict[str, Any]:
    """Build the part of a manifest that its root CID covers: sorted entries, without links to other documents."""
    return {
        "schema_version": MANIFEST_SCHEMA,
        "cid_profile": build_default_profile(),
        "entries": [
            {
                "path": entry.path,
                "blob_cid": entry.blob_cid,
                "size_bytes": entry.size_bytes,
                "executable": entry.executable,
            }
            for entry in sorted(entries, key=lambda entry: entry.path)
        ],
    }


def link_manifest(unlinked: Mapping[str, Any], descriptor_cid: str) -> dict[str, Any]:
    """Complete an unlinked manifest with the descriptor's CID and its own root CID."""
    return {**unlinked, "descriptor_cid": descriptor_cid, "root_cid": str(manifest_root_cid(dict(unlinked)))}


# Both documents


class BundleDocuments(Record):
    """A descriptor and a manifest that belong to the same bundle."""

    descriptor: BundleDescriptor
    manifest: Manifest
    descriptor_cid: str

    @property
    def root_cid(self) -> str:
        """The identifier of the bundle's content."""
        return self.manifest.root_cid


class BundleLimits(Record):
    """Limits on one bundle, which protect against archives that expand to a huge size."""

    files: int = 100_000
    """The largest packages in use have about 30,000 files."""
    archive_bytes: int = 512 * 1024 * 1024
    """The whole archive is kept in memory, so that exactly the verified bytes are written."""
    total_bytes: int = 1024 * 1024 * 1024
    """The total size of all unpacked files."""


BUNDLE_LIMITS = BundleLimits()
