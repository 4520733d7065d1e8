"""Sentences: where they end, when two of them are the same, and what is new in another version of a server."""

from __future__ import annotations

from time import process_time

import pytest

from pinwarden.surface.sentences import (
    MAX_SENTENCE,
    normalise,
    walk_strings,
)
from pinwarden.surface.sentences import split_sentences as split_into_spans


def split_sentences(text: str) -> list[str]:
    return [text[start:end] for start, end, _ in split_into_spans(text)]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Adds a note. Returns its id.", ["Adds a note.", "Returns its id."]),
        ("Reads files, e.g. logs, i.e. text.", ["Reads files, e.g. logs, i.e. text."]),
        (
            "Logs, traces etc. are kept. Others, etc. Not these.",
            ["Logs, traces etc. are kept.", "Others, etc.", "Not these."],
        ),
        (
            "See https://example.com/a.b?c=d. Use v1.2.3 or `a.b()`.",
            ["See https://example.com/a.b?c=d.", "Use v1.2.3 or `a.b()`."],
        ),
        ('Really?! Yes… "Done." Next (ok.) here', ["Really?!", "Yes…", '"Done."', "Next (ok.) here"]),
        ("1. First step. Then more.\n2. Second", ["1. First step.", "Then more.", "2. Second"]),
        ("# Heading\n- one\n- two\n* three", ["# Heading", "- one", "- two", "* three"]),
        ("Args:\n    path: The file\n    mode: The mode", ["Args:", "path: The file", "mode: The mode"]),
        ("获取天气。返回结果!然后 stop。", ["获取天气。", "返回结果!然后 stop。"]),
        ("Items: • one • two", ["Items: •", "one •", "two"]),
        ("", []),
        (" \n\t ", []),
    ],
)
def test_sentences_end_where_a_reader_stops(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


def test_a_wrapped_line_of_prose_is_one_sentence() -> None:
    text = "Returns the metadata of a file or directory, including its size and\nits permissions.\nNever follows links."
    assert split_sentences(text) == [
        "Returns the metadata of a file or directory, including its size and\nits permissions.",
        "Never follows links.",
    ]


def test_list_items_are_never_joined() -> None:
    text = "Supported operations on the remote repository\n- read\n- write all\npush"
    assert split_sentences(text)[1:] == ["- read", "- write all", "push"]


def test_an_endless_sentence_is_cut() -> None:
    assert all(len(sentence) <= MAX_SENTENCE for sentence in split_sentences("word " * 5_000))
    assert "".join(split_sentences("x" * 5_000)) == "x" * 5_000


@pytest.mark.parametrize("unit", [".", " ", "e.g. ", "1. ", "etc. A", "\n", "a\n", "。", "(.) ", "!", "• "])
def test_splitting_takes_linear_time(unit: str) -> None:
    started = process_time()
    split_sentences(unit * (100_000 // len(unit)))
    assert process_time() - started < 1.5  # quadratic splitting takes a minute


@pytest.mark.parametrize(
    "other",
    [
        "reads the file.",
        "Reads  the file",
        "Reads the\u00a0file!",
        "Ｒeads the file",
        "Re\u200bads the file",
        "- Reads the `file`",
        "**Reads** the “file”…",
        "Reads — the file",
    ],
)
def test_sentences_that_differ_only_in_form_are_the_same(other: str) -> None:
    assert normalise(other) == normalise("Reads the file.")


@pytest.mark.parametrize(
    "other",
    [
        "Reads the files.",
        "Reads no file.",
        "Reads the file /etc",
        "Reads the fi.le",
        "Reads the -file",
        "Reads $the file",
    ],
)
def test_sentences_with_another_word_are_different(other: str) -> None:
    assert normalise(other) != normalise("Reads the file.")


def test_every_text_of_a_tool_is_read_with_its_location() -> None:
    mode = {"type": "string", "description": "The mode.", "enum": ["fast", "slow one"], "default": "fast"}
    tool = {"name": "run", "description": "Runs it.", "inputSchema": {"properties": {"mode": mode}}}
    assert dict(walk_strings(tool)) == {
        "/name": "run",
        "/description": "Runs it.",
        "/inputSchema/properties/mode": "mode",
        "/inputSchema/properties/mode/description": "The mode.",
        "/inputSchema/properties/mode/enum/0": "fast",
        "/inputSchema/properties/mode/enum/1": "slow one",
        "/inputSchema/properties/mode/default": "fast",
    }
