"""Text in results and arguments: hidden characters, and what the audit log keeps of a call's arguments.

Arguments are the user's own words and files. Values that look like secrets are masked, long texts are only counted, and
the size is bounded before anything is scanned.
"""

from __future__ import annotations

from json import dumps
from typing import Any

from pinwarden.surface.scan.hidden_text import find_hidden_characters, find_terminal_escapes
from pinwarden.system.masking import MASK, MAX_SHOWN_CHARACTERS, looks_secret, mask_name, mask_text


def has_hidden(value: Any) -> bool:
    """Whether any text in a result holds control sequences or characters that nobody sees."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(item.values())
            pending.extend(item)
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, str) and _spans(item):
            return True
    return False


def without_hidden(value: Any) -> Any:
    """The same result without them."""
    if isinstance(value, dict):
        return {_cleaned(name): without_hidden(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_hidden(item) for item in value]
    return _cleaned(value) if isinstance(value, str) else value


def _spans(text: str) -> list[tuple[int, int]]:
    return [*find_terminal_escapes(text), *find_hidden_characters(text)]


def _cleaned(text: str) -> str:
    spans = _spans(text)
    if not spans:
        return text
    gone: set[int] = set()
    for start, end in spans:
        gone.update(range(start, end))
    return "".join(character for place, character in enumerate(text) if place not in gone)


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
