"""Detached signatures of a lockfile: two envelope formats, and whether enough required signers signed.

=================================  ===========================  =================================================
envelope                           what is signed               not covered
=================================  ===========================  =================================================
``dev.toolpin.lock-signature`` v2  ToolPin's whole-lock digest  Pinwarden's extension and the file's timestamps
DSSE with an in-toto statement     the bytes of the file        nothing
=================================  ===========================  =================================================

Both accept Ed25519 keys only; ToolPin itself accepts any key type under that name. A DSSE envelope can hold several
signatures, and more can be added later.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NoReturn

from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.javascript import encode_javascript_json
from pinwarden.core.keys import PrivateKey, PublicKey, dsse_preimage, sign_dsse, verify_dsse
from pinwarden.core.record import Record
from pinwarden.core.text import parse_timestamp
from pinwarden.lock import lockfile
from pinwarden.lock.entry import LOCK_LIMITS

STATEMENT_TYPE = "application/vnd.in-toto+json"
PREDICATE_TYPE = "urn:pinwarden:lock-approval:1"
_IN_TOTO = "https://in-toto.io/Statement/v1"


ENVELOPE_SCHEMA, ENVELOPE_VERSION = "dev.toolpin.lock-signature", 2
_CANONICAL = "toolpin"
"""The canonical form that ToolPin signs."""
_MEMBERS = (
    "schema",
    "version",
    "algorithm",
    "lockfileDigest",
    "policyDigest",
    "publicKeyFingerprint",
    "signedAt",
    "signature",
)


class ToolPinEnvelope(Record):
    """ToolPin's envelope: one key's signature over the lock's digest."""

    lock_digest: str
    policy_digest: str | None
    fingerprint: str
    signed_at: str
    signature: bytes


def sign(lock_digest: str, key: PrivateKey, signed_at: str, *, policy_digest: str | None = None) -> ToolPinEnvelope:
    """Sign a whole-lock digest, together with the digest of the policy that applied in the review."""
    draft = ToolPinEnvelope(
        lock_digest=lock_digest,
        policy_digest=policy_digest,
        fingerprint=key.public_key.fingerprint,
        signed_at=signed_at,
        signature=b"",
    )
    signed = key.sign(canonicalize(_build_payload(draft), _CANONICAL))
    return ToolPinEnvelope(
        lock_digest=lock_digest,
        policy_digest=policy_digest,
        fingerprint=draft.fingerprint,
        signed_at=signed_at,
        signature=signed,
    )


def verify(
    envelope: ToolPinEnvelope, lock_digest: str, key: PublicKey, *, policy_digest: str | None = None
) -> str | None:
    """Return why the envelope does not cover this lock under this policy; None if it does."""
    if envelope.lock_digest != lock_digest:
        return f"the signature is for the lock {envelope.lock_digest}, but this lock is {lock_digest}"
    if envelope.policy_digest != policy_digest:
        ours, theirs = policy_digest or "none", envelope.policy_digest or "none"
        return f"the signature is for the policy {theirs}, but this policy is {ours}"
    if envelope.fingerprint != key.fingerprint:
        return f"the signature is by the key {envelope.fingerprint}, not by {key.fingerprint}"
    if not key.verifies(canonicalize(_build_payload(envelope), _CANONICAL), envelope.signature):
        return f"the key {key.fingerprint} did not make this signature"
    return None


def to_bytes(envelope: ToolPinEnvelope) -> bytes:
    """Return the envelope as a file."""
    return encode_javascript_json({**_build_payload(envelope), "signature": b64encode(envelope.signature).decode()})


def _build_payload(envelope: ToolPinEnvelope) -> dict[str, Any]:
    return {
        "schema": ENVELOPE_SCHEMA,
        "version": ENVELOPE_VERSION,
        "algorithm": "ed25519",
        "lockfileDigest": envelope.lock_digest,
        **({} if envelope.policy_digest is None else {"policyDigest": envelope.policy_digest}),
        "publicKeyFingerprint": envelope.fingerprint,
        "signedAt": envelope.signed_at,
    }


def parse(data: bytes) -> ToolPinEnvelope | dict[str, Any]:
    """Parse an envelope of either format. A DSSE envelope is returned as a dictionary, unverified."""
    value = strict_json.parse_json(data, LOCK_LIMITS)
    if not isinstance(value, dict):
        _refuse("it is not an object")
    if "payloadType" in value:
        return value
    version = value.get("version")
    if value.get("schema") != ENVELOPE_SCHEMA or type(version) is not int or version != ENVELOPE_VERSION:
        _refuse("its schema or version is unknown")
    if value.get("algorithm") != "ed25519":
        _refuse("its algorithm is not ed25519")
    unsigned = next((member for member in value if member not in _MEMBERS), None)
    if unsigned is not None:
        _refuse(f"it has the member {unsigned[:40]!a}, which the signature does not cover")
    for member in ("lockfileDigest", "publicKeyFingerprint", *(["policyDigest"] if "policyDigest" in value else [])):
        _check_digest(value.get(member), member)
    if not isinstance(value.get("signedAt"), str):
        _refuse("signedAt is not a string")
    return ToolPinEnvelope(
        lock_digest=value["lockfileDigest"],
        policy_digest=value.get("policyDigest"),
        fingerprint=value["publicKeyFingerprint"],
        signed_at=value["signedAt"],
        signature=_decode_base64(value.get("signature")),
    )


# DSSE over the bytes of the file


def sign_file(
    lock_bytes: bytes, keys: Iterable[PrivateKey], signed_at: str, *, policy_digest: str | None = None
) -> dict[str, Any]:
    """Return a DSSE envelope over the whole file, signed with each key."""
    statement = {
        "_type": _IN_TOTO,
        "subject": [{"name": lockfile.FILE_NAME, "digest": {"sha256": Digest.of_bytes(lock_bytes).hex}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {"signedAt": signed_at, **({} if policy_digest is None else {"policyDigest": policy_digest})},
    }
    return sign_dsse(STATEMENT_TYPE, canonicalize(statement), keys)


def countersign(
    envelope: Mapping[str, Any], lock_bytes: bytes, key: PrivateKey, *, policy_digest: str | None = None
) -> dict[str, Any]:
    """Return the envelope with one more signature, added only after its statement was checked against the lock."""
    payload = _decode_base64(envelope.get("payload"), size=None)
    signatures = envelope.get("signatures")
    if envelope.get("payloadType") != STATEMENT_TYPE or not isinstance(signatures, list):
        _refuse("it is not a DSSE envelope with a statement")
    _check_statement(payload, lock_bytes, policy_digest)
    mine = b64encode(key.sign(dsse_preimage(STATEMENT_TYPE, payload))).decode()
    others = [row for row in signatures if not isinstance(row, dict) or row.get("sig") != mine]
    return {**envelope, "signatures": [*others, {"keyid": key.public_key.did, "sig": mine}]}


def encode_dsse(envelope: Mapping[str, Any]) -> bytes:
    """Return a DSSE envelope as a file."""
    return encode_javascript_json(envelope)


def check_dsse(data: bytes, lock_bytes: bytes, policy_digest: str | None) -> str | None:
    """Check that a DSSE envelope is about this lock and policy, and return when it says that it was signed.

    The signatures are not verified.
    """
    envelope = parse(data)
    if isinstance(envelope, ToolPinEnvelope):
        _refuse("it is in ToolPin's format, which does not cover the whole lock; sign it with --dsse")
    signed_at = _check_statement(_decode_base64(envelope.get("payload"), size=None), lock_bytes, policy_digest)
    return signed_at if isinstance(signed_at, str) else None


def _check_statement(payload: bytes, lock_bytes: bytes, policy_digest: str | None) -> Any:
    """Check the statement against the lock, and return its ``signedAt``."""
    statement: Any = strict_json.parse_json(payload)
    if not isinstance(statement, dict) or statement.get("_type") != _IN_TOTO:
        _refuse("it is not an in-toto statement")
    subjects, predicate = statement.get("subject"), statement.get("predicate")
    if statement.get("predicateType") != PREDICATE_TYPE or not isinstance(predicate, dict):
        _refuse("it is not a statement about a lockfile")
    if not isinstance(subjects, list) or len(subjects) != 1 or not isinstance(subjects[0], dict):
        _refuse("its statement does not have exactly one subject")
    if subjects[0].get("digest") != {"sha256": Digest.of_bytes(lock_bytes).hex}:
        _refuse("its statement is for another lockfile, or this lockfile was changed")
    if predicate.get("policyDigest") != policy_digest:
        _refuse("its statement is for another policy")
    return predicate.get("signedAt")


# Enough signatures


class RequiredSigners(Record):
    """Required signatures: every named signer, and at least ``threshold`` distinct keys in total."""

    names: tuple[str, ...] = ()
    threshold: int = 1
    accept_partial: bool = False
    """Whether to accept ToolPin's envelope, which does not cover Pinwarden's extension."""
    signed_since: datetime | None = None
    """Refuse signatures older than this, because they belong to an older lock that was restored."""

    def __post_init__(self) -> None:
        if self.threshold < 1:
            raise PinwardenError("SIGNATURE_INVALID", "a policy must require at least one signature")


class SignatureReport(Record):
    """The signers, the problems of refused envelopes, and the missing signatures."""

    signers: tuple[str, ...]
    rejected: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether no required signature is missing."""
        return not self.missing


def verify_signatures(
    lock_bytes: bytes,
    envelopes: Iterable[bytes],
    known_keys: Mapping[str, PublicKey],
    required: RequiredSigners,
    *,
    policy_digest: str | None = None,
) -> SignatureReport:
    """Check whether enough known keys signed this lock. An invalid envelope is reported and does not count."""
    signed_by: set[PublicKey] = set()
    rejected: list[str] = []
    for index, data in enumerate(envelopes):
        try:
            signed_by.update(_verify_envelope(lock_bytes, data, known_keys, required, policy_digest))
        except PinwardenError as err:
            rejected.append(f"envelope {index + 1}: {err.message}")
    signers = tuple(name for name, key in known_keys.items() if key in signed_by)
    missing = [f"the signature of {name}" for name in required.names if name not in signers]
    if len(signed_by) < required.threshold:
        signatures = "a signature" if required.threshold == 1 else f"{required.threshold} signatures by different keys"
        missing.append(f"{signatures}; found {len(signed_by)}")
    return SignatureReport(signers=signers, rejected=tuple(rejected), missing=tuple(missing))


def _verify_envelope(
    lock_bytes: bytes,
    data: bytes,
    known_keys: Mapping[str, PublicKey],
    required: RequiredSigners,
    policy_digest: str | None,
) -> tuple[PublicKey, ...]:
    envelope = parse(data)
    if not isinstance(envelope, ToolPinEnvelope):
        payload, signers = verify_dsse(envelope, STATEMENT_TYPE, known_keys.values())
        _check_signing_time(_check_statement(payload, lock_bytes, policy_digest), required)
        return signers
    key = next((key for key in known_keys.values() if key.fingerprint == envelope.fingerprint), None)
    if key is None:
        _refuse(f"no known key has the fingerprint {envelope.fingerprint}")
    lock = lockfile.parse(lock_bytes)
    if lock.is_extended and not required.accept_partial:
        _refuse("it does not cover the Pinwarden extension of the lock; sign the whole file (DSSE)")
    problem = verify(envelope, lockfile.compute_lock_digest(lock), key, policy_digest=policy_digest)
    if problem:
        _refuse(problem)
    _check_signing_time(envelope.signed_at, required)
    return (key,)


def _check_signing_time(signed_at: Any, required: RequiredSigners) -> None:
    since = required.signed_since
    if since is None:
        return
    moment = parse_timestamp(signed_at)
    if moment is None:
        _refuse("it does not state when it was signed")
    if moment < since:
        _refuse(
            f"it was signed at {signed_at}, but a signature of {since.isoformat()} is known: an older lock was restored"
        )


def find_newest_signing_time(envelopes: Iterable[bytes], known_keys: Mapping[str, PublicKey]) -> datetime | None:
    """Return the newest time at which a known key signed any of these envelopes, over any lock; None if none did."""
    moments: list[datetime] = []
    for data in envelopes:
        try:
            moment = parse_timestamp(_read_signing_time(parse(data), known_keys))
        except PinwardenError:
            continue
        if moment is not None:
            moments.append(moment)
    return max(moments, default=None)


def _read_signing_time(envelope: ToolPinEnvelope | dict[str, Any], known_keys: Mapping[str, PublicKey]) -> Any:
    if isinstance(envelope, ToolPinEnvelope):
        signed = canonicalize(_build_payload(envelope), _CANONICAL)
        known = any(key.verifies(signed, envelope.signature) for key in known_keys.values())
        return envelope.signed_at if known else None
    payload, signers = verify_dsse(envelope, STATEMENT_TYPE, known_keys.values())
    statement: Any = strict_json.parse_json(payload)
    predicate = statement.get("predicate") if isinstance(statement, dict) else None
    return predicate.get("signedAt") if signers and isinstance(predicate, dict) else None


def _check_digest(text: Any, member: str) -> None:
    try:
        digest = Digest.parse(text)
    except PinwardenError:
        _refuse(f"{member} is not a digest")
    if digest.sri != text or digest.algorithm != "sha256":
        _refuse(f"{member} is not sha256-<base64>")


def _decode_base64(text: Any, size: int | None = 64) -> bytes:
    try:
        data = b64decode(text, validate=True)
    except (BinasciiError, ValueError, TypeError):
        _refuse("it contains invalid base64")
    if b64encode(data).decode() != text or (size is not None and len(data) != size):
        _refuse("its signature is not an Ed25519 signature of 64 bytes")
    return data


def _refuse(why: str) -> NoReturn:
    raise PinwardenError("SIGNATURE_INVALID", f"the signature was refused: {why}")
