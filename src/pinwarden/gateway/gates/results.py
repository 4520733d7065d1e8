"""Looking into results: characters that a person does not see, and how to remove them."""

from __future__ import annotations

from typing import Any

from pinwarden.surface.scan.hidden_text import find_hidden_characters, find_terminal_escapes


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
