"""The record of an accepted install: what was accepted, and on whose word."""

from __future__ import annotations

from typing import Any

from pinwarden.core.record import Record


class Provenance(Record):
    """What an ACCEPT rests on."""

    tool: str
    channel: str
    root_cid: str
    descriptor_cid: str
    attestations_used: tuple[str, ...]
    """Who attested, one per valid claim, in their order."""
    require_verifier_attestation: bool
    min_attestations: int


def to_value(provenance: Provenance) -> dict[str, Any]:
    """The record as it is written."""
    return {
        "tool": provenance.tool,
        "channel": provenance.channel,
        "root_cid": provenance.root_cid,
        "descriptor_cid": provenance.descriptor_cid,
        "attestations_used": list(provenance.attestations_used),
        "constraints_enforced": {
            "require_verifier_attestation": provenance.require_verifier_attestation,
            "min_attestations": provenance.min_attestations,
        },
    }
