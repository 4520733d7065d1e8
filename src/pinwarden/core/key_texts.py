"""What somebody gave in place of a public key, in words. Nothing of it is ever repeated: it may be a secret."""

from __future__ import annotations

import re

from pinwarden.core.errors import PinwardenError

EXPECTED = "Expected is an Ed25519 public key: a PEM file, did:key:…, or 32 bytes in base64url without padding."
_PRIVATE = (
    b"PRIVATE KEY-----",
    b"PRIVATE+KEY+",
    b"AGE-SECRET-KEY-",
    b"untrusted comment: minisign encrypted secret key",
)
_PRIVATE_JWK = re.compile(rb'"d"\s*:\s*"')
_SHAPES = (
    (re.compile(rb"(?:ssh|ecdsa|sk)-[a-z0-9@.-]+ "), "a public key of OpenSSH"),
    (re.compile(rb"-----BEGIN CERTIFICATE-----"), "a certificate"),
    (re.compile(rb"-----BEGIN PGP "), "an OpenPGP key"),
    (re.compile(rb"-----BEGIN RSA PUBLIC KEY-----"), "an RSA key"),
    (re.compile(rb"-----BEGIN PUBLIC KEY-----"), "a public key of another kind than Ed25519, or a damaged one"),
    (re.compile(rb"[{\[]"), "JSON"),
    (re.compile(rb"[^\s+]+\+[0-9a-f]{8}\+[A-Za-z0-9+/=]+\s*\Z"), "a verifier key of a log, which is given as text"),
)


def is_private(data: bytes) -> bool:
    """Whether this is, as far as its form tells, a private key: of any program, encrypted or not."""
    return any(mark in data for mark in _PRIVATE) or (b'"kty"' in data and _PRIVATE_JWK.search(data) is not None)


def shape_of(data: bytes) -> str:
    """What the bytes are, in a few words."""
    if not data.strip():
        return "empty"
    if is_private(data):
        return "a private key"
    for shape, words in _SHAPES:
        if shape.match(data.lstrip()):
            return words
    printable = all(byte >= 32 or byte in b"\t\r\n" for byte in data[:4096]) and data.isascii()
    return "text, but no key" if printable else "no text, so no key"


def refuse_private(data: bytes, place: str, beside: str = "") -> None:
    """Stop at a private key before anything of it is kept or shown; ``beside`` is the file with its public key."""
    if is_private(data):
        raise PinwardenError(
            "KEY_INVALID",
            f"{place} is a private key, and what is asked for is the public one; nothing of it was kept",
            hint="A private key stays with whoever signs. "
            + (f"Its public key is in {beside}." if beside else "pinwarden keygen writes the public one to FILE.pub."),
        )


def not_a_key(data: bytes, place: str) -> PinwardenError:
    """The error for a file that holds no public key."""
    return PinwardenError("KEY_INVALID", f"{place} is {shape_of(data)}", hint=EXPECTED)
