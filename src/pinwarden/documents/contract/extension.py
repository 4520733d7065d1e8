"""Our own member of the lockfile, ``pinwarden``: what the original neither reads nor minds.

It holds what a client sees, verbatim, so that a reviewer sees what moved and not only that it moved; what is known of
each fact and how; and two digests that make the file checkable by others: ``bodyDigest`` over the whole file, and
``surfaceDigest``, equal to the consumer's lock digest of the same server (``documents/surface.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pinwarden.core.digest import Digest
from pinwarden.core.keys import PrivateKey, PublicKey
from pinwarden.core.record import Record, field
from pinwarden.documents.contract.lockfile import Lockfile
from pinwarden.documents.surface import Surface

KEY = "pinwarden"
FORMAT = "pinwarden-contract/1"
SOURCE, IN_MEMORY, LIVE, UNKNOWN = "source", "in-memory", "live", "unknown"
EVIDENCE = (SOURCE, IN_MEMORY, LIVE, UNKNOWN)
"""How a fact is known: read in source, asked of the server object, asked over the wire, or not at all."""


class ToolFacts(Record):
    """What the extension says of one tool beside its wire definition."""

    evidence: Mapping[str, str]
    """Fact (``entitlements``, ``middlewareChain``, ``inputSchema``, …) to one of ``EVIDENCE``."""
    entitlements: Mapping[str, Any] = field(default_factory=dict)
    """Findings of the source analysis, ready for JSON; more kinds than the format's five flags."""
    middleware: tuple[Mapping[str, Any], ...] = ()
    """Outermost first: ``{"name": …, "sourceDigest": … or None}``."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Timeout, auth, handler location and the like, ready for JSON."""


class Extension(Record):
    """The extension as a value, before its digests are made."""

    surface: Surface
    """What a client saw: tools, prompts, resources, templates, serverInfo, instructions, all verbatim."""
    evidence: str
    """The highest level at which the server was seen: one of ``EVIDENCE``."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Framework and protocol versions by name, e.g. ``{"python": …, "mcp": …, "fastmcp": …, "protocol": …}``."""
    tools: Mapping[str, ToolFacts] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    """Server-wide facts, ready for JSON."""


def with_extension(lockfile: Lockfile, extension: Extension) -> Lockfile:
    """The lockfile with our member in it, its body digest over everything. An older signature goes."""
    raise NotImplementedError


def body_digest(lockfile: Lockfile) -> Digest:
    """The digest of the whole document but the digest itself and the signature."""
    raise NotImplementedError


def check_body(lockfile: Lockfile) -> bool:
    """Raises ``LOCK_TAMPERED`` if the body is not the one that was written. False if the file has no body digest."""
    raise NotImplementedError


def surface_of(lockfile: Lockfile) -> Surface | None:
    """The surface that the extension holds, if there is one; its digests are recomputed, never believed."""
    raise NotImplementedError


def normalised_digest(surface: Surface) -> Digest:
    """Equal for a server that moved between the official SDK and fastmcp without a change of meaning."""
    raise NotImplementedError


def sign_lockfile(lockfile: Lockfile, keys: Iterable[PrivateKey]) -> Lockfile:
    """The lockfile with a DSSE envelope (Ed25519) over its body and surface digests."""
    raise NotImplementedError


def verify_lockfile(lockfile: Lockfile, known_keys: Iterable[PublicKey]) -> tuple[PublicKey, ...]:
    """Who of the known keys signed this very body. Raises ``SIGNATURE_INVALID`` or ``LOCK_TAMPERED``."""
    raise NotImplementedError
