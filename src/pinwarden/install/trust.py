"""The trust store's commands: whom to trust, in which roles, and whom no longer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pinwarden.bundle import trust_store
from pinwarden.bundle.trust import REGISTRY_ROLE, TrustedKey
from pinwarden.bundle.trust_files import change_trust, load_trust
from pinwarden.bundle.trust_store import MAX_AGE_DAYS, KnownKey, RevokedKey, TrustedRegistry, TrustStore
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.record import Record
from pinwarden.core.report import Report, plural
from pinwarden.core.signed_note import NoteKey, WitnessKey


class Trusting(Record):
    """Whom somebody wants to trust."""

    name: str
    roles: tuple[str, ...]
    key: PublicKey | None = None
    """Of somebody who attests; of a registry only where its pointers have another key than its log."""
    log: NoteKey | None = None
    """Of a registry: the key and origin of its log, as it prints them when it starts."""
    url: str | None = None
    witnesses: tuple[WitnessKey, ...] = ()
    witnesses_needed: int = 0
    max_age_days: int = MAX_AGE_DAYS
    replaces: str | None = None
    """The key or name that the new key takes the place of."""
    why: str = ""


def add_trust(path: Path, wanted: Trusting, now: str) -> Report:
    """The report of ``pinwarden trust add``. A key that is replaced is revoked in the same step."""
    _refuse_secret(wanted.url)
    told: dict[str, Any] = {}

    def change(store: TrustStore) -> TrustStore:
        old = _named(store, wanted.replaces) if wanted.replaces else None
        after = store
        if old is not None:
            after = trust_store.revoke_key(store, old.key, now, wanted.why or "replaced by a new key")
        made = _made(wanted, old, now)
        told.update(_facts(made))
        if isinstance(made, TrustedRegistry):
            return trust_store.add_registry(after, made)
        return trust_store.add_key(after, made)

    store = change_trust(path, change)
    who = told["name"] or told["key_id"]
    return _report("trust add", who, f"{who} is trusted as {', '.join(told['roles'])}", store)


def _refuse_secret(url: str | None) -> None:
    """The store is readable and shown; a password in an address would be, too."""
    if url and "@" in url.partition("://")[2].partition("/")[0]:
        raise PinwardenError("USAGE", "the address of a registry is kept without a user name or password")


def _made(wanted: Trusting, old: TrustedRegistry | KnownKey | None, now: str) -> TrustedRegistry | KnownKey:
    roles = wanted.roles or (old.key.roles if old else ())
    name = wanted.name or (old.key.name if old else "")
    if roles == (REGISTRY_ROLE,):
        before = old if isinstance(old, TrustedRegistry) else None
        if wanted.log is None:
            raise PinwardenError(
                "USAGE",
                "a registry is trusted by the key of its log, which names its origin too: name+id+key",
                hint="pinwarden registry serve prints it in its third line; get it by a way that you trust.",
            )
        key = wanted.key or wanted.log.key
        return TrustedRegistry(
            key=TrustedKey(key=key, name=name, roles=roles),
            log=wanted.log,
            url=wanted.url or (before.url if before else None),
            witnesses=wanted.witnesses or (before.witnesses if before else ()),
            witnesses_needed=wanted.witnesses_needed or (before.witnesses_needed if before else 0),
            max_age_days=wanted.max_age_days,
            added_at=now,
        )
    if wanted.log is not None and not roles:
        raise PinwardenError("USAGE", "this is a registry's own description, so say --role registry")
    if REGISTRY_ROLE in roles or wanted.key is None:
        raise PinwardenError("USAGE", "a registry has no other role, and whoever attests is trusted by their own key")
    return KnownKey(key=TrustedKey(key=wanted.key, name=name, roles=tuple(dict.fromkeys(roles))), added_at=now)


def remove_trust(path: Path, text: str, now: str, *, revoked: bool, why: str) -> Report:
    """The report of ``pinwarden trust remove``: forget a key, or revoke it, which is remembered."""
    told: dict[str, str] = {}

    def change(store: TrustStore) -> TrustStore:
        if not revoked:
            found = _named(store, text)
            told["who"] = found.key.name or found.key.key_id
            return trust_store.remove_key(store, found.key.key_id)
        key = _revocable(store, text)
        told["who"] = key.name or key.key_id
        return store if store.find_revoked(key.key_id) else trust_store.revoke_key(store, key, now, why or "revoked")

    store = change_trust(path, change)
    state = "revoked, and cannot be trusted again" if revoked else "no longer trusted"
    return _report("trust remove", told["who"], f"{told['who']} is {state}", store)


def _revocable(store: TrustStore, text: str) -> TrustedKey:
    """The key of somebody who is trusted, of a witness, or any other: a key may be revoked before anybody trusted it,
    and then nobody can be talked into trusting it later."""
    known = store.find_entry(text)
    if known is not None:
        return known.key
    witness = store.find_witness(text)
    if witness is None and "+" in text:
        witness = WitnessKey.parse(text)
    if witness is not None:
        return TrustedKey(key=witness.key, name=witness.name, roles=("witness",))
    return TrustedKey(key=PublicKey.parse(text))


def list_trust(path: Path) -> Report:
    """The report of ``pinwarden trust list``."""
    store = load_trust(path)
    registries, people = plural(len(store.registries), "registry", "registries"), plural(len(store.keys), "key")
    return _report(
        "trust list", str(path), f"{registries} and {people} are trusted, {len(store.revoked)} revoked", store
    )


def _named(store: TrustStore, text: str) -> TrustedRegistry | KnownKey:
    found = store.find_entry(text)
    if found is None:
        raise PinwardenError(
            "TRUST_UNKNOWN", f"nobody is trusted by the key or name {text[:80]!a}, or two go by that name"
        )
    return found


def _report(command: str, subject: str, summary: str, store: TrustStore) -> Report:
    return Report(
        command=command,
        subject=subject,
        summary=summary,
        exit_code=EXIT_CLEAN,
        facts={
            "registries": [_root_facts(store, each) for each in store.registries],
            "keys": [_facts(each) for each in store.keys],
            "revoked": [_revoked_facts(each) for each in store.revoked],
        },
    )


def _facts(each: TrustedRegistry | KnownKey) -> dict[str, Any]:
    return {
        "key_id": each.key.key_id,
        "name": each.key.name,
        "roles": list(each.key.roles),
        "added_at": each.added_at,
    }


def _root_facts(store: TrustStore, each: TrustedRegistry) -> dict[str, Any]:
    counted = store.without_revoked(each.witnesses)
    return {
        **_facts(each),
        "log_id": each.log.name,
        "checkpoint_key": str(each.log),
        "url": each.url,
        "witnesses": [str(witness) for witness in counted],
        "witnesses_revoked": [str(witness) for witness in each.witnesses if witness not in counted],
        "witnesses_needed": each.witnesses_needed,
        "max_age_days": each.max_age_days,
        "ended_keys": [{"key_id": gone.key_id, "log_index": gone.seq, "seen_at": gone.seen_at} for gone in each.ended],
    }


def _revoked_facts(each: RevokedKey) -> dict[str, Any]:
    return {
        "key_id": each.key_id,
        "name": each.name,
        "roles": list(each.roles),
        "revoked_at": each.revoked_at,
        "why": each.why,
    }
