"""Call arguments, registrations, known names and the limits of the interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pinwarden.contract.entitlements.interpreter.objects import EMPTY, AbstractValue
from pinwarden.core.record import Record

MAX_ACTIVATIONS = 5_000
"""The limit of analysed calls, counting each function once for each combination of arguments.

The largest server measured needs 180. Beyond this limit, the entitlements are reported as unknown.
"""

MAX_DEPTH = 24
"""The depth to which the analysis follows nested calls at once. Deeper calls are queued, to bound Python's stack."""

MAX_OBJECTS = 64
"""The limit of objects that one variable may refer to.

Beyond this limit, texts are dropped first. If that is not enough, containers and further objects are dropped, and the
code is reported as unknown.
"""

MAX_TOTAL_RUNS = 5_000
"""The limit of how often function bodies are followed, over all functions. Beyond it, the analysis ends and says so."""


def compute_max_combinations(activations: int) -> int:
    """Return how many argument combinations of one function are analysed separately; further ones are merged.

    The larger the program, the coarser the analysis, so that its time stays proportional to the size of the program.
    """
    return 64 if activations < 1000 else 16 if activations < 2000 else 4 if activations < 4000 else 0


MAX_RUNS = 16
"""How often one activation is followed at most. It is followed again if a value that it reads has more objects."""

_NO_KEYWORDS: Mapping[str, AbstractValue] = MappingProxyType({})


class CallArguments:
    """The arguments of one call. Created for every call, so it is lighter than a record."""

    __slots__ = ("keywords", "positional", "spread")

    def __init__(
        self,
        positional: tuple[AbstractValue, ...] = (),
        keywords: Mapping[str, AbstractValue] = _NO_KEYWORDS,
        spread: AbstractValue = EMPTY,
    ) -> None:
        self.positional = positional
        self.keywords = keywords
        self.spread = spread
        """Values from ``*`` and ``**`` arguments whose position or name is unknown."""

    def get_argument(self, index: int, keyword: str = "") -> AbstractValue | None:
        """Return the argument at a position or with a keyword; None if the call does not have it."""
        if index < len(self.positional):
            return self.positional[index]
        return self.keywords.get(keyword)

    def merge_values(self) -> AbstractValue:
        """Return the union of all arguments."""
        return self.spread.union(*self.positional, *self.keywords.values())


NO_ARGUMENTS = CallArguments()


class Registration(Record):
    """A function that the source registers with a server."""

    kind: str
    name: str | None
    value: AbstractValue
    module: str
    qualname: str
    line: int


BACK_DOORS: Final = (
    "__globals__ __builtins__ __subclasses__ __code__ __closure__ __loader__ __bases__ __mro__ __base__ gi_frame "
    "cr_frame f_globals f_locals f_builtins f_back tb_frame __getattribute__"
)
"""Attributes that give access to interpreter internals from any object."""

TEXT_METHODS: Final = "lower upper strip lstrip rstrip casefold title capitalize swapcase"
"""String methods that turn a constant into another constant."""

BUILTINS: Final = (
    "__import__ abs all any anext aiter ascii bin bool breakpoint bytearray bytes callable chr classmethod compile "
    "complex delattr dict dir divmod enumerate eval exec filter float format frozenset getattr globals hasattr hash "
    "help hex id input int isinstance issubclass iter len list locals map max memoryview min next object oct open "
    "ord pow print property range repr reversed round set setattr slice sorted staticmethod str sum super tuple "
    "type vars zip __builtins__ __loader__ __spec__"
)
"""The names that every module has."""

CONTAINERS: Final = (
    "list List tuple Tuple set Set frozenset FrozenSet Sequence Iterable Iterator AsyncIterator dict Dict Mapping "
    "MutableMapping Generator AsyncGenerator Collection defaultdict OrderedDict deque"
)
"""Types whose parameters are the types of their elements."""

PLAIN_TYPES: Final = "str int float bool bytes None dict list object set tuple Any type complex"
"""Types whose objects need no entitlement."""

RETURNS_ARGUMENTS: Final = (
    "builtins.list builtins.tuple builtins.set builtins.frozenset builtins.dict builtins.iter builtins.reversed "
    "builtins.sorted builtins.enumerate builtins.zip builtins.max builtins.min copy.copy copy.deepcopy "
    "contextlib.closing contextlib.aclosing contextlib.nullcontext contextlib.ExitStack().enter_context "
    "contextlib.AsyncExitStack().enter_async_context functools.wraps() functools.lru_cache functools.cache "
    "collections.deque collections.ChainMap collections.OrderedDict types.MappingProxyType "
    "functools.lru_cache() contextlib.contextmanager contextlib.asynccontextmanager abc.abstractmethod typing.cast "
    "asyncio.create_task asyncio.ensure_future asyncio.wait_for asyncio.shield asyncio.gather asyncio.run"
)
"""Functions that return their arguments, or a container of them."""
