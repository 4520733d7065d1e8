"""Play ``pinwarden demo`` and draw ``docs/demo.svg``, a terminal in which one chapter follows the other.

``python -m tools.record_demo`` writes the picture. It has no script: the times are in its style sheet. Readers who ask
for less motion get the chapter of the rug pull, standing still.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from pinwarden.demo.stage import shorten
from pinwarden.demo.story import play

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "demo.svg"
COLUMNS = 100
_ROW, _COLUMN, _MARGIN, _BAR = 19, 8.0, 18, 34  # sizes in pixels
_COMMAND_SECONDS, _LINE_SECONDS, _READ_SECONDS = 0.9, 0.28, 1.2
_STILL_CHAPTER = "7. The rug pull"
_VARIABLE = re.compile(
    r"127\.0\.0\.1:\d+|did:key:\w+|pinwarden-registry/\S+|bafy\w+|sha256:[0-9a-f]+|\b[0-9a-f]{32}\b|\S*…$", re.MULTILINE
)
_STYLES = (
    (r"^\d+\. ", "title"),
    (r"^\$ ", "command"),
    (r"^  (critical|pinwarden: blocked)|^  -|\(exit code 1\)", "bad"),
    (r"^  (\+|\d+ (server|entr|event|change)|notes: approved|weather: approved|ACCEPT)", "good"),
    (r"^  ", "output"),
)
_CSS = """
.terminal { fill: #11151c } .bar { fill: #1d2430 }
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }
.title { fill: #7cc7ff; font-weight: 700 } .command { fill: #ffffff } .output { fill: #b8c2d0 }
.bad { fill: #ff8f87 } .good { fill: #86d992 } .explanation { fill: #8b97a8 }
"""


def record() -> str:
    """Play the demo and return what it prints."""
    output = io.StringIO()
    play(output, with_registry=True, columns=COLUMNS)
    return output.getvalue()


def read_constant_text(picture: str) -> list[str]:
    """Return the lines in a picture, without ports, keys, digests and ends that were cut, which differ."""
    return [_VARIABLE.sub("*", line) for line in re.findall(r"<text[^>]*>(.*?)</text>", picture)]


def draw(printed: str) -> str:
    """Return the picture of what the demo printed."""
    chapters = [chapter.splitlines() for chapter in printed.strip().split("\n\n")]
    rows = max(len(chapter) for chapter in chapters)
    width = round(COLUMNS * _COLUMN + 2 * _MARGIN)
    height = _BAR + rows * _ROW + _MARGIN
    groups = list(_time_groups(chapters))
    total = groups[-1][1]
    styles, drawn = [_CSS], []
    for number, (start, end, first_row, lines) in enumerate(groups):
        still = any(chapter[0] == _STILL_CHAPTER and lines[0] in chapter for chapter in chapters)
        styles.append(_write_keyframes(number, start / total, end / total, total, is_last=end == total))
        texts = "".join(_draw_line(line, first_row + row) for row, line in enumerate(lines))
        drawn.append(f'<g class="{"still " if still else ""}moving m{number}">{texts}</g>\n')
    styles.append(
        "@media (prefers-reduced-motion: reduce) { .moving { animation: none; opacity: 0 } .still { opacity: 1 } }\n"
    )
    dots = "".join(
        f'<circle cx="{_MARGIN + 6 + 20 * dot}" cy="{_BAR // 2}" r="6" fill="{colour}"/>'
        for dot, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="Recording of pinwarden demo">\n<style>{"".join(styles)}</style>\n'
        f'<rect class="terminal" width="{width}" height="{height}" rx="8"/>'
        f'<path class="bar" d="M0 {_BAR - 4}V8a8 8 0 0 1 8-8H{width - 8}a8 8 0 0 1 8 8V{_BAR - 4}z"/>{dots}\n'
        f"{''.join(drawn)}</svg>\n"
    )


Group = tuple[float, float, int, Sequence[str]]
"""When lines appear and disappear in seconds, the row of the first one, and the lines."""


def _time_groups(chapters: Sequence[Sequence[str]]) -> Iterator[Group]:
    clock = 0.0
    for chapter in chapters:
        starts = []
        for row, line in enumerate(chapter):
            is_new_group = row == 0 or line.startswith("$ ") or chapter[row - 1].startswith("$ ")
            if is_new_group:
                starts.append((clock, row))
            clock += _COMMAND_SECONDS if line.startswith("$ ") else _LINE_SECONDS
        clock += _READ_SECONDS
        rows = [row for _, row in starts] + [len(chapter)]
        for (start, row), next_row in zip(starts, rows[1:], strict=True):
            yield start, clock, row, chapter[row:next_row]


def _write_keyframes(number: int, start: float, end: float, seconds: float, *, is_last: bool) -> str:
    after = "" if is_last else f" {end:.2%} {{ opacity: 0 }}"
    before = "0% { opacity: 0 } " if start else ""
    return (
        f"@keyframes k{number} {{ {before}{start:.2%} {{ opacity: 1 }}{after} }} "
        f".m{number} {{ opacity: 0; animation: k{number} {seconds:.1f}s step-end infinite }}\n"
    )


def _draw_line(line: str, row: int) -> str:
    style = next((name for pattern, name in _STYLES if re.search(pattern, line)), "explanation")
    y = _BAR + (row + 1) * _ROW - 5
    return f'<text class="{style}" x="{_MARGIN}" y="{y}" xml:space="preserve">{escape(shorten(line, COLUMNS))}</text>'


if __name__ == "__main__":
    PICTURE.write_text(draw(record()), encoding="utf-8")
