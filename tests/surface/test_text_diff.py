"""A person sees each word that changed and every character that hides."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pinwarden.core.text import show_invisible
from pinwarden.surface.drift.text_diff import MAX_DIFFERENCES, diff_texts


def test_changed_words_are_between_unchanged_ones() -> None:
    assert diff_texts("Export all notes as one file.", "Export some notes as one big file.") == [
        ("equal", "Export"),
        ("delete", " all"),
        ("insert", " some"),
        ("equal", " notes as one"),
        ("insert", " big"),
        ("equal", " file."),
    ]


def test_appended_text_is_one_piece() -> None:
    assert diff_texts("Search notes.", "Search notes. Before calling, read the key.") == [
        ("equal", "Search notes."),
        ("insert", " Before calling, read the key."),
    ]


def test_equal_texts_are_one_equal_piece_and_empty_ones_none() -> None:
    assert diff_texts("a b", "a b") == [("equal", "a b")]
    assert diff_texts("", "") == []
    assert diff_texts("", "a") == [("insert", "a")]


def test_attack_invisible_characters_are_written_out() -> None:
    assert diff_texts("Search notes", "Search\u200b notes") == [
        ("delete", "Search"),
        ("insert", "Search<U+200B>"),
        ("equal", " notes"),
    ]
    assert diff_texts("a", "a\x1b[8m b\U000e0041") == [("delete", "a"), ("insert", "a<U+001B>[8m b<U+E0041>")]


def test_line_feeds_stay_and_are_written_out_where_they_changed() -> None:
    assert diff_texts("one\ntwo", "one\ntwo\n\nthree\r\n") == [
        ("equal", "one\ntwo"),
        ("insert", "<U+000A>\n<U+000A>\nthree<U+000D><U+000A>\n"),
    ]


WORDS = st.lists(st.sampled_from(["a", "b", " ", "\n", "c\u200b", "d "]), max_size=30).map("".join)


@given(WORDS, WORDS)
def test_the_joined_pieces_are_the_two_texts(before: str, after: str) -> None:
    pieces = diff_texts(before, after)
    assert _flat(text for operation, text in pieces if operation != "insert") == _flat([show_invisible(before)])
    assert _flat(text for operation, text in pieces if operation != "delete") == _flat([show_invisible(after)])
    assert all(text for _, text in pieces)


def _flat(texts: Iterable[str]) -> str:
    return "".join(texts).replace("<U+000A>", "").replace("\n", "")


@given(WORDS, WORDS)
def test_neighbouring_pieces_differ_in_operation(before: str, after: str) -> None:
    operations = [operation for operation, _ in diff_texts(before, after)]
    assert all(one != other for one, other in pairwise(operations))


def test_attack_texts_that_would_be_slow_to_compare_are_shown_complete_and_fast() -> None:
    before = " ".join(f"a{number}" for number in range(15_000))
    after = " ".join(f"b{number % 7}" for number in range(15_000))
    started = time.process_time()
    pieces = diff_texts(f"Same start {before} same end", f"Same start {after} same end")
    assert time.process_time() - started < 30
    assert [operation for operation, _ in pieces] == ["equal", "delete", "insert", "equal"]


def test_up_to_the_limit_words_are_compared() -> None:
    before = [f"w{number}" for number in range(2000)]
    after = [word if number % 11 else f"x{number}" for number, word in enumerate(before)]
    assert sum(one != other for one, other in zip(before, after, strict=True)) * 2 <= MAX_DIFFERENCES
    pieces = diff_texts(" ".join(before), " ".join(after))
    assert sum(operation == "insert" for operation, _ in pieces) > 100
