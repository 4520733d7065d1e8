"""Regular expressions that cost nothing until they are used.

Compiling the expressions of the modules that a command loads takes it longer than reading a lockfile, and it uses few
of them.
"""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast

_METHODS = ("findall", "finditer", "fullmatch", "match", "search", "split", "sub")


class _Later:
    """Stands for a compiled expression; it has the methods of one, and finds them when one is first asked for."""

    __slots__ = ("_flags", "_text", *_METHODS)

    def __init__(self, text: str | bytes, flags: int) -> None:
        self._text = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(self._text, self._flags)
        for each in _METHODS:
            setattr(self, each, getattr(compiled, each))
        return getattr(compiled, name)


def pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """What `re.compile` gives, as far as its methods go."""
    return cast("re.Pattern[AnyStr]", _Later(text, flags))
