"""Verifies Sigstore signatures offline. No other module uses the package ``sigstore``.

``sigstore`` 4.5 verifies bundles with recent types of log entries. It does not verify the log entries of npm's
attestations (``intoto`` 0.0.2), nor cosign's older signatures, which have a signed entry timestamp but no inclusion
proof. This module verifies those with the functions of ``sigstore``, in the order of ``sigstore.verify.Verifier``.
"""

from __future__ import annotations

import hashlib
import logging
from base64 import b64decode
from binascii import Error as BinasciiError
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pinwarden.artifacts.provenance import Identity, ProvenanceKind, is_displayable, percent_encode
from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.strict_json import Limits
from pinwarden.core.text import show_invisible
from pinwarden.system.files import read_file

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from sigstore.models import Bundle, TransparencyLogEntry
    from sigstore.verify import Verifier

IN_TOTO = "application/vnd.in-toto+json"
_ROOT_LIMITS = Limits(max_bytes=4 * 1024 * 1024)
_INTOTO_ENTRY = ("intoto", "0.0.2")


class VerificationUnavailable(Exception):  # noqa: N818 - not an error in the attestation
    """The package sigstore is not installed or not supported, or Pinwarden does not have the key."""


class VerificationFailed(Exception):  # noqa: N818 - the outcome of a check
    """The signature, its certificate or its log entry does not verify."""


class VerifiedSignature(Record):
    """A verified signature: the signed payload and the signer's certificate."""

    certificate: Certificate
    payload: bytes = field(repr=False, default=b"")
    """The payload of the envelope; empty for a detached signature."""
    payload_type: str = ""


class SigstoreRoot(Record):
    """A Sigstore trust root: certificate authorities and transparency logs."""

    verifier: Verifier = field(repr=False)
    anchor: str
    """The digest and the source of the root, for messages."""

    def verify_envelope(self, bundle_json: bytes) -> VerifiedSignature:
        """Verify a bundle with a DSSE envelope."""
        with _convert_errors():
            bundle = _parse_bundle(bundle_json)
            kind = bundle.log_entry._inner.kind_version
            if (kind.kind, kind.version) == _INTOTO_ENTRY:
                return _verify_intoto_bundle(self.verifier, bundle)
            payload_type, payload = self.verifier.verify_dsse(bundle, _AnyIdentity())
            return VerifiedSignature(certificate=bundle.signing_certificate, payload=payload, payload_type=payload_type)

    def verify_digest(self, bundle_json: bytes, digest: Digest) -> VerifiedSignature:
        """Verify a bundle with a detached signature over the bytes that have this SHA-256 digest."""
        from sigstore.hashes import Hashed
        from sigstore_models.common.v1 import HashAlgorithm

        with _convert_errors():
            bundle = _parse_bundle(bundle_json)
            hashed = Hashed(algorithm=HashAlgorithm.SHA2_256, digest=digest.raw)
            self.verifier.verify_artifact(hashed, bundle, _AnyIdentity())
            return VerifiedSignature(certificate=bundle.signing_certificate)

    def verify_cosign(self, pem: bytes, signature: bytes, payload: bytes, log_entry: bytes) -> VerifiedSignature:
        """Verify a cosign signature with its certificate and a log entry that has a signed entry timestamp."""
        from cryptography.x509 import load_pem_x509_certificate

        with _convert_errors():
            certificate = load_pem_x509_certificate(pem)
            body, time = _verify_entry_timestamp(self.verifier, log_entry)
            _verify_certificate(self.verifier, certificate, time)
            _verify_signature(certificate, signature, payload)
            _check_hashedrekord_entry(body, certificate, signature, payload)
            return VerifiedSignature(certificate=certificate, payload=payload)

    def verify_log_time(self, entry: Mapping[str, Any], payload: bytes, signature: bytes, spki: bytes) -> datetime:
        """Return when the log recorded a DSSE envelope that was signed with the public key ``spki``."""
        from sigstore.models import TransparencyLogEntry
        from sigstore_models.rekor.v1 import TransparencyLogEntry as Model

        with _convert_errors():
            parsed = TransparencyLogEntry(Model.from_dict(dict(entry)))
            time = _verify_log_entry(self.verifier, parsed)
            body, kind = parsed._inner.canonicalized_body, parsed._inner.kind_version
            check_body = _check_intoto_entry if (kind.kind, kind.version) == _INTOTO_ENTRY else _check_dsse_entry
            check_body(body, payload, signature, spki)
            return time


def load_root(path: Path | None) -> SigstoreRoot:
    """Load a trust root from a file, or the public root that the package ``sigstore`` includes.

    Pinwarden does not use ``Verifier.production(offline=True)``, which prefers an unverified copy in the user's cache.
    """
    data = read_file(path, _ROOT_LIMITS.max_bytes) if path is not None else None
    try:
        from sigstore import __version__
        from sigstore._internal.tuf import DEFAULT_TUF_URL
        from sigstore._utils import read_embedded
        from sigstore.models import TrustedRoot
        from sigstore.verify import Verifier
        from sigstore_models.trustroot.v1 import TrustedRoot as Model
    except ImportError as err:
        if err.name == "sigstore":
            reason = "the package sigstore is not installed; install pinwarden[provenance]"
        else:
            reason = f"the installed release of the package sigstore is not supported: {err}"
        raise VerificationUnavailable(reason) from err
    logging.getLogger("sigstore").addHandler(logging.NullHandler())  # sigstore also logs the errors that it raises
    if data is None:
        data, source = read_embedded("trusted_root.json", DEFAULT_TUF_URL), f"sigstore {__version__}"
    else:
        source = "file"
    try:
        strict_json.parse_json(data, _ROOT_LIMITS)
        with _convert_errors():
            root = TrustedRoot(Model.from_json(data))
            _check_completeness(root)
            return SigstoreRoot(
                verifier=Verifier(trusted_root=root), anchor=f"trust root {Digest.of_bytes(data)} ({source})"
            )
    except (VerificationFailed, PinwardenError) as err:
        raise PinwardenError("TRUST_ROOT_INVALID", f"{path or source}: {err}") from err


def _check_completeness(root: Any) -> None:
    """Raise if the root lacks log keys, certificate transparency keys or certificate authorities."""
    from sigstore._internal.trust import KeyringPurpose

    root.rekor_keyring(KeyringPurpose.VERIFY)
    root.ct_keyring(KeyringPurpose.VERIFY)
    root.get_fulcio_certs()


class _AnyIdentity:
    """A policy for ``sigstore`` that accepts every identity. Pinwarden compares the identity with the lock later."""

    def verify(self, cert: Certificate) -> None:
        """Accept the certificate."""


class _convert_errors:  # noqa: N801 - reads as a statement
    """Converts every exception that a hostile bundle can cause to ``VerificationFailed``."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, _: object) -> None:
        # The parsers of pydantic, cryptography, rfc3161 and asn1 raise many types of exceptions, and a panic in Rust
        # code does not inherit from Exception.
        if isinstance(err, Exception) or (kind is not None and kind.__name__ == "PanicException"):
            raise (
                err if isinstance(err, VerificationFailed) else VerificationFailed(_format_library_error(err))
            ) from err


def _format_library_error(err: BaseException | None) -> str:
    """Return the first line of an error from ``sigstore``, safe to display. The line may quote the bundle."""
    lines = str(err).splitlines() or [""]
    return show_invisible(lines[0][:200]) or type(err).__name__


def _parse_bundle(data: bytes) -> Bundle:
    from sigstore.models import Bundle

    return Bundle.from_json(data)


# Verification steps


def _verify_intoto_bundle(verifier: Verifier, bundle: Bundle) -> VerifiedSignature:
    """Verify a bundle with an ``intoto`` log entry.

    1. Verify the log entry, which states the signing time.
    2. Verify the certificate at that time.
    3. Verify the signature.
    4. Check that the log entry records exactly this signature (CVE-2022-36056).
    """
    envelope = bundle._dsse_envelope
    if envelope is None:
        _fail("the bundle has no envelope")
    certificate, payload, payload_type = (
        bundle.signing_certificate,
        envelope._inner.payload,
        envelope._inner.payload_type,
    )
    time = _verify_log_entry(verifier, bundle.log_entry)
    _verify_certificate(verifier, certificate, time)
    _verify_signature(certificate, envelope.signature, envelope.pae())
    if payload_type != IN_TOTO:
        _fail("the envelope has no in-toto statement")
    _check_intoto_entry(
        bundle.log_entry._inner.canonicalized_body, payload, envelope.signature, _encode_der(certificate)
    )
    return VerifiedSignature(certificate=certificate, payload=payload, payload_type=payload_type)


def _verify_log_entry(verifier: Verifier, entry: TransparencyLogEntry) -> datetime:
    """Verify inclusion proof, checkpoint and signed entry timestamp, and return the time from the timestamp."""
    from sigstore._internal.trust import KeyringPurpose

    keyring = verifier._trusted_root.rekor_keyring(KeyringPurpose.VERIFY)
    entry._verify(keyring)
    if not entry._inner.integrated_time:
        _fail("the log entry has no time")
    entry._verify_set(keyring)
    return datetime.fromtimestamp(entry._inner.integrated_time, tz=UTC)


def _verify_entry_timestamp(verifier: Verifier, log_entry: bytes) -> tuple[Mapping[str, Any], datetime]:
    """Verify the signed entry timestamp of a log entry in cosign's format. Returns the entry's body and time."""
    from sigstore._internal.trust import KeyringPurpose
    from sigstore._utils import KeyID

    document = strict_json.parse_json(log_entry, _ROOT_LIMITS)
    entry = document["Payload"]
    signed = {name: entry[name] for name in ("body", "integratedTime", "logID", "logIndex")}
    verifier._trusted_root.rekor_keyring(KeyringPurpose.VERIFY).verify(
        key_id=KeyID(bytes.fromhex(entry["logID"])),
        signature=b64decode(document["SignedEntryTimestamp"], validate=True),
        data=canonicalize(signed, "jcs"),
    )
    body = strict_json.parse_json(b64decode(entry["body"], validate=True), _ROOT_LIMITS)
    return body, datetime.fromtimestamp(entry["integratedTime"], tz=UTC)


def _verify_certificate(verifier: Verifier, certificate: Certificate, time: datetime) -> None:
    from cryptography.x509 import ExtendedKeyUsage, KeyUsage
    from cryptography.x509.oid import ExtendedKeyUsageOID
    from sigstore._internal.sct import verify_sct
    from sigstore._internal.timestamp import TimestampSource, TimestampVerificationResult
    from sigstore._internal.trust import KeyringPurpose

    result = TimestampVerificationResult(source=TimestampSource.TRANSPARENCY_SERVICE, time=time)
    chain = verifier._verify_chain_at_time(certificate, result)
    verify_sct(certificate, chain, verifier._trusted_root.ct_keyring(KeyringPurpose.VERIFY))
    extensions = certificate.extensions
    if not extensions.get_extension_for_class(KeyUsage).value.digital_signature:
        _fail("the certificate is not for digital signatures")
    if ExtendedKeyUsageOID.CODE_SIGNING not in extensions.get_extension_for_class(ExtendedKeyUsage).value:
        _fail("the certificate is not for code signing")
    if not certificate.not_valid_before_utc <= time <= certificate.not_valid_after_utc:
        _fail("the certificate was not valid when the log recorded the signature")


def _verify_signature(certificate: Certificate, signature: bytes, message: bytes) -> None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256

    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        _fail("the key in the certificate is not an elliptic-curve key")
    try:
        key.verify(signature, message, ec.ECDSA(SHA256()))
    except InvalidSignature as err:
        raise VerificationFailed("the signature does not match") from err


def _check_intoto_entry(body: bytes, payload: bytes, signature: bytes, signer: bytes) -> None:
    # https://github.com/sigstore/rekor/blob/main/pkg/types/intoto/v0.0.2/intoto_v0_0_2_schema.json
    entry = strict_json.parse_json(body, _ROOT_LIMITS)
    content = entry["spec"]["content"]
    envelope = content["envelope"]
    (logged,) = envelope["signatures"]
    matches = (
        (entry["kind"], entry["apiVersion"]) == _INTOTO_ENTRY
        and envelope["payloadType"] == IN_TOTO
        and content["payloadHash"] == {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()}
        and b64decode(b64decode(logged["sig"], validate=True), validate=True) == signature  # encoded twice
        and _decode_pem(logged["publicKey"]) == signer
    )
    if not matches:
        _fail("the log entry is for another signature")


def _check_dsse_entry(body: bytes, payload: bytes, signature: bytes, signer: bytes) -> None:
    # https://github.com/sigstore/rekor/blob/main/pkg/types/dsse/v0.0.1/dsse_v0_0_1_schema.json
    entry = strict_json.parse_json(body, _ROOT_LIMITS)
    (logged,) = entry["spec"]["signatures"]
    matches = (
        (entry["kind"], entry["apiVersion"]) == ("dsse", "0.0.1")
        and entry["spec"]["payloadHash"] == {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()}
        and b64decode(logged["signature"], validate=True) == signature
        and _decode_pem(logged["verifier"]) == signer
    )
    if not matches:
        _fail("the log entry is for another signature")


def _check_hashedrekord_entry(
    body: Mapping[str, Any], certificate: Certificate, signature: bytes, payload: bytes
) -> None:
    # https://github.com/sigstore/rekor/blob/main/pkg/types/hashedrekord/v0.0.1/hashedrekord_v0_0_1_schema.json
    spec = body["spec"]
    matches = (
        (body["kind"], body["apiVersion"]) == ("hashedrekord", "0.0.1")
        and spec["data"]["hash"] == {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()}
        and b64decode(spec["signature"]["content"], validate=True) == signature
        and _decode_pem(spec["signature"]["publicKey"]["content"]) == _encode_der(certificate)
    )
    if not matches:
        _fail("the log entry is for another signature")


def _decode_pem(text: str) -> bytes:
    """Return the DER content of a base64-encoded PEM text."""
    lines = b64decode(text, validate=True).decode("ascii").strip().split("\n")
    if len(lines) < 3 or not lines[0].startswith("-----BEGIN ") or not lines[-1].startswith("-----END "):
        _fail("the log entry has no key in PEM format")
    try:
        return b64decode("".join(lines[1:-1]), validate=True)
    except BinasciiError as err:
        raise VerificationFailed("the log entry has no key in PEM format") from err


def _encode_der(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.DER)


def _fail(problem: str) -> NoReturn:
    raise VerificationFailed(problem)


_OID_PREFIX = "1.3.6.1.4.1.57264.1."
# Numbers of Fulcio's certificate extensions. The values of 1 to 7 are plain text; later ones are DER UTF8Strings.
_ISSUER_OLD, _COMMIT_OLD, _REPOSITORY_OLD, _REF_OLD = 1, 3, 5, 6
_ISSUER, _BUILD_SIGNER, _RUNNER, _REPOSITORY, _COMMIT, _REF = 8, 9, 11, 12, 13, 14
_REPOSITORY_ID, _OWNER_ID, _BUILD_CONFIG = 15, 17, 18
_LAST_PLAIN = 7
_GITHUB = "https://token.actions.githubusercontent.com"


def read_identity(certificate: Certificate, kind: ProvenanceKind) -> Identity:
    """Return the identity in a certificate. Raises ``PROVENANCE_INVALID`` if it is missing or ambiguous."""
    get_extension = _read_extensions(certificate)
    issuer = get_extension(_ISSUER) or get_extension(_ISSUER_OLD)
    if not issuer or get_extension(_ISSUER_OLD) not in ("", issuer):
        raise _certificate_error("has no issuer, or two different ones")
    uri, account = _parse_subject(certificate)
    old_repository = get_extension(_REPOSITORY_OLD) if issuer == _GITHUB else ""
    repository = get_extension(_REPOSITORY) or (f"https://github.com/{old_repository}" if old_repository else "")
    ref = get_extension(_REF) or get_extension(_REF_OLD)
    config = _strip_ref(get_extension(_BUILD_CONFIG) or uri, ref)
    return Identity(
        kind=kind,
        issuer=issuer,
        signer=account,
        repository=repository,
        repository_id=get_extension(_REPOSITORY_ID),
        owner_id=get_extension(_OWNER_ID),
        workflow=_find_relative_path(config, repository),
        ref=ref,
        builder=_strip_ref(get_extension(_BUILD_SIGNER) or uri, ref),
        runner=get_extension(_RUNNER),
        commit=get_extension(_COMMIT) or get_extension(_COMMIT_OLD),
    )


def _read_extensions(certificate: Certificate) -> Callable[[int], str]:
    """Return a function that maps the number of an extension to its text, which is empty if it is missing."""
    from cryptography.x509 import UnrecognizedExtension

    texts: dict[int, str] = {}
    for extension in certificate.extensions:
        dotted = extension.oid.dotted_string
        if dotted.startswith(_OID_PREFIX) and isinstance(extension.value, UnrecognizedExtension):
            field, value = dotted.removeprefix(_OID_PREFIX), extension.value.value
            if field.isdigit():
                texts[int(field)] = _decode_text(value if int(field) <= _LAST_PLAIN else _parse_utf8_string(value))
    return lambda field: texts.get(field, "")


def _parse_subject(certificate: Certificate) -> tuple[str, str]:
    """Return the certificate's subject as a pair: the URL of a workflow, or the name of an account.

    The other half of the pair is empty. Raises unless the certificate has exactly one subject.
    """
    from cryptography.x509 import OtherName, RFC822Name, SubjectAlternativeName, UniformResourceIdentifier

    names = list(certificate.extensions.get_extension_for_class(SubjectAlternativeName).value)
    if len(names) != 1:
        raise _certificate_error("has no subject, or more than one")
    name = names[0]
    if isinstance(name, UniformResourceIdentifier):
        return _decode_text(name.value.encode()), ""
    if isinstance(name, RFC822Name):
        return "", _decode_text(name.value.encode())
    if isinstance(name, OtherName) and name.type_id.dotted_string == f"{_OID_PREFIX}7":
        return "", _decode_text(_parse_utf8_string(name.value))
    raise _certificate_error("has a subject of an unsupported type")


def _parse_utf8_string(der: bytes) -> bytes:
    """Return the content of a DER UTF8String. Raises if bytes follow it."""
    if len(der) >= 2 and der[0] == 0x0C:
        if der[1] < 0x80:
            size, start = der[1], 2
        else:
            start = 2 + (der[1] & 0x7F)
            size = int.from_bytes(der[2:start])
        if size == len(der) - start:
            return der[start:]
    raise _certificate_error("has an extension that is not a string")


def _decode_text(value: bytes) -> str:
    try:
        text = percent_encode(value.decode())
    except UnicodeDecodeError as err:
        raise _certificate_error("has an extension that is not a string") from err
    if not is_displayable(text):
        raise _certificate_error("has an extension that is too long")
    return text


def _strip_ref(uri: str, ref: str) -> str:
    """Remove ``@ref`` from the end of a workflow URL. The ref itself may contain ``@``."""
    if ref and uri.endswith(f"@{ref}"):
        return uri.removesuffix(f"@{ref}")
    return uri.partition("@refs/")[0] if "@refs/" in uri else uri.rpartition("@")[0] or uri


def _find_relative_path(uri: str, repository: str) -> str:
    return uri.removeprefix(repository).lstrip("/") if repository and uri.startswith(f"{repository}/") else ""


def _certificate_error(problem: str) -> PinwardenError:
    return PinwardenError("PROVENANCE_INVALID", f"the certificate {problem}")
