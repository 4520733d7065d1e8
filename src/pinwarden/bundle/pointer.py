"""``registry.pointer``: which bundle a registry gives out for a tool and channel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pinwarden.bundle.profile import profile_in
from pinwarden.bundle.shape import Shape, read
from pinwarden.bundle.signatures import Signature, signatures_in
from pinwarden.core.record import Record, field

SCHEMA = "registry.pointer.v0.1"
SIGNED_FIELDS = ("/pointers", "/registry")
LEGACY_PREFIX = "legacy-"


class Constraints(Record):
    """What a registry demands of the attestations for a bundle."""

    require_signers: tuple[str, ...] = ()
    """Key identifiers of which one must have attested; compared as text."""
    require_verifier_attestation: bool = False
    min_attestations: int = 1


class Pointer(Record):
    """One tool on one channel."""

    tool: str
    channel: str
    root_cid: str
    descriptor_cid: str
    cid_profile: Mapping[str, Any]
    updated_at_utc: str
    constraints: Constraints = Constraints()


class PointerDocument(Record):
    """The pointers that a registry signed together."""

    registry: str
    generated_at_utc: str
    issuer: str
    pointers: tuple[Pointer, ...]
    signatures: tuple[Signature, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """All of it, with what is not known here."""


def parse(data: bytes) -> PointerDocument:
    """A pointer document; its signatures are not checked here."""
    return of(read(data))


def of(document: Any) -> PointerDocument:
    """The same, of a value that was read strictly."""
    shape = Shape.of(document, SCHEMA)
    registry = shape.inside("registry")
    return PointerDocument(
        registry=registry.text("name"),
        generated_at_utc=registry.moment("generated_at_utc"),
        issuer=registry.text("issuer"),
        pointers=tuple(_pointer(each) for each in shape.each("pointers")),
        signatures=signatures_in(shape),
        document=document,
    )


def _pointer(shape: Shape) -> Pointer:
    return Pointer(
        tool=shape.text("tool"),
        channel=shape.text("channel"),
        root_cid=shape.cid("root_cid"),
        descriptor_cid=shape.cid("descriptor_cid"),
        cid_profile=profile_in(shape),
        updated_at_utc=shape.moment("updated_at_utc"),
        constraints=_constraints(shape.inside("constraints")) if "constraints" in shape.value else Constraints(),
    )


def _constraints(shape: Shape) -> Constraints:
    return Constraints(
        require_signers=shape.texts("require_signers"),
        require_verifier_attestation=shape.flag("require_verifier_attestation", default=False),
        min_attestations=shape.number("min_attestations", least=1) if "min_attestations" in shape.value else 1,
    )


def to_value(registry: str, issuer: str, generated_at_utc: str, pointers: Iterable[Pointer]) -> dict[str, Any]:
    """The document without signatures; ``signatures.signed(…, SIGNED_FIELDS, signer)`` adds one."""
    return {
        "schema_version": SCHEMA,
        "registry": {"name": registry, "generated_at_utc": generated_at_utc, "issuer": issuer},
        "pointers": [_pointer_value(each) for each in pointers],
    }


def _pointer_value(pointer: Pointer) -> dict[str, Any]:
    value: dict[str, Any] = {
        "tool": pointer.tool,
        "channel": pointer.channel,
        "root_cid": pointer.root_cid,
        "descriptor_cid": pointer.descriptor_cid,
        "cid_profile": dict(pointer.cid_profile),
        "updated_at_utc": pointer.updated_at_utc,
    }
    constraints = _constraints_value(pointer.constraints)
    return {**value, "constraints": constraints} if constraints else value


def _constraints_value(constraints: Constraints) -> dict[str, Any]:
    value: dict[str, Any] = {}
    if constraints.require_signers:
        value["require_signers"] = list(constraints.require_signers)
    if constraints.require_verifier_attestation:
        value["require_verifier_attestation"] = True
    if constraints.min_attestations != 1:
        value["min_attestations"] = constraints.min_attestations
    return value
