"""The program under analysis: modules, frames and the call graph."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinwarden.contract.entitlements.interpreter.items import EMPTY, Class, Function, Table, Value
from pinwarden.contract.entitlements.values import Source


class Activation:
    """A function called with one kind of arguments, or a module as it is imported: a node of the call graph."""

    __slots__ = (
        "callers",
        "calls",
        "effects",
        "frame",
        "function",
        "label",
        "module",
        "returns",
        "running",
        "runs",
        "unknown",
        "yields",
    )

    def __init__(self, label: str, module: Module, frame: Frame) -> None:
        self.label = label
        self.module = module
        self.frame = frame
        self.effects: dict[tuple[str, int, str], None] = {}
        """(kind, line, what) of each entitlement that is needed right here."""
        self.unknown: dict[tuple[str, int, str], None] = {}
        """(reason, line, what) of each place behind which nothing can be seen."""
        self.calls: dict[Activation, int] = {}
        """Whom it calls, and the first line that does."""
        self.returns: Value = EMPTY
        self.yields: Value = EMPTY
        self.callers: dict[Activation, None] = {}
        """Who used what it returns; they are followed again if it turns out to return more."""
        self.function: Function | None = None
        self.runs = 0
        self.running = False


class Frame:
    """The names of one activation, of a module or of a class body."""

    __slots__ = (
        "activation",
        "classes",
        "cls",
        "elsewhere",
        "every",
        "function",
        "functions",
        "given",
        "module",
        "names",
        "parent",
        "qualname",
        "readers",
        "tables",
    )

    activation: Activation

    def __init__(
        self,
        module: Module,
        parent: Frame | None,
        qualname: str,
        function: Function | None = None,
    ) -> None:
        self.module = module
        self.parent = parent
        self.qualname = qualname
        self.function = function
        self.cls: Class | None = None
        """Where this is the body of a class."""
        self.names: dict[str, Value] = {}
        """What each name stands for at this point of the code."""
        self.every: dict[str, Value] = {}
        """What each name ever stands for: that is what functions inside see."""
        self.readers: dict[str, dict[Activation, None]] = {}
        """Who else asked for a name; they are followed again if it comes to stand for more."""
        self.given: dict[str, Value] = {}
        """The arguments, where this is a function."""
        self.elsewhere: dict[str, Frame] = {}
        """Names declared ``global`` or ``nonlocal``."""
        self.functions: dict[int, Function] = {}
        self.classes: dict[int, Class] = {}
        self.tables: dict[tuple[int, str], Table] = {}
        """Items made in this frame, by the place that makes them: running it again makes the same ones."""


class Module:
    """One module with its source."""

    __slots__ = (
        "activation",
        "broken",
        "frame",
        "global_writers",
        "lines",
        "name",
        "source",
        "stars",
        "third_party",
        "tree",
    )

    activation: Activation

    def __init__(self, name: str, source: Source, *, third_party: bool) -> None:
        self.name = name
        self.source = source
        self.third_party = third_party
        self.tree: ast.Module | None = None
        self.broken = ""
        """Why it could not be read."""
        self.stars: list[Module | str] = []
        """From where all names are imported: a module, or the path of one that is not looked into."""
        self.lines: list[str] | None = None
        self.global_writers: dict[str, list[str]] | None = None
        self.frame = Frame(self, None, "")
        self.activation = Activation("<module>", self, self.frame)
        self.frame.activation = self.activation

    def parse(self) -> None:
        """Read the source. What cannot be read is remembered, not raised: the rest can still be judged."""
        try:
            self.tree = ast.parse(self.source.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as err:
            self.broken = f"the source cannot be read: {type(err).__name__}"

    def says(self, text: str, node: ast.stmt) -> bool:
        """Whether the lines of a statement contain a word: a quick look before a long one.

        Only ASCII is looked at so: other letters can spell the same name in several ways.
        """
        if not self.source.text.isascii():
            return True
        if self.lines is None:
            self.lines = self.source.text.split("\n")  # as the parser counts lines, but for form feeds
        return any(text in line for line in self.lines[node.lineno - 1 : node.end_lineno])

    def line(self, number: int) -> str:
        """The text of a line, without what would make a report unreadable."""
        if self.lines is None:
            self.lines = self.source.text.split("\n")
        text = self.lines[number - 1].strip() if 0 < number <= len(self.lines) else ""
        return text if len(text) <= MAX_EVIDENCE else text[: MAX_EVIDENCE - 1] + "…"


MAX_EVIDENCE = 160
"""Characters of a line that are quoted: enough for any line that people wrote."""


def parts_of(node: ast.AST) -> Iterator[ast.AST]:
    """A node and everything in it, in no order: half the time of ``ast.walk``."""
    waiting = [node]
    while waiting:
        at = waiting.pop()
        yield at
        for value in at.__dict__.values():
            if type(value) is list:
                waiting += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST):
                waiting.append(value)
