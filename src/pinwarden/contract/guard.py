"""A running server held to its own lockfile: the guard that an author puts before serving."""

from __future__ import annotations

from collections.abc import Iterable

from pinwarden.contract.check import check_lockfile
from pinwarden.contract.contract import Contracts, PromptContract
from pinwarden.contract.extension import Extension, verify_lockfile
from pinwarden.contract.lockfile import Lockfile
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey


def hold_to_lockfile(
    lockfile: Lockfile,
    contracts: Contracts,
    prompts: Iterable[PromptContract] = (),
    *,
    current: Extension | None = None,
    known_keys: Iterable[PublicKey] = (),
) -> None:
    """Raise ``CONTRACT_MISMATCH`` unless the server is what its lockfile says.

    Where keys are known, one of them has signed the lockfile: whoever can change the server can often change the file
    beside it, and not the signature.
    """
    keys = tuple(known_keys)
    if keys:
        verify_lockfile(lockfile, keys)
    result = check_lockfile(lockfile, contracts, prompts, current=current)
    if not result.ok:
        raise PinwardenError("CONTRACT_MISMATCH", result.message, data={"changed": [*result.changed, *result.other]})
