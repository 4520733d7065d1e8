"""Words of the language and its library that the interpreter knows."""

from __future__ import annotations

from typing import Final

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
