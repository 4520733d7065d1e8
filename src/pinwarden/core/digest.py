"""Digests, with two text forms: ``sha256:<hex>`` and the SRI form ``sha256-<base64>``."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from hmac import compare_digest
from typing import BinaryIO

from pinwarden.core.errors import PinwardenError

DIGEST_SIZES = {"sha256": 32, "sha384": 48, "sha512": 64}
_CHUNK = 1 << 20


class Digest:
    """A digest and the name of its algorithm. Comparison takes constant time."""

    __slots__ = ("algorithm", "raw")

    algorithm: str
    raw: bytes

    def __init__(self, raw: bytes, algorithm: str = "sha256") -> None:
        if DIGEST_SIZES.get(algorithm) != len(raw):
            raise PinwardenError("DIGEST_INVALID", f"{len(raw)} bytes are not a digest of algorithm {algorithm[:20]!a}")
        _SET_ALGORITHM(self, algorithm)
        _SET_RAW(self, raw)

    @classmethod
    def of_bytes(cls, data: bytes, algorithm: str = "sha256") -> Digest:
        """The digest of bytes."""
        raw = hashlib.sha256(data).digest() if algorithm == "sha256" else _hasher(algorithm, data).digest()
        return cls(raw, algorithm)

    @classmethod
    def of_stream(cls, stream: BinaryIO, algorithm: str = "sha256") -> Digest:
        """The digest of the rest of an open binary file, in constant memory."""
        hasher = _hasher(algorithm)
        buffer = bytearray(_CHUNK)
        view = memoryview(buffer)
        while count := stream.readinto(buffer):  # type: ignore[attr-defined]
            hasher.update(view[:count])
        return cls(hasher.digest(), algorithm)

    @classmethod
    def parse(cls, text: str) -> Digest:
        """Parse either text form. Hex may be in upper case; base64 must be padded and canonical."""
        algorithm, raw = _split(text)
        if raw is None or DIGEST_SIZES.get(algorithm) != len(raw):
            raise PinwardenError("DIGEST_INVALID", f"{str(text)[:100]!a} is not a digest")
        return cls(raw, algorithm)

    @property
    def hex(self) -> str:
        """The digest without its algorithm, in lower-case hex."""
        return self.raw.hex()

    @property
    def sri(self) -> str:
        """The Subresource Integrity form, as npm and ToolPin write it."""
        return f"{self.algorithm}-{b64encode(self.raw).decode()}"

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.raw.hex()}"

    def __repr__(self) -> str:
        return f"Digest.parse({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Digest):
            return NotImplemented
        return self.algorithm == other.algorithm and compare_digest(self.raw, other.raw)

    def __hash__(self) -> int:
        return hash((self.algorithm, self.raw))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Digest is immutable: {name}")

    def __reduce__(self) -> tuple[type[Digest], tuple[bytes, str]]:
        return Digest, (self.raw, self.algorithm)


# Direct slot setters that bypass __setattr__: thousands of digests are made in one run.
_SET_ALGORITHM = Digest.__dict__["algorithm"].__set__
_SET_RAW = Digest.__dict__["raw"].__set__


def _hasher(algorithm: str, data: bytes = b"") -> hashlib._Hash:
    if algorithm not in DIGEST_SIZES:
        raise PinwardenError("DIGEST_INVALID", f"unknown digest algorithm {str(algorithm)[:20]!a}")
    return hashlib.new(algorithm, data)


def _split(text: str) -> tuple[str, bytes | None]:
    if not isinstance(text, str) or not text.isascii():
        return "", None
    algorithm, mark, rest = text.partition(":")
    if mark:
        if not rest.isalnum():  # bytes.fromhex would skip spaces
            return algorithm, None
        try:
            return algorithm, bytes.fromhex(rest)
        except ValueError:
            return algorithm, None
    algorithm, _, rest = text.partition("-")
    try:
        raw = b64decode(rest, validate=True)
    except (BinasciiError, ValueError):
        return algorithm, None
    return algorithm, raw if b64encode(raw).decode() == rest else None
