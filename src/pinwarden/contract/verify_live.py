"""A consumer holds a live server against the contract that its author published."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pinwarden.contract.extension import check_body, surface_of, verify_lockfile
from pinwarden.contract.lock_command import Place, locked_at, place_of
from pinwarden.contract.normalise import normalised_digest
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.report import Report, is_failing, row_facts, severity_rank
from pinwarden.surface.drift.compare import compare
from pinwarden.surface.rows import change_row
from pinwarden.surface.surface import Surface


def verify_contract(path: Path, seen: Surface, keys: Sequence[PublicKey], subject: str) -> Report:
    """Whether a server shows what its contract says.

    1. The contract is whole, and signed by one of the keys where keys are given.
    2. Its surface and the one that was seen have the same digest; otherwise every difference is told.

    A contract is kept or broken: a server that shows less breaks it too, for it may be another one. Only a version, or
    what frameworks add by themselves, may differ.
    """
    lockfile = locked_at(place_of(str(path)))
    if not check_body(lockfile):
        raise PinwardenError("LOCK_INVALID", f"{path} holds digests only, which nobody but its author can check")
    signers = verify_lockfile(lockfile, keys) if keys else ()
    promised = surface_of(lockfile)
    if promised is None:
        raise PinwardenError("LOCK_INVALID", f"{path} holds no surface")
    same = promised.digest is not None and promised.digest == seen.digest
    rows = () if same else tuple(sorted((change_row(each) for each in compare(promised, seen)), key=severity_rank))
    equal = "the server shows what its contract says"
    meaning = seen.problem is None and normalised_digest(promised) == normalised_digest(seen)
    unsigned = () if keys else ("the contract's signature was not checked; name its key with --public-key",)
    return Report(
        command="verify",
        subject=subject,
        summary=equal if same else f"the server does not show what its contract says: {len(rows)} differences",
        exit_code=EXIT_CLEAN if same or (meaning and not any(map(is_failing, rows))) else EXIT_REFUSED,
        rows=rows,
        notes=(
            *unsigned,
            *(("only the version, or what frameworks add by themselves, differs",) if meaning and not same else ()),
        ),
        facts={
            "contract": {"serverName": lockfile.server_name, "surfaceDigest": str(promised.digest)},
            "surfaceDigest": str(seen.digest) if seen.digest else None,
            "signers": [key.did for key in signers],
            "matches": same,
            "findings": [row_facts(row) for row in rows],
        },
    )


def verify_signature(place: Place, keys: Sequence[PublicKey]) -> Report:
    """Who of the known keys signed the contract, as it is."""
    lockfile = locked_at(place)
    signers = verify_lockfile(lockfile, keys)
    return Report(
        command="contract verify-signature",
        subject=str(place.path),
        summary=f"signed by {', '.join(key.did for key in signers)}",
        exit_code=EXIT_CLEAN,
        facts={"signers": [key.did for key in signers], "serverName": lockfile.server_name},
    )
