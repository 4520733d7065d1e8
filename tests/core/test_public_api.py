"""The names that others import."""

from __future__ import annotations

import pytest

import pinwarden

PUBLIC = [
    "Cid",
    "Digest",
    "Limits",
    "PinwardenError",
    "PrivateKey",
    "PublicKey",
    "__version__",
    "blob_cid",
    "canonicalize",
    "document_cid",
    "manifest_root_cid",
    "parse_json",
    "signing_preimage",
    "tool_digest",
    "verify_signature",
]
"""A promise to others: a name is added here on purpose, and taken away with a new major version."""


def test_every_public_name_exists_and_is_documented() -> None:
    assert sorted(pinwarden.__all__) == PUBLIC
    for name in set(PUBLIC) - {"__version__"}:
        value = getattr(pinwarden, name)
        inherited = {base.__doc__ for base in getattr(value, "__mro__", ())[1:]}
        assert value.__doc__, name
        assert value.__doc__ not in inherited, name
    assert set(PUBLIC) <= set(dir(pinwarden))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pinwarden.nothing
