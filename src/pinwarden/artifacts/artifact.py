"""Records for a fetched artifact: the digests Pinwarden computed, and the digests and metadata the registry states.

``fetch_artifact`` in ``npm.py``, ``pypi.py``, ``oci.py`` and the other modules fills these records.
:mod:`pinwarden.artifacts.evidence` checks whether the digests match each other and the server's metadata.
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
    """A package in an ecosystem, with its exact version if the ecosystem uses version numbers.

    For ``oci`` the name is the complete image reference, for ``mcpb`` the URL or path of the bundle.
    """

    ecosystem: Ecosystem
    name: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.ecosystem}:{self.name}@{self.version}" if self.version else f"{self.ecosystem}:{self.name}"


class ArtifactFile(Record):
    """One file that Pinwarden downloaded and hashed."""

    name: str
    size: int
    digests: tuple[Digest, ...]
    """The computed digests: SHA-256, and one for every other algorithm of a digest that the registry states."""
    claims: tuple[Digest, ...] = ()
    """The digests that the registry states."""
    uploaded_at: str | None = None
    host: str | None = None
    """The host that served the file, if it is not the registry's host."""
    content: Digest | None = None
    """For an MCPB bundle, the SHA-256 of the file without its signature block."""

    @property
    def sha256(self) -> Digest:
        """The digest that the lock pins."""
        return self.digest("sha256")

    def digest(self, algorithm: str) -> Digest:
        """Return the file's digest with this algorithm.

        Raises ``DIGEST_INVALID`` if the file was not hashed with it.
        """
        for digest in self.digests:
            if digest.algorithm == algorithm:
                return digest
        raise PinwardenError("DIGEST_INVALID", f"{self.name[:120]!a} was not hashed with {algorithm}")


class ListedFile(Record):
    """A file that the registry lists and Pinwarden did not download. All fields are unverified."""

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
    """``valid-untrusted`` means that no trusted authority issued the certificate of a correct signature."""
    reason: str = ""
    """The reason if the state is not ``valid``, for display."""
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
    """The name of the attested file, if the release has several files."""
    source: bytes = field(default=b"", repr=False)
    """The PEP 740 document of the registry, if Pinwarden converted it to the Sigstore bundle."""


class FetchedImage(Record):
    """A container image: the digest of its reference, its index if there is one, and one manifest per platform."""

    reference: str
    root: Digest
    """The digest of the index, or of the only manifest. Clients get this document for the reference."""
    index: OciDescriptor | None
    platforms: Mapping[str, OciDescriptor]
    """The manifests by ``os/architecture[/variant]``. Pinwarden fetched and hashed each of them."""
    tag_digest: Digest | None = None
    """The digest the tag points to now, if the reference has a tag."""
    mismatches: tuple[str, ...] = ()
    """The expected digests of documents and blobs whose bytes have a different digest."""


class ReleaseFacts(Record):
    """What a registry and the metadata say about a release. Unverified.

    Each parser fills in the facts that it finds. Those that the lock keeps have the same name in `LockExtension`.
    """

    published_at: str | None = None
    publisher: str | None = None
    """The account that uploaded the release, according to the registry."""
    repository: str | None = None
    """The source repository named in the metadata."""
    yanked: str | None = None
    """The publisher's reason, if the version was yanked (PyPI, Cargo), deprecated (npm, NuGet) or unlisted (NuGet)."""


class FetchedArtifact(Record):
    """The files and metadata that a registry served for one artifact at ``checked_at``."""

    package: PackageRef
    registry: str
    """The registry's URL, without credentials."""
    checked_at: str
    missing: Missing | None = None
    """Set if the registry does not have this package or this version."""
    files: tuple[ArtifactFile, ...] = ()
    listed: tuple[ListedFile, ...] = ()
    """Files of the release that were not downloaded."""
    image: FetchedImage | None = None
    facts: ReleaseFacts = ReleaseFacts()
    install_scripts: tuple[str, ...] = ()
    """Names of the scripts that the package manager would run on installation. Pinwarden does not run them."""
    signatures: tuple[RegistrySignature, ...] = ()
    signer: FileSignature | None = None
    """The signature inside the file, for formats that support one."""
    attestations: tuple[ArtifactAttestation, ...] = ()
    problems: tuple[ArtifactProblem, ...] = ()
    """Problems of the files and the metadata that do not depend on a lock."""


class ArtifactProblem(Record):
    """A reason to refuse an artifact, such as an unsafe archive, an invalid signature or a wrong name."""

    code: str
    message: str


_CONTENT_HASH = re.compile(r"sha256:[0-9a-f]{64}")


def parse_content_hash(text: str) -> Digest:
    """Parse ``sha256:<hex>`` with 64 lower-case digits. Raises ``DIGEST_INVALID`` for any other form."""
    if not isinstance(text, str) or not _CONTENT_HASH.fullmatch(text):
        raise PinwardenError("DIGEST_INVALID", f"{str(text)[:100]!a} is not a content hash (sha256:<hex>)")
    return Digest.parse(text)


def check_content_hash(actual: Digest, expected: Digest, name: str) -> None:
    """Raise ``ARTIFACT_MISMATCH`` if the two content hashes differ. ``name`` is the artifact's name for the message."""
    if actual != expected:
        raise PinwardenError(
            "ARTIFACT_MISMATCH",
            f"{name[:200]} has the content hash {actual}; expected {expected}",
            data={"found": str(actual), "wanted": str(expected)},
        )
