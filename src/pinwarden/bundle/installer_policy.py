"""What an installer allows tools: network, filesystem, exec, and channels with ``legacy-`` before their name."""

from __future__ import annotations

from typing import Any, NoReturn

from pinwarden.bundle.shape import read
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

_WORDS = {
    "network": ("deny", "allow"),
    "filesystem": ("deny", "read_only", "read_write", "allow"),  # the last two mean the same
    "exec": ("deny", "allow"),
}


class InstallerPolicy(Record):
    """What tools may do. What is not stated is denied."""

    network: str = "deny"
    filesystem: str = "deny"
    exec: str = "deny"
    allow_legacy: bool = False


def parse(data: bytes) -> InstallerPolicy:
    """A policy file."""
    return of(read(data))


def of(document: Any) -> InstallerPolicy:
    """A policy. A key that is not known may be a rule, so it is not passed over."""
    if type(document) is not dict:
        _invalid("the installer policy is not an object")
    unknown = sorted(document.keys() - _WORDS.keys() - {"allow_legacy"})
    if unknown:
        _invalid(f"the installer policy has an unknown key {unknown[0][:80]!a}")
    for key, allowed in _WORDS.items():
        value = document.get(key, "deny")
        if type(value) is not str or value not in allowed:
            _invalid(f"{key} of the installer policy is not one of {', '.join(allowed)}")
    if type(document.get("allow_legacy", False)) is not bool:
        _invalid("allow_legacy of the installer policy is not true or false")
    return InstallerPolicy(**document)


def _invalid(why: str) -> NoReturn:
    raise PinwardenError("POLICY_INVALID", why)
