"""Regular expressions that are compiled on first use.

Compiling all expressions of the imported modules takes longer than reading a lockfile, and a command uses few of them.
"""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast

_METHODS = ("findall", "finditer", "fullmatch", "match", "search", "split", "sub")


class _LazyPattern:
    """Has the methods of a compiled pattern, and compiles it when one of them is first accessed."""

    __slots__ = ("_flags", "_text", *_METHODS)

    def __init__(self, text: str | bytes, flags: int) -> None:
        self._text = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(self._text, self._flags)
        for method in _METHODS:
            setattr(self, method, getattr(compiled, method))
        return getattr(compiled, name)


def pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Like `re.compile`, but compiled on first use. Only the methods of a pattern are available, no attributes."""
    return cast("re.Pattern[AnyStr]", _LazyPattern(text, flags))
