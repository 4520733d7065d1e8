"""Verifies detached CMS signatures, and finds a certificate path from the signer to a trusted certificate.

:mod:`pinwarden.artifacts.cms_signed_data` parses the signature without a library, because the usual CMS library has had
no release since 2022 and accepts encodings that DER forbids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from hmac import compare_digest
from typing import Literal, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID

from pinwarden.artifacts.artifact import FileSignature
from pinwarden.artifacts.cms_signed_data import (
    SignedData,
    parse_certificate_names,
    parse_pss_parameters,
    parse_signed_data,
)
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.text import CLOCK_SKEW_SECONDS

_HASHES: dict[str, type[hashes.HashAlgorithm]] = {
    "sha256": hashes.SHA256,
    "sha384": hashes.SHA384,
    "sha512": hashes.SHA512,
}
_RSA = "1.2.840.113549.1.1.1"
_RSA_WITH = {f"1.2.840.113549.1.1.{11 + index}": name for index, name in enumerate(_HASHES)}
_PSS = "1.2.840.113549.1.1.10"
_ECDSA_WITH = {f"1.2.840.10045.4.3.{2 + index}": name for index, name in enumerate(_HASHES)}
_ED25519 = "1.3.101.112"
_NO_PARAMETERS = (b"", b"\x05\x00")
_CLOCK_SKEW = timedelta(seconds=CLOCK_SKEW_SECONDS)
_State = Literal["valid", "valid-untrusted", "invalid"]


def verify_signature(
    signature: bytes, content_digest: Callable[[str], Digest], *, anchors: Sequence[ParsedCertificate] = (), now: str
) -> FileSignature:
    """Verify a detached signature. ``content_digest`` computes the content's digest with a given algorithm.

    The state is ``invalid`` if the signature is incorrect, and ``valid-untrusted`` if it is correct but a certificate
    is not trusted or not valid at ``now``, or if the signing time is implausible. Certificates must be valid now, and
    not only at the signing time, because the owner of an expired key could state any signing time.

    1. Find the signer's certificate.
    2. Check the signature over the attributes with the key of that certificate.
    3. Check that the attributes are for this content.
    4. Check that a certificate path leads from the signer to a trusted certificate, that every certificate on it is
       valid now, and that the signing time lies within the validity of the signer's certificate.
    """
    signer: ParsedCertificate | None = None
    signed: SignedData | None = None
    current_time = _parse_time(now)
    try:
        signed = parse_signed_data(signature)
        certificates = [load_certificate(der) for der in signed.certificates]
        signer = _find_signer(signed, certificates)

        _check_signature(signed, signer.certificate)

        if not compare_digest(content_digest(signed.digest).raw, signed.message_digest):
            raise PinwardenError("SIGNATURE_INVALID", "the signature is for different content")
    except PinwardenError as err:
        if err.code != "SIGNATURE_INVALID":
            raise
        return _build_file_signature("invalid", err.message, signer, signed)

    reason = _find_time_problem(signed, signer.certificate, current_time)
    reason = reason or find_trust_problem(signer, certificates, anchors, current_time)
    return (
        _build_file_signature("valid-untrusted", reason, signer, signed)
        if reason
        else _build_file_signature("valid", "", signer, signed)
    )


def _find_signer(signed: SignedData, certificates: Sequence[ParsedCertificate]) -> ParsedCertificate:
    matching = {certificate.der: certificate for certificate in certificates if _is_signer(certificate, signed)}
    if len(matching) != 1:
        raise PinwardenError(
            "SIGNATURE_INVALID", f"the signature must have one certificate for its signer, but has {len(matching)}"
        )
    return next(iter(matching.values()))


def _is_signer(certificate: ParsedCertificate, signed: SignedData) -> bool:
    if signed.signer_key_id is None:
        return (certificate.issuer, certificate.serial) == (signed.signer_issuer, signed.signer_serial)
    try:
        identifier = certificate.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except x509.ExtensionNotFound:
        return False
    return identifier.value.digest == signed.signer_key_id


def _check_signature(signed: SignedData, certificate: x509.Certificate) -> None:
    key = certificate.public_key()
    if weakness := find_key_weakness(key):
        raise PinwardenError("SIGNATURE_INVALID", f"the signature {weakness}")
    algorithm, parameters = signed.algorithm.oid, signed.algorithm.parameters
    hash_algorithm = _HASHES[signed.digest]()
    try:
        if isinstance(key, rsa.RSAPublicKey) and algorithm == _PSS:
            pss = parse_pss_parameters(parameters)
            _check_hash_name(pss.digest, signed)
            scheme = padding.PSS(padding.MGF1(hash_algorithm), pss.salt_length)
            key.verify(signed.signature, signed.attributes, scheme, hash_algorithm)
        elif isinstance(key, rsa.RSAPublicKey) and algorithm in (_RSA, *_RSA_WITH) and parameters in _NO_PARAMETERS:
            _check_hash_name(_RSA_WITH.get(algorithm, signed.digest), signed)
            key.verify(signed.signature, signed.attributes, padding.PKCS1v15(), hash_algorithm)
        elif isinstance(key, ec.EllipticCurvePublicKey) and algorithm in _ECDSA_WITH and not parameters:
            _check_hash_name(_ECDSA_WITH[algorithm], signed)
            key.verify(signed.signature, signed.attributes, ec.ECDSA(hash_algorithm))
        elif isinstance(key, ed25519.Ed25519PublicKey) and algorithm == _ED25519 and not parameters:
            _check_hash_name("sha512", signed)  # RFC 8419 section 3.1
            key.verify(signed.signature, signed.attributes)
        else:
            raise PinwardenError(
                "SIGNATURE_INVALID", f"the signature algorithm {algorithm} does not match the signer's key"
            )
    except (InvalidSignature, UnsupportedAlgorithm, ValueError) as err:
        raise PinwardenError("SIGNATURE_INVALID", "the signature was not made by the signer's key") from err


def _check_hash_name(name: str, signed: SignedData) -> None:
    if name != signed.digest:
        raise PinwardenError("SIGNATURE_INVALID", "the signature uses two hash algorithms")


def _find_time_problem(signed: SignedData, certificate: x509.Certificate, now: datetime) -> str | None:
    if signed.signed_at is None:
        return None
    if signed.signed_at > now + _CLOCK_SKEW:
        return "the signing time is in the future"
    earliest = certificate.not_valid_before_utc - _CLOCK_SKEW
    if not earliest <= signed.signed_at <= certificate.not_valid_after_utc + _CLOCK_SKEW:
        return "the signing time is outside the validity period of the signer's certificate"
    return None


def _build_file_signature(
    state: _State, reason: str, signer: ParsedCertificate | None, signed: SignedData | None
) -> FileSignature:
    certificate = signer.certificate if signer else None
    signed_at = signed.signed_at if signed else None
    return FileSignature(
        state=state,
        reason=reason,
        subject=_format_name(certificate.subject) if certificate else "",
        issuer=_format_name(certificate.issuer) if certificate else "",
        fingerprint=Digest.of_bytes(signer.der) if signer else None,
        signed_at=f"{signed_at:%Y-%m-%dT%H:%M:%SZ}" if signed_at else None,
    )


def _format_name(name: x509.Name) -> str:
    return name.rfc4514_string()[:1000]


def _parse_time(now: str) -> datetime:
    current_time = datetime.fromisoformat(now)
    return current_time if current_time.tzinfo else current_time.replace(tzinfo=UTC)


ExtensionT = TypeVar("ExtensionT", bound=x509.ExtensionType)
_MAX_PATH_LENGTH = 8
_MAX_SIGNATURE_CHECKS = 100
"""The maximum number of certificate signatures that one path search verifies."""
_RSA_BITS = range(2048, 16384 + 1)
_ACCEPTED_HASHES = frozenset({"sha256", "sha384", "sha512"})
_CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
_SUPPORTED_EXTENSIONS = frozenset(
    {
        ExtensionOID.BASIC_CONSTRAINTS,
        ExtensionOID.KEY_USAGE,
        ExtensionOID.EXTENDED_KEY_USAGE,
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
        ExtensionOID.CERTIFICATE_POLICIES,
    }
)
# The exceptions of cryptography for a malformed certificate. They have no common base class.
_PARSE_ERRORS = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
_ACCEPTED_PURPOSES = (ExtendedKeyUsageOID.CODE_SIGNING, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE)


class ParsedCertificate(Record):
    """A parsed certificate, with its DER encoding and its names in DER."""

    certificate: x509.Certificate
    der: bytes
    issuer: bytes
    subject: bytes
    serial: int


def load_certificate(der: bytes) -> ParsedCertificate:
    """Parse an untrusted certificate in DER. Raises ``SIGNATURE_INVALID`` if it is malformed."""
    issuer, subject, serial = parse_certificate_names(der)
    if serial <= 0:
        raise PinwardenError("SIGNATURE_INVALID", "a certificate has no usable serial number")
    try:
        certificate = x509.load_der_x509_certificate(der)
        # cryptography parses these fields lazily. Read them now, so that a malformed field raises here.
        _ = certificate.extensions, certificate.subject, certificate.issuer, certificate.public_key()
    except _PARSE_ERRORS as err:
        raise PinwardenError("SIGNATURE_INVALID", "a certificate is malformed") from err
    # The signature is a bit string at the end: a byte with the number of unused bits, then the signature.
    if der[-len(certificate.signature) - 1] != 0:
        raise PinwardenError("SIGNATURE_INVALID", "the signature of a certificate is not a whole number of bytes")
    return ParsedCertificate(certificate=certificate, der=der, issuer=issuer, subject=subject, serial=serial)


def load_anchors(texts: Iterable[str]) -> tuple[ParsedCertificate, ...]:
    """Parse the trusted certificates of a policy. Each text has one or more certificates in PEM."""
    anchors: list[ParsedCertificate] = []
    for text in texts:
        try:
            certificates = x509.load_pem_x509_certificates(text.encode())
            anchors += [load_certificate(certificate.public_bytes(Encoding.DER)) for certificate in certificates]
        except (*_PARSE_ERRORS, PinwardenError) as err:
            raise PinwardenError("POLICY_INVALID", "policy.mcpb: anchors contains a malformed certificate") from err
    return tuple(anchors)


def find_key_weakness(key: object) -> str | None:
    """Return why a key is too weak, in the form "uses an RSA key of 1024 bits"; None if it is strong enough."""
    if isinstance(key, rsa.RSAPublicKey):
        return None if key.key_size in _RSA_BITS else f"uses an RSA key of {key.key_size} bits"
    if isinstance(key, ec.EllipticCurvePublicKey):
        return None if isinstance(key.curve, _CURVES) else f"uses the curve {key.curve.name}"
    return None if isinstance(key, ed25519.Ed25519PublicKey) else "uses a key of an unsupported type"


def find_trust_problem(
    signer: ParsedCertificate, others: Sequence[ParsedCertificate], anchors: Sequence[ParsedCertificate], now: datetime
) -> str | None:
    """Return the reason not to trust a signer, or None if a certificate path leads to a trusted certificate."""
    if problem := _find_signer_problem(signer.certificate, now):
        return problem
    if any(signer.der == anchor.der for anchor in anchors):
        return None
    if not anchors:
        return "the policy names no trusted certificate"
    trusted = {anchor.der for anchor in anchors}
    budget = _MAX_SIGNATURE_CHECKS
    problems: list[str] = []
    pending: list[tuple[ParsedCertificate, ...]] = [(signer,)]
    while pending:
        path = pending.pop()
        path_certificates = {certificate.der for certificate in path}
        issuers = [
            candidate
            for candidate in (*others, *anchors)
            if candidate.subject == path[-1].issuer and candidate.der not in path_certificates
        ]
        for issuer in issuers:
            budget -= 1
            if budget < 0:
                return "there are too many candidate certificate paths"
            if problem := _find_issuer_problem(issuer.certificate, path, now):
                problems.append(problem)
            elif issuer.der in trusted:
                return None
            elif len(path) < _MAX_PATH_LENGTH:
                pending.append((*path, issuer))
    if problems:
        return problems[-1]
    if signer.issuer == signer.subject:
        return "the signer's certificate is self-signed"
    return "no trusted authority issued the signer's certificate"


def _find_signer_problem(certificate: x509.Certificate, now: datetime) -> str | None:
    if problem := _find_validity_problem(certificate, now) or _find_extension_problem(certificate):
        return problem
    usage = _find_extension(certificate, x509.KeyUsage)
    if usage is not None and not (usage.digital_signature or usage.content_commitment):
        return "the key usage of the signer's certificate does not allow signatures"
    return None


def _find_issuer_problem(issuer: x509.Certificate, path: Sequence[ParsedCertificate], now: datetime) -> str | None:
    constraints = _find_extension(issuer, x509.BasicConstraints)
    if constraints is None or not constraints.ca:
        return "an issuer in the certificate path is not a certificate authority"
    # The length does not include self-issued certificates and the signer's certificate (RFC 5280, section 4.2.1.9).
    path_length = sum(certificate.issuer != certificate.subject for certificate in path[1:])
    if constraints.path_length is not None and path_length > constraints.path_length:
        return "the certificate path is longer than the path length constraint of an authority allows"
    usage = _find_extension(issuer, x509.KeyUsage)
    if usage is not None and not usage.key_cert_sign:
        return "the key usage of an issuer in the certificate path does not allow signing certificates"
    return (
        _find_validity_problem(issuer, now)
        or _find_extension_problem(issuer)
        or _find_key_problem(issuer)
        or _find_signature_problem(path[-1].certificate, issuer)
    )


def _find_key_problem(issuer: x509.Certificate) -> str | None:
    weakness = find_key_weakness(issuer.public_key())
    return f"an issuer in the certificate path {weakness}" if weakness else None


def _find_signature_problem(certificate: x509.Certificate, issuer: x509.Certificate) -> str | None:
    try:
        hash_algorithm = certificate.signature_hash_algorithm
        if hash_algorithm is not None and hash_algorithm.name not in _ACCEPTED_HASHES:
            return f"a certificate in the path is signed with the weak hash {hash_algorithm.name}"
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm):
        return "the signature of a certificate in the path does not match its issuer's key"
    return None


def _find_validity_problem(certificate: x509.Certificate, now: datetime) -> str | None:
    if now < certificate.not_valid_before_utc:
        return f"a certificate in the path is not valid before {certificate.not_valid_before_utc:%Y-%m-%d}"
    if now > certificate.not_valid_after_utc:
        return f"a certificate in the path expired on {certificate.not_valid_after_utc:%Y-%m-%d}"
    return None


def _find_extension_problem(certificate: x509.Certificate) -> str | None:
    for extension in certificate.extensions:
        # Pinwarden does not support name constraints, and does not trust certificates that have them.
        if extension.oid == ExtensionOID.NAME_CONSTRAINTS or (
            extension.critical and extension.oid not in _SUPPORTED_EXTENSIONS
        ):
            return f"a certificate in the path has an unsupported extension ({extension.oid.dotted_string})"
    purposes = _find_extension(certificate, x509.ExtendedKeyUsage)
    if purposes is not None and not any(purpose in _ACCEPTED_PURPOSES for purpose in purposes):
        return "the extended key usage of a certificate in the path does not allow code signing"
    return None


def _find_extension(certificate: x509.Certificate, kind: type[ExtensionT]) -> ExtensionT | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
