"""Whom an installer trusts: registries by their keys, and those who attest by their keys and roles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from pinwarden.bundle.shape import read
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.record import Record

REGISTRY_ROLE = "registry"


class TrustedKey(Record):
    """A key, whose it is, and as what it may speak."""

    key: PublicKey
    name: str = ""
    roles: tuple[str, ...] = ()
    """A key without roles may not speak in any; only the literal rulebook takes the word of the claim."""

    @property
    def key_id(self) -> str:
        """How signatures name it."""
        return self.key.did


class Trust(Record):
    """All keys that count."""

    registry_keys: tuple[TrustedKey, ...] = ()
    known_keys: tuple[TrustedKey, ...] = ()

    def registry(self, key_id: Any) -> TrustedKey | None:
        """The registry's key of this name."""
        return _found(self.registry_keys, key_id)

    def known(self, key_id: Any) -> TrustedKey | None:
        """The key of this name of somebody who attests."""
        return _found(self.known_keys, key_id)


def _found(keys: Iterable[TrustedKey], key_id: Any) -> TrustedKey | None:
    return next((each for each in keys if each.key_id == key_id), None)


def parse(data: bytes) -> Trust:
    """A trust file: ``trusted_registry_keys`` and ``known_keys``."""
    return of(read(data))


def of(document: Any) -> Trust:
    """The same, of a value that was read strictly."""
    if type(document) is not dict:
        _invalid("the trust file is not an object")
    return Trust(
        registry_keys=_keys(document, "trusted_registry_keys"),
        known_keys=_keys(document, "known_keys"),
    )


def _keys(document: dict[str, Any], member: str) -> tuple[TrustedKey, ...]:
    rows = document.get(member, [])
    if type(rows) is not list:
        _invalid(f"{member} is not a list")
    keys = tuple(trusted_key_of(row, f"{member}/{number}") for number, row in enumerate(rows))
    if len({each.key_id for each in keys}) != len(keys):
        _invalid(f"{member} names a key twice")
    return keys


def trusted_key_of(row: Any, path: str) -> TrustedKey:
    """A key as trust files and key files write it: key_id and public_key must be one key."""
    if type(row) is not dict:
        _invalid(f"{path} is not an object")
    name, roles = row.get("name", ""), row.get("roles", [])
    if type(name) is not str or type(roles) is not list or any(type(role) is not str for role in roles):
        _invalid(f"{path} has a name or roles that are not text")
    if row.get("alg", "ed25519") != "ed25519":
        _invalid(f"{path}/alg is not ed25519")
    try:
        key = PublicKey.parse(str(row.get("public_key", row.get("key_id"))))
    except PinwardenError as err:
        _invalid(f"{path}: {err.message}")
    if row.get("key_id") != key.did:
        _invalid(f"{path}: key_id is not the name of public_key")
    return TrustedKey(key=key, name=name, roles=tuple(roles))


def key_value(trusted: TrustedKey) -> dict[str, Any]:
    """A key as trust files write it."""
    return {
        "key_id": trusted.key_id,
        "alg": "ed25519",
        "public_key": trusted.key.base64url,
        "name": trusted.name,
        "roles": list(trusted.roles),
    }


def _invalid(why: str) -> NoReturn:
    raise PinwardenError("TRUST_INVALID", why)
