"""Bundles made by hand: a registry, those who attest, and documents that can be wrong in any number of ways at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pinwarden.bundle import attestation, descriptor, manifest, pointer
from pinwarden.bundle.acceptance.verdict import Submission
from pinwarden.bundle.attestation import Claim
from pinwarden.bundle.descriptor import Descriptor, SecurityPolicy
from pinwarden.bundle.installer_policy import InstallerPolicy
from pinwarden.bundle.manifest import Entry
from pinwarden.bundle.pointer import Constraints, Pointer
from pinwarden.bundle.profile import default_profile
from pinwarden.bundle.signatures import signed
from pinwarden.bundle.trust import Trust, TrustedKey, key_value
from pinwarden.core.cid import blob_cid, document_cid
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


def entries_of(files: Mapping[str, bytes]) -> tuple[Entry, ...]:
    return tuple(
        Entry(path=path, blob_cid=str(blob_cid(data)), size_bytes=len(data)) for path, data in sorted(files.items())
    )


def descriptor_of(root_cid: str, **changes: Any) -> Descriptor:
    made = Descriptor(
        name="acme.notes",
        display_name="Notes",
        version="1.0.0",
        description="Keeps notes.",
        license="MIT",
        root_cid=root_cid,
        cid_profile=default_profile(),
        media_type=descriptor.CAR,
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
    fields: Sequence[str] = attestation.SIGNED_FIELDS,
    **payload: Any,
) -> dict[str, Any]:
    """A signed integrity claim."""
    claim = Claim(
        type=attestation.INTEGRITY,
        issued_at_utc=BEFORE,
        expires_at_utc=expires,
        issuer_key_id=(issuer or signer).public_key.did,
        issuer_role=role,
        payload={"kind": "integrity", "verified_root_cid": root_cid, **payload},
    )
    value = attestation.to_value(root_cid, descriptor_cid, default_profile(), [claim])
    return signed(value, fields, signer)


def encoded(document: Any) -> bytes:
    return json.dumps(document).encode()


class Documents:
    """The documents of one bundle before they are signed; a test breaks them where it likes."""

    def __init__(self, files: Mapping[str, bytes] = FILES) -> None:
        self.unlinked = manifest.unlinked_value(entries_of(files))
        self.descriptor: dict[str, Any] = {}
        self.described: dict[str, Any] = {}
        self.constraints = Constraints()
        self.registry = REGISTRY
        self.channel = "stable"
        self.signer, self.role = VERIFIER, "verifier"
        self.attestations: list[dict[str, Any]] | None = None
        self.more_attestations: list[dict[str, Any]] = []
        self.pointer_fields: Sequence[str] = pointer.SIGNED_FIELDS

    def finish(self) -> None:
        """Computes the identifiers; what is changed after this no longer fits them."""
        self.manifest = manifest.linked_value(self.unlinked, OTHER_DOCUMENT)
        self.root_cid = self.manifest["root_cid"]
        self.descriptor = descriptor.to_value(descriptor_of(self.root_cid, **self.described))

    def link(self) -> None:
        """The identifier of the descriptor, in the manifest and the pointer."""
        self.descriptor_cid = str(document_cid(self.descriptor))
        self.manifest["descriptor_cid"] = self.descriptor_cid
        self.pointer = pointer.to_value(
            "acme",
            "registry@acme",
            BEFORE,
            [
                Pointer(
                    tool="acme.notes",
                    channel=self.channel,
                    root_cid=self.root_cid,
                    descriptor_cid=self.descriptor_cid,
                    cid_profile=default_profile(),
                    updated_at_utc=BEFORE,
                    constraints=self.constraints,
                )
            ],
        )
        if self.attestations is None:
            self.attestations = [attested(self.root_cid, self.descriptor_cid, self.signer, self.role)]

    def submission(self, **changes: Any) -> Submission:
        """All of it, with the pointer signed."""
        return Submission(
            **{
                "pointer": encoded(signed(self.pointer, self.pointer_fields, self.registry)),
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
        "trusted_registry_keys": [key_value(known) for known in trust.registry_keys],
        "known_keys": [key_value(known) for known in trust.known_keys],
    }
