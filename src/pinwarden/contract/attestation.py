"""Attestation of a server's digest, and the guard that holds a running server to it.

The original signs with a secret that both sides share (HMAC-SHA256 over the digest's hex), and its digest leaves
prompts out. Kept for its files; our own attestation is the lockfile's Ed25519 signature
(``contract/extension.py``), which anyone can verify and which covers the whole file.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Any

from pinwarden.contract.dialect import Dialect
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field

SIGNER = "hmac-sha256"
_SHORTEST_SECRET = 32  # characters; the original only warns


class Attestation(Record):
    """The outcome of signing or verifying a digest."""

    valid: bool
    computed_digest: str
    expected_digest: str | None
    signature: str | None
    attested_at: str
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The outcome under the original's names."""
        return {
            "valid": self.valid,
            "computedDigest": self.computed_digest,
            "expectedDigest": self.expected_digest,
            "signature": self.signature,
            "signerName": SIGNER,
            "attestedAt": self.attested_at,
            "error": self.error,
        }

    def trust(self, tool_count: int) -> dict[str, Any]:
        """What a server may show of it among its capabilities."""
        return {
            "serverDigest": self.computed_digest,
            "signature": self.signature,
            "signerName": SIGNER,
            "attestedAt": self.attested_at,
            "toolCount": tool_count,
            "verified": self.valid,
        }


class HmacSigner(Record):
    """A secret that both sides share. It is in no text that this class makes."""

    secret: str | None = field(repr=False)
    dialect: Dialect
    compat: bool = False
    """Take a short secret, and do not look at the expected digest when verifying, as the original."""

    def sign(self, digest: str) -> str:
        """The signature of a digest, in hex. Raises ``KEY_INVALID`` without a usable secret."""
        if not self.secret:
            raise PinwardenError(
                "KEY_INVALID",
                f"[{self.dialect.title}] HMAC signer requires a secret. Set zeroTrust.secret or use a custom signer.",
            )
        if not self.compat and len(self.secret) < _SHORTEST_SECRET:
            raise PinwardenError("KEY_INVALID", f"a shared secret has at least {_SHORTEST_SECRET} characters")
        return hmac.new(self.secret.encode(), digest.encode(), sha256).hexdigest()


def attest(digest: str, signer: HmacSigner, *, now: str, expected: str | None = None) -> Attestation:
    """Sign a server's digest, and compare it with the expected one if there is one."""
    error = _mismatch(digest, expected)
    return Attestation(
        valid=error is None,
        computed_digest=digest,
        expected_digest=expected or None,
        signature=signer.sign(digest),
        attested_at=now,
        error=error,
    )


def verify_attestation(
    digest: str, signature: str, signer: HmacSigner, *, now: str, expected: str | None = None
) -> Attestation:
    """Whether the signature is over this digest, in constant time, and the digest the expected one."""
    made = hmac.compare_digest(signer.sign(digest).encode(), signature.encode())
    error = None if made else f"Signature verification failed for digest {digest}"
    if made and not signer.compat:
        error = _mismatch(digest, expected)
    return Attestation(
        valid=error is None,
        computed_digest=digest,
        expected_digest=expected,
        signature=signature,
        attested_at=now,
        error=error,
    )


def _mismatch(digest: str, expected: str | None) -> str | None:
    if not expected or hmac.compare_digest(digest.encode(), expected.encode()):
        return None
    return f"Attestation failed: computed digest {digest} does not match expected {expected}"


def guard_digest(attestation: Attestation, dialect: Dialect, *, fail_on_mismatch: bool = True) -> Attestation:
    """Refuse to go on with a server whose digest is not the one that was pinned for it."""
    if not attestation.valid and fail_on_mismatch:
        raise PinwardenError(
            "CONTRACT_MISMATCH", f"[{dialect.title}] Zero-Trust attestation failed: {attestation.error}"
        )
    return attestation
