"""Verifies the signature of a JWT, and reads its claims. Pure.

PyJWT computes the signature; everything around it is decided here, because libraries accept more than they should: an
algorithm that the policy does not allow, a key of another type, header and claims that two parsers read differently.
Header members that name keys or addresses (``jku``, ``jwk``, ``x5u``) are ignored: keys come only from the issuer.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.strict_json import Limits
from pinwarden.identity.settings import ALGORITHMS

MAX_TOKEN_LENGTH = 16 * 1024
"""The maximum length of a token. Real ones with hundreds of groups have ten kilobytes."""
MAX_KEYS = 100
"""The maximum number of keys in a key set."""

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey

_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_JSON = Limits(max_bytes=MAX_TOKEN_LENGTH, max_depth=20)
_CURVES = {"ES256": "secp256r1", "ES384": "secp384r1", "ES512": "secp521r1"}
_MIN_RSA_BITS, _MAX_RSA_BITS = 2048, 8192
_MAX_KEY_ID = 512


class VerificationKey(Record):
    """A public key of an issuer."""

    key_id: str | None
    algorithm: str | None
    """The only algorithm that the key may be used with; None if the issuer does not say."""
    key: PublicKey = field(repr=False, compare=False)
    fingerprint: str
    """The public numbers of the key, as the issuer wrote them."""

    def suits(self, algorithm: str) -> bool:
        """Whether signatures of this algorithm can be from this key."""
        if self.algorithm not in (None, algorithm):
            return False
        if isinstance(self.key, RSAPublicKey):
            return algorithm[:2] in ("RS", "PS")
        if isinstance(self.key, EllipticCurvePublicKey):
            return _CURVES.get(algorithm) == self.key.curve.name
        return algorithm == "EdDSA"


class KeySource(Protocol):
    """Finds the keys of an issuer, such as `identity.issuer.Issuer`."""

    def find_key(self, key_id: str | None, algorithm: str) -> VerificationKey | None:
        """Return the key with this id for this algorithm; None if it is not known."""


class SignedToken(Record):
    """The verified content of a JWT. Its claims still have to be checked: issuer, audience, expiry."""

    type: str
    """The header member ``typ`` in lower case, without ``application/``; empty without one."""
    claims: Mapping[str, Any] = field(repr=False)


def token_error(reason: str, message: str) -> PinwardenError:
    """Return the error for a token that is refused. ``reason`` is for programs and the audit log."""
    return PinwardenError("ACCESS_TOKEN_INVALID", message, data={"reason": reason})


def is_unknown_key(err: PinwardenError) -> bool:
    """Whether a token was refused because its key is not known, so that refreshing the issuer's keys may help."""
    return err.data.get("reason") == "key"


def verify_signature(token: str, keys: KeySource, algorithms: Sequence[str]) -> SignedToken:
    """Verify the signature of a JWT. Raises ACCESS_TOKEN_INVALID, with the reason in its data."""
    if len(token) > MAX_TOKEN_LENGTH:
        raise token_error("malformed", f"the token is longer than {MAX_TOKEN_LENGTH} characters")
    if not _TOKEN.fullmatch(token):
        raise token_error("malformed", "the token is not a signed JWT")
    encoded_header, encoded_claims, _ = token.split(".")
    header = _parse_part(encoded_header, "header")
    algorithm, key_id, token_type = (header.get(name) for name in ("alg", "kid", "typ"))
    if algorithm not in algorithms or algorithm not in ALGORITHMS:
        raise token_error("algorithm", f"the token's signature algorithm {_show(algorithm)} is not allowed")
    if header.keys() & {"crit", "b64", "zip", "enc"}:
        raise token_error("header", "the token's header has extensions that are not supported")
    if not (key_id is None or (isinstance(key_id, str) and len(key_id) <= _MAX_KEY_ID)):
        raise token_error("header", f"the token's key id is not a string of at most {_MAX_KEY_ID} characters")
    if not isinstance(token_type, str | None):
        raise token_error("header", "the token's type is not a string")
    key = keys.find_key(key_id, algorithm)
    if key is None:
        raise token_error("key", f"the issuer has no key {_show(key_id)} for {algorithm}")
    claims = _parse_part(encoded_claims, "claims")
    try:
        jwt.PyJWS(algorithms=[algorithm]).decode_complete(token, key.key, algorithms=[algorithm])
    except jwt.PyJWTError as err:
        raise token_error("signature", "the token's signature is not valid") from err
    return SignedToken(type=(token_type or "").lower().removeprefix("application/"), claims=claims)


def _parse_part(encoded: str, name: str) -> dict[str, Any]:
    try:
        data = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        value = strict_json.parse_json(data, _JSON)
    except (binascii.Error, ValueError, PinwardenError) as err:
        raise token_error("malformed", f"the token's {name} cannot be parsed") from err
    if not isinstance(value, dict):
        raise token_error("malformed", f"the token's {name} are not an object")
    return value


def check_times(claims: Mapping[str, Any], now: float, leeway: float) -> int:
    """Check ``exp``, ``nbf`` and ``iat`` at a time in seconds since 1970. Returns the expiry, which is required."""
    times = {name: claims.get(name) for name in ("exp", "nbf", "iat")}
    for name, value in times.items():
        if value is not None and (type(value) not in (int, float) or not 0 <= value < _MAX_TIME):
            raise token_error("claims", f"the token's claim {name} is not a time")
    expires = times["exp"]
    if expires is None:
        raise token_error("claims", "the token has no expiry")
    if now >= expires + leeway:
        raise token_error("expired", "the token has expired")
    for name in ("nbf", "iat"):
        if (value := times[name]) is not None and value > now + leeway:
            raise token_error("not-yet-valid", f"the token is not valid yet: its {name} is in the future")
    return int(expires)


_MAX_TIME = 1 << 40


def read_text(claims: Mapping[str, Any], name: str, *, longest: int = 255) -> str:
    """Return a required claim that is a short string."""
    value = claims.get(name)
    if not isinstance(value, str) or not value or len(value) > longest:
        raise token_error("claims", f"the token's claim {name} is not a string of at most {longest} characters")
    return value


def read_audiences(claims: Mapping[str, Any]) -> frozenset[str]:
    """Return the audiences of a token: one string, or a list of strings."""
    value = claims.get("aud")
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed) or len(listed) > _MAX_LISTED:
        raise token_error("audience", "the token names no audience")
    return frozenset(listed)


def read_groups(claims: Mapping[str, Any], path: Sequence[str]) -> tuple[str, ...] | None:
    """Return the groups in a claim, which may be inside other claims; None if the token does not have it."""
    value: Any = claims
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None:
        return None
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed) or len(listed) > _MAX_LISTED:
        raise token_error("claims", f"the token's claim {'.'.join(path)} is not a list of strings")
    return tuple(listed)


_MAX_LISTED = 2000


def parse_keys(key_set: Mapping[str, Any]) -> tuple[VerificationKey, ...]:
    """Read a key set (RFC 7517). Keys of other types, for encryption, too short or malformed ones are left out.

    Raises ISSUER_INVALID if no usable key remains.
    """
    listed = key_set.get("keys")
    if not isinstance(listed, list) or len(listed) > MAX_KEYS:
        raise PinwardenError("ISSUER_INVALID", f"the key set of the issuer is not a list of at most {MAX_KEYS} keys")
    keys = tuple(key for key in map(_parse_key, listed) if key is not None)
    if not keys:
        raise PinwardenError("ISSUER_INVALID", "the key set of the issuer has no usable key")
    return keys


_KEY_TYPES: Mapping[str, Any] = {"RSA": RSAAlgorithm, "EC": ECAlgorithm, "OKP": OKPAlgorithm}
_PUBLIC_MEMBERS = ("kty", "crv", "n", "e", "x", "y")


def _parse_key(jwk: Any) -> VerificationKey | None:
    if not isinstance(jwk, dict) or jwk.get("use", "sig") != "sig" or "d" in jwk:
        return None
    operations, key_id, algorithm = jwk.get("key_ops"), jwk.get("kid"), jwk.get("alg")
    if operations is not None and not (isinstance(operations, list) and "verify" in operations):
        return None
    if not (key_id is None or (isinstance(key_id, str) and len(key_id) <= _MAX_KEY_ID)):
        return None
    if algorithm is not None and algorithm not in ALGORITHMS:
        return None
    key: Any = None
    with suppress(jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError):
        key = _KEY_TYPES[jwk["kty"]].from_jwk({name: jwk[name] for name in _PUBLIC_MEMBERS if name in jwk})
    if not isinstance(key, RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey):
        return None
    if isinstance(key, RSAPublicKey) and not _MIN_RSA_BITS <= key.key_size <= _MAX_RSA_BITS:
        return None
    numbers = " ".join(str(jwk.get(name, "")) for name in _PUBLIC_MEMBERS)
    return VerificationKey(key_id=key_id, algorithm=algorithm, key=key, fingerprint=numbers)


def _show(value: object) -> str:
    return f"{value[:60]!a}" if isinstance(value, str) else "without a name"
