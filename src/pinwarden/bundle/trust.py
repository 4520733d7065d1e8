"""What an installer trusts (registry keys, attestation keys with roles) and which permissions it allows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from pinwarden.bundle.document import read_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.record import Record

REGISTRY_ROLE = "registry"


class TrustedKey(Record):
    """A key with the name of its owner and the roles it is trusted in."""

    key: PublicKey
    name: str = ""
    roles: tuple[str, ...] = ()
    """A key without roles is trusted in none; only literal mode believes the role in a claim."""

    @property
    def key_id(self) -> str:
        """The key's identifier in signatures."""
        return self.key.did


class Trust(Record):
    """All trusted keys."""

    registry_keys: tuple[TrustedKey, ...] = ()
    known_keys: tuple[TrustedKey, ...] = ()

    def find_registry_key(self, key_id: Any) -> TrustedKey | None:
        """The registry key with this id."""
        return _find_key(self.registry_keys, key_id)

    def find_attestation_key(self, key_id: Any) -> TrustedKey | None:
        """The attestation key with this id."""
        return _find_key(self.known_keys, key_id)


def _find_key(keys: Iterable[TrustedKey], key_id: Any) -> TrustedKey | None:
    return next((key for key in keys if key.key_id == key_id), None)


def parse_trust(data: bytes) -> Trust:
    """Parse a trust file, which has ``trusted_registry_keys`` and ``known_keys``."""
    return trust_from_json(read_json(data))


def trust_from_json(document: Any) -> Trust:
    """Build trust from a strictly parsed value."""
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
    keys = tuple(trusted_key_from_json(row, f"{member}/{index}") for index, row in enumerate(rows))
    if len({key.key_id for key in keys}) != len(keys):
        _invalid(f"{member} lists a key twice")
    return keys


def trusted_key_from_json(row: Any, path: str) -> TrustedKey:
    """Read a key from a trust file or key file. ``key_id`` and ``public_key`` must match."""
    if type(row) is not dict:
        _invalid(f"{path} is not an object")
    name, roles = row.get("name", ""), row.get("roles", [])
    if type(name) is not str or type(roles) is not list or any(type(role) is not str for role in roles):
        _invalid(f"{path}: name and roles must be strings")
    if row.get("alg", "ed25519") != "ed25519":
        _invalid(f"{path}/alg is not ed25519")
    try:
        key = PublicKey.parse(str(row.get("public_key", row.get("key_id"))))
    except PinwardenError as err:
        _invalid(f"{path}: {err.message}")
    if row.get("key_id") != key.did:
        _invalid(f"{path}: key_id does not match public_key")
    return TrustedKey(key=key, name=name, roles=tuple(roles))


def trusted_key_to_json(trusted: TrustedKey) -> dict[str, Any]:
    """A key as a row of a trust file."""
    return {
        "key_id": trusted.key_id,
        "alg": "ed25519",
        "public_key": trusted.key.base64url,
        "name": trusted.name,
        "roles": list(trusted.roles),
    }


def _invalid(problem: str) -> NoReturn:
    raise PinwardenError("TRUST_INVALID", problem)


_WORDS = {
    "network": ("deny", "allow"),
    "filesystem": ("deny", "read_only", "read_write", "allow"),  # the last two are synonyms
    "exec": ("deny", "allow"),
}


class InstallerPolicy(Record):
    """The permissions that tools may request. The default is deny."""

    network: str = "deny"
    filesystem: str = "deny"
    exec: str = "deny"
    allow_legacy: bool = False


def parse_installer_policy(data: bytes) -> InstallerPolicy:
    """Parse a policy file."""
    return installer_policy_from_json(read_json(data))


def installer_policy_from_json(document: Any) -> InstallerPolicy:
    """Build a policy from a parsed value. Unknown keys are errors: they might be restrictions."""
    if type(document) is not dict:
        _refuse_policy("the installer policy is not an object")
    unknown = sorted(document.keys() - _WORDS.keys() - {"allow_legacy"})
    if unknown:
        _refuse_policy(f"the installer policy has an unknown key {unknown[0][:80]!a}")
    for key, allowed in _WORDS.items():
        value = document.get(key, "deny")
        if type(value) is not str or value not in allowed:
            _refuse_policy(f"{key} in the installer policy must be one of {', '.join(allowed)}")
    if type(document.get("allow_legacy", False)) is not bool:
        _refuse_policy("allow_legacy in the installer policy must be true or false")
    return InstallerPolicy(**document)


def _refuse_policy(problem: str) -> NoReturn:
    raise PinwardenError("POLICY_INVALID", problem)
