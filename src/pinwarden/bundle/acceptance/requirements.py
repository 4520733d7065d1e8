"""Step 7: what the registry demands of those who vouch."""

from __future__ import annotations

from typing import Any

from pinwarden.bundle.acceptance.attestations import Voucher
from pinwarden.bundle.acceptance.values import member
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record


class Demanded(Record):
    """The demands that were met, for the provenance."""

    require_verifier_attestation: bool
    min_attestations: int


def check_demands(pointer: dict[str, Any], found: list[Voucher], *, literal: bool) -> Demanded:
    """Step 7. A demand that cannot be understood is not met."""
    constraints = pointer.get("constraints")
    _check_signers(member(constraints, "require_signers"), found)
    verifier = member(constraints, "require_verifier_attestation") not in (None, False)
    if verifier:
        _check_verifier(found)
    return Demanded(
        require_verifier_attestation=verifier,
        min_attestations=_check_number(member(constraints, "min_attestations"), found, literal=literal),
    )


def _check_signers(required: Any, found: list[Voucher]) -> None:
    if required is None or required == []:
        return
    issuers = [each.key_id for each in found]
    if type(required) is list and any(each in required for each in issuers):
        return
    why: dict[str, Any] = {"required_signers": required, "attestation_issuer": issuers[0]}
    if len(issuers) > 1:
        why["attestation_issuers"] = issuers
    raise PinwardenError("REQUIRED_SIGNER_MISSING", "none of those vouches for it whom the registry demands", data=why)


def _check_verifier(found: list[Voucher]) -> None:
    roles = sorted({each.role for each in found})
    if "verifier" not in roles:
        raise PinwardenError(
            "VERIFIER_ATTESTATION_REQUIRED",
            f"the registry demands a verifier, and only {' and '.join(roles)[:80]} vouches for it",
            data={"required": "verifier", "found": ", ".join(roles)},
        )


def _check_number(demanded: Any, found: list[Voucher], *, literal: bool) -> int:
    """To the letter claims are counted; hardened, those who made them, once each."""
    least = 1 if demanded is None else demanded
    number = len(found) if literal else len({each.key_id for each in found})
    if type(least) is not int or number < least:
        raise PinwardenError(
            "INSUFFICIENT_ATTESTATIONS",
            "fewer people vouch for it than the registry demands",
            data={"attestations_found": number, "attestations_required": demanded},
        )
    return least
