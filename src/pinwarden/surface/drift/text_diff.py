"""Compare two texts word by word for output, with invisible characters made visible.

The algorithm (Myers, 1986) finds the shortest edit script. Its time grows with the length of the texts times the number
of differences, so both are limited: texts that differ more are shown as one deleted and one inserted text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from pinwarden.core.text import show_invisible

Operation = Literal["equal", "delete", "insert"]
MAX_DIFFERENCES = 400
"""The maximum number of deleted and inserted words. Texts that differ more are not compared word by word."""
MAX_CHARACTERS = 1_500
"""The maximum length of texts that are compared by characters."""
MAX_WORDS = 20_000
"""The maximum number of words to compare, apart from the common beginning and end of both texts."""

_WORD = re.compile(r"\s*\S+|\s+")  # a word with the space before it, so that the joined words give the text again


class DiffPiece(NamedTuple):
    """A piece of text that both texts have (equal), only the first (delete), or only the second (insert)."""

    operation: Operation
    text: str


def diff_texts(before: str, after: str) -> list[DiffPiece]:
    """Split two texts into equal, deleted and inserted pieces, ready for output.

    Invisible characters become ``<U+XXXX>``. So do inserted and deleted line feeds.
    """
    return [DiffPiece(operation, _make_visible(operation, text)) for operation, text in diff_words(before, after)]


def diff_words(before: str, after: str) -> list[DiffPiece]:
    """Split two texts into equal, deleted and inserted pieces of whole words, with the original characters."""
    return list(_merge_steps(_compute_edit_steps(_WORD.findall(before), _WORD.findall(after))))


def diff_characters(before: str, after: str) -> list[DiffPiece]:
    """Like `diff_words`, but by characters. Longer texts than ``MAX_CHARACTERS`` are not compared."""
    if max(len(before), len(after)) > MAX_CHARACTERS:
        return [DiffPiece("delete", before), DiffPiece("insert", after)]
    return list(_merge_steps(_compute_edit_steps(list(before), list(after))))


def omit_common_text(before: str, after: str, max_length: int) -> tuple[str, str]:
    """Shorten two texts by omitting what they have in common, if one of them is longer than ``max_length``.

    If both were only cut at the same length, the results could be equal.
    """
    if max(len(before), len(after)) <= max_length:
        return before, after
    shown_before, shown_after = _omit_equal(diff_texts(before, after))
    return shorten_middle(shown_before, max_length), shorten_middle(shown_after, max_length)


def keep_differences(before: str, after: str) -> tuple[str, str]:
    """Shorten what two texts have in common, and nothing else. Invisible characters stay as they are."""
    return _omit_equal(diff_words(before, after))


def _omit_equal(pieces: list[DiffPiece]) -> tuple[str, str]:
    sides: dict[str, list[str]] = {"delete": [], "insert": []}
    for operation, text in pieces:
        for side in ("delete", "insert") if operation == "equal" else (operation,):
            sides[side].append(_elide_middle(text, _CONTEXT_LENGTH) if operation == "equal" else text)
    return "".join(sides["delete"]), "".join(sides["insert"])


_CONTEXT_LENGTH = 120  # characters of common text that are kept around a difference


def shorten_middle(text: str, max_length: int) -> str:
    """Shorten a text to about ``max_length`` characters: beginning, number of omitted characters, end."""
    return text if len(text) <= max_length else _elide_middle(text, max_length)


def _elide_middle(text: str, max_length: int) -> str:
    half = max_length // 2
    omitted = len(text) - 2 * half
    return text if omitted <= half else f"{text[:half]}… ({omitted} more characters) …{text[-half:]}"


def _make_visible(operation: Operation, text: str) -> str:
    line_end = "\n" if operation == "equal" else "<U+000A>\n"
    return line_end.join(map(show_invisible, text.split("\n")))


def _merge_steps(steps: Iterator[DiffPiece]) -> Iterator[DiffPiece]:
    """Merge adjacent pieces with the same operation. Deleted text comes before inserted text."""
    deleted: list[str] = []
    inserted: list[str] = []
    equal: list[str] = []
    for operation, text in steps:
        if not text:
            continue
        if operation == "equal":
            yield from _join_texts(delete=deleted, insert=inserted)
            equal.append(text)
        else:
            yield from _join_texts(equal=equal)
            (deleted if operation == "delete" else inserted).append(text)
    yield from _join_texts(equal=equal)
    yield from _join_texts(delete=deleted, insert=inserted)


def _join_texts(
    *, equal: list[str] | None = None, delete: list[str] | None = None, insert: list[str] | None = None
) -> Iterator[DiffPiece]:
    operations: tuple[tuple[Operation, list[str] | None], ...] = (
        ("equal", equal),
        ("delete", delete),
        ("insert", insert),
    )
    for operation, texts in operations:
        if texts:
            yield DiffPiece(operation, "".join(texts))
            texts.clear()


def _compute_edit_steps(old: list[str], new: list[str]) -> Iterator[DiffPiece]:
    # 1. Find the common beginning and end.
    start = _common_prefix_length(old, new)
    end = min(_common_prefix_length(old[::-1], new[::-1]), len(old) - start, len(new) - start)
    yield DiffPiece("equal", "".join(old[:start]))
    # 2. Find the shortest script for the words between them, unless it exceeds the limits.
    old_middle, new_middle = old[start : len(old) - end], new[start : len(new) - end]
    script = (
        _find_shortest_script(old_middle, new_middle) if max(len(old_middle), len(new_middle)) <= MAX_WORDS else None
    )
    if script is None:
        yield DiffPiece("delete", "".join(old_middle))
        yield DiffPiece("insert", "".join(new_middle))
    else:
        yield from script
    yield DiffPiece("equal", "".join(old[len(old) - end :]))


def _common_prefix_length(old: list[str], new: list[str]) -> int:
    count = 0
    for old_word, new_word in zip(old, new, strict=False):
        if old_word != new_word:
            break
        count += 1
    return count


def _find_shortest_script(old: list[str], new: list[str]) -> list[DiffPiece] | None:
    """Find the shortest edit script. Returns None if it has more than ``MAX_DIFFERENCES`` steps."""
    reach = {1: 0}  # the furthest position in ``old`` on each diagonal (position in old minus position in new)
    history: list[dict[int, int]] = []
    for differences in range(min(len(old) + len(new), MAX_DIFFERENCES) + 1):
        history.append(dict(reach))
        for diagonal in range(-differences, differences + 1, 2):
            x = _advance(reach, diagonal, differences)
            y = x - diagonal
            while x < len(old) and y < len(new) and old[x] == new[y]:
                x, y = x + 1, y + 1
            reach[diagonal] = x
            if x >= len(old) and y >= len(new):
                return _backtrack(history, old, new)
    return None


def _advance(reach: dict[int, int], diagonal: int, differences: int) -> int:
    down = diagonal == -differences or (diagonal != differences and reach[diagonal - 1] < reach[diagonal + 1])
    return reach[diagonal + 1] if down else reach[diagonal - 1] + 1


def _backtrack(history: list[dict[int, int]], old: list[str], new: list[str]) -> list[DiffPiece]:
    x, y = len(old), len(new)
    steps: list[DiffPiece] = []
    for differences in range(len(history) - 1, -1, -1):
        reach, diagonal = history[differences], x - y
        down = diagonal == -differences or (diagonal != differences and reach[diagonal - 1] < reach[diagonal + 1])
        before = diagonal + 1 if down else diagonal - 1
        start = reach[before] if differences else 0
        while x > start and y > start - before and x > 0 and y > 0 and old[x - 1] == new[y - 1]:
            x, y = x - 1, y - 1
            steps.append(DiffPiece("equal", old[x]))
        if differences == 0:
            break
        if down:
            y -= 1
            steps.append(DiffPiece("insert", new[y]))
        else:
            x -= 1
            steps.append(DiffPiece("delete", old[x]))
    return steps[::-1]
