"""What the audit log keeps of the arguments of a call, where the policy asks for them.

Arguments are the user's own words and files. So what has the form of a key, or a name that says so, is masked, long
texts are only counted, and what is written is bounded before it is looked at: masking takes its time.
"""

from __future__ import annotations

from json import dumps
from typing import Any

from pinwarden.system.masking import MASK, MAX_SHOWN_CHARACTERS, looks_secret, mask_name, mask_text

_MOST = 32 * 1024
"""Characters of texts and names in the arguments of one call; what comes then is left out."""
_LEFT_OUT = "<left out>"


def recorded_arguments(value: Any) -> bytes:
    """The arguments as JSON text without what looks like a secret."""
    return dumps(_Bounded(_MOST).kept("", value), ensure_ascii=False, separators=(",", ":")).encode()


class _Bounded:
    """Copies a value until so much of it was copied."""

    def __init__(self, left: int) -> None:
        self._left = left

    def kept(self, name: str, value: Any) -> Any:
        if self._left <= 0:
            return _LEFT_OUT
        if type(value) is dict:
            return {self._name(each): self.kept(each, member) for each, member in self._some(value.items())}
        if type(value) is list:
            return [self.kept(name, element) for element in self._some(value)]
        self._left -= min(len(value), MAX_SHOWN_CHARACTERS) if type(value) is str else 1
        if type(value) is str and len(value) <= MAX_SHOWN_CHARACTERS and looks_secret(name, value):
            return MASK
        if type(value) is str:
            return mask_text(value)
        return MASK if looks_secret(name, str(value)) and type(value) is int else value

    def _name(self, name: str) -> str:
        self._left -= len(name)
        return mask_name(name) if len(name) <= MAX_SHOWN_CHARACTERS else _LEFT_OUT

    def _some(self, members: Any) -> Any:
        """So many members as may be told, and one more, in whose place it says that there are others."""
        for each in members:
            is_last = self._left <= 0
            yield each
            if is_last:
                return
