"""How many files a process may have open, and how many of them its connections may be."""

from __future__ import annotations

from contextlib import suppress
from types import ModuleType

_MOST_CONNECTIONS = 4096
_ENOUGH = 16_384
"""Files for all connections and processes that a gateway allows; more would only let a leak grow."""


def _bounds() -> ModuleType | None:
    """What knows the bounds of a process, where there are any."""
    try:
        import resource
    except ImportError:
        return None
    return resource


def most_connections(wanted: int = _MOST_CONNECTIONS) -> int:
    """As many as are wanted, if they leave half of the files that the process may open to everything else."""
    resource = _bounds()
    if resource is None:
        return wanted
    allowed: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if allowed == resource.RLIM_INFINITY else min(wanted, allowed // 2)


class OpenFiles:
    """The bound of this process, raised as far as it may be."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None

    def allow_more(self) -> None:
        """Systems set a low bound for programs that cannot deal with more, and let the others ask."""
        resource = _bounds()
        if resource is None:
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(_ENOUGH, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                self._before = soft, hard

    def as_before(self, process: int) -> None:
        """Another program gets the bound that it would have had: it may be one that cannot deal with more."""
        resource = _bounds()
        if resource is not None and self._before is not None and hasattr(resource, "prlimit"):
            with suppress(OSError, ValueError):
                resource.prlimit(process, resource.RLIMIT_NOFILE, self._before)


OPEN_FILES = OpenFiles()
