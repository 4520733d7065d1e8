"""Parses CMS SignedData (RFC 5652, section 5) as MCPB bundles use it: one signer, detached content, signed attributes.

The parser refuses all other features of CMS, such as several signers, because programs could interpret them
differently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NoReturn

from pinwarden.core import der
from pinwarden.core.der import DerReader, DerValue
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field

DATA_OID = "1.2.840.113549.1.7.1"
_SIGNED_DATA_OID = "1.2.840.113549.1.7.2"
_CONTENT_TYPE_OID = "1.2.840.113549.1.9.3"
_MESSAGE_DIGEST_OID = "1.2.840.113549.1.9.4"
_SIGNING_TIME_OID = "1.2.840.113549.1.9.5"
HASH_NAMES: Mapping[str, str] = {
    "2.16.840.1.101.3.4.2.1": "sha256",
    "2.16.840.1.101.3.4.2.2": "sha384",
    "2.16.840.1.101.3.4.2.3": "sha512",
}
_TAG_0, _TAG_1, _TAG_2, _TAG_3 = 0xA0, 0xA1, 0xA2, 0xA3
_KEY_ID = 0x80
_UTC_TIME = re.compile(rb"\d{12}Z")
_GENERALIZED_TIME = re.compile(rb"\d{14}Z")
_MAX_CERTIFICATES = 16


class AlgorithmIdentifier(Record):
    """A signature or hash algorithm and its parameters (``AlgorithmIdentifier`` of X.509)."""

    oid: str
    parameters: bytes = field(repr=False)
    """The parameters in DER; empty if there are none."""


class SignedData(Record):
    """A parsed detached signature, which has not been verified."""

    digest: str
    """The content's hash algorithm: ``sha256``, ``sha384`` or ``sha512``."""
    message_digest: bytes
    signed_at: datetime | None
    """The signing time that the signer states. A valid signature does not prove this time."""
    attributes: bytes = field(repr=False)
    """The signed attributes, encoded as the signature covers them."""
    algorithm: AlgorithmIdentifier
    signature: bytes = field(repr=False)
    signer_issuer: bytes = field(repr=False)
    """The issuer of the signer's certificate in DER; empty if the signature has a key identifier instead."""
    signer_serial: int = 0
    signer_key_id: bytes | None = None
    certificates: tuple[bytes, ...] = field(repr=False)


class PssParameters(Record):
    """Parameters of an RSASSA-PSS signature (RFC 4055 section 3.1)."""

    digest: str
    salt_length: int


def parse_signed_data(data: bytes) -> SignedData:
    """Parse a detached signature in DER."""
    outer = der.parse_der(data, der.SEQUENCE).children()
    if outer.read_value().oid != _SIGNED_DATA_OID:
        _refuse("is not SignedData")
    wrapped = outer.read_value(_TAG_0).children()
    outer.check_end()
    body = wrapped.read_value(der.SEQUENCE).children()
    wrapped.check_end()
    if body.read_value().integer not in (1, 3, 4, 5):
        _refuse("has an unknown version")
    digests = {_parse_algorithm(value).oid for value in body.read_value(der.SET).children()}
    _check_detached(body.read_value(der.SEQUENCE).children())
    certificates = _parse_certificates(body.read_optional(_TAG_0))
    body.read_optional(_TAG_1)  # revocation lists, which are ignored
    signers = list(body.read_value(der.SET).children())
    body.check_end()
    if len(signers) != 1:
        _refuse(f"must have one signer, but has {len(signers)}")
    return _parse_signer(signers[0], digests, certificates)


def parse_pss_parameters(data: bytes) -> PssParameters:
    """Parse RSASSA-PSS parameters. Refuses parameters without a hash, for which the default would be SHA-1."""
    parts = der.parse_der(data, der.SEQUENCE).children()
    digest = _parse_hash_name(_get_only_child(parts.read_value(_TAG_0)))
    mask = _get_only_child(parts.read_value(_TAG_1)).expect(der.SEQUENCE).children()
    if mask.read_value().oid != "1.2.840.113549.1.1.8" or _parse_hash_name(mask.read_value()) != digest:
        _refuse("has a PSS mask with another hash")
    mask.check_end()
    salt = parts.read_optional(_TAG_2)
    trailer = parts.read_optional(_TAG_3)
    parts.check_end()
    length = 20 if salt is None else _get_only_child(salt).integer
    if not 0 <= length <= 2048 or (trailer is not None and _get_only_child(trailer).integer != 1):
        _refuse("has unsupported PSS parameters")
    return PssParameters(digest=digest, salt_length=length)


def parse_certificate_names(certificate: bytes) -> tuple[bytes, bytes, int]:
    """Return the issuer and the subject of a certificate in DER, and its serial number."""
    parts = der.parse_der(certificate, der.SEQUENCE).children().read_value(der.SEQUENCE).children()
    parts.read_optional(_TAG_0)
    serial = parts.read_value().integer
    parts.read_value(der.SEQUENCE)
    issuer = parts.read_value(der.SEQUENCE).encoded
    parts.read_value(der.SEQUENCE)
    return issuer, parts.read_value(der.SEQUENCE).encoded, serial


def _check_detached(parts: DerReader) -> None:
    if parts.read_value().oid != DATA_OID:
        _refuse("is for content of a type other than data")
    if parts.next_tag is not None:
        _refuse("includes content, but must be detached")


def _parse_certificates(field: DerValue | None) -> tuple[bytes, ...]:
    if field is None:
        return ()
    certificates = tuple(certificate.expect(der.SEQUENCE).encoded for certificate in field.children())
    if len(certificates) > _MAX_CERTIFICATES:
        _refuse(f"has more than {_MAX_CERTIFICATES} certificates")
    return certificates


def _parse_signer(value: DerValue, digests: set[str], certificates: tuple[bytes, ...]) -> SignedData:
    parts = value.expect(der.SEQUENCE).children()
    version = parts.read_value().integer
    issuer, serial, key_id = _parse_signer_id(parts.read_value())
    if version != (1 if key_id is None else 3):
        _refuse("has a signer of an unknown version")
    digest = _parse_algorithm(parts.read_value())
    attributes = parts.read_optional(_TAG_0)
    algorithm = _parse_algorithm(parts.read_value())
    signature = parts.read_value(der.OCTET_STRING).content
    parts.read_optional(_TAG_1)  # unsigned attributes, which are ignored
    parts.check_end()
    if digest.oid not in digests:
        _refuse("does not list the hash algorithm that its signer used")
    if attributes is None:
        # Without attributes, the signature covers the content itself. An attacker could then present the signed
        # attributes of another signature as content.
        _refuse("has no signed attributes")
    by_name = _parse_attributes(attributes)
    if _get_only_value(by_name, _CONTENT_TYPE_OID).oid != DATA_OID:
        _refuse("has a signed content type other than data")
    return SignedData(
        digest=_get_hash_name(digest),
        message_digest=_get_only_value(by_name, _MESSAGE_DIGEST_OID).expect(der.OCTET_STRING).content,
        signed_at=_parse_time(_get_only_value(by_name, _SIGNING_TIME_OID)) if _SIGNING_TIME_OID in by_name else None,
        # The signature covers the attributes with the tag of a SET, not with their tag in the message (RFC 5652, 5.4).
        attributes=bytes([der.SET]) + attributes.encoded[1:],
        algorithm=algorithm,
        signature=signature,
        signer_issuer=issuer,
        signer_serial=serial,
        signer_key_id=key_id,
        certificates=certificates,
    )


def _parse_signer_id(value: DerValue) -> tuple[bytes, int, bytes | None]:
    if value.tag == _KEY_ID:
        return b"", 0, value.content
    parts = value.expect(der.SEQUENCE).children()
    issuer, serial = parts.read_value(der.SEQUENCE).encoded, parts.read_value().integer
    parts.check_end()
    return issuer, serial, None


def _parse_attributes(value: DerValue) -> dict[str, list[DerValue]]:
    by_name: dict[str, list[DerValue]] = {}
    for attribute in value.children():
        parts = attribute.expect(der.SEQUENCE).children()
        name, values = parts.read_value().oid, list(parts.read_value(der.SET).children())
        parts.check_end()
        if name in by_name:
            _refuse("has a signed attribute twice")
        by_name[name] = values
    return by_name


def _get_only_value(attributes: Mapping[str, list[DerValue]], name: str) -> DerValue:
    values = attributes.get(name, [])
    return (
        values[0] if len(values) == 1 else _refuse(f"has a signed attribute with {len(values)} values instead of one")
    )


def _parse_algorithm(value: DerValue) -> AlgorithmIdentifier:
    parts = value.expect(der.SEQUENCE).children()
    name = parts.read_value().oid
    parameters = b"" if parts.next_tag is None else parts.read_value().encoded
    parts.check_end()
    return AlgorithmIdentifier(oid=name, parameters=parameters)


def _parse_hash_name(value: DerValue) -> str:
    return _get_hash_name(_parse_algorithm(value))


def _get_hash_name(algorithm: AlgorithmIdentifier) -> str:
    if algorithm.oid not in HASH_NAMES or algorithm.parameters not in (b"", b"\x05\x00"):
        _refuse(f"uses an unsupported hash algorithm: {algorithm.oid}")
    return HASH_NAMES[algorithm.oid]


def _get_only_child(value: DerValue) -> DerValue:
    parts = value.children()
    inner = parts.read_value()
    parts.check_end()
    return inner


def _parse_time(value: DerValue) -> datetime:
    text = value.content
    if value.tag == der.UTC_TIME and _UTC_TIME.fullmatch(text):
        text = (b"19" if text >= b"50" else b"20") + text
    elif value.tag != der.GENERALIZED_TIME or not _GENERALIZED_TIME.fullmatch(text):
        _refuse("has a malformed time")
    try:
        return datetime.strptime(text.decode(), "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    except ValueError as err:
        raise PinwardenError("SIGNATURE_INVALID", "the signature has a malformed time") from err


def _refuse(problem: str) -> NoReturn:
    raise PinwardenError("SIGNATURE_INVALID", f"the signature {problem}")
