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
    """Relative to the server's folder, with forward slashes."""
    text: str = field(repr=False)
    package: bool = False
    """Whether it is the ``__init__`` of a package, from which relative imports start."""


class Handler(Record):
    """The function that implements a tool, prompt or resource."""

    name: str
    """The name of the tool, prompt or resource."""
    module: str
    function: str
    """Qualified name within the module, as ``__qualname__`` has it: ``serve.<locals>.call_tool``."""
    line: int = 0
    """The line of the ``def`` or of its first decorator; 0 if unknown. Distinguishes functions of the same name."""
    case: str | None = None
    """The name of this tool, if the function handles several tools and selects by their names."""
    kind: str = "tool"
    """``tool``, ``prompt`` or ``resource``; a resource template is a resource, and its name is its URI template."""


class Step(Record):
    """One function on the call path from a handler to an effect."""

    function: str
    path: str
    line: int
    """The line at which this function calls the next function on the path, or has the effect itself."""


class EntitlementFinding(Record):
    """One line of code that needs an entitlement."""

    kind: str
    path: str
    line: int
    what: str
    """The full name of the called function, for example ``subprocess.run``."""
    evidence: str
    """The source line."""
    call_path: tuple[Step, ...]
    """The calls from the handler to this line."""
    third_party: bool = False
    """Whether the line is in an installed package instead of the server's own code."""


class UnfollowedCode(Record):
    """A line of code that the analysis cannot follow, so its entitlements are unknown."""

    reason: str
    """Lockfiles record this text, and a check compares it, so it must stay the same between releases."""
    path: str
    line: int
    what: str
    evidence: str
    call_path: tuple[Step, ...]


class Entitlements(Record):
    """The entitlements of one handler, with the lines of code that need them."""

    kinds: tuple[str, ...] = ()
    """Members of ``KINDS``."""
    findings: tuple[EntitlementFinding, ...] = ()
    unknown: tuple[UnfollowedCode, ...] = ()

    @property
    def filesystem(self) -> bool:
        """Whether the code reads or writes files."""
        return FILESYSTEM_READ in self.kinds or FILESYSTEM_WRITE in self.kinds

    def has(self, kind: str) -> bool:
        """Whether the code needs this entitlement."""
        return kind in self.kinds


class Analysis(Record):
    """The entitlements of all handlers of a server, and of the code that runs on import."""

    handlers: Mapping[str, Entitlements]
    """The entitlements of each tool's handler, by the name of the tool."""
    startup: Entitlements
    """The entitlements of the code that runs when the modules are imported."""
    prompts: Mapping[str, Entitlements] = field(default_factory=dict)
    """The entitlements of each prompt's handler, by the name of the prompt."""
    resources: Mapping[str, Entitlements] = field(default_factory=dict)
    """The entitlements of each resource's handler, by URI or URI template."""
