"""Records: classes of named fields that never change.

A record behaves like a frozen dataclass with slots and keyword arguments, and type checkers read it as one. What it
saves is the start: a dataclass writes and compiles the source of its methods each time the program runs, close to a
millisecond for each of our many classes, and ``dataclasses`` brings ``inspect`` along. All records share the methods
below instead.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

_REQUIRED: Any = object()


class _Field:
    """What is said about one field beyond its name."""

    __slots__ = ("compare", "default", "default_factory", "repr")

    def __init__(
        self,
        default: object = _REQUIRED,
        default_factory: Callable[[], object] | None = None,
        *,
        repr: bool = True,  # noqa: A002
        compare: bool = True,
    ) -> None:
        self.default = default
        self.default_factory = default_factory
        self.repr = repr
        self.compare = compare


def field(
    *,
    default: Any = _REQUIRED,
    default_factory: Callable[[], Any] | None = None,
    repr: bool = True,  # noqa: A002
    compare: bool = True,
) -> Any:
    """A field with a default that is made anew each time, or one that ``repr`` or ``==`` leave out."""
    return _Field(default, default_factory, repr=repr, compare=compare)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class _RecordType(type):
    """Turns the annotations of a class into slots, and sets their defaults aside."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> _RecordType:
        names = tuple(body.get("__annotations__", ()))
        stated = {each: body.pop(each) for each in names if each in body}
        fields = {n: v if isinstance(v, _Field) else _Field(v) for n, v in stated.items()}
        made = super().__new__(cls, name, bases, {**body, "__slots__": names})
        made._plan = (
            tuple((each, made.__dict__[each].__set__) for each in names),
            {n: each.default for n, each in fields.items() if each.default is not _REQUIRED},
            tuple((n, each.default_factory) for n, each in fields.items() if each.default_factory),
        )
        made._checks = "__post_init__" in body
        made._shown = tuple(each for each in names if each not in fields or fields[each].repr)
        compared = tuple(each for each in names if each not in fields or fields[each].compare)
        made._content = attrgetter(*compared) if compared else None
        return made

    _plan: tuple[
        tuple[tuple[str, Callable[[object, object], None]], ...],  # the slots themselves, past __setattr__
        dict[str, object],  # defaults
        tuple[tuple[str, Callable[[], object]], ...],  # what makes a default
    ]
    """How a record is made, in one place because it is done by the thousand."""
    _checks: bool
    __slots__: tuple[str, ...]
    _shown: tuple[str, ...]
    _content: Any
    """Reads all fields at once, for comparison."""


class Record(metaclass=_RecordType):
    """The base of all records. A class of records has a field or more, and is not derived from any further."""

    def __init__(self, **given: Any) -> None:
        kind = type(self)
        setters, defaults, factories = kind._plan
        for name, make in factories:
            if name not in given:
                given[name] = make()
        content = {**defaults, **given}
        try:
            for name, set_slot in setters:
                set_slot(self, content[name])
        except KeyError:
            raise TypeError(f"{kind.__name__} needs {name}") from None
        if len(content) > len(setters):
            raise TypeError(f"{kind.__name__} has no {', '.join(sorted(content.keys() - set(kind.__slots__)))}")
        if kind._checks:
            self.__post_init__()

    def __post_init__(self) -> None:
        """For a class that checks what it was given."""

    def __eq__(self, other: object) -> bool:
        kind = type(self)
        if type(other) is not kind:
            return NotImplemented
        return bool(kind._content(self) == kind._content(other))

    def __hash__(self) -> int:
        return hash(type(self)._content(self))

    def __repr__(self) -> str:
        kind = type(self)
        return f"{kind.__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in kind._shown)})"

    if not TYPE_CHECKING:  # a type checker takes this method as leave to set anything

        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(f"a {type(self).__name__} does not change: {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a {type(self).__name__} does not change: {name}")

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _made_of, (type(self), as_dict(self))


_AnyRecord = TypeVar("_AnyRecord", bound=Record)


def replace(record: _AnyRecord, **changes: Any) -> _AnyRecord:
    """A record like this one, but for what is given."""
    return type(record)(**{**as_dict(record), **changes})


def as_dict(record: Record) -> dict[str, Any]:
    """The fields of a record by name, in their order. Records inside it stay what they are."""
    return {name: getattr(record, name) for name in type(record).__slots__}


def field_names(kind: type[Record]) -> tuple[str, ...]:
    """The names of a class's fields, in their order."""
    return kind.__slots__


def _made_of(kind: type[Record], content: dict[str, Any]) -> Record:
    return kind(**content)
