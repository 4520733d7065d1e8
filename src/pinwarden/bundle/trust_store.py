"""The trust store: registries pinned by their root, people who attest by their keys and roles, and revocations.

The file is a trust file too (``bundle/trust.py``): whoever reads only ``trusted_registry_keys`` and
``known_keys`` sees the keys that count, and none that was revoked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from pinwarden.bundle.attestation import ROLES
from pinwarden.bundle.shape import Shape, read
from pinwarden.bundle.trust import REGISTRY_ROLE, Trust, TrustedKey, key_value, trusted_key_of
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.record import Record, replace
from pinwarden.core.signed_note import NoteKey, WitnessKey
from pinwarden.core.strict_json import encode_json_file

FORMAT = "pinwarden-trust/1"
ALL_ROLES = (*ROLES, REGISTRY_ROLE)
MAX_AGE_DAYS = 14
"""How old the registry's word about the head of its log may be. Static exports are made anew every few days."""
_MOST_DAYS = 3650
_ENDED = "its registry gave it up"


class EndedKey(Record):
    """A key that a registry gave up, and the entry of its log that says so."""

    key_id: str
    seq: int
    seen_at: str
    """When this user learned of it."""


class RegistryRoot(Record):
    """A registry that may point to bundles: the key of its pointers, and the key and origin of its log."""

    key: TrustedKey
    log: NoteKey
    url: str | None = None
    """Where it is, for commands that name no place. It proves nothing."""
    witnesses: tuple[WitnessKey, ...] = ()
    witnesses_needed: int = 0
    max_age_days: int = MAX_AGE_DAYS
    added_at: str
    ended: tuple[EndedKey, ...] = ()
    """The keys that it had before. They count for nothing."""


class KnownKey(Record):
    """Somebody who attests."""

    key: TrustedKey
    added_at: str


class RevokedKey(Record):
    """A key that counts no longer, and never again."""

    key_id: str
    name: str
    roles: tuple[str, ...]
    revoked_at: str
    why: str


class TrustStore(Record):
    """Everybody who is, or was, trusted."""

    roots: tuple[RegistryRoot, ...] = ()
    keys: tuple[KnownKey, ...] = ()
    revoked: tuple[RevokedKey, ...] = ()

    @property
    def trust(self) -> Trust:
        """The keys that count."""
        return Trust(
            registry_keys=tuple(each.key for each in self.roots), known_keys=tuple(each.key for each in self.keys)
        )

    def root_of(self, key_id: str) -> RegistryRoot | None:
        """The registry whose pointers this key signs, with the witnesses that count.

        How many of them are needed stays as it was: to revoke a witness must not let a log with fewer pass.
        """
        found = next((each for each in self.roots if each.key.key_id == key_id), None)
        return None if found is None else replace(found, witnesses=self.counted(found.witnesses))

    def counted(self, witnesses: Iterable[WitnessKey]) -> tuple[WitnessKey, ...]:
        """The witnesses whose key was not revoked.

        A cosignature states its own time, and whoever stole a key can state any: there is no "signed before that".
        """
        return tuple(each for each in witnesses if not self.is_revoked(each.key.did))

    def witness_named(self, text: str) -> WitnessKey | None:
        """The witness of a registry that has this key or name; a name that two have is nobody's."""
        everybody = {each for root in self.roots for each in root.witnesses}
        found = [each for each in everybody if text in (str(each), each.key.did, each.name)]
        return found[0] if len(found) == 1 else None

    def named(self, text: str) -> RegistryRoot | KnownKey | None:
        """Who has this key or name; a name that two have is nobody's."""
        everybody: tuple[RegistryRoot | KnownKey, ...] = (*self.roots, *self.keys)
        found = [each for each in everybody if text in (each.key.key_id, each.key.name)]
        return found[0] if len(found) == 1 else None

    def is_ended(self, key_id: str) -> EndedKey | None:
        """Which entry of a registry's log ended a key."""
        return next((each for root in self.roots for each in root.ended if each.key_id == key_id), None)

    def is_revoked(self, key_id: str) -> RevokedKey | None:
        """Why a key counts no longer."""
        return next((each for each in self.revoked if each.key_id == key_id), None)


# Changes


def with_root(store: TrustStore, root: RegistryRoot) -> TrustStore:
    """Trust a registry. Its key speaks for registries alone; one that was revoked stays so."""
    refuse_revoked(store, root.key.key_id, root.log.key.did, *(each.key.did for each in root.witnesses))
    _refuse_ended(store, root.key.key_id, root.log.key.did)
    if any(each.key.key_id == root.key.key_id for each in store.keys):
        _usage(f"{root.key.key_id} is trusted as somebody who attests; a registry has a key of its own")
    _refuse_name(store, root.key)
    before = next((each for each in store.roots if each.key.key_id == root.key.key_id), None)
    others = tuple(each for each in store.roots if each is not before)
    return replace(store, roots=(*others, replace(root, ended=before.ended if before else root.ended)))


def with_ended_keys(store: TrustStore, log: NoteKey, ended: Iterable[EndedKey], present: PublicKey) -> TrustStore:
    """The same registry by the key that its log leads to. Where the key of its pointers is that of its log, it moves
    along; one that was revoked is not taken over, whatever a log says."""
    refuse_revoked(store, present.did)
    old = next((each for each in store.roots if each.log == log), None)
    if old is None:
        return store  # another process was faster, or the user trusts it no longer
    key = replace(old.key, key=present) if old.key.key == log.key else old.key
    if any(key.key_id == each.key_id for each in store.trust.known_keys) or any(
        each is not old and key.key_id == each.key.key_id for each in store.roots
    ):
        _usage(f"{key.key_id} is trusted as somebody else, and cannot be the new key of {old.key.name or log.name}")
    known = {each.key_id: each for each in old.ended}
    gone = tuple(known.get(each.key_id, each) for each in ended)
    moved = replace(old, key=key, log=NoteKey(name=log.name, key=present), ended=gone)
    return replace(store, roots=tuple(moved if each is old else each for each in store.roots))


def with_key(store: TrustStore, known: KnownKey) -> TrustStore:
    """Trust somebody in the roles that are named; what was said of the same key before is replaced."""
    refuse_revoked(store, known.key.key_id)
    _refuse_ended(store, known.key.key_id)
    unknown = [role for role in known.key.roles if role not in ROLES]
    if unknown or not known.key.roles:
        _usage(f"somebody who attests does so as one or more of {', '.join(ROLES)}")
    if store.root_of(known.key.key_id):
        _usage(f"{known.key.key_id} is the key of a registry; whoever attests has a key of their own")
    _refuse_name(store, known.key)
    others = tuple(each for each in store.keys if each.key.key_id != known.key.key_id)
    return replace(store, keys=(*others, known))


def without(store: TrustStore, key_id: str) -> TrustStore:
    """Forget a key."""
    return replace(
        store,
        roots=tuple(each for each in store.roots if each.key.key_id != key_id),
        keys=tuple(each for each in store.keys if each.key.key_id != key_id),
    )


def revoke(store: TrustStore, key: TrustedKey, now: str, why: str) -> TrustStore:
    """Let a key count no longer, as whatever it did, and remember that."""
    over = [each for each in store.roots if key.key in (each.key.key, each.log.key)]
    left = replace(without(store, key.key_id), roots=tuple(each for each in store.roots if each not in over))
    gone = [RevokedKey(key_id=key.key_id, name=key.name, roles=key.roles, revoked_at=now, why=why)]
    gone += [  # what a registry gave up does not come back because the registry goes
        RevokedKey(key_id=each.key_id, name=root.key.name, roles=root.key.roles, revoked_at=now, why=_ENDED)
        for root in over
        for each in root.ended
        if not store.is_revoked(each.key_id)
    ]
    return replace(left, revoked=(*left.revoked, *gone))


def refuse_revoked(store: TrustStore, *key_ids: str) -> None:
    """Stop at a key that counts no longer."""
    for key_id in key_ids:
        gone = store.is_revoked(key_id)
        if gone is not None:
            raise PinwardenError(
                "KEY_REVOKED",
                f"{key_id} was revoked at {gone.revoked_at}: {gone.why[:200]}",
                data={"key_id": key_id, "revoked_at": gone.revoked_at, "why": gone.why},
            )


def _refuse_ended(store: TrustStore, *key_ids: str) -> None:
    for key_id in key_ids:
        gone = store.is_ended(key_id)
        if gone is not None:
            raise PinwardenError(
                "REGISTRY_KEY_ENDED",
                f"entry {gone.seq} of its registry's log ended the key {key_id}",
                hint="Trust the key that came after it: pinwarden trust list shows it.",
                data={"key_id": key_id, "seq": gone.seq},
            )


def _refuse_name(store: TrustStore, key: TrustedKey) -> None:
    everybody: tuple[RegistryRoot | KnownKey, ...] = (*store.roots, *store.keys)
    if key.name and any(each.key.name == key.name and each.key.key_id != key.key_id for each in everybody):
        _usage(f"somebody else is called {key.name[:80]!a}; give another --name, or --replaces for a new key of theirs")


def _usage(why: str) -> NoReturn:
    raise PinwardenError("USAGE", why)


# In and out of a file


def to_bytes(store: TrustStore) -> bytes:
    """The file, with a digest over it: one that was damaged is not believed."""
    document = {
        "format": FORMAT,
        "trusted_registry_keys": [_root_value(each) for each in store.roots],
        "known_keys": [{**key_value(each.key), "added_at_utc": each.added_at} for each in store.keys],
        "revoked_keys": [
            {
                "key_id": each.key_id,
                "name": each.name,
                "roles": list(each.roles),
                "revoked_at_utc": each.revoked_at,
                "why": each.why,
            }
            for each in store.revoked
        ],
    }
    return encode_json_file({**document, "integrity": _integrity(document)})


def _root_value(root: RegistryRoot) -> dict[str, Any]:
    return {
        **key_value(root.key),
        "checkpoint_key": str(root.log),
        "url": root.url,
        "witnesses": [str(each) for each in root.witnesses],
        "witnesses_needed": root.witnesses_needed,
        "max_age_days": root.max_age_days,
        "added_at_utc": root.added_at,
        "ended_keys": [
            {"key_id": each.key_id, "log_index": each.seq, "seen_at_utc": each.seen_at} for each in root.ended
        ],
    }


def parse(data: bytes) -> TrustStore:
    """Read a store. One that is damaged trusts nobody, and is an error: it is never taken for an empty one."""
    try:
        return _read(read(data))
    except PinwardenError as err:
        if err.code == "TRUST_INVALID":
            raise
        raise PinwardenError("TRUST_INVALID", f"the trust store cannot be read: {err.message}") from err


def _read(document: Any) -> TrustStore:
    if type(document) is not dict or document.get("format") != FORMAT:
        _invalid(f"it is not of the format {FORMAT}")
    content = {name: value for name, value in document.items() if name != "integrity"}
    if document.get("integrity") != _integrity(content):
        _invalid("its digest does not belong to its content")
    shape = Shape(document, "trust")
    store = TrustStore(
        roots=tuple(_root(each) for each in shape.each("trusted_registry_keys")),
        keys=tuple(
            KnownKey(key=trusted_key_of(each.value, each.path), added_at=each.moment("added_at_utc"))
            for each in shape.each("known_keys")
        ),
        revoked=tuple(_revoked(each) for each in shape.each("revoked_keys")),
    )
    trusted = [each.key_id for each in (*store.trust.registry_keys, *store.trust.known_keys)]
    if len(set(trusted)) != len(trusted):
        _invalid("it names a key twice")
    for key_id in (*trusted, *(each.log.key.did for each in store.roots)):
        if store.is_revoked(key_id) or store.is_ended(key_id):
            _invalid(f"{key_id} is both trusted and revoked")
    return store


def _root(shape: Shape) -> RegistryRoot:
    url = shape.value.get("url")
    needed, age = shape.number("witnesses_needed"), shape.number("max_age_days", 1)
    witnesses = tuple(WitnessKey.parse(each) for each in shape.texts("witnesses"))
    if needed > len(witnesses) or age > _MOST_DAYS or not isinstance(url, str | None):
        _invalid(f"{shape.path} has more witnesses than there are, an age beyond reason, or an address that is none")
    return RegistryRoot(
        key=trusted_key_of(shape.value, shape.path),
        log=NoteKey.parse(shape.text("checkpoint_key")),
        url=url,
        witnesses=witnesses,
        witnesses_needed=needed,
        max_age_days=age,
        added_at=shape.moment("added_at_utc"),
        ended=tuple(_ended(each) for each in shape.each("ended_keys")) if "ended_keys" in shape.value else (),
    )


def _ended(shape: Shape) -> EndedKey:
    return EndedKey(
        key_id=PublicKey.from_did(shape.text("key_id")).did,
        seq=shape.number("log_index"),
        seen_at=shape.moment("seen_at_utc"),
    )


def _revoked(shape: Shape) -> RevokedKey:
    return RevokedKey(
        key_id=PublicKey.from_did(shape.text("key_id")).did,
        name=str(shape.value.get("name", "")),
        roles=shape.texts("roles"),
        revoked_at=shape.moment("revoked_at_utc"),
        why=str(shape.value.get("why", "")),
    )


def _integrity(document: Mapping[str, Any]) -> str:
    return str(Digest.of_bytes(encode_json_file(document)))


def _invalid(why: str) -> NoReturn:
    raise PinwardenError("TRUST_INVALID", f"the trust store is damaged: {why}")
