"""The capability lockfile: made of contracts, written, and read.

``generate_lockfile``, ``serialize_lockfile`` and ``parse_lockfile`` are pure. The only side effects are in
``adapters/contract/files.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pinwarden.core.limits import DEFAULT_LIMITS, Limits
from pinwarden.core.record import Record
from pinwarden.documents.contract.contract import Contracts, PromptContract
from pinwarden.documents.contract.dialect import DEFAULT_DIALECT, Dialect

LOCKFILE_VERSION = 1


class Lockfile(Record):
    """A lockfile as a JSON value. Members that nobody here knows survive."""

    document: Mapping[str, Any]

    @property
    def server_name(self) -> str:
        """The server's name; outside the original's digest, inside our body digest."""
        name: str = self.document["serverName"]
        return name

    @property
    def integrity_digest(self) -> str:
        """The digest over the digests of all tools and prompts, with ``sha256:`` in front."""
        digest: str = self.document["integrityDigest"]
        return digest

    @property
    def tools(self) -> Mapping[str, Any]:
        """The locked tools by name."""
        tools: Mapping[str, Any] = self.document["capabilities"]["tools"]
        return tools

    @property
    def prompts(self) -> Mapping[str, Any]:
        """The locked prompts by name; none if the server had none."""
        return self.document["capabilities"].get("prompts") or {}

    @property
    def extension(self) -> Mapping[str, Any] | None:
        """The member that this program adds (``documents/contract/extension.py``), if it is there."""
        found = self.document.get("pinwarden")
        return found if isinstance(found, Mapping) else None


class LockfileCheckResult(Record):
    """What a check found. Lists are in the order of the contracts, removed ones in the order of the file."""

    ok: bool
    message: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    added_prompts: tuple[str, ...] = ()
    removed_prompts: tuple[str, ...] = ()
    changed_prompts: tuple[str, ...] = ()
    unchanged_prompts: tuple[str, ...] = ()
    other: tuple[str, ...] = ()
    """What else moved, which the original does not look at: instructions, resources, … (extension)."""

    def to_json(self) -> dict[str, Any]:
        """The result under the original's names, and ``other`` where something is in it."""
        raise NotImplementedError


def generate_lockfile(
    server_name: str,
    contracts: Contracts,
    prompts: Iterable[PromptContract] = (),
    *,
    generated_at: str,
    dialect: Dialect = DEFAULT_DIALECT,
    framework_version: str | None = None,
) -> Lockfile:
    """The lockfile of a server, without extension (``extension.with_extension`` adds one)."""
    raise NotImplementedError


def serialize_lockfile(lockfile: Lockfile) -> bytes:
    """The bytes of the file: sorted members, two spaces, a final newline. The same value gives the same bytes."""
    raise NotImplementedError


def parse_lockfile(data: bytes, *, compat: Dialect | None = None, limits: Limits = DEFAULT_LIMITS) -> Lockfile:
    """Read a lockfile of any dialect.

    Default: strict JSON, and every member that a check looks at is there and of its kind. ``compat`` names the
    dialect whose reader is to be imitated: it takes what that one takes, and refuses what that one refuses.
    """
    raise NotImplementedError
