"""The facts about an artifact: digests computed here, next to what the registry claims.

The adapters (``npm.py``, ``pypi.py``, ``oci.py`` ...) fill these records without evaluating them.
:mod:`pinwarden.artifacts.evidence` decides whether the facts agree with each other and with the server's metadata.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field

if TYPE_CHECKING:
    from pinwarden.artifacts.oci_manifest import OciDescriptor

Ecosystem = Literal["npm", "pypi", "oci", "mcpb", "nuget", "cargo"]
Missing = Literal["package", "version"]


class PackageRef(Record):
    """A package in an ecosystem, with its exact version if the ecosystem has versions.

    For ``oci`` the name is the complete image reference, for ``mcpb`` the URL or path of the bundle.
    """

    ecosystem: Ecosystem
    name: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.ecosystem}:{self.name}@{self.version}" if self.version else f"{self.ecosystem}:{self.name}"


class ArtifactFile(Record):
    """One file that was downloaded and hashed here."""

    name: str
    size: int
    digests: tuple[Digest, ...]
    """Computed from the bytes: always sha256, plus every algorithm the registry gives a digest for."""
    claims: tuple[Digest, ...] = ()
    """The digests that the registry states."""
    uploaded_at: str | None = None
    host: str | None = None
    """The host that serves the file, if it is not the registry's. Unverified."""
    content: Digest | None = None
    """SHA-256 without the signature block that MCPB bundles may end with."""

    @property
    def sha256(self) -> Digest:
        """The digest that gets pinned."""
        return self.digest("sha256")

    def digest(self, algorithm: str) -> Digest:
        """The digest with one algorithm; ``DIGEST_INVALID`` if the file was not hashed with it."""
        for digest in self.digests:
            if digest.algorithm == algorithm:
                return digest
        raise PinwardenError("DIGEST_INVALID", f"{self.name[:120]!a} was not hashed with {algorithm}")


class ListedFile(Record):
    """A file that the registry lists and that was not downloaded, so nothing about it was verified."""

    name: str
    claims: tuple[Digest, ...] = ()
    size: int | None = None
    uploaded_at: str | None = None


class RegistrySignature(Record):
    """A registry's signature over a package, verified with the registry's key."""

    key_id: str
    state: Literal["valid", "invalid", "unknown-key", "expired-key"]


class FileSignature(Record):
    """A publisher's signature inside a file."""

    state: Literal["valid", "valid-untrusted", "invalid", "unsigned"]
    """``valid-untrusted``: the signature is correct, but no trusted authority issued the signer's certificate."""
    reason: str = ""
    """Why the state is not ``valid``, for display."""
    subject: str = ""
    """The signer's name. Verified only if the state is ``valid``."""
    issuer: str = ""
    fingerprint: Digest | None = None
    """SHA-256 of the signer's certificate."""
    signed_at: str | None = None
    """The signing time that the signer states. Unverified."""


class ArtifactAttestation(Record):
    """An attestation that was published with an artifact. Unverified."""

    kind: str
    """The predicate type, or the media type if there is none."""
    bundle: bytes = field(repr=False)
    """The Sigstore bundle as the registry sent it."""
    file: str = ""
    """Name of the attested file, in releases with several files."""
    source: bytes = field(default=b"", repr=False)
    """The registry's document, if the bundle was built from one (PEP 740)."""


class ImageFacts(Record):
    """A container image: the digest its tag points to, its index if any, and one manifest per platform."""

    reference: str
    root: Digest
    """The digest a client gets for this reference: of the index, or of the only manifest."""
    index: OciDescriptor | None
    platforms: Mapping[str, OciDescriptor]
    """The manifests, fetched and hashed here, by ``os/architecture[/variant]``."""
    tag_digest: Digest | None = None
    """The digest the tag points to now, if the reference has a tag."""
    mismatches: tuple[str, ...] = ()
    """Digests of documents and blobs whose bytes do not match."""


class ArtifactFacts(Record):
    """What a registry served for one artifact at one point in time."""

    package: PackageRef
    registry: str
    """The registry's URL, without credentials."""
    checked_at: str
    missing: Missing | None = None
    """The registry has no such package or version."""
    files: tuple[ArtifactFile, ...] = ()
    listed: tuple[ListedFile, ...] = ()
    """Files of the release that were not downloaded."""
    image: ImageFacts | None = None
    published_at: str | None = None
    publisher: str | None = None
    """Who uploaded it, according to the registry. Unverified."""
    repository: str | None = None
    """The source repository named in the metadata. Unverified."""
    yanked: str | None = None
    """The publisher's reason, if the version was yanked (PyPI, Cargo), deprecated (npm, NuGet) or unlisted (NuGet)."""
    install_scripts: tuple[str, ...] = ()
    """Names of scripts that a normal installation would run."""
    signatures: tuple[RegistrySignature, ...] = ()
    signer: FileSignature | None = None
    """The signature inside the file, for formats that support one."""
    attestations: tuple[ArtifactAttestation, ...] = ()
    problems: tuple[ArtifactProblem, ...] = ()
    """Problems with the bytes themselves, independent of any lock."""


class ArtifactProblem(Record):
    """A reason to reject an artifact regardless of any lock: an unsafe archive, an invalid signature, a wrong name."""

    code: str
    message: str


_CONTENT_HASH = re.compile(r"sha256:[0-9a-f]{64}")


def parse_content_hash(text: str) -> Digest:
    """Parse ``sha256:<hex>``, the only accepted form."""
    if not isinstance(text, str) or not _CONTENT_HASH.fullmatch(text):
        raise PinwardenError("DIGEST_INVALID", f"{str(text)[:100]!a} is not a content hash (sha256:<hex>)")
    return Digest.parse(text)


def check_content_hash(actual: Digest, expected: Digest, name: str) -> None:
    """Raise ``ARTIFACT_MISMATCH`` unless the content hash is the expected one."""
    if actual != expected:
        raise PinwardenError(
            "ARTIFACT_MISMATCH",
            f"{name[:200]} has the content hash {actual}; expected {expected}",
            data={"found": str(actual), "wanted": str(expected)},
        )
