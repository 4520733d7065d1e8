"""What a run of the gate checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinwarden.core.record import Record

if TYPE_CHECKING:
    from pathlib import Path

    from pinwarden.lock.mcp_registry import Registries
    from pinwarden.project.fetch_context import Workshop
    from pinwarden.project.lock_signatures import SignatureCheck
    from pinwarden.surface.probe.probe import ProbeOptions


class Gate(Record):
    """What a run checks beyond the lock, the surfaces, the configurations and the policy."""

    now: str
    registries: Registries | None = None
    """If given, each locked version is looked up again, and its metadata must still say what was approved."""
    registry_wanted: bool = False
    """Whether somebody asked for that; otherwise it comes with another check."""
    probe: ProbeOptions | None = None
    """If given, the live servers are asked, and their surfaces compared with the approved ones."""
    configs: bool = True
    scope: str = "all"
    """Whose configurations: ``project``, ``global`` or ``all``."""
    expect_digest: str | None = None
    require_lock: bool = False
    require_extension: bool = False
    require_policy: bool = False
    signatures: SignatureCheck | None = None
    """If given, the lock must be signed by these keys, under the policy that holds here."""
    workshop: Workshop | None = None
    """If given, the locked artifacts are fetched and hashed again."""
    osv: Path | None = None
    """If given, every locked package is looked up in this export of known vulnerabilities."""

    @property
    def demands_lock(self) -> bool:
        """Whether a project without a lock fails, also where no server is configured."""
        return self.require_lock or self.require_extension or self.expect_digest is not None or bool(self.signatures)
