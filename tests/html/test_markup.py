"""Text from others as HTML: escaped, with hidden characters visible, with changes marked by more than a colour."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwarden.html.markup import show_attribute, show_changes, show_text

CHIP = re.compile(r'<span class="hidden-character">(U\+[0-9A-F]+)<span class="visually-hidden"> [^<]* </span></span>')


def plain(html: str) -> str:
    """HTML with chips as their code points, and without labels for screen readers."""
    return re.sub(r'<span class="visually-hidden">[^<]*</span>', "", CHIP.sub(r"[\1]", html))


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a < b & \"c\" 'd'", "a &lt; b &amp; &quot;c&quot; &#x27;d&#x27;"),
        ("<U+200B> or \u200b", "&lt;U+200B&gt; or [U+200B]"),
        ("\u202egnp.exe", "[U+202E]gnp.exe"),
        ("nul \x00, escape \x1b[31m, lone \ud800", "nul [U+0000], escape [U+001B][31m, lone [U+D800]"),
        ("lines\nand\ttabs\r\nstay", "lines\nand\ttabs\r\nstay"),
        ("a lone \r return", "a lone [U+000D] return"),
        ("p\u0430ypal", "p\u0430[U+0430]ypal"),
        (
            "\u0440\u0430\u0437 \u05e9\u05dc\u05d5\u05dd \u65e5\u672c \u2764\ufe0f",
            "\u0440\u0430\u0437 \u05e9\u05dc\u05d5\u05dd \u65e5\u672c \u2764\ufe0f",
        ),
    ],
)
def test_hidden_characters_become_chips_and_other_text_stays(text: str, html: str) -> None:
    assert plain(show_text(text)) == html


@given(st.text(max_size=200))
def test_attack_no_text_breaks_out_of_html_or_an_attribute(text: str) -> None:
    assert not set('<>"') & set(CHIP.sub("", show_text(text)))
    assert not set("<>\"'") & set(show_attribute(text))
    show_text(text).encode()  # lone surrogates are chips


def test_a_change_is_marked_for_eyes_and_for_screen_readers() -> None:
    html = show_changes("Reads a note.", "Reads\u200b a new note.")
    assert (
        plain(html) == '<div class="diff"><span>Reads</span><ins>[U+200B]</ins><span> a</span><ins> new</ins>'
        "<span> note.</span></div>"
    )
    assert html.count("added:") == html.count("end of added text") == 2


def test_a_long_word_is_compared_by_its_characters() -> None:
    assert plain(
        show_changes(
            "\u3053\u308c\u306f\u6587\u7ae0\u3067\u3059", "\u3053\u308c\u306f\u9577\u3044\u6587\u7ae0\u3067\u3059"
        )
    ) == (
        '<div class="diff"><span>\u3053\u308c\u306f</span><ins>\u9577\u3044</ins>'
        "<span>\u6587\u7ae0\u3067\u3059</span></div>"
    )


def test_unchanged_text_is_folded_with_its_length_and_changed_text_never() -> None:
    common, new = "same words\n" * 500, "new " * 5000
    html = show_changes(common + "end", common + new + "end")
    assert re.findall(r"<summary>([^<]*)</summary>", html) == ["5,259 unchanged characters in 479 lines"]
    assert html.count("new ") == 5000


def test_a_changed_line_feed_alone_is_visible() -> None:
    assert "<ins>[U+000A]\n</ins>" in plain(show_changes("one two", "one \n two")).replace(" ", "")
