"""What was found out about an artifact: the bytes as they were hashed here, beside what the registry claims of them.

An adapter fills these values and judges nothing. Whether the facts agree with each other, with the metadata of a server
and with what was locked is for :mod:`pinwarden.artifacts.evidence` to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field

Ecosystem = Literal["npm", "pypi", "oci", "mcpb", "nuget", "cargo", "archive"]
Missing = Literal["package", "version"]


class PackageName(Record):
    """What is looked for: a name in an ecosystem, and the exact version where the ecosystem has versions.

    For ``oci`` the name is the whole reference, for ``mcpb`` and ``archive`` the address or path of the file.
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
    """Computed here from the bytes: sha256 always, others where the registry speaks of them."""
    claims: tuple[Digest, ...] = ()
    """What the registry says they are."""
    uploaded_at: str | None = None
    host: str | None = None
    """Where the registry's metadata said that it is, if that is another host than the registry's. A claim."""
    content: Digest | None = None
    """SHA-256 of the content alone, where the file ends with a signature block that can come and go."""

    @property
    def sha256(self) -> Digest:
        """The digest that is pinned."""
        return self.digest("sha256")

    def digest(self, algorithm: str) -> Digest:
        """The digest of the bytes by one algorithm."""
        for each in self.digests:
            if each.algorithm == algorithm:
                return each
        raise PinwardenError("DIGEST_INVALID", f"{self.name[:120]!a} was not hashed with {algorithm}")


class ListedFile(Record):
    """One file that the registry lists and that was not downloaded: nothing about it was checked here."""

    name: str
    claims: tuple[Digest, ...] = ()
    size: int | None = None
    uploaded_at: str | None = None


class RegistrySignature(Record):
    """A signature by the registry itself over a package, checked here against the registry's key."""

    key_id: str
    state: Literal["valid", "invalid", "unknown-key", "expired-key"]


class FileSignature(Record):
    """A publisher's signature inside a file, checked here."""

    state: Literal["valid", "valid-untrusted", "invalid", "unsigned"]
    """``valid-untrusted``: a good signature by somebody for whom no trusted authority vouches."""
    reason: str = ""
    """Why it is not ``valid``, for people."""
    subject: str = ""
    """The signer's name. Only in a ``valid`` signature somebody else vouches for it."""
    issuer: str = ""
    fingerprint: Digest | None = None
    """SHA-256 of the signer's certificate."""
    signed_at: str | None = None
    """What the signer says. A claim."""


class Attestation(Record):
    """A statement about an artifact that came with it, unverified."""

    kind: str
    """Its predicate type, or what else names the kind of statement."""
    bundle: bytes = field(repr=False)
    """A sigstore bundle, as the registry sent it."""
    file: str = ""
    """The file that it is about, where there are several."""
    source: bytes = field(default=b"", repr=False)
    """The registry's own document, where the bundle had to be made from it."""


class Manifest(Record):
    """One document of a container image, fetched and hashed: the index, or the manifest of one platform."""

    media_type: str
    digest: Digest
    size: int


class Image(Record):
    """A container image: what its tag points to now, its index if it has one, and a manifest for each platform."""

    reference: str
    root: Digest
    """What a client that asks by this reference gets: the index, or the only manifest."""
    index: Manifest | None
    platforms: Mapping[str, Manifest]
    """By ``os/architecture[/variant]``."""
    tag_digest: Digest | None = None
    """What the tag points to, where the reference has one."""
    mismatches: tuple[str, ...] = ()
    """Documents and blobs whose bytes are not what their digest says, by that digest."""


class ArtifactFacts(Record):
    """All that was found out about one artifact, at one moment."""

    package: PackageName
    registry: str
    """The endpoint that answered, without credentials."""
    checked_at: str
    missing: Missing | None = None
    """The registry says that there is no such package or version."""
    files: tuple[ArtifactFile, ...] = ()
    listed: tuple[ListedFile, ...] = ()
    """What belongs to the release, too, and was left where it is."""
    image: Image | None = None
    published_at: str | None = None
    publisher: str | None = None
    """Who uploaded it, where the registry says so. A claim."""
    repository: str | None = None
    """The source repository that the metadata names. A claim."""
    withdrawn: str | None = None
    """Yanked, deprecated or unlisted, with the reason given."""
    install_scripts: tuple[str, ...] = ()
    """Names of scripts that an ordinary client would run on installation."""
    signatures: tuple[RegistrySignature, ...] = ()
    signer: FileSignature | None = None
    """The signature inside the file, for the kinds that can have one."""
    attestations: tuple[Attestation, ...] = ()
    problems: tuple[Problem, ...] = ()
    """What is wrong with the bytes themselves, apart from any comparison."""


class Problem(Record):
    """Something that makes an artifact unacceptable by itself: an unsafe archive, a false signature, a false name."""

    code: str
    message: str
