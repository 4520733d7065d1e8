"""Ed25519 keys, and signatures over JSON documents and DSSE envelopes.

A public key is 32 bytes, written as base64url without padding, as ``did:key``, or as PEM. Non-canonical encodings and
points of small order are refused, because with such a key one signature is valid for many messages.

`refuse_private_key` and `not_a_key_error` report files that are not a public key. Their messages never contain the
content of the file, which may be a secret.

`sign_document` signs selected fields of a document (rulebook section 3): the canonical JSON of each field, in the order
of ``signed_fields``, joined by zero bytes. DSSE v1 also signs the type of the payload.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as BinasciiError
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

from pinwarden.core.canonical import canonicalize
from pinwarden.core.errors import PinwardenError
from pinwarden.core.json_values import resolve_pointer
from pinwarden.core.strict_json import parse_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_SPKI_PREFIX = bytes.fromhex("302a300506032b6570032100")  # RFC 8410: SubjectPublicKeyInfo of an Ed25519 key
_MULTICODEC_ED25519 = b"\xed\x01"
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_DID_PREFIX = "did:key:z"

_FIELD = 2**255 - 19
# The y coordinates of the eight points whose order divides eight; the sign of x does not matter.
_SMALL_ORDER_Y = frozenset(
    {
        0,
        1,
        _FIELD - 1,
        int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"),
        int.from_bytes(bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"), "little"),
    }
)


class PublicKey:
    """An Ed25519 public key that is safe to verify with."""

    __slots__ = ("raw",)

    def __init__(self, raw: bytes) -> None:
        if type(raw) is not bytes or len(raw) != 32:
            raise PinwardenError("KEY_INVALID", "the key is not an Ed25519 public key of 32 bytes")
        y = int.from_bytes(raw, "little") & (2**255 - 1)
        if y >= _FIELD:
            raise PinwardenError("KEY_INVALID", "the public key is not in its canonical encoding")
        if y in _SMALL_ORDER_Y:
            raise PinwardenError("KEY_INVALID", "the public key is a point of small order, so anyone can sign for it")
        self.raw = raw

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """Parse ``did:key:z6Mk…``, PEM, or 43 characters of base64url."""
        if type(text) is not str:
            raise PinwardenError("KEY_INVALID", "the public key is not text")
        if text.startswith("did:"):
            return cls.from_did(text)
        if text.lstrip().startswith("-----BEGIN"):
            return cls.from_pem(text.encode())
        return cls(decode_base64url(text, "KEY_INVALID"))

    @classmethod
    def from_did(cls, did: str) -> PublicKey:
        """Parse the ``did:key`` of an Ed25519 key. Other DID methods and other types of keys are refused."""
        if not did.startswith(_DID_PREFIX) or len(did) > 64:
            raise PinwardenError("KEY_INVALID", f"{did[:80]!a} is not did:key of an Ed25519 key")
        raw = _decode_base58(did[len(_DID_PREFIX) :])
        if raw[:2] != _MULTICODEC_ED25519 or len(raw) != 34:
            raise PinwardenError("KEY_INVALID", f"{did[:80]!a} is not did:key of an Ed25519 key")
        return cls(raw[2:])

    @classmethod
    def from_pem(cls, pem: bytes) -> PublicKey:
        """Parse a PEM public key."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        try:
            key = load_pem_public_key(pem)
        except (ValueError, UnsupportedAlgorithm) as err:
            raise PinwardenError("KEY_INVALID", f"not a PEM public key: {err}") from err
        if not isinstance(key, Ed25519PublicKey):
            raise PinwardenError("KEY_INVALID", "the public key is not an Ed25519 key")
        return cls(key.public_bytes_raw())

    @property
    def did(self) -> str:
        """``did:key:z6Mk…``, which signatures use as key id."""
        return _DID_PREFIX + _encode_base58(_MULTICODEC_ED25519 + self.raw)

    @property
    def base64url(self) -> str:
        """The 32 bytes in base64url without padding."""
        return encode_base64url(self.raw)

    @property
    def spki(self) -> bytes:
        """The key as DER SubjectPublicKeyInfo."""
        return _SPKI_PREFIX + self.raw

    @property
    def fingerprint(self) -> str:
        """``sha256-<base64>`` of the DER form, as ToolPin names keys."""
        return "sha256-" + b64encode(sha256(self.spki).digest()).decode()

    def pem(self) -> bytes:
        """Return the key as PEM."""
        return b"-----BEGIN PUBLIC KEY-----\n" + b64encode(self.spki) + b"\n-----END PUBLIC KEY-----\n"

    def verifies(self, message: bytes, signature: bytes) -> bool:
        """Whether ``signature`` is valid for ``message`` and this key. Malleable forms are not valid (RFC 8032)."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        if len(signature) != 64:
            return False
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except InvalidSignature:
            return False
        return True

    def __eq__(self, other: object) -> bool:
        return self.raw == other.raw if isinstance(other, PublicKey) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"PublicKey({self.did})"


class Signer(Protocol):
    """Signs with an Ed25519 key, which is in memory or stays in a device or service."""

    @property
    def public_key(self) -> PublicKey:
        """The key that verifies its signatures."""

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte signature of a message."""


class PrivateKey:
    """An Ed25519 private key. Its secret never appears in ``repr`` or in an error."""

    __slots__ = ("_key", "public_key")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key = PublicKey(key.public_key().public_bytes_raw())

    @classmethod
    def from_seed(cls, seed: bytes) -> PrivateKey:
        """Return the key that a 32-byte seed determines. The caller provides a random seed."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        if len(seed) != 32:
            raise PinwardenError("KEY_INVALID", "the Ed25519 seed does not have 32 bytes")
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def from_pem(cls, pem: bytes, passphrase: bytes | None = None) -> PrivateKey:
        """Parse a PEM private key (PKCS #8), encrypted or not."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        encrypted = b"ENCRYPTED" in pem
        if encrypted and not passphrase:
            raise PinwardenError("KEY_PASSPHRASE_REQUIRED", "the private key is encrypted, and no passphrase was given")
        try:
            key = load_pem_private_key(pem, passphrase if encrypted else None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as err:
            if encrypted:
                raise PinwardenError("KEY_PASSPHRASE_REQUIRED", "the passphrase does not decrypt the key") from err
            raise PinwardenError("KEY_INVALID", "not a PEM private key") from err
        if not isinstance(key, Ed25519PrivateKey):
            raise PinwardenError("KEY_INVALID", "the private key is not an Ed25519 key")
        return cls(key)

    def pem(self, passphrase: bytes | None = None) -> bytes:
        """Return the key as PKCS #8 PEM, encrypted if a passphrase is given."""
        from cryptography.hazmat.primitives.serialization import (
            BestAvailableEncryption,
            Encoding,
            KeySerializationEncryption,
            NoEncryption,
            PrivateFormat,
        )

        protection: KeySerializationEncryption = NoEncryption()
        if passphrase:
            protection = BestAvailableEncryption(passphrase)
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection)

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte signature of a message. Ed25519 is deterministic."""
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"PrivateKey(of {self.public_key.did})"


def encode_base64url(data: bytes) -> str:
    """Encode bytes as base64url without padding."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_base64url(text: str, code: str = "SIGNATURE_INVALID") -> bytes:
    """Decode base64url without padding. Only the canonical spelling of each byte string is accepted."""
    if type(text) is not str or not text.isascii() or any(c in text for c in "+/="):
        raise PinwardenError(code, "not base64url without padding")
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError as err:
        raise PinwardenError(code, "not base64url without padding") from err
    if encode_base64url(data) != text:
        raise PinwardenError(code, "not base64url without padding")
    return data


def _encode_base58(data: bytes) -> str:
    number = int.from_bytes(data, "big")
    text = ""
    while number:
        number, rest = divmod(number, 58)
        text = _BASE58[rest] + text
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + text


def _decode_base58(text: str) -> bytes:
    number = 0
    for character in text:
        position = _BASE58.find(character)
        if position < 0:
            raise PinwardenError("KEY_INVALID", f"{character!a} is not a character of base58")
        number = number * 58 + position
    zeros = len(text) - len(text.lstrip("1"))
    return b"\0" * zeros + number.to_bytes((number.bit_length() + 7) // 8, "big")


EXPECTED_KEY_FORMS = "Give an Ed25519 public key: a PEM file, did:key:…, or 32 bytes in base64url without padding."
_PRIVATE_KEY_MARKS = (
    b"PRIVATE KEY-----",
    b"PRIVATE+KEY+",
    b"AGE-SECRET-KEY-",
    b"untrusted comment: minisign encrypted secret key",
)
_PRIVATE_JWK = re.compile(rb'"d"\s*:\s*"')
_KEY_SHAPES = (
    (re.compile(rb"(?:ssh|ecdsa|sk)-[a-z0-9@.-]+ "), "an OpenSSH public key"),
    (re.compile(rb"-----BEGIN CERTIFICATE-----"), "a certificate"),
    (re.compile(rb"-----BEGIN PGP "), "an OpenPGP key"),
    (re.compile(rb"-----BEGIN RSA PUBLIC KEY-----"), "an RSA key"),
    (re.compile(rb"-----BEGIN PUBLIC KEY-----"), "a damaged public key, or one that is not Ed25519"),
    (re.compile(rb"[{\[]"), "JSON"),
    (
        re.compile(rb"[^\s+]+\+[0-9a-f]{8}\+[A-Za-z0-9+/=]+\s*\Z"),
        "the verifier key of a log, which must be given as text",
    ),
)


def is_private_key(data: bytes) -> bool:
    """Whether data looks like a private key in any common format, encrypted or not."""
    return any(mark in data for mark in _PRIVATE_KEY_MARKS) or (
        b'"kty"' in data and _PRIVATE_JWK.search(data) is not None
    )


def describe_key_data(data: bytes) -> str:
    """Describe data that should be a key, in a few words for an error message: ``a certificate``."""
    if not data.strip():
        return "empty"
    if is_private_key(data):
        return "a private key"
    for shape, words in _KEY_SHAPES:
        if shape.match(data.lstrip()):
            return words
    printable = all(byte >= 32 or byte in b"\t\r\n" for byte in data[:4096]) and data.isascii()
    return "text, but not a key" if printable else "binary data, not a key"


def refuse_private_key(data: bytes, source: str, public_key_file: str = "") -> None:
    """Raise if data is a private key. Call this before any of the data is stored or shown."""
    if is_private_key(data):
        raise PinwardenError(
            "KEY_INVALID",
            f"{source} is a private key; the public key is required. Nothing was stored",
            hint="Keep the private key secret. "
            + (
                f"Its public key is in {public_key_file}."
                if public_key_file
                else "Give the file FILE.pub instead, which `pinwarden keygen` writes next to the private key."
            ),
        )


def not_a_key_error(data: bytes, source: str) -> PinwardenError:
    """Return the error for a file that is not a public key."""
    return PinwardenError("KEY_INVALID", f"{source} is {describe_key_data(data)}", hint=EXPECTED_KEY_FORMS)


ALGORITHM = "ed25519"
_MAX_PREIMAGE = 64 * 1024 * 1024
"""In bytes. Without this limit, a small document that signs one field many times could exhaust the memory."""
_MAX_SIGNATURES = 1000  # every known key is tried on each signature


def signing_preimage(document: Any, signed_fields: Sequence[str]) -> bytes:
    """Return the bytes that a signature over ``signed_fields`` covers."""
    if isinstance(document, bytes):
        document = parse_json(document)
    if isinstance(signed_fields, str) or not isinstance(signed_fields, list | tuple):
        raise PinwardenError("POINTER_PATH_INVALID", "signed_fields is not a list of JSON Pointers")
    parts: list[bytes] = []
    size = 0
    for field in signed_fields:
        parts.append(canonicalize(resolve_pointer(document, field), "rulebook"))
        size += len(parts[-1]) + 1
        if size > _MAX_PREIMAGE:
            raise PinwardenError("POINTER_PATH_INVALID", f"the signed fields have more than {_MAX_PREIMAGE} bytes")
    return b"\0".join(parts)


def verify_signature(public_key: PublicKey | bytes | str, message: bytes, signature: bytes | str) -> bool:
    """Whether a signature of a message is valid for this key.

    The key is raw bytes, base64url, PEM or ``did:key``; an unusable key raises ``KEY_INVALID``. The signature is 64
    bytes or their strict base64url; anything else is invalid.
    """
    key = _parse_public_key(public_key)
    if isinstance(signature, str):
        try:
            signature = decode_base64url(signature)
        except PinwardenError:
            return False
    return key.verifies(message, signature)


def _parse_public_key(key: PublicKey | bytes | str) -> PublicKey:
    if isinstance(key, PublicKey):
        return key
    return PublicKey(key) if isinstance(key, bytes) else PublicKey.parse(key)


def sign_document(document: Any, signed_fields: Sequence[str], key: Signer) -> dict[str, Any]:
    """Sign fields of a document. Returns an object for its member ``signatures``."""
    return {
        "key_id": key.public_key.did,
        "alg": ALGORITHM,
        "sig": encode_base64url(key.sign(signing_preimage(document, signed_fields))),
        "signed_fields": list(signed_fields),
    }


def is_document_signature_valid(document: Any, signature: Any, known_keys: Iterable[PublicKey]) -> bool:
    """Whether ``signature``, an object as `sign_document` returns it, is valid for this document and a known key."""
    if type(signature) is not dict or signature.get("alg") != ALGORITHM:
        return False
    key = next((key for key in known_keys if key.did == signature.get("key_id")), None)
    sig = signature.get("sig")
    if key is None or type(sig) is not str:
        return False
    try:
        preimage = signing_preimage(document, signature.get("signed_fields"))  # type: ignore[arg-type]
    except PinwardenError:
        return False
    return verify_signature(key, preimage, sig)


# DSSE: https://github.com/secure-systems-lab/dsse


def dsse_preimage(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes that DSSE signs: the pre-authentication encoding of a payload and its type."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign_dsse(payload_type: str, payload: bytes, keys: Iterable[PrivateKey]) -> dict[str, Any]:
    """Sign a payload with each key. Returns a DSSE envelope."""
    preimage = dsse_preimage(payload_type, payload)
    return {
        "payloadType": payload_type,
        "payload": b64encode(payload).decode(),
        "signatures": [{"keyid": key.public_key.did, "sig": b64encode(key.sign(preimage)).decode()} for key in keys],
    }


def verify_dsse(
    envelope: Any, payload_type: str, known_keys: Iterable[PublicKey]
) -> tuple[bytes, tuple[PublicKey, ...]]:
    """Return the payload of an envelope, and the known keys that signed it.

    Raises SIGNATURE_INVALID if no known key signed, or if the payload has another type.
    """
    if type(envelope) is not dict or envelope.get("payloadType") != payload_type:
        raise PinwardenError("SIGNATURE_INVALID", f"not a DSSE envelope of type {payload_type}")
    payload = _decode_base64(envelope.get("payload"))
    signatures = envelope.get("signatures")
    if type(signatures) is not list:
        raise PinwardenError("SIGNATURE_INVALID", "the envelope has no list of signatures")
    if len(signatures) > _MAX_SIGNATURES:
        raise PinwardenError("SIGNATURE_INVALID", f"the envelope has more than {_MAX_SIGNATURES} signatures")
    preimage = dsse_preimage(payload_type, payload)
    # keyid is an unauthenticated hint, so every known key is tried on every signature.
    decoded = [_decode_base64(entry.get("sig")) for entry in signatures if type(entry) is dict]
    signers = tuple(key for key in known_keys if any(key.verifies(preimage, sig) for sig in decoded))
    if not signers:
        raise PinwardenError("SIGNATURE_INVALID", "no known key signed the envelope")
    return payload, signers


def _decode_base64(text: Any) -> bytes:
    try:
        data = b64decode(text, validate=True)
    except (BinasciiError, ValueError, TypeError) as err:
        raise PinwardenError("SIGNATURE_INVALID", "not base64") from err
    if b64encode(data).decode() != text:
        raise PinwardenError("SIGNATURE_INVALID", "not base64")
    return data
