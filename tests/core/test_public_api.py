"""The names that others import."""

from __future__ import annotations

import pytest

import pinwarden


def test_every_public_name_is_there_and_documented() -> None:
    for name in pinwarden.__all__:
        value = getattr(pinwarden, name)
        assert name == "__version__" or value.__doc__, name
    assert set(pinwarden.__all__) <= set(dir(pinwarden))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pinwarden.nothing
