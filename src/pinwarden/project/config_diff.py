"""Show the edit of a client's file as a unified diff, without secrets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Any

from pinwarden.clients.documents import read_document
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.text import show_invisible
from pinwarden.system.masking import MASK, is_safe_to_show, looks_secret, mask_text, mask_words
from pinwarden.system.redaction import NAMED_VALUES

_CONTEXT_LINES = 3
_MAX_LINE = 400  # longer lines of a diff are cut to this many characters, because some files have only one long line
_MAX_LINES = 2000
_NAMED_VALUES = frozenset({*NAMED_VALUES, "envs"})


class FileEdit(Record):
    """A file before and after an edit. None: there is no file."""

    path: Path
    before: bytes | None
    after: bytes | None


def diff_config(name: str, before: bytes | None, after: bytes | None) -> str:
    """Return the unified diff of a file called ``name``. Values that may be secrets are masked on all lines."""
    before, after = before or b"", after or b""
    secrets = sorted({*_find_secrets(before, name), *_find_secrets(after, name)}, key=len, reverse=True)
    old, new = (data.decode("utf-8", "replace").splitlines() for data in (before, after))
    shown = show_invisible(name)
    lines = [
        _mask_line(line, secrets)
        for line in unified_diff(old, new, f"{shown} (now)", f"{shown} (new)", lineterm="", n=_CONTEXT_LINES)
    ]
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = [f"... {len(lines) - _MAX_LINES} more lines"]
    return "\n".join(lines)


def _mask_line(line: str, secrets: list[str]) -> str:
    mark, text = (line[:1], line[1:]) if line[:1] in ("+", "-", " ") else ("", line)
    if line.startswith(("--- ", "+++ ", "@@ ")):
        return line
    for secret in secrets:
        text = text.replace(secret, MASK)
    indent = text[: len(text) - len(text.lstrip("\t"))]
    text = indent.replace("\t", "    ") + show_invisible(mask_text(text.lstrip("\t")))
    return mark + (text if len(text) <= _MAX_LINE else f"{text[:_MAX_LINE]}...")


def _find_secrets(data: bytes, name: str) -> Iterator[str]:
    """Yield the possible secrets in a file, as the file writes them."""
    try:
        document = read_document(data, name)
    except PinwardenError:
        return
    for value in _iter_secrets("", document, named=False):
        if value:
            # A short value is masked with its quotes, so that no part of another word is masked.
            texts = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
            yield from texts if len(value) > 3 else {f'"{text}"' for text in texts}


def _iter_secrets(name: str, value: Any, *, named: bool) -> Iterator[str]:
    """Yield possible secrets. ``named`` is True for variables and headers, any of which may be a secret."""
    if type(value) is dict:
        for key, part in value.items():
            yield from _iter_secrets(key, part, named=key in _NAMED_VALUES)
    elif type(value) is list:
        words = [part for part in value if type(part) is str]
        yield from (word for word, shown in zip(words, mask_words(words), strict=True) if word != shown)
        for part in value:
            if type(part) in (dict, list):
                yield from _iter_secrets(name, part, named=named)
    elif type(value) is str:
        secret = not is_safe_to_show(name, value) if named else looks_secret(name, value)
        if secret or mask_words([value]) != [value]:
            yield value
