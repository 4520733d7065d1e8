"""From a signer's certificate to somebody who is trusted (RFC 5280 section 6, for signatures of code).

The verifier of the ``cryptography`` package is made for web servers: it asks for host names, knows no Ed25519, and its
interface may still change. What is needed here is smaller: every certificate in its time, every issuer permitted to
issue, and no extension passed over that its author marked as critical. Signatures themselves are checked by
``Certificate.verify_directly_issued_by``. Revocation is not checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID

from pinwarden.artifacts.signed_data import issuer_of
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

Kind = TypeVar("Kind", bound=x509.ExtensionType)
_MAX_LENGTH = 8
_MAX_CHECKS = 100
"""Signatures that are looked at while a path is sought, whatever a stranger sends along."""
_RSA_BITS = range(2048, 16384 + 1)
_HASHES = frozenset({"sha256", "sha384", "sha512"})
_CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
_UNDERSTOOD = frozenset(
    {
        ExtensionOID.BASIC_CONSTRAINTS,
        ExtensionOID.KEY_USAGE,
        ExtensionOID.EXTENDED_KEY_USAGE,
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
        ExtensionOID.CERTIFICATE_POLICIES,
    }
)
# All that the library raises for a certificate which it does not understand; they have no base of their own.
_UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
_PURPOSES = (ExtendedKeyUsageOID.CODE_SIGNING, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE)


class Certified(Record):
    """A certificate with the names as they are encoded in it."""

    certificate: x509.Certificate
    der: bytes
    issuer: bytes
    subject: bytes
    serial: int


def load_certificate(der: bytes) -> Certified:
    """A certificate from a stranger."""
    issuer, subject, serial = issuer_of(der)
    if serial <= 0:
        raise PinwardenError("SIGNATURE_INVALID", "a certificate has no usable serial number")
    try:
        certificate = x509.load_der_x509_certificate(der)
        # Raise here, in one place, if they cannot be read; nothing is decided without them.
        _ = certificate.extensions, certificate.subject, certificate.issuer, certificate.public_key()
    except _UNREADABLE as err:
        raise PinwardenError("SIGNATURE_INVALID", "a certificate cannot be read") from err
    return Certified(certificate=certificate, der=der, issuer=issuer, subject=subject, serial=serial)


def load_anchors(texts: Iterable[str]) -> tuple[Certified, ...]:
    """The certificates that the policy trusts: authorities, or signers themselves. Each text is PEM and holds at least
    one certificate."""
    found: list[Certified] = []
    for text in texts:
        try:
            certificates = x509.load_pem_x509_certificates(text.encode())
            found += [load_certificate(each.public_bytes(Encoding.DER)) for each in certificates]
        except (*_UNREADABLE, PinwardenError) as err:
            raise PinwardenError(
                "POLICY_INVALID", "policy.mcpb: anchors has a certificate that cannot be read"
            ) from err
    return tuple(found)


def weakness_of(key: object) -> str | None:
    """Why signatures by a key prove nothing, None if they do."""
    if isinstance(key, rsa.RSAPublicKey):
        return None if key.key_size in _RSA_BITS else f"is made with an RSA key of {key.key_size} bits"
    if isinstance(key, ec.EllipticCurvePublicKey):
        return None if isinstance(key.curve, _CURVES) else f"is made on the curve {key.curve.name}"
    return None if isinstance(key, ed25519.Ed25519PublicKey) else "is made with a kind of key that is not known here"


def distrust_of(
    signer: Certified, others: Sequence[Certified], anchors: Sequence[Certified], now: datetime
) -> str | None:
    """Why nobody trusted vouches for a signer, None if somebody does."""
    if problem := _signer_problem(signer.certificate, now):
        return problem
    if any(signer.der == anchor.der for anchor in anchors):
        return None
    if not anchors:
        return "no certificate authority was named to hold it against"
    trusted = {anchor.der for anchor in anchors}
    budget = _MAX_CHECKS
    problems: list[str] = []
    pending: list[tuple[Certified, ...]] = [(signer,)]
    while pending:
        path = pending.pop()
        known = {each.der for each in path}
        issuers = [each for each in (*others, *anchors) if each.subject == path[-1].issuer and each.der not in known]
        for issuer in issuers:
            budget -= 1
            if budget < 0:
                return "its certificates lead in too many directions"
            if problem := _issuer_problem(issuer.certificate, path, now):
                problems.append(problem)
            elif issuer.der in trusted:
                return None
            elif len(path) < _MAX_LENGTH:
                pending.append((*path, issuer))
    if problems:
        return problems[-1]
    return "it vouches for itself only" if signer.issuer == signer.subject else "no trusted authority vouches for it"


def _signer_problem(certificate: x509.Certificate, now: datetime) -> str | None:
    if problem := _time_problem(certificate, now) or _extension_problem(certificate):
        return problem
    usage = _extension(certificate, x509.KeyUsage)
    if usage is not None and not (usage.digital_signature or usage.content_commitment):
        return "the signer's certificate is not for signatures"
    return None


def _issuer_problem(issuer: x509.Certificate, path: Sequence[Certified], now: datetime) -> str | None:
    constraints = _extension(issuer, x509.BasicConstraints)
    if constraints is None or not constraints.ca:
        return "a certificate was issued by somebody who is no authority"
    # Certificates that an authority issued to itself do not count, nor does the signer's (RFC 5280 section 4.2.1.9).
    below = sum(each.issuer != each.subject for each in path[1:])
    if constraints.path_length is not None and below > constraints.path_length:
        return "an authority lies deeper than the one above it allows"
    usage = _extension(issuer, x509.KeyUsage)
    if usage is not None and not usage.key_cert_sign:
        return "a certificate was issued with a key that is not for issuing"
    return (
        _time_problem(issuer, now)
        or _extension_problem(issuer)
        or _key_problem(issuer)
        or _signature_problem(path[-1].certificate, issuer)
    )


def _key_problem(issuer: x509.Certificate) -> str | None:
    weak = weakness_of(issuer.public_key())
    return f"a certificate {weak}" if weak else None


def _signature_problem(certificate: x509.Certificate, issuer: x509.Certificate) -> str | None:
    try:
        made_with = certificate.signature_hash_algorithm
        if made_with is not None and made_with.name not in _HASHES:
            return f"a certificate is signed with {made_with.name}"
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm):
        return "a certificate was not issued by the authority that it names"
    return None


def _time_problem(certificate: x509.Certificate, now: datetime) -> str | None:
    if now < certificate.not_valid_before_utc:
        return f"a certificate is not valid before {certificate.not_valid_before_utc:%Y-%m-%d}"
    if now > certificate.not_valid_after_utc:
        return f"a certificate expired on {certificate.not_valid_after_utc:%Y-%m-%d}"
    return None


def _extension_problem(certificate: x509.Certificate) -> str | None:
    for extension in certificate.extensions:
        # Constraints on names are not worked out here, so nobody who is bound by them is trusted.
        if extension.oid == ExtensionOID.NAME_CONSTRAINTS or (extension.critical and extension.oid not in _UNDERSTOOD):
            return f"a certificate has a condition that is not understood here ({extension.oid.dotted_string})"
    purposes = _extension(certificate, x509.ExtendedKeyUsage)
    if purposes is not None and not any(each in _PURPOSES for each in purposes):
        return "a certificate is not for signing code"
    return None


def _extension(certificate: x509.Certificate, kind: type[Kind]) -> Kind | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
