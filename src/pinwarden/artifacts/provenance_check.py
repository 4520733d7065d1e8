"""Verifies attestations: the signature, the digest of the attested artifact, and the identity of the signer.

The identity comes from the verified certificate or key, never from the statement. The outcome is ``failed`` if the
attestation does not verify, and ``unavailable`` if Pinwarden lacks the key or the library to verify it.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as BinasciiError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pinwarden.artifacts.artifact import ArtifactAttestation, FetchedArtifact
from pinwarden.artifacts.provenance import (
    LIMITS,
    ExpectedSubject,
    Identity,
    ProvenanceOutcome,
    ProvenanceStatement,
    RegistryKey,
    SignerKind,
    expect_file,
    expect_image,
    find_contradictions,
    find_subject_mismatch,
    parse_registry_keys,
    parse_simple_signing,
    parse_statement,
)
from pinwarden.artifacts.sigstore_root import (
    IN_TOTO,
    SigstoreRoot,
    VerificationFailed,
    VerificationUnavailable,
    load_root,
)
from pinwarden.core import strict_json
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

if TYPE_CHECKING:
    from pinwarden.system.net.connections import ServiceEndpoint
    from pinwarden.system.net.fetch import Fetcher

_SIMPLE_SIGNING = "application/vnd.dev.cosign.simplesigning.v1+json"
_DSSE = "application/vnd.dsse.envelope.v1+json"
_SIGNATURE_KEY = "dev.cosignproject.cosign/signature"
_CERTIFICATE_KEY, _LOG_ENTRY_KEY = "dev.sigstore.cosign/certificate", "dev.sigstore.cosign/bundle"
_VERIFICATION_ERRORS = ("PROVENANCE_INVALID", "JSON_PARSE_ERROR", "JSON_CANONICALIZATION_ERROR", "DIGEST_INVALID")
"""Error codes that mean that the attestation is invalid."""


def fetch_registry_keys(fetcher: Fetcher, endpoint: ServiceEndpoint) -> tuple[RegistryKey, ...]:
    """Fetch the public keys of an npm registry. Returns an empty tuple if the registry publishes none."""
    from pinwarden.system.net.fetch import FetchRequest
    from pinwarden.system.net.network_errors import fetch_error

    request = FetchRequest(endpoint=endpoint, url=f"{endpoint.url}-/npm/v1/keys", accept="application/json")
    response = fetcher.get(request, max_bytes=LIMITS.max_bytes)
    if not response.found:
        return ()
    try:
        return parse_registry_keys(response.body)
    except PinwardenError as err:
        raise fetch_error("protocol", f"the registry's keys are invalid: {err.message}") from err


class _AttestationCheck(Record):
    """The method to verify one attestation, chosen by its format."""

    signer: SignerKind
    method: str
    run: Callable[[], tuple[Identity, str]]
    """Returns the signer's identity and the trust anchor.

    Raises ``VerificationFailed`` or ``VerificationUnavailable``.
    """


@dataclass(slots=True, kw_only=True)
class ProvenanceVerifier:
    """Verifies attestations offline, with a trust root and a set of keys."""

    now: str
    trust_root: Path | None = None
    """Path of a ``trusted_root.json``. Without it, the public root of the package ``sigstore`` is used."""
    registry_keys: tuple[RegistryKey, ...] = ()
    """The keys of an npm registry, for its publish attestations."""
    public_keys: tuple[bytes, ...] = ()
    """Public keys in PEM, for signatures without a certificate."""
    _root: SigstoreRoot | VerificationUnavailable | None = field(default=None, repr=False, init=False)

    def verify_all(self, artifact: FetchedArtifact) -> tuple[ProvenanceOutcome, ...]:
        """Verify every attestation of an artifact. Each must be about the file it was published with."""
        return tuple(self._verify_one(artifact, attestation) for attestation in artifact.attestations)

    def verify(self, attestation: ArtifactAttestation, expected: ExpectedSubject) -> ProvenanceOutcome:
        """Verify one attestation, which must be about the expected subject."""
        check = _AttestationCheck(signer="unknown", method="none", run=_refuse_malformed)
        try:
            check = self._choose_check(attestation.bundle, expected)
            identity, anchor = check.run()
        except VerificationUnavailable as err:
            return _build_outcome("unavailable", check, reason=str(err))
        except VerificationFailed as err:
            return _build_outcome("failed", check, reason=str(err))
        except PinwardenError as err:
            if err.code not in _VERIFICATION_ERRORS:
                raise
            return _build_outcome("failed", check, reason=err.message)
        return _build_outcome("verified", check, identity=identity, anchor=anchor)

    def _verify_one(self, artifact: FetchedArtifact, attestation: ArtifactAttestation) -> ProvenanceOutcome:
        expected = _find_subject(artifact, attestation)
        if expected is None:
            reason = f"Pinwarden did not fetch the attested file {attestation.file[:120]!a}"
            return ProvenanceOutcome(state="unavailable", signer="unknown", method="none", reason=reason)
        return self.verify(attestation, expected)

    def _choose_check(self, bundle: bytes, expected: ExpectedSubject) -> _AttestationCheck:
        document = strict_json.parse_json(bundle, LIMITS)
        if not isinstance(document, dict):
            _refuse("the attestation is not a JSON object")
        if {"annotations", "mediaType", "payload"} <= document.keys():
            return self._choose_cosign_check(document, expected)
        material = _get_object(document, "verificationMaterial")
        if "publicKey" in material:
            is_npm = expected.ecosystem == "npm"
            method = "npm-registry-key" if is_npm else "public-key"
            return _AttestationCheck(
                signer="key", method=method, run=lambda: self._verify_key_bundle(document, expected)
            )
        if "dsseEnvelope" in document:
            return _AttestationCheck(
                signer="certificate",
                method="sigstore-dsse",
                run=lambda: self._verify_certified_statement(bundle, expected),
            )
        return _AttestationCheck(
            signer="certificate",
            method="sigstore-signature",
            run=lambda: self._verify_certified_bytes(bundle, expected),
        )

    def _load_root_once(self) -> SigstoreRoot:
        """Load the trust root on the first call. Later calls return the same root or raise the same error."""
        if self._root is None:
            try:
                self._root = load_root(self.trust_root)
            except VerificationUnavailable as err:
                self._root = err
        if isinstance(self._root, VerificationUnavailable):
            raise self._root
        return self._root

    # Sigstore bundles with a certificate

    def _verify_certified_statement(self, bundle: bytes, expected: ExpectedSubject) -> tuple[Identity, str]:
        from pinwarden.artifacts.sigstore_root import read_identity

        root = self._load_root_once()
        signed = root.verify_envelope(bundle)
        statement = _parse_statement_about(signed.payload_type, signed.payload, expected)
        identity = read_identity(signed.certificate, statement.kind)
        if contradictions := find_contradictions(statement, identity):
            _refuse(f"the statement contradicts the certificate of its signer: {', '.join(contradictions)}")
        return identity, root.anchor

    def _verify_certified_bytes(self, bundle: bytes, expected: ExpectedSubject) -> tuple[Identity, str]:
        from pinwarden.artifacts.sigstore_root import read_identity

        root = self._load_root_once()
        signed = root.verify_digest(bundle, _get_sha256(expected))
        return read_identity(signed.certificate, "signature"), root.anchor

    # Sigstore bundles with a key

    def _verify_key_bundle(self, document: Mapping[str, Any], expected: ExpectedSubject) -> tuple[Identity, str]:
        """Verify a bundle that is signed with a key: of the npm registry, or else one of ``public_keys``.

        A registry's key must have signed a publish attestation before the key expired. Other keys do not expire.
        """
        hint = _get_object(_get_object(document, "verificationMaterial"), "publicKey").get("hint")
        envelope = _DsseEnvelope.parse(_get_object(document, "dsseEnvelope"))
        key = self._find_registry_key(hint) if expected.ecosystem == "npm" else None
        if key is None:
            return self._verify_with_configured_key(envelope, expected)
        if not _is_signed_by(key, envelope):
            _refuse("the signature does not match the registry's key")
        statement = _parse_statement_about(envelope.payload_type, envelope.payload, expected)
        if statement.kind != "npm-publish":
            _refuse("the registry's key signed a statement that is not a publish attestation")
        self._check_key_expiry(key, document, envelope)
        return Identity(kind=statement.kind, key_id=key.key_id), f"registry key {key.key_id}"

    def _find_registry_key(self, hint: Any) -> RegistryKey | None:
        key = next((candidate for candidate in self.registry_keys if candidate.key_id == hint), None)
        if key is None and not self.public_keys:
            if self.registry_keys:
                _refuse("the attestation is signed with a key that the registry does not publish")
            raise VerificationUnavailable("the attestation is signed with a key, but the registry publishes no keys")
        return key

    def _check_key_expiry(self, key: RegistryKey, document: Mapping[str, Any], envelope: _DsseEnvelope) -> None:
        """Accept an expired key only if the transparency log recorded the signature before the key expired."""
        if key.expires is None or _is_before(self.now, key.expires):
            return
        entries = _get_object(document, "verificationMaterial").get("tlogEntries")
        if not isinstance(entries, list) or len(entries) != 1 or not isinstance(entries[0], dict):
            _refuse("the registry's key has expired, and the attestation has no log entry with the signing time")
        signed_at = self._load_root_once().verify_log_time(entries[0], envelope.payload, envelope.signature, key.spki)
        if not _is_before(signed_at.isoformat(), key.expires):
            _refuse("the registry's key had expired before the attestation was signed")

    def _verify_with_configured_key(self, envelope: _DsseEnvelope, expected: ExpectedSubject) -> tuple[Identity, str]:
        key = self._find_signing_key(envelope.signature, envelope.signed_bytes)
        statement = _parse_statement_about(envelope.payload_type, envelope.payload, expected)
        return Identity(kind=statement.kind, key_id=key.key_id), f"public key {key.key_id}"

    def _find_signing_key(self, signature: bytes, message: bytes) -> _PublicKey:
        if not self.public_keys:
            raise VerificationUnavailable("the attestation is signed with a key, but no public key is configured")
        for key in (_PublicKey.load(pem, pem=True) for pem in self.public_keys):
            if key.verify(signature, message):
                return key
        _refuse("the attestation is not signed with any of the configured public keys")

    # Cosign's older formats

    def _choose_cosign_check(self, document: Mapping[str, Any], expected: ExpectedSubject) -> _AttestationCheck:
        annotations = _get_object(document, "annotations")
        has_certificate = _CERTIFICATE_KEY in annotations
        match document["mediaType"]:
            case media_type if media_type == _SIMPLE_SIGNING and has_certificate:
                return _AttestationCheck(
                    signer="certificate",
                    method="cosign-certificate",
                    run=lambda: self._verify_cosign_certificate(document, annotations, expected),
                )
            case media_type if media_type == _SIMPLE_SIGNING:
                return _AttestationCheck(
                    signer="key",
                    method="cosign-key",
                    run=lambda: self._verify_cosign_key(document, annotations, expected),
                )
            case media_type if media_type == _DSSE and not has_certificate:
                return _AttestationCheck(
                    signer="key", method="public-key", run=lambda: self._verify_cosign_statement(document, expected)
                )
        return _AttestationCheck(signer="unknown", method="none", run=_refuse_unsupported)

    def _verify_cosign_certificate(
        self, document: Mapping[str, Any], annotations: Mapping[str, Any], expected: ExpectedSubject
    ) -> tuple[Identity, str]:
        from pinwarden.artifacts.sigstore_root import read_identity

        root, payload = self._load_root_once(), _get_base64(document, "payload")
        certificate, log_entry = annotations[_CERTIFICATE_KEY], annotations.get(_LOG_ENTRY_KEY)
        if not isinstance(certificate, str) or not isinstance(log_entry, str):
            _refuse("the attestation has no log entry with the signing time")
        signed = root.verify_cosign(
            certificate.encode(), _get_base64(annotations, _SIGNATURE_KEY), payload, log_entry.encode()
        )
        _check_image(payload, expected)
        return read_identity(signed.certificate, "cosign-signature"), root.anchor

    def _verify_cosign_key(
        self, document: Mapping[str, Any], annotations: Mapping[str, Any], expected: ExpectedSubject
    ) -> tuple[Identity, str]:
        payload, signature = _get_base64(document, "payload"), _get_base64(annotations, _SIGNATURE_KEY)
        key = self._find_signing_key(signature, payload)
        _check_image(payload, expected)
        return Identity(kind="cosign-signature", key_id=key.key_id), f"public key {key.key_id}"

    def _verify_cosign_statement(self, document: Mapping[str, Any], expected: ExpectedSubject) -> tuple[Identity, str]:
        envelope = _DsseEnvelope.parse(strict_json.parse_json(_get_base64(document, "payload"), LIMITS))
        return self._verify_with_configured_key(envelope, expected)


def _build_outcome(
    state: Any, check: _AttestationCheck, *, identity: Identity | None = None, anchor: str = "", reason: str = ""
) -> ProvenanceOutcome:
    return ProvenanceOutcome(
        state=state, signer=check.signer, method=check.method, identity=identity, anchor=anchor, reason=reason
    )


def _find_subject(artifact: FetchedArtifact, attestation: ArtifactAttestation) -> ExpectedSubject | None:
    """Return the file or image that an attestation is about; None if Pinwarden did not fetch it."""
    if artifact.image is not None:
        is_about_root = attestation.file in ("", str(artifact.image.root))
        return expect_image(artifact.package, artifact.image.root) if is_about_root else None
    files = [file for file in artifact.files if attestation.file in ("", file.name)]
    return expect_file(artifact.package, files[0]) if len(files) == 1 else None


def _parse_statement_about(payload_type: str, payload: bytes, expected: ExpectedSubject) -> ProvenanceStatement:
    if payload_type != IN_TOTO:
        _refuse("the envelope has no in-toto statement")
    statement = parse_statement(payload)
    if problem := find_subject_mismatch(statement, expected):
        _refuse(problem)
    return statement


def _check_image(payload: bytes, expected: ExpectedSubject) -> None:
    if parse_simple_signing(payload) != _get_sha256(expected):
        _refuse("the signature is for another image")


def _get_sha256(expected: ExpectedSubject) -> Digest:
    digest = expected.digest("sha256")
    if digest is None:
        raise VerificationUnavailable("the artifact was not hashed with SHA-256")
    return digest


# Signatures without a certificate


class _DsseEnvelope(Record):
    """A DSSE envelope with one signature."""

    payload_type: str
    payload: bytes
    signature: bytes

    @classmethod
    def parse(cls, document: Any) -> _DsseEnvelope:
        signatures = document.get("signatures") if isinstance(document, dict) else None
        payload_type = document.get("payloadType") if isinstance(document, dict) else None
        if not isinstance(payload_type, str) or not isinstance(signatures, list) or len(signatures) != 1:
            _refuse("the envelope does not have exactly one signature")
        signature = _get_base64(signatures[0], "sig") if isinstance(signatures[0], dict) else b""
        return cls(payload_type=payload_type, payload=_get_base64(document, "payload"), signature=signature)

    @property
    def signed_bytes(self) -> bytes:
        """The pre-authentication encoding of payload type and payload, which the signature covers.

        See https://github.com/secure-systems-lab/dsse/blob/v1.0.0/protocol.md.
        """
        payload_type = self.payload_type.encode("utf-8", "surrogatepass")
        return b"DSSEv1 %d %b %d %b" % (len(payload_type), payload_type, len(self.payload), self.payload)


class _PublicKey(Record):
    """A public key, identified by the digest of its SubjectPublicKeyInfo."""

    key: Any
    key_id: str

    @classmethod
    def load(cls, data: bytes, *, pem: bool) -> _PublicKey:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            PublicFormat,
            load_der_public_key,
            load_pem_public_key,
        )

        try:
            key = load_pem_public_key(data) if pem else load_der_public_key(data)
        except (ValueError, TypeError, UnsupportedAlgorithm) as err:
            raise PinwardenError("KEY_INVALID", "a public key for provenance is malformed") from err
        if not isinstance(key, ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey):
            raise PinwardenError("KEY_INVALID", "a public key for provenance is neither ECDSA nor Ed25519")
        return cls(
            key=key, key_id=str(Digest.of_bytes(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)))
        )

    def verify(self, signature: bytes, message: bytes) -> bool:
        """Whether the key made this signature."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.hashes import SHA256

        algorithm: Sequence[Any] = (ec.ECDSA(SHA256()),) if isinstance(self.key, ec.EllipticCurvePublicKey) else ()
        try:
            self.key.verify(signature, message, *algorithm)
        except InvalidSignature:
            return False
        return True


def _is_signed_by(key: RegistryKey, envelope: _DsseEnvelope) -> bool:
    try:
        public = _PublicKey.load(key.spki, pem=False)
    except PinwardenError as err:  # KEY_INVALID is for keys that the user configured
        raise VerificationFailed("the registry's key is malformed") from err
    return public.verify(envelope.signature, envelope.signed_bytes)


def _is_before(earlier: str, later: str) -> bool:
    """Whether ``earlier`` is before ``later``. False if one of them is not a timestamp."""
    try:
        first, second = (datetime.fromisoformat(text) for text in (earlier, later))
    except ValueError:
        return False
    return (first if first.tzinfo else first.replace(tzinfo=UTC)) < (
        second if second.tzinfo else second.replace(tzinfo=UTC)
    )


def _get_object(document: Mapping[str, Any], member: str) -> Mapping[str, Any]:
    value = document.get(member)
    return value if isinstance(value, dict) else _refuse(f"the attestation has no {member}")


def _get_base64(document: Mapping[str, Any], member: str) -> bytes:
    text = document.get(member)
    try:
        return b64decode(text, validate=True) if isinstance(text, str) else _refuse(f"the attestation has no {member}")
    except (BinasciiError, ValueError) as err:
        raise VerificationFailed(f"the {member} of the attestation is not base64") from err


def _refuse_malformed() -> NoReturn:
    raise VerificationFailed("the attestation is malformed")


def _refuse_unsupported() -> NoReturn:
    raise VerificationUnavailable("the format of the attestation is not supported")


def _refuse(problem: str) -> NoReturn:
    raise VerificationFailed(problem)
