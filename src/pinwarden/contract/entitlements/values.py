"""Input and output types of the analysis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pinwarden.core.record import Record, field

FILESYSTEM_READ: Final = "filesystem:read"
FILESYSTEM_WRITE: Final = "filesystem:write"
NETWORK: Final = "network"
SUBPROCESS: Final = "subprocess"
CRYPTO: Final = "crypto"
CODE_EVALUATION: Final = "code_evaluation"
ENVIRONMENT: Final = "environment"
NATIVE: Final = "native"
KINDS: Final = (
    FILESYSTEM_READ,
    FILESYSTEM_WRITE,
    NETWORK,
    SUBPROCESS,
    CRYPTO,
    CODE_EVALUATION,
    ENVIRONMENT,
    NATIVE,
)
"""Every entitlement, in report order."""


class Source(Record):
    """The text of one module."""

    path: str
    """As findings name it; relative to the server's folder, with forward slashes."""
    text: str = field(repr=False)
    package: bool = False
    """Whether it is the ``__init__`` of a package: relative imports count from it."""


class Handler(Record):
    """Where a tool's code begins."""

    name: str
    """The tool."""
    module: str
    function: str
    """Qualified name within the module, as ``__qualname__`` has it: ``serve.<locals>.call_tool``."""
    line: int = 0
    """Of the ``def`` (or its first decorator); 0 where it is not known. Decides between functions of the same name."""
    case: str | None = None
    """Where one function serves several tools by their name: the name that this one has there."""
    kind: str = "tool"
    """``tool``, ``prompt`` or ``resource``; a resource template is a resource, and its name is its URI template."""


class Step(Record):
    """One function on the way from a handler to what it reaches."""

    function: str
    path: str
    line: int
    """Where this function calls the next one, or has the effect."""


class Finding(Record):
    """One place in the code that needs an entitlement."""

    kind: str
    path: str
    line: int
    what: str
    """What is called there, spelt in full: ``subprocess.run``."""
    evidence: str
    """The line as it is written."""
    way: tuple[Step, ...]
    """From the handler to the place."""
    third_party: bool = False
    """The place is in a package that was scanned on request, not in the server's own code."""


class UnknownReach(Record):
    """A place behind which the analysis cannot see: what happens there is not known to be harmless."""

    reason: str
    path: str
    line: int
    what: str
    evidence: str
    way: tuple[Step, ...]


class Entitlements(Record):
    """What one handler can do."""

    kinds: tuple[str, ...] = ()
    """Those of ``KINDS`` that were found."""
    findings: tuple[Finding, ...] = ()
    unknown: tuple[UnknownReach, ...] = ()

    @property
    def filesystem(self) -> bool:
        """Reads or writes files."""
        return FILESYSTEM_READ in self.kinds or FILESYSTEM_WRITE in self.kinds

    def has(self, kind: str) -> bool:
        """Whether that entitlement was found."""
        return kind in self.kinds


class Analysis(Record):
    """What all handlers of a server can do, and what happens before any of them is called."""

    handlers: Mapping[str, Entitlements]
    startup: Entitlements
    """Of the code that runs when the modules are imported."""
    prompts: Mapping[str, Entitlements] = field(default_factory=dict)
    """By the prompt's name."""
    resources: Mapping[str, Entitlements] = field(default_factory=dict)
    """By the URI, or the URI template."""
