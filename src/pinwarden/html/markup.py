"""Text from servers and publishers as HTML: escaped, with hidden characters visible, and with marked changes.

A hidden character becomes a chip with its code point, so it differs from the literal text ``<U+200B>``. Letters of
another script inside a Latin word get a chip, too. The result contains no attribute with text from others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from unicodedata import name as character_name

from markupsafe import Markup

from pinwarden.core.text import INVISIBLE, show_invisible
from pinwarden.surface.drift.text_diff import DiffPiece, diff_characters, diff_words
from pinwarden.surface.scan.hidden_text import find_hidden_characters, find_look_alike_words

_VISIBLE_BLANKS = "\n\t"
_CONTEXT_CHARS = 240  # of unchanged text that are shown before and after a change
_MIN_FOLDED_CHARS = 400
_MAX_OPEN_CHARS = 30_000  # of changed text that are shown without a click
_NAMES = {"\x00": "NULL", "\n": "LINE FEED", "\r": "CARRIAGE RETURN", "\x1b": "ESCAPE", "\x7f": "DELETE"}


def show_text(text: str) -> Markup:
    """Return text as HTML. Only line feeds and tabs keep their effect."""
    return _mark_hidden(text, escape)


def show_attribute(text: str | int) -> Markup:
    """Return text or a number for the value of an attribute, where no chip is possible."""
    return Markup(escape(show_invisible(str(text)), quote=True))  # noqa: S704 - escaped


def add_hidden_character_chips(html: str) -> Markup:
    """Add chips to HTML that has no attributes and was sanitized."""
    return _mark_hidden(html, str)


def show_changes(before: str, after: str) -> Markup:
    """Return the changes between two texts as HTML. Unchanged text far from a change is folded, never changed text."""
    pieces = list(_refine(diff_words(before, after)))
    html = [
        _render_piece(piece, is_first=index == 0, is_last=index == len(pieces) - 1)
        for index, piece in enumerate(pieces)
    ]
    return Markup('<div class="diff">{}</div>').format(Markup("").join(html))


def show_sides(before: str, after: str) -> Markup:
    """Like `show_changes`, but with both texts complete, side by side."""
    pieces = list(_refine(diff_words(before, after)))
    columns = []
    for label, omitted in (("Approved", "insert"), ("Served now", "delete")):
        side = [piece for piece in pieces if piece.operation != omitted]
        html = [
            _render_piece(piece, is_first=index == 0, is_last=index == len(side) - 1)
            for index, piece in enumerate(side)
        ]
        text = Markup("").join(html) or Markup('<span class="muted">nothing</span>')
        columns.append(Markup('<div><p class="origin">{}</p><div class="diff">{}</div></div>').format(label, text))
    return Markup('<div class="sides">{}</div>').format(Markup("").join(columns))


def _refine(pieces: list[DiffPiece]) -> Iterator[DiffPiece]:
    """Compare a deleted text with the inserted one after it by characters, if they have much in common.

    Text without spaces, such as a Japanese sentence, is one word.
    """
    position = 0
    while position < len(pieces):
        pair = pieces[position : position + 2]
        if [piece.operation for piece in pair] == ["delete", "insert"]:
            refined = diff_characters(pair[0].text, pair[1].text)
            equal = sum(len(piece.text) for piece in refined if piece.operation == "equal")
            yield from refined if 2 * equal >= min(len(pair[0].text), len(pair[1].text)) else pair
            position += 2
        else:
            yield pair[0]
            position += 1


_LABELS = {"delete": ("del", "removed:", "end of removed text"), "insert": ("ins", "added:", "end of added text")}


def _render_piece(piece: DiffPiece, *, is_first: bool, is_last: bool) -> Markup:
    if piece.operation == "equal":
        return _fold_common_text(piece.text, is_first=is_first, is_last=is_last)
    tag, start, end = _LABELS[piece.operation]
    text = _mark_hidden(piece.text[:_MAX_OPEN_CHARS], escape, every=True)
    if piece.text.isspace():  # a changed line feed alone would be invisible
        text = text.replace("\n", Markup(_format_chip("\n")) + "\n")  # noqa: S704 - no text from others
    rest = piece.text[_MAX_OPEN_CHARS:]
    if rest:  # a browser takes seconds for a page of a hundred thousand lines
        summary = f"{len(rest):,} more changed characters"
        text += Markup("<details><summary>{}</summary>{}</details>").format(
            summary, _mark_hidden(rest, escape, every=True)
        )
    hidden = '<span class="visually-hidden"> {} </span>'
    return Markup(f"<{tag}>{hidden}{{}}{hidden}</{tag}>").format(start, text, end)  # noqa: S704 - constants


def _fold_common_text(text: str, *, is_first: bool, is_last: bool) -> Markup:
    head = "" if is_first else text[:_CONTEXT_CHARS]
    tail = "" if is_last else text[-_CONTEXT_CHARS:]
    middle = text[len(head) : len(text) - len(tail)]
    if len(middle) < _MIN_FOLDED_CHARS:
        return Markup("<span>{}</span>").format(show_text(text))
    lines = middle.count("\n")
    size = f"{len(middle):,} unchanged characters" + (f" in {lines + 1:,} lines" if lines else "")
    folded = Markup("<details><summary>{}</summary>{}</details>").format(size, show_text(middle))
    return Markup("<span>{}</span>{}<span>{}</span>").format(show_text(head), folded, show_text(tail))


def _mark_hidden(text: str, convert: Callable[[str], str], *, every: bool = False) -> Markup:
    """Convert text, and add a chip in place of each hidden character and after each letter that imitates another.

    With ``every``, also characters that are legitimate where they are, such as those that join an emoji.
    """
    parts: list[str] = []
    end = 0
    for position, is_letter in sorted(_find_marks(text, every=every)):
        parts += [convert(text[end : position + is_letter]), _format_chip(text[position])]
        end = position + 1
    return Markup("".join([*parts, convert(text[end:])]))  # noqa: S704 - converted


def _find_marks(text: str, *, every: bool) -> Iterator[tuple[int, bool]]:
    """Yield the positions of hidden characters and imitating letters, and whether it is a letter."""
    if not text.isascii():
        for start, stop in find_look_alike_words(text):
            yield from ((position, True) for position in range(start, stop) if not text[position].isascii())
    hidden = set() if every else {at for start, stop in find_hidden_characters(text) for at in range(start, stop)}
    for match in INVISIBLE.finditer(text):
        position, character = match.start(), match[0]
        if character in _VISIBLE_BLANKS or (character == "\r" and text[position + 1 : position + 2] == "\n"):
            continue
        if every or position in hidden or ord(character) < 0xA0:
            yield position, False


def _format_chip(character: str) -> str:
    name = _NAMES.get(character, character_name(character, "not a character")).lower()
    code = f"U+{ord(character):04X}"
    return f'<span class="hidden-character">{code}<span class="visually-hidden"> {name} </span></span>'
