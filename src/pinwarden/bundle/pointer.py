"""``registry.pointer``: the bundle that a registry serves for a tool and channel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pinwarden.bundle.document import DocumentReader, Signature, read_json, read_profile, read_signatures
from pinwarden.core.record import Record, field

POINTER_SCHEMA = "registry.pointer.v0.1"
POINTER_SIGNED_FIELDS = ("/pointers", "/registry")
LEGACY_PREFIX = "legacy-"


class Constraints(Record):
    """The registry's requirements on a bundle's attestations."""

    require_signers: tuple[str, ...] = ()
    """Key ids; at least one of them must have attested. Compared as text."""
    require_verifier_attestation: bool = False
    min_attestations: int = 1


class Pointer(Record):
    """The bundle of one tool on one channel."""

    tool: str
    channel: str
    root_cid: str
    descriptor_cid: str
    cid_profile: Mapping[str, Any]
    updated_at_utc: str
    constraints: Constraints = Constraints()


class PointerDocument(Record):
    """Pointers that a registry signed together."""

    registry: str
    generated_at_utc: str
    issuer: str
    pointers: tuple[Pointer, ...]
    signatures: tuple[Signature, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The whole document, including members that Pinwarden does not know."""


def parse_pointers(data: bytes) -> PointerDocument:
    """Parse a pointer document. Its signatures are not verified."""
    return pointers_from_json(read_json(data))


def pointers_from_json(document: Any) -> PointerDocument:
    """Build a pointer document from a strictly parsed value. Its signatures are not verified."""
    reader = DocumentReader.for_schema(document, POINTER_SCHEMA)
    registry = reader.object("registry")
    return PointerDocument(
        registry=registry.text("name"),
        generated_at_utc=registry.timestamp("generated_at_utc"),
        issuer=registry.text("issuer"),
        pointers=tuple(_read_pointer(pointer) for pointer in reader.objects("pointers")),
        signatures=read_signatures(reader),
        document=document,
    )


def _read_pointer(reader: DocumentReader) -> Pointer:
    return Pointer(
        tool=reader.text("tool"),
        channel=reader.text("channel"),
        root_cid=reader.cid("root_cid"),
        descriptor_cid=reader.cid("descriptor_cid"),
        cid_profile=read_profile(reader),
        updated_at_utc=reader.timestamp("updated_at_utc"),
        constraints=_read_constraints(reader.object("constraints")) if "constraints" in reader.value else Constraints(),
    )


def _read_constraints(reader: DocumentReader) -> Constraints:
    return Constraints(
        require_signers=reader.texts("require_signers"),
        require_verifier_attestation=reader.boolean("require_verifier_attestation", default=False),
        min_attestations=reader.integer("min_attestations", least=1) if "min_attestations" in reader.value else 1,
    )


def unsigned_pointers(registry: str, issuer: str, generated_at_utc: str, pointers: Iterable[Pointer]) -> dict[str, Any]:
    """The document without signatures; sign it with ``add_signature(..., POINTER_SIGNED_FIELDS, signer)``."""
    return {
        "schema_version": POINTER_SCHEMA,
        "registry": {"name": registry, "generated_at_utc": generated_at_utc, "issuer": issuer},
        "pointers": [_pointer_to_json(pointer) for pointer in pointers],
    }


def _pointer_to_json(pointer: Pointer) -> dict[str, Any]:
    value: dict[str, Any] = {
        "tool": pointer.tool,
        "channel": pointer.channel,
        "root_cid": pointer.root_cid,
        "descriptor_cid": pointer.descriptor_cid,
        "cid_profile": dict(pointer.cid_profile),
        "updated_at_utc": pointer.updated_at_utc,
    }
    constraints = _constraints_to_json(pointer.constraints)
    return {**value, "constraints": constraints} if constraints else value


def _constraints_to_json(constraints: Constraints) -> dict[str, Any]:
    value: dict[str, Any] = {}
    if constraints.require_signers:
        value["require_signers"] = list(constraints.require_signers)
    if constraints.require_verifier_attestation:
        value["require_verifier_attestation"] = True
    if constraints.min_attestations != 1:
        value["min_attestations"] = constraints.min_attestations
    return value
