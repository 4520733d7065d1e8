"""Bundles made by hand: a registry, those who attest, and documents that can be wrong in any number of ways at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pinwarden.bundle import attestation
from pinwarden.bundle.acceptance_request import AcceptanceRequest
from pinwarden.bundle.attestation import Claim
from pinwarden.bundle.bundle_documents import (
    CAR_MEDIA_TYPE,
    BundleDescriptor,
    ManifestEntry,
    SecurityPolicy,
    build_unlinked_manifest,
    descriptor_to_json,
    link_manifest,
)
from pinwarden.bundle.document import add_signature, build_default_profile
from pinwarden.bundle.log_documents import POINTER_SIGNED_FIELDS, Constraints, Pointer, build_unsigned_pointers
from pinwarden.bundle.trust import InstallerPolicy, Trust, TrustedKey, trusted_key_to_json
from pinwarden.core.digest import blob_cid, document_cid
from pinwarden.core.keys import PrivateKey
from pinwarden.core.record import replace

NOW = "2026-03-01T12:00:00Z"
BEFORE = "2026-02-01T12:00:00Z"
LATER = "2027-01-01T00:00:00Z"
OTHER_DOCUMENT = str(document_cid({"another": "document"}))
FILES = {"README.md": b"# Notes\n", "main.py": b"print('notes')\n"}


def key(name: str) -> PrivateKey:
    """Always the same key for a name."""
    return PrivateKey.from_seed(name.encode().ljust(32, b"."))


REGISTRY, VERIFIER, MAINTAINER, AUDITOR, STRANGER = map(
    key, ("registry", "verifier", "maintainer", "auditor", "stranger")
)
TRUST = Trust(
    registry_keys=(TrustedKey(key=REGISTRY.public_key, name="registry", roles=("registry",)),),
    known_keys=(
        TrustedKey(key=VERIFIER.public_key, name="verifier", roles=("verifier",)),
        TrustedKey(key=MAINTAINER.public_key, name="maintainer", roles=("maintainer",)),
        TrustedKey(key=AUDITOR.public_key, name="auditor", roles=("auditor",)),
    ),
)
POLICY = InstallerPolicy(network="deny", filesystem="read_only", exec="deny")


def entries_of(files: Mapping[str, bytes]) -> tuple[ManifestEntry, ...]:
    return tuple(
        ManifestEntry(path=path, blob_cid=str(blob_cid(data)), size_bytes=len(data))
        for path, data in sorted(files.items())
    )


def descriptor_of(root_cid: str, **changes: Any) -> BundleDescriptor:
    made = BundleDescriptor(
        name="acme.notes",
        display_name="Notes",
        version="1.0.0",
        description="Keeps notes.",
        license="MIT",
        root_cid=root_cid,
        cid_profile=build_default_profile(),
        media_type=CAR_MEDIA_TYPE,
        size_bytes=1000,
        runtime="python",
        target="main.py",
        policy=SecurityPolicy(filesystem="read_only"),
    )
    return replace(made, **changes)


def attested(
    root_cid: str,
    descriptor_cid: str,
    signer: PrivateKey = VERIFIER,
    role: str = "verifier",
    *,
    expires: str | None = LATER,
    issuer: PrivateKey | None = None,
    fields: Sequence[str] = attestation.ATTESTATION_SIGNED_FIELDS,
    **payload: Any,
) -> dict[str, Any]:
    """A signed integrity claim."""
    claim = Claim(
        type=attestation.INTEGRITY_CLAIM,
        issued_at_utc=BEFORE,
        expires_at_utc=expires,
        issuer_key_id=(issuer or signer).public_key.did,
        issuer_role=role,
        payload={"kind": "integrity", "verified_root_cid": root_cid, **payload},
    )
    value = attestation.build_unsigned_attestation(root_cid, descriptor_cid, build_default_profile(), [claim])
    return add_signature(value, fields, signer)


def encoded(document: Any) -> bytes:
    return json.dumps(document).encode()


class Documents:
    """The documents of one bundle before they are signed; a test breaks them where it likes."""

    def __init__(self, files: Mapping[str, bytes] = FILES) -> None:
        self.unlinked = build_unlinked_manifest(entries_of(files))
        self.descriptor: dict[str, Any] = {}
        self.described: dict[str, Any] = {}
        self.constraints = Constraints()
        self.registry = REGISTRY
        self.channel = "stable"
        self.signer, self.role = VERIFIER, "verifier"
        self.attestations: list[dict[str, Any]] | None = None
        self.more_attestations: list[dict[str, Any]] = []
        self.pointer_fields: Sequence[str] = POINTER_SIGNED_FIELDS

    def finish(self) -> None:
        """Computes the identifiers; what is changed after this no longer fits them."""
        self.manifest = link_manifest(self.unlinked, OTHER_DOCUMENT)
        self.root_cid = self.manifest["root_cid"]
        self.descriptor = descriptor_to_json(descriptor_of(self.root_cid, **self.described))

    def link(self) -> None:
        """The identifier of the descriptor, in the manifest and the pointer."""
        self.descriptor_cid = str(document_cid(self.descriptor))
        self.manifest["descriptor_cid"] = self.descriptor_cid
        self.pointer = build_unsigned_pointers(
            "acme",
            "registry@acme",
            BEFORE,
            [
                Pointer(
                    tool="acme.notes",
                    channel=self.channel,
                    root_cid=self.root_cid,
                    descriptor_cid=self.descriptor_cid,
                    cid_profile=build_default_profile(),
                    updated_at_utc=BEFORE,
                    constraints=self.constraints,
                )
            ],
        )
        if self.attestations is None:
            self.attestations = [attested(self.root_cid, self.descriptor_cid, self.signer, self.role)]

    def request(self, **changes: Any) -> AcceptanceRequest:
        """All of it, with the pointer signed."""
        return AcceptanceRequest(
            **{
                "pointer": encoded(add_signature(self.pointer, self.pointer_fields, self.registry)),
                "descriptor": encoded(self.descriptor),
                "manifest": encoded(self.manifest),
                "attestations": tuple(map(encoded, [*(self.attestations or []), *self.more_attestations])),
                "policy": POLICY,
                "trust": TRUST,
                "now": NOW,
                **changes,
            }
        )


def documents(files: Mapping[str, bytes] = FILES) -> Documents:
    """Documents in which nothing is wrong."""
    made = Documents(files)
    made.finish()
    made.link()
    return made


def trust_value(trust: Trust) -> dict[str, Any]:
    """The document that ``trust.parse`` reads."""
    return {
        "trusted_registry_keys": [trusted_key_to_json(known) for known in trust.registry_keys],
        "known_keys": [trusted_key_to_json(known) for known in trust.known_keys],
    }
