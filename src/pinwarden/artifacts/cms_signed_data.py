"""CMS SignedData (RFC 5652 section 5) as bundles carry it: one signer, no content of its own, attributes signed.

Only that is read. Everything else that CMS allows, several signers for instance, has no meaning in a bundle and would
only give readers something to disagree about.
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

DATA = "1.2.840.113549.1.7.1"
_SIGNED_DATA = "1.2.840.113549.1.7.2"
_CONTENT_TYPE = "1.2.840.113549.1.9.3"
_MESSAGE_DIGEST = "1.2.840.113549.1.9.4"
_SIGNING_TIME = "1.2.840.113549.1.9.5"
DIGESTS: Mapping[str, str] = {
    "2.16.840.1.101.3.4.2.1": "sha256",
    "2.16.840.1.101.3.4.2.2": "sha384",
    "2.16.840.1.101.3.4.2.3": "sha512",
}
_FIRST, _SECOND, _THIRD, _FOURTH = 0xA0, 0xA1, 0xA2, 0xA3
_KEY_ID = 0x80
_UTC_TIME = re.compile(rb"\d{12}Z")
_GENERALIZED_TIME = re.compile(rb"\d{14}Z")
_MAX_CERTIFICATES = 16


class Algorithm(Record):
    """An algorithm and its parameters."""

    oid: str
    parameters: bytes = field(repr=False)
    """In DER, empty where there are none."""


class SignedData(Record):
    """A detached signature, taken apart. Nothing of it has been checked against a key or a content."""

    digest: str
    """``sha256``, ``sha384`` or ``sha512``: what the content was hashed with."""
    message_digest: bytes
    signed_at: datetime | None
    """What the signer says. A claim, even in a good signature."""
    attributes: bytes = field(repr=False)
    """What the signature is over."""
    algorithm: Algorithm
    signature: bytes = field(repr=False)
    signer_issuer: bytes = field(repr=False)
    """In DER; empty where the signer is named by a key identifier."""
    signer_serial: int = 0
    signer_key_id: bytes | None = None
    certificates: tuple[bytes, ...] = field(repr=False)


class PssParameters(Record):
    """How an RSASSA-PSS signature was made (RFC 4055 section 3.1)."""

    digest: str
    salt_length: int


def parse(data: bytes) -> SignedData:
    """A detached signature from its DER."""
    outer = der.parse_der(data, der.SEQUENCE).children()
    if outer.next().oid != _SIGNED_DATA:
        _refuse("is not SignedData")
    wrapped = outer.next(_FIRST).children()
    outer.end()
    body = wrapped.next(der.SEQUENCE).children()
    wrapped.end()
    if body.next().integer not in (1, 3, 4, 5):
        _refuse("has an unknown version")
    digests = {_algorithm(each).oid for each in body.next(der.SET).children()}
    _check_detached(body.next(der.SEQUENCE).children())
    certificates = _certificates(body.optional(_FIRST))
    body.optional(_SECOND)  # revocation lists: not looked at, and nothing follows from their absence
    signers = list(body.next(der.SET).children())
    body.end()
    if len(signers) != 1:
        _refuse(f"has {len(signers)} signers where one belongs")
    return _signer(signers[0], digests, certificates)


def pss_parameters(data: bytes) -> PssParameters:
    """The parameters of RSASSA-PSS. SHA-1, which stands for whatever is left out, is not taken."""
    parts = der.parse_der(data, der.SEQUENCE).children()
    digest = _digest(_inner(parts.next(_FIRST)))
    mask = _inner(parts.next(_SECOND)).expect(der.SEQUENCE).children()
    if mask.next().oid != "1.2.840.113549.1.1.8" or _digest(mask.next()) != digest:
        _refuse("has a PSS mask that is not made with the same hash")
    mask.end()
    salt = parts.optional(_THIRD)
    trailer = parts.optional(_FOURTH)
    parts.end()
    length = 20 if salt is None else _inner(salt).integer
    if not 0 <= length <= 2048 or (trailer is not None and _inner(trailer).integer != 1):
        _refuse("has PSS parameters that nobody uses")
    return PssParameters(digest=digest, salt_length=length)


def issuer_of(certificate: bytes) -> tuple[bytes, bytes, int]:
    """Issuer and subject of a certificate as they are encoded, and its serial number."""
    parts = der.parse_der(certificate, der.SEQUENCE).children().next(der.SEQUENCE).children()
    parts.optional(_FIRST)
    serial = parts.next().integer
    parts.next(der.SEQUENCE)
    issuer = parts.next(der.SEQUENCE).encoded
    parts.next(der.SEQUENCE)
    return issuer, parts.next(der.SEQUENCE).encoded, serial


def _check_detached(parts: DerReader) -> None:
    if parts.next().oid != DATA:
        _refuse("is about something other than plain data")
    if parts.tag is not None:
        _refuse("brings its own content")


def _certificates(found: DerValue | None) -> tuple[bytes, ...]:
    if found is None:
        return ()
    certificates = tuple(each.expect(der.SEQUENCE).encoded for each in found.children())
    if len(certificates) > _MAX_CERTIFICATES:
        _refuse(f"brings more than {_MAX_CERTIFICATES} certificates")
    return certificates


def _signer(value: DerValue, digests: set[str], certificates: tuple[bytes, ...]) -> SignedData:
    parts = value.expect(der.SEQUENCE).children()
    version = parts.next().integer
    issuer, serial, key_id = _signer_name(parts.next())
    if version != (1 if key_id is None else 3):
        _refuse("has a signer of an unknown version")
    digest = _algorithm(parts.next())
    attributes = parts.optional(_FIRST)
    algorithm = _algorithm(parts.next())
    signature = parts.next(der.OCTET_STRING).content
    parts.optional(_SECOND)  # not signed, so nothing is read from them
    parts.end()
    if digest.oid not in digests:
        _refuse("does not announce the hash that its signer used")
    if attributes is None:
        # Then the signature would be over the content itself, and a content that is a set of attributes could
        # borrow the signature of another one.
        _refuse("has no signed attributes")
    found = _attributes(attributes)
    if _single(found, _CONTENT_TYPE).oid != DATA:
        _refuse("is signed as something other than plain data")
    return SignedData(
        digest=_digest_name(digest),
        message_digest=_single(found, _MESSAGE_DIGEST).expect(der.OCTET_STRING).content,
        signed_at=_time(_single(found, _SIGNING_TIME)) if _SIGNING_TIME in found else None,
        # Signed is the encoding with the tag of a set, not with the tag that stands there (RFC 5652 section 5.4).
        attributes=bytes([der.SET]) + attributes.encoded[1:],
        algorithm=algorithm,
        signature=signature,
        signer_issuer=issuer,
        signer_serial=serial,
        signer_key_id=key_id,
        certificates=certificates,
    )


def _signer_name(value: DerValue) -> tuple[bytes, int, bytes | None]:
    if value.tag == _KEY_ID:
        return b"", 0, value.content
    parts = value.expect(der.SEQUENCE).children()
    issuer, serial = parts.next(der.SEQUENCE).encoded, parts.next().integer
    parts.end()
    return issuer, serial, None


def _attributes(value: DerValue) -> dict[str, list[DerValue]]:
    found: dict[str, list[DerValue]] = {}
    for attribute in value.children():
        parts = attribute.expect(der.SEQUENCE).children()
        name, values = parts.next().oid, list(parts.next(der.SET).children())
        parts.end()
        if name in found:
            _refuse("has a signed attribute twice")
        found[name] = values
    return found


def _single(attributes: Mapping[str, list[DerValue]], name: str) -> DerValue:
    values = attributes.get(name, [])
    return values[0] if len(values) == 1 else _refuse(f"has {len(values)} values of a signed attribute, not one")


def _algorithm(value: DerValue) -> Algorithm:
    parts = value.expect(der.SEQUENCE).children()
    name = parts.next().oid
    parameters = b"" if parts.tag is None else parts.next().encoded
    parts.end()
    return Algorithm(oid=name, parameters=parameters)


def _digest(value: DerValue) -> str:
    return _digest_name(_algorithm(value))


def _digest_name(algorithm: Algorithm) -> str:
    if algorithm.oid not in DIGESTS or algorithm.parameters not in (b"", b"\x05\x00"):
        _refuse(f"uses a hash that is not SHA-256, SHA-384 or SHA-512: {algorithm.oid}")
    return DIGESTS[algorithm.oid]


def _inner(value: DerValue) -> DerValue:
    parts = value.children()
    inner = parts.next()
    parts.end()
    return inner


def _time(value: DerValue) -> datetime:
    text = value.content
    if value.tag == der.UTC_TIME and _UTC_TIME.fullmatch(text):
        text = (b"19" if text >= b"50" else b"20") + text
    elif value.tag != der.GENERALIZED_TIME or not _GENERALIZED_TIME.fullmatch(text):
        _refuse("has a malformed time")
    try:
        return datetime.strptime(text.decode(), "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    except ValueError as err:
        raise PinwardenError("SIGNATURE_INVALID", "the signature has a malformed time") from err


def _refuse(why: str) -> NoReturn:
    raise PinwardenError("SIGNATURE_INVALID", f"the signature {why}")
