"""Step 6: who vouches for the integrity of the bundle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pinwarden.bundle import attestation as attestation_document
from pinwarden.bundle.acceptance.signatures import signers_of
from pinwarden.bundle.acceptance.values import listed, member, read_all, same
from pinwarden.bundle.acceptance.verdict import Submission
from pinwarden.bundle.trust import TrustedKey
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.timestamps import parse_timestamp

_MAX_CLAIMS = 256
"""Of one attestation; it takes one claim to vouch for a bundle."""


class Voucher(Record):
    """A claim that counts."""

    key_id: str
    role: str


class _NotCounted(Exception):  # noqa: N818  # it is no error
    """An attestation or claim does not count, which by itself is no reason to refuse the bundle."""


def vouchers(pointer: dict[str, Any], submission: Submission) -> list[Voucher]:
    """Step 6: the valid integrity claims, in their order. One that has expired ends everything."""
    found: list[Voucher] = []
    unusable: list[str] = []
    for number, data in enumerate(submission.attestations):
        try:
            document = _read(data)
            signers = _signers(document, submission)
            _check_subject(document, pointer, literal=submission.literal)
        except _NotCounted as why:
            unusable.append(f"attestation {number + 1}: {why}")
            continue
        for place, claim in _integrity_claims(document):
            try:
                found.append(_voucher(claim, pointer, signers, submission))
            except _NotCounted as why:
                unusable.append(f"attestation {number + 1}, claim {place + 1}: {why}")
    if not found:
        raise PinwardenError(
            "NO_VALID_ATTESTATIONS", "nobody known vouches for this bundle", data=_why_none(pointer, unusable)
        )
    return found


def _why_none(pointer: dict[str, Any], unusable: list[str]) -> dict[str, Any]:
    demanded = member(pointer, "constraints", "min_attestations")
    why = {"attestations_found": 0, "attestations_required": demanded if type(demanded) is int else 1}
    return {**why, "not_counted": unusable[:20]} if unusable else why


def _read(data: bytes) -> Any:
    try:
        return read_all({"attestation": data})["attestation"]
    except PinwardenError as err:
        raise _NotCounted(err.message) from err


def _signers(document: Any, submission: Submission) -> list[TrustedKey]:
    needed = attestation_document.SIGNED_FIELDS
    signers = signers_of(document, submission.trust.known, needed, literal=submission.literal)
    if not signers:
        raise _NotCounted("no known key signed it, or not all of it")
    return signers


def _check_subject(document: Any, pointer: dict[str, Any], *, literal: bool) -> None:
    subject = member(document, "subject")
    for name in ("root_cid",) if literal else ("root_cid", "descriptor_cid", "cid_profile"):
        if not same(member(subject, name), pointer.get(name)):
            raise _NotCounted(f"it is about another {name}")


def _integrity_claims(document: Any) -> Iterator[tuple[int, Any]]:
    for place, claim in enumerate(listed(document, "claims")[:_MAX_CLAIMS]):
        if member(claim, "type") == attestation_document.INTEGRITY:
            yield place, claim


def _voucher(claim: Any, pointer: dict[str, Any], signers: list[TrustedKey], submission: Submission) -> Voucher:
    """The claim, if it counts. Whose claim it is comes first: a stranger's expired one must not end an install."""
    key_id, role = member(claim, "issuer", "key_id"), member(claim, "issuer", "role")
    if not submission.literal:
        _check_issuer(key_id, role, signers)
    _check_expiry(claim, submission)
    if member(claim, "payload", "verified_root_cid") != pointer.get("root_cid"):
        raise _NotCounted("it verified another bundle")
    if not submission.literal:
        verified = member(claim, "payload", "verified_descriptor_cid")
        if verified not in (None, pointer.get("descriptor_cid")):
            raise _NotCounted("it verified another descriptor")
    return Voucher(key_id=str(key_id), role=str(role))


def _check_issuer(key_id: Any, role: Any, signers: list[TrustedKey]) -> None:
    signer = next((each for each in signers if each.key_id == key_id), None)
    if signer is None:
        raise _NotCounted("its issuer did not sign it")
    if role not in attestation_document.ROLES or role not in signer.roles:
        raise _NotCounted("its issuer is not trusted in that role")


def _check_expiry(claim: Any, submission: Submission) -> None:
    """To the letter a date that is none never comes; hardened, such a claim does not count."""
    if "expires_at_utc" not in claim:
        return
    stated = claim["expires_at_utc"]
    expires, now = parse_timestamp(stated), parse_timestamp(submission.now)
    if now is None:
        raise PinwardenError("USAGE", "the moment of the install is not one with a time zone")
    if expires is None:
        if submission.literal:
            return
        raise _NotCounted("its expiry is not a moment")
    if expires < now:
        raise PinwardenError(
            "ATTESTATION_EXPIRED",
            "somebody vouched for this bundle, and that has expired",
            data={"expires_at_utc": stated, "now_utc": submission.now},
        )
