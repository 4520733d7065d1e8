"""``tool.descriptor``: what a bundle is, what starts it, and what it asks to be allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pinwarden.bundle.profile import profile_in
from pinwarden.bundle.shape import Shape, read, refuse
from pinwarden.core.record import Record, field

SCHEMA = "tool.descriptor.v0.1"
CAR = "application/vnd.mcp.toolbundle+car"
TAR_ZSTD = "application/vnd.mcp.toolbundle+tar+zstd"
MEDIA_TYPES = (CAR, TAR_ZSTD)
RUNTIMES = ("node", "deno", "python", "native")
TOOL_NAME = re.compile(r"[a-z][a-z0-9._-]*")
MAX_TOOL_NAME = 214
VERSION = re.compile(
    r"(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)(?:-[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)


class SecurityPolicy(Record):
    """What a tool asks to be allowed."""

    network: str = "deny"
    filesystem: str = "deny"
    exec: str = "deny"


class SchemaLink(Record):
    """A schema of requests or responses, by its CID."""

    name: str
    cid: str


class Descriptor(Record):
    """A tool in one version."""

    name: str
    display_name: str
    version: str
    description: str
    license: str
    root_cid: str
    cid_profile: Mapping[str, Any]
    media_type: str
    size_bytes: int
    """Of the archive."""
    runtime: str
    target: str
    """A file of the bundle, and after a colon what in it is called."""
    policy: SecurityPolicy
    request_schemas: tuple[SchemaLink, ...] = ()
    response_schemas: tuple[SchemaLink, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """All of it, with what is not known here."""

    @property
    def entry(self) -> str:
        """The file that is started."""
        return self.target.partition(":")[0]


def parse(data: bytes) -> Descriptor:
    """A descriptor."""
    return of(read(data))


def of(document: Any) -> Descriptor:
    """The same, of a value that was read strictly."""
    shape = Shape.of(document, SCHEMA)
    tool, artifact, entrypoint = shape.inside("tool"), shape.inside("artifact"), shape.inside("entrypoint")
    schemas, policy = shape.inside("schemas"), shape.inside("security").inside("policy")
    return Descriptor(
        name=_matching(tool, "name", TOOL_NAME),
        display_name=tool.text("display_name"),
        version=_matching(tool, "version", VERSION),
        description=_description(tool),
        license=tool.text("license"),
        root_cid=artifact.cid("root_cid"),
        cid_profile=profile_in(artifact),
        media_type=artifact.one_of("media_type", MEDIA_TYPES),
        size_bytes=artifact.number("size_bytes"),
        runtime=entrypoint.one_of("runtime", RUNTIMES),
        target=entrypoint.text("target"),
        policy=SecurityPolicy(
            network=policy.one_of("network", ("deny", "allow")),
            filesystem=policy.one_of("filesystem", ("deny", "read_only", "read_write")),
            exec=policy.one_of("exec", ("deny", "allow")),
        ),
        request_schemas=tuple(_link(each) for each in schemas.each("request")),
        response_schemas=tuple(_link(each) for each in schemas.each("response")),
        document=document,
    )


def _description(tool: Shape) -> str:
    value = tool.value.get("description")
    return value if type(value) is str and not value else tool.text("description")


def _matching(shape: Shape, member: str, pattern: re.Pattern[str]) -> str:
    value = shape.text(member)
    if len(value) > MAX_TOOL_NAME or not pattern.fullmatch(value):
        refuse(f"{shape.path}/{member}", f"is not well formed: {value[:80]!a}")
    return value


def _link(shape: Shape) -> SchemaLink:
    return SchemaLink(name=shape.text("name"), cid=shape.text("cid"))


def to_value(descriptor: Descriptor) -> dict[str, Any]:
    """The document."""
    return {
        "schema_version": SCHEMA,
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
        "entrypoint": {"runtime": descriptor.runtime, "target": descriptor.target},
        "schemas": {
            "request": [{"name": each.name, "cid": each.cid} for each in descriptor.request_schemas],
            "response": [{"name": each.name, "cid": each.cid} for each in descriptor.response_schemas],
        },
        "security": {
            "policy": {
                "network": descriptor.policy.network,
                "filesystem": descriptor.policy.filesystem,
                "exec": descriptor.policy.exec,
            }
        },
    }
