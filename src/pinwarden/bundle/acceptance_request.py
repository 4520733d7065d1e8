"""The input of the acceptance, trusted signatures, and the checks of attestations (steps 6 and 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pinwarden.bundle.attestation import ATTESTATION_SIGNED_FIELDS, INTEGRITY_CLAIM, ROLES
from pinwarden.bundle.document import read_json
from pinwarden.bundle.trust import InstallerPolicy, Trust, TrustedKey
from pinwarden.core.canonical import canonicalize
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import is_document_signature_valid
from pinwarden.core.record import Record, field
from pinwarden.core.text import parse_timestamp


class AcceptanceRequest(Record):
    """The downloaded documents, and the trust and policy of the installer."""

    pointer: bytes = field(repr=False)
    descriptor: bytes = field(repr=False)
    manifest: bytes = field(repr=False)
    attestations: tuple[bytes, ...] = field(default=(), repr=False)
    policy: InstallerPolicy
    trust: Trust
    now: str
    """The time of the install, as a timestamp with a time zone."""
    tool: str | None = None
    """The requested bundle; None for any. The first pointer with the requested bundle and channel is used."""
    channel: str | None = None
    """The requested channel; None for any."""
    literal: bool = False
    """Follow the rulebook to the letter, with its gaps. Use this to compare verifiers, not for installs."""


# Documents


def parse_documents(named: Mapping[str, bytes]) -> dict[str, Any]:
    """Parse documents strictly. If several fail, invalid JSON is reported before JSON without a canonical form."""
    values: dict[str, Any] = {}
    failures: list[PinwardenError] = []
    for name, data in named.items():
        try:
            values[name] = read_json(data)
            canonicalize(values[name], "rulebook")
        except PinwardenError as err:
            failures.append(
                PinwardenError(err.code, f"the {name} {err.message}", hint=err.hint, data={"document": name})
            )
    for failure in sorted(failures, key=lambda err: err.code != "JSON_PARSE_ERROR"):
        raise failure
    return values


def get_member(value: Any, *path: str) -> Any:
    """Return the value at a path of member names; None if a member on the path is missing."""
    for name in path:
        value = value.get(name) if type(value) is dict else None
    return value


def get_list(value: Any, name: str) -> list[Any]:
    """Return the list in a member; an empty list if the member is missing or is not a list."""
    items = get_member(value, name)
    return items if type(items) is list else []


def is_same_json(left: Any, right: Any) -> bool:
    """Whether two values are the same JSON. Python's ``==`` alone would treat true and 1 as equal."""
    return left == right and canonicalize(left, "rulebook") == canonicalize(right, "rulebook")


# Signatures


_MAX_SIGNATURES = 64
"""The maximum number of signatures that are verified per document. Verifying one takes about 0.1 ms, and a document of
one megabyte could contain thousands.
"""


def find_trusted_signers(
    document: Any, find_key: Callable[[Any], TrustedKey | None], required_fields: Sequence[str], *, literal: bool
) -> list[TrustedKey]:
    """Return the trusted keys with a valid signature over all required fields, in signature order.

    Literal mode verifies only the first signature, and ignores which fields it covers.
    """
    signatures = get_list(document, "signatures")[: 1 if literal else _MAX_SIGNATURES]
    signers: list[TrustedKey] = []
    for signature in signatures:
        trusted = find_key(get_member(signature, "key_id"))
        if trusted is None or trusted in signers:
            continue
        if not literal and not _covers_fields(signature, required_fields):
            continue
        if is_document_signature_valid(document, signature, [trusted.key]):
            signers.append(trusted)
    return signers


def _covers_fields(signature: Any, required_fields: Sequence[str]) -> bool:
    fields = get_member(signature, "signed_fields")
    return type(fields) is list and all(pointer in fields for pointer in required_fields)


# Step 6: attestations


_MAX_CLAIMS = 256
"""The maximum number of claims that are read per attestation. One claim is enough to attest a bundle."""


class ValidAttestation(Record):
    """The key and role of the issuer of an integrity claim that passed every check."""

    key_id: str
    role: str


class _IgnoredClaim(Exception):  # noqa: N818  # not an error
    """Raised for an attestation or claim that does not count. Others of the same bundle may still count."""


def find_valid_attestations(pointer: dict[str, Any], request: AcceptanceRequest) -> list[ValidAttestation]:
    """Return the issuer of each valid integrity claim.

    Raises ATTESTATION_EXPIRED if a claim of a trusted key has expired, and NO_VALID_ATTESTATIONS if no claim is valid.
    """
    valid: list[ValidAttestation] = []
    not_counted: list[str] = []
    for index, data in enumerate(request.attestations, 1):
        try:
            document = _parse_attestation(data)
            signers = _find_attestation_signers(document, request)
            _check_subject(document, pointer, literal=request.literal)
        except _IgnoredClaim as problem:
            not_counted.append(f"attestation {index}: {problem}")
            continue
        for claim_index, claim in _iter_integrity_claims(document):
            try:
                valid.append(_validate_claim(claim, pointer, signers, request))
            except _IgnoredClaim as problem:
                not_counted.append(f"attestation {index}, claim {claim_index}: {problem}")
    if not valid:
        raise PinwardenError(
            "NO_VALID_ATTESTATIONS",
            "no attestation of this bundle is from a key that you trust",
            data=_describe_missing_attestations(pointer, not_counted),
        )
    return valid


def _describe_missing_attestations(pointer: dict[str, Any], not_counted: list[str]) -> dict[str, Any]:
    required = get_member(pointer, "constraints", "min_attestations")
    data = {"attestations_found": 0, "attestations_required": required if type(required) is int else 1}
    return {**data, "not_counted": not_counted[:20]} if not_counted else data


def _parse_attestation(data: bytes) -> Any:
    try:
        return parse_documents({"attestation": data})["attestation"]
    except PinwardenError as err:
        raise _IgnoredClaim(err.message) from err


def _find_attestation_signers(document: Any, request: AcceptanceRequest) -> list[TrustedKey]:
    signers = find_trusted_signers(
        document, request.trust.find_attestation_key, ATTESTATION_SIGNED_FIELDS, literal=request.literal
    )
    if not signers:
        raise _IgnoredClaim("no trusted key signed its subject and claims")
    return signers


def _check_subject(document: Any, pointer: dict[str, Any], *, literal: bool) -> None:
    subject = get_member(document, "subject")
    for name in ("root_cid",) if literal else ("root_cid", "descriptor_cid", "cid_profile"):
        if not is_same_json(get_member(subject, name), pointer.get(name)):
            raise _IgnoredClaim(f"its {name} belongs to another bundle")


def _iter_integrity_claims(document: Any) -> Iterator[tuple[int, Any]]:
    for index, claim in enumerate(get_list(document, "claims")[:_MAX_CLAIMS], 1):
        if get_member(claim, "type") == INTEGRITY_CLAIM:
            yield index, claim


def _validate_claim(
    claim: Any, pointer: dict[str, Any], signers: list[TrustedKey], request: AcceptanceRequest
) -> ValidAttestation:
    """Check the issuer, then the expiry date: an expired claim of an unknown key must not block an install."""
    key_id, role = get_member(claim, "issuer", "key_id"), get_member(claim, "issuer", "role")
    if not request.literal:
        _check_issuer(key_id, role, signers)
    _check_expiry(claim, request)
    if get_member(claim, "payload", "verified_root_cid") != pointer.get("root_cid"):
        raise _IgnoredClaim("its verified_root_cid belongs to another bundle")
    if not request.literal:
        verified = get_member(claim, "payload", "verified_descriptor_cid")
        if verified not in (None, pointer.get("descriptor_cid")):
            raise _IgnoredClaim("its verified_descriptor_cid belongs to another descriptor")
    return ValidAttestation(key_id=str(key_id), role=str(role))


def _check_issuer(key_id: Any, role: Any, signers: list[TrustedKey]) -> None:
    signer = next((key for key in signers if key.key_id == key_id), None)
    if signer is None:
        raise _IgnoredClaim("its issuer did not sign it")
    if role not in ROLES or role not in signer.roles:
        raise _IgnoredClaim("its issuer is not trusted in that role")


def _check_expiry(claim: Any, request: AcceptanceRequest) -> None:
    """Check the expiry date. A claim with a malformed date does not count; in literal mode, it never expires."""
    if "expires_at_utc" not in claim:
        return
    stated = claim["expires_at_utc"]
    expires, now = parse_timestamp(stated), parse_timestamp(request.now)
    if now is None:
        raise PinwardenError("USAGE", "the time of the install is not a timestamp with a time zone")
    if expires is None:
        if request.literal:
            return
        raise _IgnoredClaim("its expires_at_utc is not a timestamp")
    if expires < now:
        raise PinwardenError(
            "ATTESTATION_EXPIRED",
            "an attestation of this bundle by a key that you trust has expired",
            data={"expires_at_utc": stated, "now_utc": request.now},
        )


# Step 7: requirements of the registry


class CheckedRequirements(Record):
    """The registry's requirements that the attestations meet, for the provenance."""

    require_verifier_attestation: bool
    min_attestations: int


def check_requirements(
    pointer: dict[str, Any], attestations: list[ValidAttestation], *, literal: bool
) -> CheckedRequirements:
    """Check the registry's requirements. A malformed requirement counts as not met."""
    constraints = pointer.get("constraints")
    _check_signers(get_member(constraints, "require_signers"), attestations)
    verifier_required = get_member(constraints, "require_verifier_attestation") not in (None, False)
    if verifier_required:
        _require_verifier_attestation(attestations)
    return CheckedRequirements(
        require_verifier_attestation=verifier_required,
        min_attestations=_check_count(get_member(constraints, "min_attestations"), attestations, literal=literal),
    )


def _check_signers(required: Any, attestations: list[ValidAttestation]) -> None:
    if required is None or required == []:
        return
    issuers = [attestation.key_id for attestation in attestations]
    if type(required) is list and any(issuer in required for issuer in issuers):
        return
    why: dict[str, Any] = {"required_signers": required, "attestation_issuer": issuers[0]}
    if len(issuers) > 1:
        why["attestation_issuers"] = issuers
    raise PinwardenError(
        "REQUIRED_SIGNER_MISSING", "no attestation is from a signer that the registry requires", data=why
    )


def _require_verifier_attestation(attestations: list[ValidAttestation]) -> None:
    roles = sorted({attestation.role for attestation in attestations})
    if "verifier" not in roles:
        raise PinwardenError(
            "VERIFIER_ATTESTATION_REQUIRED",
            f"the registry requires an attestation by a verifier; found only {' and '.join(roles)[:80]}",
            data={"required": "verifier", "found": ", ".join(roles)},
        )


def _check_count(required: Any, attestations: list[ValidAttestation], *, literal: bool) -> int:
    """Check the number of attestations. Each issuer counts once; in literal mode, each claim counts."""
    least = 1 if required is None else required
    count = len(attestations) if literal else len({attestation.key_id for attestation in attestations})
    if type(least) is not int or count < least:
        raise PinwardenError(
            "INSUFFICIENT_ATTESTATIONS",
            "the bundle has fewer attestations than the registry requires",
            data={"attestations_found": count, "attestations_required": required},
        )
    return least
