"""Draws the pictures of the concept pages, for light and dark pages. ``tools/reference_docs.py`` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_LINE = 17
_STYLE = """
svg{--page:#fff;--box:#f4f6f8;--text:#1f2328;--soft:#59636e}
.a{--c:#0a4fb4}.b{--c:#7c3aed}.c{--c:#0e7a6d}.d{--c:#be185d}.e{--c:#6e4400}
@media (prefers-color-scheme:dark){svg{--page:#0d1117;--box:#161b22;--text:#f0f6fc;--soft:#a3acb8}
.a{--c:#8ab6ff}.b{--c:#c4a7ff}.c{--c:#5fd4c4}.d{--c:#f9a8d4}.e{--c:#f5cd7a}}
text{font-family:ui-sans-serif,system-ui,'Segoe UI',Helvetica,Arial,sans-serif;fill:var(--text);font-size:13px}
.page{fill:var(--page)}.box{fill:var(--box);stroke:var(--c);stroke-width:1.5}
.name{font-weight:600;font-size:14px;fill:var(--c)}.note{fill:var(--soft);font-size:12px}
.line{fill:none;stroke:var(--soft);stroke-width:1.5}.tip{fill:var(--soft)}
"""


class Box(NamedTuple):
    """A box with a name and lines of text below it."""

    x: int
    y: int
    width: int
    height: int
    colour: str
    name: str
    lines: Sequence[str] = ()

    def draw(self) -> str:
        """Return the box as SVG."""
        parts = [
            f'<rect class="box {self.colour}" x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}"'
            ' rx="8"/>',
            f'<text class="name {self.colour}" x="{self.x + 14}" y="{self.y + 24}">{escape(self.name)}</text>',
        ]
        parts += [
            f'<text class="note" x="{self.x + 14}" y="{self.y + 26 + _LINE * (number + 1)}">{escape(line)}</text>'
            for number, line in enumerate(self.lines)
        ]
        return "".join(parts)


class Arrow(NamedTuple):
    """An arrow along points."""

    points: Sequence[tuple[int, int]]

    def draw(self) -> str:
        """Return the arrow as SVG."""
        path = "M" + "L".join(f"{x} {y}" for x, y in self.points)
        return f'<path class="line" d="{path}" marker-end="url(#tip)"/>'


class Picture(NamedTuple):
    """A picture and what it shows, for people who cannot see it."""

    width: int
    height: int
    label: str
    parts: Sequence[Box | Arrow]

    def draw(self) -> str:
        """Return the picture as SVG."""
        marker = (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
            ' markerUnits="userSpaceOnUse" orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>'
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}"'
            f' height="{self.height}" role="img" aria-label="{escape(self.label)}">\n<style>{_STYLE}</style>{marker}\n'
            f'<rect class="page" x="0" y="0" width="{self.width}" height="{self.height}" rx="12"/>\n'
            + "\n".join(part.draw() for part in self.parts)
            + "\n</svg>\n"
        )


DIGESTS = Picture(
    960,
    450,
    "What each digest covers, from the bytes of a package to the seal of the lock",
    (
        Box(
            20,
            20,
            920,
            410,
            "a",
            "seal of the lock",
            ("everything below, and the files next to the lock; sign it, or keep the expected value in CI",),
        ),
        Box(40, 80, 430, 200, "b", "artifact digest", ("every byte of the package, wheel, image or crate",)),
        Box(
            60,
            145,
            185,
            115,
            "b",
            "dependency digests",
            ("one for each package of", "the closure, pinned by", "the closure's own digest"),
        ),
        Box(
            260,
            145,
            190,
            115,
            "b",
            "provenance",
            ("who built it from which", "commit, verified against", "the artifact digest"),
        ),
        Box(490, 80, 430, 200, "c", "surface digest", ("all a server sends: every member of every item",)),
        Box(
            510,
            145,
            185,
            115,
            "c",
            "item digest",
            ("one tool, prompt or", "resource, with members", "that no SDK knows"),
        ),
        Box(
            710,
            145,
            190,
            115,
            "c",
            "API surface hash",
            ("names, descriptions and", "input schemas of tools: the", "same for equal servers"),
        ),
        Box(
            40,
            310,
            430,
            95,
            "e",
            "configuration",
            ("command, arguments, URL, names of variables, and values", "of variables that cannot be secrets"),
        ),
        Box(490, 310, 430, 95, "d", "policy digest", ("the rules in pinwarden.toml; a looser policy is a finding",)),
    ),
)
LIFE = Picture(
    960,
    430,
    "The life of a tool definition: listed by the server, compared, and passed, blocked or approved",
    (
        Box(20, 30, 190, 90, "a", "1 listed", ("the server sends the", "definition, maybe changed")),
        Box(260, 30, 190, 90, "a", "2 parsed strictly", ("what two parsers could", "read differently is refused")),
        Box(500, 30, 190, 90, "a", "3 compared", ("member by member with", "the approved definition")),
        Box(740, 30, 200, 90, "c", "4 equal: passed", ("forwarded byte for byte;", "calls are allowed")),
        Box(500, 170, 190, 90, "e", "5 changed", ("info, review or critical,", "with words and reasons")),
        Box(740, 170, 200, 90, "c", "info: passed", ("recorded; the meaning", "cannot have changed")),
        Box(260, 170, 190, 90, "d", "6 blocked", ("taken out of the list, calls", "are refused and recorded")),
        Box(20, 170, 190, 90, "d", "7 pending review", ("alert, status, dashboard,", "pinwarden review")),
        Box(20, 320, 190, 90, "c", "8a approved", ("exactly this definition is", "the approved one now")),
        Box(260, 320, 190, 90, "d", "8b rejected", ("stays blocked; the same", "definition asks no more")),
        Arrow(((210, 75), (256, 75))),
        Arrow(((450, 75), (496, 75))),
        Arrow(((690, 75), (736, 75))),
        Arrow(((595, 120), (595, 166))),
        Arrow(((690, 215), (736, 215))),
        Arrow(((500, 215), (454, 215))),
        Arrow(((260, 215), (214, 215))),
        Arrow(((80, 260), (80, 316))),
        Arrow(((150, 260), (150, 290), (355, 290), (355, 316))),
    ),
)
TRUST = Picture(
    960,
    330,
    "The four tiers of a server: blocked, unverified, conditional and verified",
    (
        Box(
            20,
            210,
            210,
            100,
            "d",
            "blocked",
            ("bytes that differ from their", "digest, an unsafe address,", "nothing that can be installed"),
        ),
        Box(260, 150, 210, 160, "e", "unverified", ("only claims: nothing was", "hashed here, or a check", "failed")),
        Box(
            500,
            90,
            210,
            220,
            "b",
            "conditional",
            (
                "an exact release is pinned,",
                "but who built it is not",
                "proven, or its bytes were not",
                "verified here in the last",
                "seven days",
            ),
        ),
        Box(
            740,
            30,
            200,
            280,
            "c",
            "verified",
            (
                "bytes were hashed here in",
                "the last seven days, and",
                "provenance was verified",
                "here: builder, source and",
                "commit",
            ),
        ),
        Arrow(((230, 240), (256, 240))),
        Arrow(((470, 200), (496, 200))),
        Arrow(((710, 170), (736, 170))),
    ),
)
PICTURES = {"digests": DIGESTS, "life-of-a-tool": LIFE, "trust": TRUST}
