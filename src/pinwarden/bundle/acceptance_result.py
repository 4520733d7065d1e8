"""What an install asks of the acceptance, and what comes out of it: a provenance, or one rejection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.bundle.descriptor import Descriptor
from pinwarden.bundle.manifest import Manifest
from pinwarden.bundle.trust import InstallerPolicy, Trust
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field

ACCEPT = "ACCEPT"
REJECT = "REJECT"


class AcceptanceRequest(Record):
    """The downloaded documents, and the trust and policy of the installer."""

    pointer: bytes = field(repr=False)
    descriptor: bytes = field(repr=False)
    manifest: bytes = field(repr=False)
    attestations: tuple[bytes, ...] = field(default=(), repr=False)
    policy: InstallerPolicy
    trust: Trust
    now: str
    """The time of the install, as a timestamp with a time zone."""
    tool: str | None = None
    """The requested tool. Without it the first pointer in the document is used."""
    channel: str | None = None
    literal: bool = False
    """Follow the letter of the rulebook, with its gaps. For comparison with other verifiers, not for installs."""


class BundleDocuments(Record):
    """A descriptor and a manifest that belong to the same bundle."""

    descriptor: Descriptor
    manifest: Manifest
    descriptor_cid: str

    @property
    def root_cid(self) -> str:
        """The identifier of the bundle's content."""
        return self.manifest.root_cid


class Provenance(Record):
    """What was accepted, and which attestations the decision rests on."""

    tool: str
    channel: str
    root_cid: str
    descriptor_cid: str
    attestations_used: tuple[str, ...]
    """Key id of the issuer of each valid claim, in document order."""
    require_verifier_attestation: bool
    min_attestations: int


class Rejection(Record):
    """Why a bundle may not be installed, in the rulebook's three parts: what, why, fix."""

    code: str
    what: str
    why: Mapping[str, Any]
    fix: str


class AcceptanceResult(Record):
    """Either a provenance (accepted) or a rejection with exactly one code."""

    provenance: Provenance | None = None
    rejection: Rejection | None = None
    documents: BundleDocuments | None = None
    """The accepted documents, ready to be opened. None in literal mode, which does not validate them fully."""

    def __post_init__(self) -> None:
        if (self.provenance is None) == (self.rejection is None):
            raise ValueError("exactly one of provenance and refusal must be set")

    @property
    def accepted(self) -> bool:
        """Whether the bundle may be installed."""
        return self.rejection is None


def rejection_from_error(err: PinwardenError) -> Rejection:
    """Turn the error of a failed step into a rejection; the error's data becomes ``why``."""
    return Rejection(code=err.code, what=err.message, why=dict(err.data), fix=err.hint)


def result_to_json(result: AcceptanceResult) -> dict[str, Any]:
    """The JSON of the rulebook: ``result``, and either ``error`` or ``provenance``."""
    rejection = result.rejection
    if rejection is None:
        provenance = result.provenance
        return {"result": ACCEPT, "provenance": provenance and provenance_to_json(provenance)}
    return {
        "result": REJECT,
        "error": {"code": rejection.code, "what": rejection.what, "why": dict(rejection.why), "fix": rejection.fix},
    }


def provenance_to_json(provenance: Provenance) -> dict[str, Any]:
    """The JSON of a provenance, as it is written to locks and ``.provenance.json`` files."""
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
