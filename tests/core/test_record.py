"""Records behave as the frozen dataclasses do that they stand in for."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field

import pytest

from pinwarden.core.record import Record, as_dict, field, replace


class Point(Record):
    x: int
    y: int = 0
    label: str | None = None

    @property
    def sum(self) -> int:
        return self.x + self.y


class Box(Record):
    content: Mapping[str, int] = field(default_factory=dict)
    secret: str = field(default="none", repr=False)
    key: bytes = field(repr=False)


class Even(Record):
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError("odd")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainBox:
    content: Mapping[str, int] = dataclass_field(default_factory=dict)
    secret: str = dataclass_field(default="none", repr=False)
    key: bytes = dataclass_field(repr=False)


def test_fields_have_their_values_and_defaults() -> None:
    point = Point(x=1, label="a")
    assert (point.x, point.y, point.label, point.sum) == (1, 0, "a", 1)
    assert as_dict(point) == {"x": 1, "y": 0, "label": "a"}
    assert list(as_dict(Point(label="a", y=2, x=1))) == ["x", "y", "label"]


def test_a_default_factory_is_called_for_each_record() -> None:
    first, second = Box(key=b""), Box(key=b"")
    assert first.content == {}
    assert first.content is not second.content
    assert Box(key=b"", content={"a": 1}).content == {"a": 1}


def test_repr_is_that_of_a_dataclass_and_leaves_out_what_is_hidden() -> None:
    assert repr(Box(key=b"k", secret="s")) == "Box(content={})"
    assert repr(PlainBox(key=b"k", secret="s")) == "PlainBox(content={})"
    assert repr(Point(x=1)) == "Point(x=1, y=0, label=None)"


def test_records_are_equal_by_class_and_content() -> None:
    assert Point(x=1) == Point(x=1, y=0)
    assert Point(x=1) != Point(x=2)
    assert Even(number=2) == Even(number=2)
    assert Even(number=2) != Point(x=2)
    assert Point(x=1) != (1, 0, None)
    assert {Point(x=1), Point(x=1), Even(number=2)} == {Point(x=1), Even(number=2)}
    with pytest.raises(TypeError):
        hash(Box(key=b""))  # as its mapping


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "Point needs x"),
        ({"y": 1, "z": 1}, "Point needs x"),
        ({"x": 1, "z": 1, "a": 2}, "Point has no a, z"),
    ],
)
def test_missing_and_unknown_fields_are_refused(given: dict[str, int], message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        Point(**given)  # type: ignore[arg-type]


def test_positional_arguments_are_refused() -> None:
    with pytest.raises(TypeError):
        Point(1)  # type: ignore[call-arg, misc, unused-ignore]


def test_a_record_does_not_change() -> None:
    point = Point(x=1)
    with pytest.raises(AttributeError, match="is immutable"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(AttributeError, match="is immutable"):
        del point.x
    with pytest.raises(AttributeError):
        point.z = 2  # type: ignore[attr-defined]
    assert not hasattr(point, "__dict__")


def test_a_class_can_validate_its_fields() -> None:
    with pytest.raises(ValueError, match="odd"):
        Even(number=1)
    with pytest.raises(ValueError, match="odd"):
        replace(Even(number=2), number=3)


def test_replace_changes_a_copy() -> None:
    point = Point(x=1, label="a")
    assert replace(point, y=5) == Point(x=1, y=5, label="a")
    assert point.y == 0
    with pytest.raises(TypeError):
        replace(point, z=1)  # type: ignore[call-arg]  # mypy fails if it stops reporting the unknown field


def test_records_can_be_copied_and_pickled() -> None:
    box = Box(key=b"k", content={"a": 1})
    assert copy.copy(box) == box
    assert copy.deepcopy(box).content is not box.content
    assert pickle.loads(pickle.dumps(box)) == box
