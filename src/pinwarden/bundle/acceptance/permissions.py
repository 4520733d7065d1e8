"""Step 8: what the tool asks to be allowed, against what the installer allows."""

from __future__ import annotations

from typing import Any, NoReturn

from pinwarden.bundle.acceptance.values import member
from pinwarden.bundle.installer_policy import InstallerPolicy
from pinwarden.core.errors import PinwardenError

_WRITING = ("read_write", "allow")


def check_permissions(descriptor: Any, policy: InstallerPolicy, *, literal: bool) -> None:
    """Step 8: network, then file system, then exec."""
    asked = member(descriptor, "security", "policy")
    if _asks(member(asked, "network"), literal=literal) and policy.network != "allow":
        _blocked("network", "network access", member(asked, "network"), policy.network)
    wanted = member(asked, "filesystem")
    if not _files_allowed(wanted, policy.filesystem, literal=literal):
        _blocked("filesystem", "more of the file system", wanted, policy.filesystem)
    if _asks(member(asked, "exec"), literal=literal) and policy.exec != "allow":
        _blocked("exec", "to start programs", member(asked, "exec"), policy.exec)


def _asks(value: Any, *, literal: bool) -> bool:
    """Hardened, whatever is not a plain refusal asks for it."""
    return bool(value == "allow" if literal else value != "deny")


def _files_allowed(wanted: Any, allowed: str, *, literal: bool) -> bool:
    """To the letter only writing needs leave; hardened, reading does as well."""
    if allowed in _WRITING:
        return True
    if literal:
        return bool(wanted != "read_write")
    return wanted == "deny" or (wanted == "read_only" and allowed == "read_only")


def _blocked(kind: str, what: str, asked: Any, allowed: str) -> NoReturn:
    raise PinwardenError(
        f"POLICY_BLOCKED_{kind.upper()}",
        f"the tool asks for {what}, and the installer policy does not allow it".replace("for to", "to"),
        data={f"tool_policy_{kind}": asked, f"installer_policy_{kind}": allowed},
    )
