"""The trust and the policy of an installer: trusted keys with roles, allowed permissions, and the trust store.

The trust store lists trusted registries, attestation keys with roles, and revoked keys. `parse_trust` can also read its
file as a plain trust file, with the keys that are trusted now. ``trust_files.py`` reads and writes the trust store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from pinwarden.bundle.attestation import ROLES
from pinwarden.bundle.document import DocumentReader, read_json
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.record import Record, replace
from pinwarden.core.signed_note import NoteKey, WitnessKey
from pinwarden.core.strict_json import encode_json_file
from pinwarden.core.typed_json import JsonObject

REGISTRY_ROLE = "registry"
ALL_ROLES = (*ROLES, REGISTRY_ROLE)


# Trusted keys


class TrustedKey(Record):
    """A trusted key, with the name of its owner and its roles."""

    key: PublicKey
    name: str = ""
    roles: tuple[str, ...] = ()
    """A key without roles is not trusted in any role. Literal mode ignores roles."""

    @property
    def key_id(self) -> str:
        """The key's identifier in signatures."""
        return self.key.did


class Trust(Record):
    """All trusted keys."""

    registry_keys: tuple[TrustedKey, ...] = ()
    known_keys: tuple[TrustedKey, ...] = ()
    """The keys whose attestations are trusted."""

    def find_registry_key(self, key_id: Any) -> TrustedKey | None:
        """Return the trusted registry key with this id; None if there is none."""
        return _find_key(self.registry_keys, key_id)

    def find_attestation_key(self, key_id: Any) -> TrustedKey | None:
        """Return the trusted attestation key with this id; None if there is none."""
        return _find_key(self.known_keys, key_id)


def _find_key(keys: Iterable[TrustedKey], key_id: Any) -> TrustedKey | None:
    return next((key for key in keys if key.key_id == key_id), None)


def parse_trust(data: bytes) -> Trust:
    """Parse a trust file, which has ``trusted_registry_keys`` and ``known_keys``."""
    return trust_from_json(read_json(data))


def trust_from_json(document: Any) -> Trust:
    """Build trust from a strictly parsed value."""
    reader = JsonObject(document, "", _build_trust_error)
    return Trust(registry_keys=_read_keys(reader, "trusted_registry_keys"), known_keys=_read_keys(reader, "known_keys"))


def _read_keys(reader: JsonObject, member: str) -> tuple[TrustedKey, ...]:
    keys = tuple(
        trusted_key_from_json(row, f"{member}/{index}") for index, row in enumerate(reader.array(member, default=[]))
    )
    if len({key.key_id for key in keys}) != len(keys):
        reader.fail(member, "lists a key twice")
    return keys


def trusted_key_from_json(value: Any, path: str) -> TrustedKey:
    """Read a key from a trust file or key file. ``key_id`` and ``public_key`` must match."""
    reader = JsonObject(value, path, _build_trust_error)
    name, roles = reader.string("name", default=""), reader.strings("roles", default=[])
    if "alg" in reader:
        reader.one_of("alg", ("ed25519",))
    key = reader.parse_string("public_key" if "public_key" in reader else "key_id", PublicKey.parse)
    if reader.value.get("key_id") != key.did:
        reader.fail("key_id", "does not match public_key")
    return TrustedKey(key=key, name=name, roles=roles)


def trusted_key_to_json(trusted: TrustedKey) -> dict[str, Any]:
    """Return a key as an object of a trust file."""
    return {
        "key_id": trusted.key_id,
        "alg": "ed25519",
        "public_key": trusted.key.base64url,
        "name": trusted.name,
        "roles": list(trusted.roles),
    }


def _build_trust_error(path: str, problem: str) -> PinwardenError:
    return PinwardenError("TRUST_INVALID", f"{path or 'the trust file'} {problem}")


# Permissions


_PERMISSION_VALUES = {
    "network": ("deny", "allow"),
    "filesystem": ("deny", "read_only", "read_write", "allow"),  # read_write and allow are the same
    "exec": ("deny", "allow"),
}


class InstallerPolicy(Record):
    """The permissions that bundles may request. The default is deny."""

    network: str = "deny"
    filesystem: str = "deny"
    exec: str = "deny"
    allow_legacy: bool = False
    """Whether channels whose name begins with ``legacy-`` are allowed."""


def parse_installer_policy(data: bytes) -> InstallerPolicy:
    """Parse a policy file."""
    return installer_policy_from_json(read_json(data))


def installer_policy_from_json(document: Any) -> InstallerPolicy:
    """Build a policy from a parsed value. Unknown keys are errors: they might be restrictions."""
    policy = JsonObject(document, "", _build_policy_error)
    for key in sorted(policy.value):
        if key in _PERMISSION_VALUES:
            policy.one_of(key, _PERMISSION_VALUES[key])
        elif key != "allow_legacy":
            policy.fail(ascii(key[:80]), "is an unknown key")
    policy.boolean("allow_legacy", default=False)
    return InstallerPolicy(**policy.value)


def _build_policy_error(path: str, problem: str) -> PinwardenError:
    return PinwardenError("POLICY_INVALID", f"the installer policy{path and f': {path}'} {problem}")


# The trust store


FORMAT = "pinwarden-trust/1"
MAX_AGE_DAYS = 14
"""The default maximum age of a log's signed checkpoint. It leaves time to renew static exports."""
_MAX_AGE_LIMIT_DAYS = 3650
_REPLACED_REASON = "the registry replaced this key"


class ReplacedKey(Record):
    """A key that a registry replaced, and the log entry that records it."""

    key_id: str
    seq: int
    seen_at: str
    """When this installation first saw the entry."""


class TrustedRegistry(Record):
    """A trusted registry: the key of its pointers, and the key and origin of its log."""

    key: TrustedKey
    log: NoteKey
    url: str | None = None
    """The default URL for commands. The key identifies the registry, not the URL."""
    witnesses: tuple[WitnessKey, ...] = ()
    witnesses_needed: int = 0
    max_age_days: int = MAX_AGE_DAYS
    added_at: str
    replaced_keys: tuple[ReplacedKey, ...] = ()
    """Former keys of the registry, which are no longer trusted."""


class AttestationKey(Record):
    """A key whose attestations are trusted."""

    key: TrustedKey
    added_at: str


class RevokedKey(Record):
    """A revoked key, which cannot be trusted again."""

    key_id: str
    name: str
    roles: tuple[str, ...]
    revoked_at: str
    why: str


class TrustStore(Record):
    """The trusted registries, the trusted attestation keys, and the revoked keys."""

    registries: tuple[TrustedRegistry, ...] = ()
    keys: tuple[AttestationKey, ...] = ()
    revoked: tuple[RevokedKey, ...] = ()

    @property
    def trust(self) -> Trust:
        """The keys that are trusted now."""
        return Trust(
            registry_keys=tuple(registry.key for registry in self.registries),
            known_keys=tuple(known.key for known in self.keys),
        )

    def find_registry(self, key_id: str) -> TrustedRegistry | None:
        """Return the registry whose pointers this key signs, without revoked witnesses.

        ``witnesses_needed`` stays the same: revoking a witness must not lower the quorum.
        """
        registry = next((registry for registry in self.registries if registry.key.key_id == key_id), None)
        return None if registry is None else replace(registry, witnesses=self.exclude_revoked(registry.witnesses))

    def exclude_revoked(self, witnesses: Iterable[WitnessKey]) -> tuple[WitnessKey, ...]:
        """Return the witnesses whose keys are not revoked.

        Earlier cosignatures of a revoked witness do not count either, because a stolen key can sign with any date.
        """
        return tuple(witness for witness in witnesses if not self.find_revoked_key(witness.key.did))

    def find_witness(self, text: str) -> WitnessKey | None:
        """Return the witness with this key or name; None if there is none, or several."""
        witnesses = {witness for registry in self.registries for witness in registry.witnesses}
        matches = [witness for witness in witnesses if text in (str(witness), witness.key.did, witness.name)]
        return matches[0] if len(matches) == 1 else None

    def find_entry(self, text: str) -> TrustedRegistry | AttestationKey | None:
        """Return the registry or attestation key with this key id or name; None if there is none, or several."""
        entries: tuple[TrustedRegistry | AttestationKey, ...] = (*self.registries, *self.keys)
        matches = [entry for entry in entries if text in (entry.key.key_id, entry.key.name)]
        return matches[0] if len(matches) == 1 else None

    def find_replaced_key(self, key_id: str) -> ReplacedKey | None:
        """Return the record of a replaced key; None if no registry replaced the key."""
        return next(
            (
                replaced
                for registry in self.registries
                for replaced in registry.replaced_keys
                if replaced.key_id == key_id
            ),
            None,
        )

    def find_revoked_key(self, key_id: str) -> RevokedKey | None:
        """Return the record of a revoked key; None if the key is not revoked."""
        return next((revoked for revoked in self.revoked if revoked.key_id == key_id), None)


# Changes to the trust store


def add_registry(store: TrustStore, registry: TrustedRegistry) -> TrustStore:
    """Trust a registry. Raises if its key is revoked, replaced, or trusted for attestations."""
    check_not_revoked(
        store, registry.key.key_id, registry.log.key.did, *(witness.key.did for witness in registry.witnesses)
    )
    _check_not_replaced(store, registry.key.key_id, registry.log.key.did)
    if any(known.key.key_id == registry.key.key_id for known in store.keys):
        _refuse_usage(f"{registry.key.key_id} is already trusted for attestations; a registry needs a key of its own")
    _check_name_is_free(store, registry.key)
    before = next((other for other in store.registries if other.key.key_id == registry.key.key_id), None)
    others = tuple(other for other in store.registries if other is not before)
    return replace(
        store,
        registries=(
            *others,
            replace(registry, replaced_keys=before.replaced_keys if before else registry.replaced_keys),
        ),
    )


def apply_key_changes(
    store: TrustStore, log: NoteKey, replaced: Iterable[ReplacedKey], present: PublicKey
) -> TrustStore:
    """Replace a registry's log key by the newest key in its log. If the pointer key was the same key, replace it too.

    Raises if the new key is revoked or already trusted for another purpose.
    """
    check_not_revoked(store, present.did)
    old = next((registry for registry in store.registries if registry.log == log), None)
    if old is None:
        return store  # another process replaced the key first, or the registry was removed
    key = replace(old.key, key=present) if old.key.key == log.key else old.key
    if any(key.key_id == known.key_id for known in store.trust.known_keys) or any(
        registry is not old and key.key_id == registry.key.key_id for registry in store.registries
    ):
        _refuse_usage(
            f"{key.key_id} is already trusted for another purpose; it cannot be the new key of "
            f"{old.key.name or log.name}"
        )
    recorded = {record.key_id: record for record in old.replaced_keys}
    all_replaced = tuple(recorded.get(record.key_id, record) for record in replaced)
    moved = replace(old, key=key, log=NoteKey(name=log.name, key=present), replaced_keys=all_replaced)
    return replace(store, registries=tuple(moved if registry is old else registry for registry in store.registries))


def add_key(store: TrustStore, known: AttestationKey) -> TrustStore:
    """Trust a key for attestations in its roles. Replaces an earlier entry of the same key."""
    check_not_revoked(store, known.key.key_id)
    _check_not_replaced(store, known.key.key_id)
    unknown = [role for role in known.key.roles if role not in ROLES]
    if unknown or not known.key.roles:
        _refuse_usage(f"an attestation key needs one or more of the roles {', '.join(ROLES)}")
    if store.find_registry(known.key.key_id):
        _refuse_usage(f"{known.key.key_id} is the key of a registry; attestations need a key of their own")
    _check_name_is_free(store, known.key)
    others = tuple(other for other in store.keys if other.key.key_id != known.key.key_id)
    return replace(store, keys=(*others, known))


def remove_key(store: TrustStore, key_id: str) -> TrustStore:
    """Remove the registry or attestation key with this key id, without revoking the key."""
    return replace(
        store,
        registries=tuple(registry for registry in store.registries if registry.key.key_id != key_id),
        keys=tuple(known for known in store.keys if known.key.key_id != key_id),
    )


def revoke_key(store: TrustStore, key: TrustedKey, now: str, why: str) -> TrustStore:
    """Revoke a key in every role. The store remembers the key, so that it cannot be trusted again."""
    removed = [registry for registry in store.registries if key.key in (registry.key.key, registry.log.key)]
    remaining = tuple(registry for registry in store.registries if registry not in removed)
    left = replace(remove_key(store, key.key_id), registries=remaining)
    revoked = [RevokedKey(key_id=key.key_id, name=key.name, roles=key.roles, revoked_at=now, why=why)]
    revoked += [  # removing the registry must not make its replaced keys usable again
        RevokedKey(
            key_id=replaced.key_id,
            name=registry.key.name,
            roles=registry.key.roles,
            revoked_at=now,
            why=_REPLACED_REASON,
        )
        for registry in removed
        for replaced in registry.replaced_keys
        if not store.find_revoked_key(replaced.key_id)
    ]
    return replace(left, revoked=(*left.revoked, *revoked))


def check_not_revoked(store: TrustStore, *key_ids: str) -> None:
    """Raise if any of these keys is revoked."""
    for key_id in key_ids:
        revoked = store.find_revoked_key(key_id)
        if revoked is not None:
            raise PinwardenError(
                "KEY_REVOKED",
                f"{key_id} was revoked at {revoked.revoked_at}: {revoked.why[:200]}",
                data={"key_id": key_id, "revoked_at": revoked.revoked_at, "why": revoked.why},
            )


def _check_not_replaced(store: TrustStore, *key_ids: str) -> None:
    for key_id in key_ids:
        replaced = store.find_replaced_key(key_id)
        if replaced is not None:
            raise PinwardenError(
                "REGISTRY_KEY_ENDED",
                f"the registry replaced the key {key_id} in entry {replaced.seq} of its log",
                hint="Use the registry's present key. To see it, run: pinwarden trust list",
                data={"key_id": key_id, "seq": replaced.seq},
            )


def _check_name_is_free(store: TrustStore, key: TrustedKey) -> None:
    entries: tuple[TrustedRegistry | AttestationKey, ...] = (*store.registries, *store.keys)
    if key.name and any(entry.key.name == key.name and entry.key.key_id != key.key_id for entry in entries):
        _refuse_usage(
            f"the name {key.name[:80]!a} is taken; choose another --name, or use --replaces if this is a new key"
        )


def _refuse_usage(problem: str) -> NoReturn:
    raise PinwardenError("USAGE", problem)


# The file of the trust store


def encode_trust_store(store: TrustStore) -> bytes:
    """Encode the trust store as a file, with a digest that detects damage."""
    document = {
        "format": FORMAT,
        "trusted_registry_keys": [_registry_to_json(registry) for registry in store.registries],
        "known_keys": [{**trusted_key_to_json(known.key), "added_at_utc": known.added_at} for known in store.keys],
        "revoked_keys": [
            {
                "key_id": revoked.key_id,
                "name": revoked.name,
                "roles": list(revoked.roles),
                "revoked_at_utc": revoked.revoked_at,
                "why": revoked.why,
            }
            for revoked in store.revoked
        ],
    }
    return encode_json_file({**document, "integrity": _compute_integrity(document)})


def _registry_to_json(registry: TrustedRegistry) -> dict[str, Any]:
    return {
        **trusted_key_to_json(registry.key),
        "checkpoint_key": str(registry.log),
        "url": registry.url,
        "witnesses": [str(witness) for witness in registry.witnesses],
        "witnesses_needed": registry.witnesses_needed,
        "max_age_days": registry.max_age_days,
        "added_at_utc": registry.added_at,
        "ended_keys": [
            {"key_id": replaced.key_id, "log_index": replaced.seq, "seen_at_utc": replaced.seen_at}
            for replaced in registry.replaced_keys
        ],
    }


def parse_trust_store(data: bytes) -> TrustStore:
    """Parse the trust store's file. Raises ``TRUST_INVALID`` if the file is damaged."""
    try:
        return _parse_store(read_json(data))
    except PinwardenError as err:
        if err.code == "TRUST_INVALID":
            raise
        raise PinwardenError("TRUST_INVALID", f"the trust store is invalid: {err.message}") from err


def _parse_store(document: Any) -> TrustStore:
    if type(document) is not dict or document.get("format") != FORMAT:
        _refuse_damaged(f"its format is not {FORMAT}")
    content = {name: value for name, value in document.items() if name != "integrity"}
    if document.get("integrity") != _compute_integrity(content):
        _refuse_damaged("its integrity digest does not match its content")
    reader = DocumentReader(document, "trust")
    store = TrustStore(
        registries=tuple(_read_registry(row) for row in reader.objects("trusted_registry_keys")),
        keys=tuple(
            AttestationKey(key=trusted_key_from_json(row.value, row.path), added_at=row.timestamp("added_at_utc"))
            for row in reader.objects("known_keys")
        ),
        revoked=tuple(_read_revoked_key(row) for row in reader.objects("revoked_keys")),
    )
    trusted = [key.key_id for key in (*store.trust.registry_keys, *store.trust.known_keys)]
    if len(set(trusted)) != len(trusted):
        _refuse_damaged("it lists a key twice")
    for key_id in (*trusted, *(registry.log.key.did for registry in store.registries)):
        if store.find_revoked_key(key_id) or store.find_replaced_key(key_id):
            _refuse_damaged(f"{key_id} is both trusted and revoked")
    return store


def _read_registry(reader: DocumentReader) -> TrustedRegistry:
    needed = reader.integer("witnesses_needed")
    witnesses = tuple(WitnessKey.parse(text) for text in reader.strings("witnesses", default=[]))
    if needed > len(witnesses):
        reader.fail("witnesses_needed", "exceeds the number of witnesses")
    return TrustedRegistry(
        key=trusted_key_from_json(reader.value, reader.path),
        log=NoteKey.parse(reader.text("checkpoint_key")),
        url=reader.optional_string("url"),
        witnesses=witnesses,
        witnesses_needed=needed,
        max_age_days=reader.integer("max_age_days", minimum=1, maximum=_MAX_AGE_LIMIT_DAYS),
        added_at=reader.timestamp("added_at_utc"),
        replaced_keys=tuple(_read_replaced_key(row) for row in reader.objects("ended_keys", default=[])),
    )


def _read_replaced_key(reader: DocumentReader) -> ReplacedKey:
    return ReplacedKey(
        key_id=PublicKey.from_did(reader.text("key_id")).did,
        seq=reader.integer("log_index"),
        seen_at=reader.timestamp("seen_at_utc"),
    )


def _read_revoked_key(reader: DocumentReader) -> RevokedKey:
    return RevokedKey(
        key_id=PublicKey.from_did(reader.text("key_id")).did,
        name=str(reader.value.get("name", "")),
        roles=reader.strings("roles", default=[]),
        revoked_at=reader.timestamp("revoked_at_utc"),
        why=str(reader.value.get("why", "")),
    )


def _compute_integrity(document: Mapping[str, Any]) -> str:
    return str(Digest.of_bytes(encode_json_file(document)))


def _refuse_damaged(problem: str) -> NoReturn:
    raise PinwardenError("TRUST_INVALID", f"the trust store is damaged: {problem}")
