"""The colours of all pages have enough contrast, in both themes."""

from __future__ import annotations

import re

import pytest

from pinwarden.html.pages import read_asset

STYLE = read_asset("assets/style.css").decode()
LIGHT, DARK = (
    dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", part)) for part in STYLE.split("prefers-color-scheme: dark")
)
PAIRS = [
    *((name, "bg", 4.5) for name in ("text", "muted", "link")),
    *((name, "panel", 4.5) for name in ("text", "muted", "link")),
    ("on-primary", "link", 4.5),
    ("control", "bg", 3.0),
    ("control", "panel", 3.0),
    *((name, f"{name}-bg", 4.5) for name in ("critical", "review", "info", "approved", "added", "removed", "hidden")),
]


def luminance(colour: str) -> float:
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("theme", "colours"), [("light", LIGHT), ("dark", {**LIGHT, **DARK})])
def test_every_pair_of_colours_can_be_read(theme: str, colours: dict[str, str]) -> None:
    ratios = {}
    for front, back, least in PAIRS:
        bright, dark = sorted((luminance(colours[front]), luminance(colours[back])), reverse=True)
        ratios[front, back] = (bright + 0.05) / (dark + 0.05) / least
    assert {pair: ratio for pair, ratio in ratios.items() if ratio < 1} == {}


def test_the_style_sheet_loads_nothing() -> None:
    assert not re.search(r"url\(|@import|expression", STYLE)
