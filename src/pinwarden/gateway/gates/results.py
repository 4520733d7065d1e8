"""Finds hidden characters in results, and masks the arguments of calls for the audit log.

Arguments contain the user's own words and files. Values that look like secrets are masked, long texts are replaced by
their length, and the size is limited before anything is scanned.
"""

from __future__ import annotations

from json import dumps
from typing import Any

from pinwarden.surface.scan.hidden_text import find_hidden_characters, find_terminal_escapes
from pinwarden.system.masking import MASK, MAX_SHOWN_CHARACTERS, looks_secret, mask_name, mask_text


def has_hidden_text(value: Any) -> bool:
    """Whether any text in a result contains terminal escape sequences or invisible characters."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(item.values())
            pending.extend(item)
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, str) and _find_hidden_spans(item):
            return True
    return False


def strip_hidden_text(value: Any) -> Any:
    """Return a copy of the result without terminal escape sequences and invisible characters."""
    if isinstance(value, dict):
        return {_strip_hidden_characters(name): strip_hidden_text(item) for name, item in value.items()}
    if isinstance(value, list):
        return [strip_hidden_text(item) for item in value]
    return _strip_hidden_characters(value) if isinstance(value, str) else value


def _find_hidden_spans(text: str) -> list[tuple[int, int]]:
    return [*find_terminal_escapes(text), *find_hidden_characters(text)]


def _strip_hidden_characters(text: str) -> str:
    spans = _find_hidden_spans(text)
    if not spans:
        return text
    hidden: set[int] = set()
    for start, end in spans:
        hidden.update(range(start, end))
    return "".join(character for index, character in enumerate(text) if index not in hidden)


_MAX_RECORDED = 32 * 1024
"""Maximum number of characters that the gateway records of one call. It leaves out later members and elements."""
_LEFT_OUT = "<left out>"


def mask_arguments(value: Any) -> bytes:
    """Return the arguments of a call as JSON, with values that look like secrets masked."""
    masked = _MaskingCopier(_MAX_RECORDED).copy("", value)
    return dumps(masked, ensure_ascii=False, separators=(",", ":")).encode()


class _MaskingCopier:
    """Copies a value and masks secrets, until a budget of characters is used up."""

    def __init__(self, budget: int) -> None:
        self._budget = budget

    def copy(self, name: str, value: Any) -> Any:
        """Copy the value of a member. The name or the value can indicate a secret."""
        if self._budget <= 0:
            return _LEFT_OUT
        if type(value) is dict:
            return {
                self._copy_name(key): self.copy(key, member) for key, member in self._take_within_budget(value.items())
            }
        if type(value) is list:
            return [self.copy(name, element) for element in self._take_within_budget(value)]
        self._budget -= min(len(value), MAX_SHOWN_CHARACTERS) if type(value) is str else 1
        if type(value) is str and len(value) <= MAX_SHOWN_CHARACTERS and looks_secret(name, value):
            return MASK
        if type(value) is str:
            return mask_text(value)
        return MASK if looks_secret(name, str(value)) and type(value) is int else value

    def _copy_name(self, name: str) -> str:
        self._budget -= len(name)
        return mask_name(name) if len(name) <= MAX_SHOWN_CHARACTERS else _LEFT_OUT

    def _take_within_budget(self, values: Any) -> Any:
        """Yield members or elements until the budget is used up, then one more, which becomes ``<left out>``."""
        for value in values:
            is_last = self._budget <= 0
            yield value
            if is_last:
                return
