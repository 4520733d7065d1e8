"""Render a README. Nothing in it can load, link or run anything: links and images become text with their address.

The Markdown parser takes quadratic time for some texts, so READMEs beyond the limits are shown as plain text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from pinwarden.core.record import Record
from pinwarden.html.markup import add_hidden_character_chips, show_text

_MAX_CHARS = 64 * 1024
_MAX_LINES = 4_000
_MAX_TABLE_CELLS = 40_000
_MAX_BRACKETS = 1_500
_MARKDOWN = (".md", ".markdown")
_TAGS = frozenset(
    "blockquote br code em h3 h4 h5 h6 hr li ol p pre s strong table tbody td th thead tr ul".split()  # noqa: SIM905
)


class RenderedReadme(Record):
    """A README as HTML."""

    path: str
    html: Markup
    is_markdown: bool


@lru_cache(maxsize=64)
def render_readme(path: str, body: bytes) -> RenderedReadme:
    """Render a README: Markdown by its structure, other text and text beyond the limits as it is."""
    text = body.decode("utf-8", "replace").replace("\0", "\ufffd").removeprefix("\ufeff")
    if not path.lower().endswith(_MARKDOWN) or not _is_within_limits(text):
        html = Markup('<pre class="others">{}</pre>').format(show_text(text))
        return RenderedReadme(path=path, html=html, is_markdown=False)
    rendered = _create_parser().render(text)
    # The parser passes no HTML. The sanitizer makes sure of that, and that no attribute is left.
    clean = nh3.clean(rendered, tags=set(_TAGS), attributes={})
    return RenderedReadme(path=path, html=add_hidden_character_chips(clean), is_markdown=True)


def _is_within_limits(text: str) -> bool:
    lines = text.split("\n")
    columns = max(line.count("|") for line in lines) + 1
    return (
        len(text) <= _MAX_CHARS
        and len(lines) <= _MAX_LINES
        and columns * len(lines) <= _MAX_TABLE_CELLS + len(lines)
        and text.count("[") <= _MAX_BRACKETS
    )


def _create_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    parser.core.ruler.push("inert", lambda state: _make_inert(state.tokens))
    return parser


def _make_inert(tokens: Sequence[Token]) -> None:
    """Replace links and images by text, and lower headings below those of the page."""
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1:]) + 2, 6)}"
        elif token.type == "inline" and token.children:
            token.children = _replace_links(token.children)


def _replace_links(tokens: Sequence[Token]) -> list[Token]:
    replaced: list[Token] = []
    open_links: list[tuple[str, int]] = []
    for token in tokens:
        if token.type == "link_open":
            open_links.append((str(token.attrs.get("href", "")), len(replaced)))
        elif token.type == "link_close" and open_links:
            address, start = open_links.pop()
            label = "".join(inner.content for inner in replaced[start:])
            if address and address.removeprefix("mailto:") != label:
                replaced.append(_create_text(f" ({address})"))
        elif token.type == "image":
            label = token.content or "image"
            replaced.append(_create_text(f"[{label}]"))
        else:
            replaced.append(token)
    return replaced


def _create_text(text: str) -> Token:
    return Token("text", "", 0, content=text)
