"""The question of an install, and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.bundle import provenance as provenance_document
from pinwarden.bundle.descriptor import Descriptor
from pinwarden.bundle.installer_policy import InstallerPolicy
from pinwarden.bundle.manifest import Manifest
from pinwarden.bundle.provenance import Provenance
from pinwarden.bundle.trust import Trust
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field

ACCEPT = "ACCEPT"
REJECT = "REJECT"


class Submission(Record):
    """What was fetched, whom the installer trusts, and what it allows."""

    pointer: bytes = field(repr=False)
    descriptor: bytes = field(repr=False)
    manifest: bytes = field(repr=False)
    attestations: tuple[bytes, ...] = field(default=(), repr=False)
    policy: InstallerPolicy
    trust: Trust
    now: str
    """This moment, with its time zone."""
    tool: str | None = None
    """What was asked for; without it the first pointer of the document counts."""
    channel: str | None = None
    literal: bool = False
    """The rulebook to the letter, with its holes; for comparison with other verifiers, not for installing."""


class BundleDocuments(Record):
    """A descriptor and a manifest that belong together."""

    descriptor: Descriptor
    manifest: Manifest
    descriptor_cid: str

    @property
    def root_cid(self) -> str:
        """What the bundle is known by."""
        return self.manifest.root_cid


class Refusal(Record):
    """Why a bundle may not be installed."""

    code: str
    what: str
    why: Mapping[str, Any]
    fix: str


class Verdict(Record):
    """Accepted with a provenance, or refused with exactly one code."""

    provenance: Provenance | None = None
    refusal: Refusal | None = None
    documents: BundleDocuments | None = None
    """What was accepted, for whoever goes on to open it; not where the letter of the rulebook decided."""

    def __post_init__(self) -> None:
        if (self.provenance is None) == (self.refusal is None):
            raise ValueError("a verdict is one of the two")

    @property
    def accepted(self) -> bool:
        """Whether the bundle may be installed."""
        return self.refusal is None


def refusal_of(err: PinwardenError) -> Refusal:
    """An error as a refusal; its data says why."""
    return Refusal(code=err.code, what=err.message, why=dict(err.data), fix=err.hint)


def to_value(verdict: Verdict) -> dict[str, Any]:
    """The verdict as it is printed: ``result``, and either ``error`` or ``provenance``."""
    refusal = verdict.refusal
    if refusal is None:
        provenance = verdict.provenance
        return {"result": ACCEPT, "provenance": provenance and provenance_document.to_value(provenance)}
    return {
        "result": REJECT,
        "error": {"code": refusal.code, "what": refusal.what, "why": dict(refusal.why), "fix": refusal.fix},
    }
