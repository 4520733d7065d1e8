"""Call arguments, registrations, known names and the limits of the interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pinwarden.contract.entitlements.interpreter.items import EMPTY, Value
from pinwarden.core.record import Record

MAX_ACTIVATIONS = 5_000
"""Functions times kinds of calls. The largest server measured needs 180; beyond it, the result is unknown."""

MAX_DEPTH = 24
"""Calls within calls that are followed at once; deeper ones are deferred. Bounds the interpreter's own stack."""

MAX_ITEMS = 64
"""Things that one variable can stand for. Beyond that, containers and texts are let go, and that is said."""

MAX_RUNS_ALTOGETHER = 5_000
"""Runs of all functions together, for the same reason."""


def most_shapes(activations: int) -> int:
    """How many argument combinations of one function are analysed separately; further ones are merged.

    A server of ordinary size is told apart as finely as its code allows; a large program ever more coarsely, so that
    the time stays in proportion.
    """
    return 64 if activations < 1000 else 16 if activations < 2000 else 4 if activations < 4000 else 0


MAX_RUNS = 16
"""How often a function is followed again because something it reads turned out to hold more than was known."""

_NO_KEYWORDS: Mapping[str, Value] = MappingProxyType({})


class Given:
    """The arguments of one call. Made for every call, so it is lighter than a record."""

    __slots__ = ("keywords", "positional", "spread")

    def __init__(
        self,
        positional: tuple[Value, ...] = (),
        keywords: Mapping[str, Value] = _NO_KEYWORDS,
        spread: Value = EMPTY,
    ) -> None:
        self.positional = positional
        self.keywords = keywords
        self.spread = spread
        """What a ``*`` or ``**`` argument holds without saying where."""

    def at(self, place: int, keyword: str = "") -> Value | None:
        """The argument in that place or of that name; ``None`` where there is none."""
        if place < len(self.positional):
            return self.positional[place]
        return self.keywords.get(keyword)

    def everything(self) -> Value:
        """All arguments taken together."""
        return self.spread.union(*self.positional, *self.keywords.values())


NOTHING_GIVEN = Given()


class Registration(Record):
    """A function that the source hands to a server."""

    kind: str
    name: str | None
    value: Value
    module: str
    qualname: str
    line: int


BACK_DOORS: Final = (
    "__globals__ __builtins__ __subclasses__ __code__ __closure__ __loader__ __bases__ __mro__ __base__ gi_frame "
    "cr_frame f_globals f_locals f_builtins f_back tb_frame __getattribute__"
)
"""Attributes by which everything can be reached from anything."""

TEXT_METHODS: Final = "lower upper strip lstrip rstrip casefold title capitalize swapcase"
"""Methods that make another constant of a constant text."""

BUILTINS: Final = (
    "__import__ abs all any anext aiter ascii bin bool breakpoint bytearray bytes callable chr classmethod compile "
    "complex delattr dict dir divmod enumerate eval exec filter float format frozenset getattr globals hasattr hash "
    "help hex id input int isinstance issubclass iter len list locals map max memoryview min next object oct open "
    "ord pow print property range repr reversed round set setattr slice sorted staticmethod str sum super tuple "
    "type vars zip __builtins__ __loader__ __spec__"
)
"""Names that every module has."""

CONTAINERS: Final = (
    "list List tuple Tuple set Set frozenset FrozenSet Sequence Iterable Iterator AsyncIterator dict Dict Mapping "
    "MutableMapping Generator AsyncGenerator Collection defaultdict OrderedDict deque"
)
"""Types whose parameters are the types of what is inside."""

PLAIN_TYPES: Final = "str int float bool bytes None dict list object set tuple Any type complex"
"""Types without reach."""

GIVES_BACK: Final = (
    "builtins.list builtins.tuple builtins.set builtins.frozenset builtins.dict builtins.iter builtins.reversed "
    "builtins.sorted builtins.enumerate builtins.zip builtins.max builtins.min copy.copy copy.deepcopy "
    "contextlib.closing contextlib.aclosing contextlib.nullcontext contextlib.ExitStack().enter_context "
    "contextlib.AsyncExitStack().enter_async_context functools.wraps() functools.lru_cache functools.cache "
    "collections.deque collections.ChainMap collections.OrderedDict types.MappingProxyType "
    "functools.lru_cache() contextlib.contextmanager contextlib.asynccontextmanager abc.abstractmethod typing.cast "
    "asyncio.create_task asyncio.ensure_future asyncio.wait_for asyncio.shield asyncio.gather asyncio.run"
)
"""What returns, or holds, the very things it was given."""
