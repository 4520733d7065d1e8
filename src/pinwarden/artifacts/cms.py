"""Detached CMS signatures: whether one was made over these bytes, and whether anybody trusted vouches for the signer.

The structure is read by :mod:`pinwarden.artifacts.signed_data`, strictly and without a package for it: the
one that is commonly used for CMS has had no release since 2022 and takes encodings that DER forbids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from hmac import compare_digest
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

from pinwarden.artifacts.artifact import FileSignature
from pinwarden.artifacts.certificate_path import Certified, distrust_of, load_certificate, weakness_of
from pinwarden.artifacts.signed_data import SignedData, parse, pss_parameters
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError

_HASHES: dict[str, type[hashes.HashAlgorithm]] = {
    "sha256": hashes.SHA256,
    "sha384": hashes.SHA384,
    "sha512": hashes.SHA512,
}
_RSA = "1.2.840.113549.1.1.1"
_RSA_WITH = {f"1.2.840.113549.1.1.{11 + place}": name for place, name in enumerate(_HASHES)}
_PSS = "1.2.840.113549.1.1.10"
_ECDSA_WITH = {f"1.2.840.10045.4.3.{2 + place}": name for place, name in enumerate(_HASHES)}
_ED25519 = "1.3.101.112"
_NO_PARAMETERS = (b"", b"\x05\x00")
_CLOCK_SKEW = timedelta(minutes=10)
_State = Literal["valid", "valid-untrusted", "invalid"]


def verify(
    signature: bytes, content_digest: Callable[[str], Digest], *, anchors: Sequence[Certified] = (), now: str
) -> FileSignature:
    """Judge a detached signature over a content of which any digest can be asked for.

    Whatever is wrong with the signature makes it ``invalid``. Whatever is wrong with the certificates, their time
    included, makes a good signature one by somebody unknown. ``now`` is the time that they are held against: the time
    inside the signature is the signer's own word, and holders of an expired key could write any.
    """
    signer: Certified | None = None
    signed: SignedData | None = None
    moment = _moment(now)
    try:
        # 1. Which certificate it names, and nothing that two readers could understand differently.
        signed = parse(signature)
        certificates = [load_certificate(each) for each in signed.certificates]
        signer = _signer(signed, certificates)
        # 2. The signature is over the attributes, by the key of that certificate.
        _check_signature(signed, signer.certificate)
        # 3. The attributes are about the content.
        if not compare_digest(content_digest(signed.digest).raw, signed.message_digest):
            raise PinwardenError("SIGNATURE_INVALID", "the signature is over another content")
    except PinwardenError as err:
        if err.code != "SIGNATURE_INVALID":
            raise
        return _said("invalid", err.message, signer, signed)
    # 4. Somebody trusted vouches for the signer, now.
    reason = _time_problem(signed, signer.certificate, moment)
    reason = reason or distrust_of(signer, certificates, anchors, moment)
    return _said("valid-untrusted", reason, signer, signed) if reason else _said("valid", "", signer, signed)


def _signer(signed: SignedData, certificates: Sequence[Certified]) -> Certified:
    found = {each.der: each for each in certificates if _is_named(each, signed)}
    if len(found) != 1:
        raise PinwardenError("SIGNATURE_INVALID", f"{len(found)} certificates are the signer's, where one should be")
    return next(iter(found.values()))


def _is_named(certificate: Certified, signed: SignedData) -> bool:
    if signed.signer_key_id is None:
        return (certificate.issuer, certificate.serial) == (signed.signer_issuer, signed.signer_serial)
    try:
        found = certificate.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except x509.ExtensionNotFound:
        return False
    return found.value.digest == signed.signer_key_id


def _check_signature(signed: SignedData, certificate: x509.Certificate) -> None:
    key = certificate.public_key()
    if weak := weakness_of(key):
        raise PinwardenError("SIGNATURE_INVALID", f"the signature {weak}")
    algorithm, parameters = signed.algorithm.oid, signed.algorithm.parameters
    made_with = _HASHES[signed.digest]()
    try:
        if isinstance(key, rsa.RSAPublicKey) and algorithm == _PSS:
            pss = pss_parameters(parameters)
            _same_hash(pss.digest, signed)
            scheme = padding.PSS(padding.MGF1(made_with), pss.salt_length)
            key.verify(signed.signature, signed.attributes, scheme, made_with)
        elif isinstance(key, rsa.RSAPublicKey) and algorithm in (_RSA, *_RSA_WITH) and parameters in _NO_PARAMETERS:
            _same_hash(_RSA_WITH.get(algorithm, signed.digest), signed)
            key.verify(signed.signature, signed.attributes, padding.PKCS1v15(), made_with)
        elif isinstance(key, ec.EllipticCurvePublicKey) and algorithm in _ECDSA_WITH and not parameters:
            _same_hash(_ECDSA_WITH[algorithm], signed)
            key.verify(signed.signature, signed.attributes, ec.ECDSA(made_with))
        elif isinstance(key, ed25519.Ed25519PublicKey) and algorithm == _ED25519 and not parameters:
            _same_hash("sha512", signed)  # RFC 8419 section 3.1
            key.verify(signed.signature, signed.attributes)
        else:
            raise PinwardenError("SIGNATURE_INVALID", f"the signature uses {algorithm}, which its key cannot make")
    except (InvalidSignature, UnsupportedAlgorithm, ValueError) as err:
        raise PinwardenError("SIGNATURE_INVALID", "the signature was not made by the signer's key") from err


def _same_hash(name: str, signed: SignedData) -> None:
    if name != signed.digest:
        raise PinwardenError("SIGNATURE_INVALID", "the signature mixes two hash algorithms")


def _time_problem(signed: SignedData, certificate: x509.Certificate, now: datetime) -> str | None:
    if signed.signed_at is None:
        return None
    if signed.signed_at > now + _CLOCK_SKEW:
        return "it says that it was made in the future"
    early = certificate.not_valid_before_utc - _CLOCK_SKEW
    if not early <= signed.signed_at <= certificate.not_valid_after_utc + _CLOCK_SKEW:
        return "it says that it was made when the signer's certificate was not valid"
    return None


def _said(state: _State, reason: str, signer: Certified | None, signed: SignedData | None) -> FileSignature:
    certificate = signer.certificate if signer else None
    when = signed.signed_at if signed else None
    return FileSignature(
        state=state,
        reason=reason,
        subject=_name(certificate.subject) if certificate else "",
        issuer=_name(certificate.issuer) if certificate else "",
        fingerprint=Digest.of(signer.der) if signer else None,
        signed_at=f"{when:%Y-%m-%dT%H:%M:%SZ}" if when else None,
    )


def _name(name: x509.Name) -> str:
    return name.rfc4514_string()[:1000]


def _moment(now: str) -> datetime:
    moment = datetime.fromisoformat(now)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
