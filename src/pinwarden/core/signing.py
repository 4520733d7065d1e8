"""Signatures over selected fields of a JSON document (rulebook section 3), and DSSE envelopes.

The rulebook signs the canonical JSON of each signed field, in the order of the signature's list, joined by single zero
bytes. DSSE v1 also signs the type of the payload.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from collections.abc import Iterable, Sequence
from typing import Any

from pinwarden.core import json_pointer
from pinwarden.core.canonical import canonicalize
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PrivateKey, PublicKey, Signer, decode_base64url, encode_base64url
from pinwarden.core.strict_json import parse_json

ALGORITHM = "ed25519"
_MAX_PREIMAGE = 64 * 1024 * 1024
"""A document of a few kilobytes could list one field so often that the preimage would exhaust memory."""
_MAX_SIGNATURES = 1000  # each is tried with every known key


def signing_preimage(document: Any, signed_fields: Sequence[str]) -> bytes:
    """The bytes that a signature over ``signed_fields`` covers."""
    if isinstance(document, bytes):
        document = parse_json(document)
    if isinstance(signed_fields, str) or not isinstance(signed_fields, list | tuple):
        raise PinwardenError("POINTER_PATH_INVALID", "signed_fields is not a list of JSON Pointers")
    parts: list[bytes] = []
    size = 0
    for field in signed_fields:
        parts.append(canonicalize(json_pointer.resolve_pointer(document, field), "rulebook"))
        size += len(parts[-1]) + 1
        if size > _MAX_PREIMAGE:
            raise PinwardenError("POINTER_PATH_INVALID", f"the signed fields have more than {_MAX_PREIMAGE} bytes")
    return b"\0".join(parts)


def verify_signature(public_key: PublicKey | bytes | str, message: bytes, signature: bytes | str) -> bool:
    """Whether the signature over the message is by this key.

    The key is raw bytes, base64url, PEM or ``did:key``; an unusable key raises ``KEY_INVALID``. The signature is 64
    bytes or their strict base64url; anything else is invalid.
    """
    key = _public_key(public_key)
    if isinstance(signature, str):
        try:
            signature = decode_base64url(signature)
        except PinwardenError:
            return False
    return key.verifies(message, signature)


def _public_key(key: PublicKey | bytes | str) -> PublicKey:
    if isinstance(key, PublicKey):
        return key
    return PublicKey(key) if isinstance(key, bytes) else PublicKey.parse(key)


def sign_document(document: Any, signed_fields: Sequence[str], key: Signer) -> dict[str, Any]:
    """A signature object for the document's ``signatures``."""
    return {
        "key_id": key.public_key.did,
        "alg": ALGORITHM,
        "sig": encode_base64url(key.sign(signing_preimage(document, signed_fields))),
        "signed_fields": list(signed_fields),
    }


def document_signature_valid(document: Any, signature: Any, known_keys: Iterable[PublicKey]) -> bool:
    """Whether a signature object is by one of the known keys over this document."""
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
    """The pre-authentication encoding: the payload bound to its type."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def dsse_sign(payload_type: str, payload: bytes, keys: Iterable[PrivateKey]) -> dict[str, Any]:
    """An envelope around the payload, signed with each key."""
    preimage = dsse_preimage(payload_type, payload)
    return {
        "payloadType": payload_type,
        "payload": b64encode(payload).decode(),
        "signatures": [{"keyid": key.public_key.did, "sig": b64encode(key.sign(preimage)).decode()} for key in keys],
    }


def dsse_verify(
    envelope: Any, payload_type: str, known_keys: Iterable[PublicKey]
) -> tuple[bytes, tuple[PublicKey, ...]]:
    """The payload and the known keys that signed it. Raises if there are none, or if the payload has another type."""
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
    found = [_decode_base64(entry.get("sig")) for entry in signatures if type(entry) is dict]
    signers = tuple(key for key in known_keys if any(key.verifies(preimage, sig) for sig in found))
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
