"""The schema names in documents of a registry are part of its wire format: renaming a module must not change them."""

from __future__ import annotations

from pinwarden.bundle.log_documents import KEY_CHANGE_SCHEMA, KEY_CHANGES_SCHEMA
from pinwarden.registry import registry_documents


def test_the_schema_names_of_registry_documents_do_not_change() -> None:
    names = (
        registry_documents.VERSION_SCHEMA,
        registry_documents.IDENTITY_SCHEMA,
        registry_documents.STATEMENT_SCHEMA,
        KEY_CHANGE_SCHEMA,
        KEY_CHANGES_SCHEMA,
    )
    kinds = ("version", "identity", "statement", "key-change", "key-changes")
    assert names == tuple(".".join(("pinwarden", "registry", kind, "v1")) for kind in kinds)
