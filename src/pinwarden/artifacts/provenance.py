"""Records of provenance: identities of signers, in-toto statements and outcomes. Nothing is verified here.

An :class:`Identity` comes from a verified certificate or key. The origin that a statement states is only a claim,
used to detect statements that contradict their certificate.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as BinasciiError
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NoReturn, get_args
from urllib.parse import quote, unquote, urlsplit

from pinwarden.artifacts.artifact import ArtifactFile, Ecosystem, PackageRef
from pinwarden.core import strict_json
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, field_names
from pinwarden.core.strict_json import Limits
from pinwarden.lock.entry import raise_invalid

ProvenanceKind = Literal[
    "slsa-provenance/v1",
    "slsa-provenance/v0.2",
    "pypi-publish",
    "npm-publish",
    "in-toto",
    "cosign-signature",
    "signature",
]
"""The type of a signed document: build provenance, a publication, another statement, or only the bytes."""
RefClass = Literal["tag", "branch", "pull-request", "other"]
OutcomeState = Literal["verified", "failed", "unavailable"]
SignerKind = Literal["certificate", "key", "unknown"]

KINDS: tuple[str, ...] = get_args(ProvenanceKind)
LIMITS = Limits(max_bytes=8 * 1024 * 1024)
"""Real statements and bundles have less than 100 kB, but a release with many files may list all of them."""

_SLSA_1, _SLSA_02 = "https://slsa.dev/provenance/v1", "https://slsa.dev/provenance/v0.2"
_NPM_PUBLISH = "https://github.com/npm/attestation/tree/main/specs/publish/"
_PYPI_PUBLISH = "/attestations/publish/v1"  # the signer chooses the complete text, so its host proves nothing
_COSIGN = ("https://sigstore.dev/cosign/sign/v1", "cosign.sigstore.dev/attestation/")
_STATEMENT_TYPES = ("https://in-toto.io/Statement/v1", "https://in-toto.io/Statement/v0.1")
_COMPARED_ALGORITHMS = ("sha256", "sha384", "sha512")
_MAX_SUBJECTS = 10_000
_MAX_TEXT = 2048
_NOT_DISPLAYABLE = re.compile(r"[^\x21-\x7e]")
# Hosts where a repository is owner/name, case-insensitively; the rest of a URL is a path within the repository.
_OWNER_NAME_HOSTS = ("github.com", "bitbucket.org", "codeberg.org")
_SHORTHANDS = {"github": "github.com", "gitlab": "gitlab.com", "bitbucket": "bitbucket.org"}


# Identities


class Identity(Record):
    """The signer, according to the certificate or key. Fields that the certificate does not state are empty."""

    kind: ProvenanceKind
    issuer: str = ""
    """The URL of the OpenID Connect issuer that authenticated the signer."""
    signer: str = ""
    """The signer's name if it is a person or an account rather than a build."""
    repository: str = ""
    repository_id: str = ""
    """The numeric ID of the repository at its forge. A repository that is deleted and created again gets another ID."""
    owner_id: str = ""
    workflow: str = ""
    """The path of the workflow file within the repository."""
    ref: str = ""
    builder: str = ""
    """The URL of the workflow that signed, without its ref. Differs from ``workflow`` for reusable workflows."""
    runner: str = ""
    """The type of machine that the build ran on, such as ``github-hosted`` or ``self-hosted``."""
    commit: str = ""
    key_id: str = ""
    """The key that signed, if there is no certificate."""

    @property
    def ref_class(self) -> RefClass:
        """The kind of ref that the artifact was built from."""
        return classify_ref(self.ref)

    @property
    def by_certificate(self) -> bool:
        """Whether a certificate states the identity."""
        return not self.key_id

    def __str__(self) -> str:
        if self.repository:
            return f"{self.repository} ({self.workflow or 'unknown workflow'}, {self.ref_class})"
        return self.signer or self.builder or f"key {self.key_id}"


def classify_ref(ref: str) -> RefClass:
    """Return the kind of a ref. A bare name could be a tag or a branch, so it is ``other``."""
    if ref.startswith("refs/tags/"):
        return "tag"
    if ref.startswith("refs/heads/"):
        return "branch"
    if ref.startswith(("refs/pull/", "refs/merge-requests/")):
        return "pull-request"
    return "other"


_MEMBER_BY_FIELD = {
    name: re.sub(r"_(\w)", lambda letter: letter[1].upper(), name) for name in field_names(Identity) if name != "kind"
}


def identity_to_json(identity: Identity) -> dict[str, str]:
    """Return the identity as the lockfile stores it in ``LockExtension.provenance``."""
    texts = {
        member: str(getattr(identity, name)) for name, member in _MEMBER_BY_FIELD.items() if getattr(identity, name)
    }
    return {"kind": identity.kind, **texts, **({"refClass": identity.ref_class} if identity.by_certificate else {})}


def identity_from_json(record: Mapping[str, Any], path: str = "provenance") -> Identity:
    """Parse an identity from a lockfile; raises ``LOCK_INVALID``. Unknown members are ignored."""
    if record.get("kind") not in KINDS:
        raise_invalid(f"{path}/kind", "is not a known kind of provenance")
    texts: dict[str, Any] = {}
    for name, member in _MEMBER_BY_FIELD.items():
        value = record.get(member, "")
        if not isinstance(value, str) or not is_displayable(value):
            raise_invalid(f"{path}/{member}", "is not a short string without spaces")
        texts[name] = value
    identity = Identity(kind=record["kind"], **texts)
    if not (identity.repository or identity.signer or identity.builder or identity.key_id):
        raise_invalid(path, "names no signer")
    if "refClass" in record and record["refClass"] != identity.ref_class:
        raise_invalid(f"{path}/refClass", "does not match the ref")
    return identity


def is_displayable(text: str) -> bool:
    """Whether a text is short, printable ASCII without spaces, so that people can compare it by eye."""
    return len(text) <= _MAX_TEXT and not _NOT_DISPLAYABLE.search(text)


def percent_encode(text: str) -> str:
    """Percent-encode all characters except printable ASCII. Refs may contain any character."""
    return _NOT_DISPLAYABLE.sub(lambda match: quote(match[0], errors="surrogatepass"), text)


def normalize_repository_url(text: str) -> str:
    """Normalise a repository URL in any form that package metadata uses; empty if the text is not a repository URL."""
    url = text.strip().removeprefix("git+")
    shorthand, colon, rest = url.partition(":")
    if colon and shorthand in _SHORTHANDS:
        url = f"https://{_SHORTHANDS[shorthand]}/{rest}"
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", url, re.ASCII):
        url = f"https://github.com/{url}"  # npm's shorthand
    elif scp := re.fullmatch(r"[\w.-]+@([\w.-]+):(?!/)(.+)", url, re.ASCII):
        url = f"https://{scp[1]}/{scp[2]}"
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").removeprefix("www.")
        port = f":{parts.port}" if parts.port and parts.scheme != "ssh" else ""
    except ValueError:
        return ""
    segments = [step for step in parts.path.partition("/-/")[0].split("/") if step]
    if host in _OWNER_NAME_HOSTS:
        segments = segments[:2]
    if not host or len(segments) < 2:
        return ""
    segments[-1] = segments[-1].removesuffix(".git")
    path = "/".join(segments)
    return f"https://{host}{port}/{path.lower() if host in (*_OWNER_NAME_HOSTS, 'gitlab.com') else path}"


# Statements


class Subject(Record):
    """One artifact that a statement is about."""

    name: str
    digests: tuple[Digest, ...]
    """The digests with algorithms that Pinwarden compares."""


class ProvenanceStatement(Record):
    """An in-toto statement, with the claims of its signer."""

    predicate_type: str
    subjects: tuple[Subject, ...]
    predicate: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def kind(self) -> ProvenanceKind:
        """The kind of statement, by its predicate type."""
        return classify_statement(self.predicate_type)


class ExpectedSubject(Record):
    """The artifact that a statement must be about: its name, and the digests that Pinwarden computed."""

    ecosystem: Ecosystem
    name: str
    """For ``npm`` the package, for ``pypi`` the file. Names are not compared in other ecosystems."""
    version: str = ""
    digests: tuple[Digest, ...]

    def digest(self, algorithm: str) -> Digest | None:
        """Return the digest with one algorithm, if there is one."""
        return next((digest for digest in self.digests if digest.algorithm == algorithm), None)


def expect_file(package: PackageRef, file: ArtifactFile) -> ExpectedSubject:
    """Return the subject for a downloaded and hashed file."""
    name = file.name if package.ecosystem == "pypi" else package.name
    return ExpectedSubject(ecosystem=package.ecosystem, name=name, version=package.version, digests=file.digests)


def expect_image(package: PackageRef, digest: Digest) -> ExpectedSubject:
    """Return the subject for a fetched and hashed image index or manifest."""
    return ExpectedSubject(ecosystem="oci", name=package.name, digests=(digest,))


def classify_statement(predicate_type: str) -> ProvenanceKind:
    """Return the kind of statement for a predicate type."""
    if predicate_type in (_SLSA_1, _SLSA_1 + ".0"):
        return "slsa-provenance/v1"
    if predicate_type == _SLSA_02:
        return "slsa-provenance/v0.2"
    if predicate_type.startswith(_NPM_PUBLISH):
        return "npm-publish"
    if predicate_type.endswith(_PYPI_PUBLISH):
        return "pypi-publish"
    return "cosign-signature" if predicate_type.startswith(_COSIGN) else "in-toto"


def parse_statement(data: bytes) -> ProvenanceStatement:
    """Parse an in-toto statement, version 1 or 0.1."""
    document = strict_json.parse_json(data, LIMITS)
    if not isinstance(document, dict) or document.get("_type") not in _STATEMENT_TYPES:
        _refuse("is not an in-toto statement")
    predicate_type, predicate = document.get("predicateType"), document.get("predicate")
    if not isinstance(predicate_type, str) or not predicate_type or not is_displayable(predicate_type):
        _refuse("has no valid predicateType")
    if predicate is not None and not isinstance(predicate, dict):
        _refuse("has a predicate that is not an object")
    subjects_json = document.get("subject")
    if not isinstance(subjects_json, list) or not subjects_json or len(subjects_json) > _MAX_SUBJECTS:
        _refuse("has no subject, or too many")
    subjects = tuple(_parse_subject(row) for row in subjects_json)
    return ProvenanceStatement(predicate_type=predicate_type, subjects=subjects, predicate=predicate or {})


def _parse_subject(row: Any) -> Subject:
    digests = row.get("digest") if isinstance(row, dict) else None
    name = row.get("name", "") if isinstance(row, dict) else None
    if not isinstance(name, str) or not isinstance(digests, dict) or not digests:
        _refuse("has a subject without name or digest")
    return Subject(name=name, digests=tuple(_parse_digests(digests)))


def _parse_digests(digests: Mapping[str, Any]) -> Iterator[Digest]:
    for algorithm in _COMPARED_ALGORITHMS:
        if algorithm in digests:
            text = digests[algorithm]
            if not isinstance(text, str):
                _refuse("has a digest that is not a string")
            yield Digest.parse(f"{algorithm}:{text}")


def parse_simple_signing(data: bytes) -> Digest:
    """Return the manifest digest in the payload of a legacy cosign signature."""
    document = strict_json.parse_json(data, LIMITS)
    critical = _as_object(_as_object(document).get("critical"))
    digest = _as_object(critical.get("image")).get("docker-manifest-digest")
    if critical.get("type") != "cosign container image signature" or not isinstance(digest, str):
        _refuse("is not a cosign container image signature")
    return Digest.parse(digest)


def find_subject_mismatch(statement: ProvenanceStatement, expected: ExpectedSubject) -> str:
    """Return the reason why a statement is not about the expected artifact; empty if the statement matches it."""
    same_name = [subject for subject in statement.subjects if _has_expected_name(subject, expected)]
    if not same_name:
        return f"the statement is about {statement.subjects[0].name[:200]!a}, not {expected.name[:200]!a}"
    if not any(_has_expected_digest(subject, expected) for subject in same_name):
        return "the statement is about different bytes"
    if statement.kind == "npm-publish":
        stated = (statement.predicate.get("name"), statement.predicate.get("version"))
        if stated != (expected.name, expected.version):
            return "the statement is about the publication of another package"
    return ""


def _has_expected_name(subject: Subject, expected: ExpectedSubject) -> bool:
    if expected.ecosystem == "npm":
        return unquote(subject.name) == f"pkg:npm/{expected.name}@{expected.version}"
    if expected.ecosystem == "pypi":
        return subject.name == expected.name or _build_file_key(subject.name) == _build_file_key(expected.name)
    return True


def _build_file_key(name: str) -> object:
    """Return a key that is equal for equivalent file names; PEP 427 and PEP 625 allow several forms of one name."""
    from packaging.utils import (
        InvalidSdistFilename,
        InvalidWheelFilename,
        parse_sdist_filename,
        parse_wheel_filename,
    )

    try:
        if name.endswith(".whl"):
            return parse_wheel_filename(name)
        return (*parse_sdist_filename(name), name.endswith(".zip"))
    except (InvalidWheelFilename, InvalidSdistFilename):
        return name


def _has_expected_digest(subject: Subject, expected: ExpectedSubject) -> bool:
    """Whether all digests with common algorithms are equal, and there is at least one."""
    pairs = [
        (stated, computed) for stated in subject.digests if (computed := expected.digest(stated.algorithm)) is not None
    ]
    return bool(pairs) and all(stated == computed for stated, computed in pairs)


# The origin that a statement claims


def find_contradictions(statement: ProvenanceStatement, identity: Identity) -> tuple[str, ...]:
    """Return the fields in which a provenance statement contradicts the certificate of its signer."""
    fields = []
    for name, claimed in _read_origin_claims(statement).items():
        normalise = normalize_repository_url if name == "repository" else percent_encode
        stated, proven = normalise(claimed), normalise(getattr(identity, name))
        if stated and proven and stated != proven:
            fields.append(name)
    return tuple(fields)


def _read_origin_claims(statement: ProvenanceStatement) -> dict[str, str]:
    """Return a statement's claims, by field of :class:`Identity`."""
    predicate = statement.predicate
    if statement.kind == "slsa-provenance/v1":
        definition = _as_object(predicate.get("buildDefinition"))
        workflow = _as_object(_as_object(definition.get("externalParameters")).get("workflow"))
        forge = _as_object(_as_object(definition.get("internalParameters")).get("github"))
        builder = _as_object(_as_object(predicate.get("runDetails")).get("builder"))
        claims = {
            "repository": workflow.get("repository"),
            "ref": workflow.get("ref"),
            "workflow": workflow.get("path"),
            "repository_id": forge.get("repository_id"),
            "owner_id": forge.get("repository_owner_id"),
            "runner": forge.get("runner_environment") or _parse_runner(builder.get("id")),
            "commit": _find_source_commit(
                definition.get("resolvedDependencies"), workflow.get("repository"), "gitCommit"
            ),
        }
    elif statement.kind == "slsa-provenance/v0.2":
        source = _as_object(_as_object(predicate.get("invocation")).get("configSource"))
        repository, _, ref = str(source.get("uri", "")).partition("@")
        claims = {
            "repository": repository,
            "ref": ref if ref.startswith("refs/") else "",
            "workflow": _parse_workflow_path(source.get("entryPoint")),
            "runner": _parse_runner(_as_object(predicate.get("builder")).get("id")),
            "commit": _as_object(source.get("digest")).get("sha1"),
        }
    else:
        claims = {}
    return {name: value for name, value in claims.items() if isinstance(value, str)}


def _parse_runner(builder: Any) -> str:
    prefix = "https://github.com/actions/runner/"
    return builder.removeprefix(prefix) if isinstance(builder, str) and builder.startswith(prefix) else ""


def _parse_workflow_path(entry_point: Any) -> str:
    """Return the entry point if it is the path of a workflow file; empty if it is the name of a step."""
    return entry_point if isinstance(entry_point, str) and "/" in entry_point else ""


def _find_source_commit(dependencies: Any, repository: Any, algorithm: str) -> Any:
    """Return the commit of the repository that was built, among all build dependencies."""
    for dependency in dependencies if isinstance(dependencies, list) else ():
        uri = _as_object(dependency).get("uri")
        if isinstance(uri, str) and isinstance(repository, str):
            source = uri.partition("@")[0]
            if normalize_repository_url(source) == normalize_repository_url(repository) != "":
                return _as_object(_as_object(dependency).get("digest")).get(algorithm)
    return None


# A registry's keys


class RegistryKey(Record):
    """A public key with which a registry signs."""

    key_id: str
    spki: bytes = field(repr=False)
    """The key as SubjectPublicKeyInfo in DER."""
    expires: str | None = None


def parse_registry_keys(data: bytes) -> tuple[RegistryKey, ...]:
    """Parse npm's ``-/npm/v1/keys`` document. Skips malformed keys, which could not verify a signature anyway."""
    rows = _as_object(strict_json.parse_json(data, LIMITS)).get("keys")
    if not isinstance(rows, list):
        _refuse("has no list of keys")
    keys = []
    for row in map(_as_object, rows):
        key_id, text, expires = row.get("keyid"), row.get("key"), row.get("expires")
        if isinstance(key_id, str) and isinstance(text, str) and isinstance(expires, str | None):
            try:
                keys.append(RegistryKey(key_id=key_id, spki=b64decode(text, validate=True), expires=expires))
            except (BinasciiError, ValueError):
                continue
    return tuple(keys)


# Outcomes


class ProvenanceOutcome(Record):
    """The outcome of verifying one attestation."""

    state: OutcomeState
    """``unavailable`` if Pinwarden could not verify the attestation, which does not count as verified."""
    signer: SignerKind
    """Whether the attestation is signed with a certificate or a key, according to its format."""
    method: str
    """The verification method, such as ``sigstore-dsse`` or ``npm-registry-key``."""
    anchor: str = ""
    """The trust root or key that the verification relies on."""
    identity: Identity | None = None
    """The signer. Set only if the state is ``verified``."""
    reason: str = ""
    """Why the verification failed or was not possible."""


def choose_strongest_identity(outcomes: tuple[ProvenanceOutcome, ...]) -> Identity | None:
    """Return the verified identity with the strongest kind of provenance. Pinwarden pins this one."""
    identities = [
        outcome.identity for outcome in outcomes if outcome.state == "verified" and outcome.identity is not None
    ]
    return min(identities, key=lambda identity: KINDS.index(identity.kind), default=None)


def _as_object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _refuse(problem: str) -> NoReturn:
    raise PinwardenError("PROVENANCE_INVALID", f"the provenance document {problem}")
