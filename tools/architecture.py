"""Draw ``docs/architecture.svg``: the packages of ``src/pinwarden`` and the imports between them."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import sqrt
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
LAYERS = (
    ("cli",),
    ("demo",),
    ("dashboard",),
    ("alerts",),
    ("gateway",),
    ("census",),
    ("install",),
    ("project",),
    ("contract",),
    ("registry",),
    ("html",),
    ("bundle",),
    ("skills",),
    ("artifacts",),
    ("lock",),
    ("clients",),
    ("surface",),
    ("identity",),
    ("system",),
    ("core",),
)
"""The packages of each layer, from the top down. A package imports only packages below it."""

Import = tuple[str, str]
"""The importing and the imported module or package."""

_WIDTH, _MARGIN, _LABEL = 1180, 24, 116
_BOX, _LOOPS, _GAP = 44, 36, 78  # heights: of a box, of the space under it for its loops, between two layers
_APART = 14  # between two boxes
_SWEEPS = 8  # of ordering; the order settles after three
_MOTTOES = {
    "cli": "commands, formats",
    "demo": "pinwarden demo",
    "dashboard": "reviews in a browser",
    "alerts": "webhook, e-mail",
    "gateway": "enforcing proxy",
    "census": "many servers",
    "install": "install, update",
    "project": "lock, gate, run",
    "contract": "server authors",
    "registry": "bundles, log",
    "html": "HTML pages",
    "bundle": "signed bundles",
    "skills": "SKILL.md folders",
    "artifacts": "npm, PyPI, OCI",
    "lock": "mcp-lock.json",
    "clients": "client files",
    "surface": "tools, drift, scan",
    "identity": "tokens, logins",
    "system": "files, network",
    "core": "bytes and values",
}
_COLOURS = {  # of each package, for light and for dark
    "cli": ("#7c3aed", "#c4a7ff"),
    "demo": ("#6d28d9", "#b79cff"),
    "dashboard": ("#a21caf", "#e9a8f4"),
    "alerts": ("#a21caf", "#f0abfc"),
    "gateway": ("#be185d", "#f9a8d4"),
    "census": ("#a21caf", "#f0abfc"),
    "install": ("#9d174d", "#f4a3c8"),
    "project": ("#0f6fde", "#7cb7ff"),
    "contract": ("#1d4ed8", "#93b4ff"),
    "registry": ("#0369a1", "#7dd3fc"),
    "html": ("#0f766e", "#5eead4"),
    "bundle": ("#0e7490", "#67d5e6"),
    "skills": ("#047857", "#6ee7b7"),
    "artifacts": ("#0e7a6d", "#5fd4c4"),
    "lock": ("#15803d", "#7bdc9b"),
    "clients": ("#4d7c0f", "#a6d45f"),
    "surface": ("#b45309", "#f5b55e"),
    "identity": ("#a16207", "#f0c46c"),
    "system": ("#9a3412", "#fdba8c"),
    "core": ("#475569", "#b6c2d1"),
}


# Reading


def modules(source: Path = SOURCE) -> dict[str, Path]:
    """Return every module below the source folder by its dotted name."""
    paths = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


def imports(known: Mapping[str, Path]) -> set[Import]:
    """Return every import of one known module by another, also inside functions, but none for type checkers only."""
    return {(module, name) for module, path in known.items() for name in _imported(tree(path), known) if name != module}


@cache
def tree(path: Path) -> ast.Module:
    """Return the syntax tree of a Python file, parsed once."""
    return ast.parse(path.read_text(encoding="utf-8"))


def _imported(tree: ast.Module, known: Mapping[str, Path]) -> Iterator[str]:
    for node in _run(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module in known:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """Yield every node below this one, except those for type checkers."""
    for child in ast.iter_child_nodes(node):
        yield child
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            yield from (inner for other in child.orelse for inner in (other, *_run(other)))
        else:
            yield from _run(child)


# Laying out


@dataclass(slots=True, kw_only=True)
class _Box:
    """A sub-package, or the modules directly in a package."""

    package: str
    label: str
    files: int
    layer: int = 0
    x: float = 0
    y: float = 0
    width: float = 0

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


def drawing(source: Path = SOURCE) -> str:
    """Render the picture as SVG. The same code always gives the same bytes."""
    known = modules(source)
    boxes, place_of = _boxes(known)
    edges = Counter((place_of[a], place_of[b]) for a, b in sorted(imports(known)) if a in place_of and b in place_of)
    links = {pair: count for pair, count in sorted(edges.items()) if pair[0] != pair[1]}
    layers = _laid_out(boxes, links)
    return "".join(_svg(boxes, links, layers))


def _boxes(known: Mapping[str, Path]) -> tuple[dict[str, _Box], dict[str, str]]:
    """Return the boxes by name, and the name of the box of each module. Top-level modules have no box."""
    place_of, files = {}, Counter[str]()
    for module, path in known.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        if "." not in package:
            continue
        place_of[module] = "/".join(package.split(".")[1:3])
        files[place_of[module]] += path.name != "__init__.py"
    boxes = {}
    for name in sorted(set(place_of.values())):
        package, _, inner = name.partition("/")
        boxes[name] = _Box(package=package, label=f"{inner}/" if inner else f"{package}/*.py", files=files[name])
    return boxes, place_of


def _laid_out(boxes: Mapping[str, _Box], links: Mapping[Import, int]) -> list[list[_Box]]:
    """Place the boxes: one row per layer, ordered so that few lines cross, and spread over the width of the picture."""
    layers = [[box for box in boxes.values() if box.package in packages] for packages in LAYERS]
    layers = [row for row in layers if row]
    for index, row in enumerate(layers):
        for box in row:
            box.layer, box.y = index, _MARGIN + index * (_BOX + _LOOPS + _GAP)
        _spread(row)
    for _ in range(_SWEEPS):
        for row in layers:
            pulls = {id(box): _pull(box, boxes, links) for box in row}
            row.sort(key=lambda box: (round(pulls[id(box)], 3), box.label))
            _spread(row)
    return layers


def _pull(box: _Box, boxes: Mapping[str, _Box], links: Mapping[Import, int]) -> float:
    """Compute the horizontal position to which the lines of a box would pull it if they were springs."""
    total = weight = 0.0
    for (a, b), count in links.items():
        ends = (boxes[a], boxes[b])
        other = ends[1] if ends[0] is box else ends[0] if ends[1] is box else None
        if other is not None and other.package != "core":
            total, weight = total + other.middle * sqrt(count), weight + sqrt(count)
    return total / weight if weight else box.middle


def _spread(row: list[_Box]) -> None:
    natural = [7.4 * max(len(box.label), 8) + 22 for box in row]
    left: float = _MARGIN + _LABEL
    spare = (_WIDTH - _MARGIN - 12 - left - sum(natural) - _APART * (len(row) - 1)) / len(row)
    for box, width in zip(row, natural, strict=True):
        box.x, box.width = left, width + spare
        left += box.width + _APART


# Drawing


def _svg(boxes: Mapping[str, _Box], links: Mapping[Import, int], layers: list[list[_Box]]) -> Iterator[str]:
    height = round(layers[-1][0].y + _BOX + 58)
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
    yield f'height="{height}" role="img" aria-label="The packages of Pinwarden and the imports between them">\n'
    yield "<!-- Generated by tools/architecture.py from the imports in src/pinwarden. -->\n"
    yield _style(sorted({box.package for box in boxes.values()}))
    yield f'<rect class="page" x="1" y="1" width="{_WIDTH - 2}" height="{height - 2}" rx="14"/>\n'
    for index, row in enumerate(layers):
        tall = _BOX + (_LOOPS if index + 1 < len(layers) else 0) + 24
        yield f'<rect class="band" x="12" y="{row[0].y - 12:g}" width="{_WIDTH - 24}" height="{tall}" rx="10"/>\n'
    yield from _lines(boxes, links)
    for row in layers:
        packages = dict.fromkeys(box.package for box in row)
        for place, package in enumerate(packages):
            yield f'<text class="package {package}" x="28" y="{row[0].y + 19 + 34 * place:g}">{package}</text>\n'
            yield f'<text class="note" x="28" y="{row[0].y + 35 + 34 * place:g}">{_MOTTOES[package]}</text>\n'
        yield from map(_box, row)
    note = "A line is an import, thicker for more of them; it has the colour of the importing package and points down."
    if not any(boxes[b].layer < boxes[a].layer for a, b in links):
        note += " A red line would point up: there is none."
    yield f'<text class="note" x="28" y="{height - 18}">{note}</text>\n'
    yield "</svg>\n"


def _style(packages: Iterable[str]) -> str:
    def colours(shade: int) -> str:
        return "".join(f".{package}{{--c:{_COLOURS[package][shade]}}}" for package in packages)

    light = "--page:#fff;--band:#f4f6f8;--box:#fff;--text:#1f2328;--soft:#59636e;--edge:#d1d9e0"
    dark = "--page:#0d1117;--band:#161b22;--box:#0d1117;--text:#f0f6fc;--soft:#9198a1;--edge:#3d444d"
    return (
        "<style>\n"
        f"svg{{{light}}}{colours(0)}\n"
        f"@media (prefers-color-scheme:dark){{svg{{{dark}}}{colours(1)}}}\n"
        "text{font-family:ui-sans-serif,system-ui,'Segoe UI',Helvetica,Arial,sans-serif;fill:var(--text)}\n"
        ".page{fill:var(--page);stroke:var(--edge)}.band{fill:var(--band)}\n"
        ".box{fill:var(--box);stroke:var(--c);stroke-width:1.5}\n"
        ".line{fill:none;stroke:var(--c);stroke-linecap:round}\n"
        ".up{stroke:#e5484d}\n"
        ".name{font-size:13px;font-weight:600;text-anchor:middle}\n"
        ".files{font-size:11px;text-anchor:middle;fill:var(--soft)}\n"
        ".package{font-size:16px;font-weight:700;fill:var(--c)}.note{font-size:11.5px;fill:var(--soft)}\n"
        "</style>\n"
    )


def _box(box: _Box) -> str:
    files = "1 file" if box.files == 1 else f"{box.files} files"
    return (
        f'<rect class="box {box.package}" x="{box.x:.1f}" y="{box.y:g}" '
        f'width="{box.width:.1f}" height="{_BOX}" rx="7"/>'
        f'<text class="name" x="{box.middle:.1f}" y="{box.y + 19:g}">{box.label}</text>'
        f'<text class="files" x="{box.middle:.1f}" y="{box.y + 35:g}">{files}</text>\n'
    )


def _lines(boxes: Mapping[str, _Box], links: Mapping[Import, int]) -> Iterator[str]:
    """Yield the lines as SVG, the thickest first, so that thinner lines are drawn over them."""
    leaves = {name: _ports(name, 0, boxes, links) for name in boxes}
    enters = {name: _ports(name, 1, boxes, links) for name in boxes}
    for (a, b), count in sorted(links.items(), key=lambda link: (-_round_up(link[1]), link[0])):
        x, to = leaves[a][b], enters[b][a]
        start, end = boxes[a].y + _BOX, boxes[b].y
        upward = boxes[b].layer < boxes[a].layer
        if boxes[a].layer == boxes[b].layer:
            depth = min(_LOOPS - 6, 12 + abs(to - x) / 16) * 4 / 3
            path = f"M{x:.1f} {start:g}C{x:.1f} {start + depth:.1f} {to:.1f} {start + depth:.1f} {to:.1f} {start:g}"
        else:
            bend = (end - start) / 2
            path = f"M{x:.1f} {start:g}C{x:.1f} {start + bend:.1f} {to:.1f} {end - bend:.1f} {to:.1f} {end:g}"
        bound = _round_up(count)
        times = "1 import" if count == 1 else f"up to {bound} imports"
        weight = (
            f'stroke-width="{0.6 + 0.8 * sqrt(bound):.1f}" stroke-opacity="{min(0.7, 0.12 + 0.11 * sqrt(bound)):.2f}"'
        )
        yield f'<path class="line {boxes[a].package}{" up" if upward else ""}" {weight} d="{path}">'
        yield f"<title>{a} imports {b}: {times}</title></path>\n"


def _round_up(count: int) -> int:
    """The next power of two, so that the picture does not change with every import."""
    return 1 << (count - 1).bit_length()


def _ports(name: str, end: int, boxes: Mapping[str, _Box], links: Mapping[Import, int]) -> dict[str, float]:
    """Return the points where lines leave (0) or enter (1) a box, ordered so that the lines do not cross there."""
    box = boxes[name]
    others = sorted((link[1 - end] for link in links if link[end] == name), key=lambda other: boxes[other].middle)
    step = (box.width - 20) / (len(others) + 1)
    return {other: box.x + 10 + step * (place + 1) for place, other in enumerate(others)}
