"""Which attestations of a bundle were renewed: the same people say the same again, later and for longer.

An expired claim of a known key stops an install, whatever else is there. So a registry no longer lists one that its
issuer has renewed; otherwise nobody could ever renew anything.
"""

from __future__ import annotations

from collections.abc import Mapping

from pinwarden.bundle.attestation import SIGNED_FIELDS, Attestation, Claim
from pinwarden.core.timestamps import parse_timestamp


def in_force(found: Mapping[str, Attestation]) -> list[str]:
    """The names of those that were not renewed, in their order."""
    return [
        name
        for name, old in found.items()
        if not any(_renews(new, old) for other, new in found.items() if other != name)
    ]


def _renews(new: Attestation, old: Attestation) -> bool:
    """Only who signed a claim can renew it: a stranger must not hide what somebody else says."""
    signers = {each.key_id for each in new.signatures if set(SIGNED_FIELDS) <= set(each.signed_fields)}
    own = [claim for claim in new.claims if claim.issuer_key_id in signers]
    return all(any(_same_for_longer(claim, said) for claim in own) for said in old.claims)


def _same_for_longer(new: Claim, old: Claim) -> bool:
    if (new.type, new.issuer_key_id, new.issuer_role) != (old.type, old.issuer_key_id, old.issuer_role):
        return False
    ends, ended = parse_timestamp(new.expires_at_utc), parse_timestamp(old.expires_at_utc)
    issued, before = parse_timestamp(new.issued_at_utc), parse_timestamp(old.issued_at_utc)
    if ended is None or issued is None or before is None or issued <= before:
        return False
    return ends is None or ends > ended
