"""Records: immutable classes with named fields.

A record behaves like a frozen, keyword-only dataclass with slots, and type checkers treat it as one. Records make the
program start faster. A dataclass generates and compiles its methods at every start, which takes close to a millisecond
per class, while all records share the methods below. Decision 0004 has the measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

_REQUIRED: Any = object()


class _Field:
    """The options of one field."""

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
    """Declare a field with options: a default or default factory, and whether ``repr`` and ``==`` use the field."""
    return _Field(default, default_factory, repr=repr, compare=compare)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class _RecordType(type):
    """Turns the annotations of a class into slots and collects their defaults."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> _RecordType:
        names = tuple(body.get("__annotations__", ()))
        given = {field_name: body.pop(field_name) for field_name in names if field_name in body}
        fields = {n: v if isinstance(v, _Field) else _Field(v) for n, v in given.items()}
        record_type = super().__new__(cls, name, bases, {**body, "__slots__": names})
        record_type._init_plan = (
            tuple((n, record_type.__dict__[n].__set__) for n in names),
            {n: options.default for n, options in fields.items() if options.default is not _REQUIRED},
            tuple((n, options.default_factory) for n, options in fields.items() if options.default_factory),
        )
        record_type._has_post_init = "__post_init__" in body
        record_type._repr_fields = tuple(n for n in names if n not in fields or fields[n].repr)
        compared = tuple(n for n in names if n not in fields or fields[n].compare)
        record_type._get_compared_fields = attrgetter(*compared) if compared else None
        return record_type

    _init_plan: tuple[
        tuple[tuple[str, Callable[[object, object], None]], ...],  # slot setters, which bypass __setattr__
        dict[str, object],  # defaults
        tuple[tuple[str, Callable[[], object]], ...],  # default factories
    ]
    """All that ``__init__`` needs, in one attribute for speed: one run creates thousands of records."""
    _has_post_init: bool
    __slots__: tuple[str, ...]
    _repr_fields: tuple[str, ...]
    _get_compared_fields: Any
    """Reads all compared fields in one call."""


class Record(metaclass=_RecordType):
    """The base class of all records. A record class has at least one field and no subclasses."""

    def __init__(self, **given: Any) -> None:
        cls = type(self)
        setters, defaults, factories = cls._init_plan
        for name, create_default in factories:
            if name not in given:
                given[name] = create_default()
        values = {**defaults, **given}
        try:
            for name, set_slot in setters:
                set_slot(self, values[name])
        except KeyError:
            raise TypeError(f"{cls.__name__} needs {name}") from None
        if len(values) > len(setters):
            raise TypeError(f"{cls.__name__} has no {', '.join(sorted(values.keys() - set(cls.__slots__)))}")
        if cls._has_post_init:
            self.__post_init__()

    def __post_init__(self) -> None:
        """Override to validate the fields."""

    def __eq__(self, other: object) -> bool:
        cls = type(self)
        if type(other) is not cls:
            return NotImplemented
        return bool(cls._get_compared_fields(self) == cls._get_compared_fields(other))

    def __hash__(self) -> int:
        return hash(type(self)._get_compared_fields(self))

    def __repr__(self) -> str:
        cls = type(self)
        return f"{cls.__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in cls._repr_fields)})"

    if not TYPE_CHECKING:  # if type checkers saw __setattr__, they would allow assignments to any attribute

        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(f"a {type(self).__name__} is immutable: {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a {type(self).__name__} is immutable: {name}")

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _from_dict, (type(self), as_dict(self))


_AnyRecord = TypeVar("_AnyRecord", bound=Record)


if TYPE_CHECKING:
    # mypy checks the field names and types of this one, because it treats records as dataclasses.
    from dataclasses import replace as replace  # noqa: PLC0414  exported on purpose
else:

    def replace(record: _AnyRecord, **changes: Any) -> _AnyRecord:
        """Return a copy of the record with some fields changed."""
        return type(record)(**{**as_dict(record), **changes})


def as_dict(record: Record) -> dict[str, Any]:
    """Return the values of a record by field name, in declaration order. Nested records stay records."""
    return {name: getattr(record, name) for name in type(record).__slots__}


def field_names(record_class: type[Record]) -> tuple[str, ...]:
    """Return the names of the fields of a record class, in declaration order."""
    return record_class.__slots__


def _from_dict(record_class: type[Record], values: dict[str, Any]) -> Record:
    return record_class(**values)
