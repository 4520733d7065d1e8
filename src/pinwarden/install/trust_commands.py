"""The ``trust`` commands: add, remove and list trusted registries and keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pinwarden.bundle.trust import (
    MAX_AGE_DAYS,
    REGISTRY_ROLE,
    AttestationKey,
    RevokedKey,
    TrustedKey,
    TrustedRegistry,
    TrustStore,
    add_key,
    add_registry,
    remove_key,
    revoke_key,
)
from pinwarden.bundle.trust_files import change_trust, load_trust
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.record import Record
from pinwarden.core.report import Report, plural
from pinwarden.core.signed_note import NoteKey, WitnessKey


class TrustRequest(Record):
    """Whom to trust, and in which roles."""

    name: str
    roles: tuple[str, ...]
    key: PublicKey | None = None
    """The key of an attester; of a registry only if its pointers have another key than its log."""
    log: NoteKey | None = None
    """The registry's log key with its origin, as ``registry serve`` prints it."""
    url: str | None = None
    witnesses: tuple[WitnessKey, ...] = ()
    witnesses_needed: int = 0
    max_age_days: int = MAX_AGE_DAYS
    replaces: str | None = None
    """The key or name of an entry that the new key replaces."""
    why: str = ""


def add_trust(path: Path, request: TrustRequest, now: str) -> Report:
    """The report of ``pinwarden trust add``. A replaced key is revoked in the same step."""
    _refuse_secret(request.url)
    facts: dict[str, Any] = {}

    def change(store: TrustStore) -> TrustStore:
        old = _find_trusted(store, request.replaces) if request.replaces else None
        after = store
        if old is not None:
            after = revoke_key(store, old.key, now, request.why or "replaced by a new key")
        added = _new_trust(request, old, now)
        facts.update(_facts(added))
        if isinstance(added, TrustedRegistry):
            return add_registry(after, added)
        return add_key(after, added)

    store = change_trust(path, change)
    who = facts["name"] or facts["key_id"]
    return _report("trust add", who, f"{who} is trusted as {', '.join(facts['roles'])}", store)


def _refuse_secret(url: str | None) -> None:
    """Refuse credentials in a URL: the trust store is readable and printed."""
    if url and "@" in url.partition("://")[2].partition("/")[0]:
        raise PinwardenError("USAGE", "a registry's address must not contain a user name or password")


def _new_trust(
    request: TrustRequest, old: TrustedRegistry | AttestationKey | None, now: str
) -> TrustedRegistry | AttestationKey:
    roles = request.roles or (old.key.roles if old else ())
    name = request.name or (old.key.name if old else "")
    if roles == (REGISTRY_ROLE,):
        before = old if isinstance(old, TrustedRegistry) else None
        if request.log is None:
            raise PinwardenError(
                "USAGE",
                "a registry is trusted by the key of its log, in the form name+id+key",
                hint="`pinwarden registry serve` prints it in the third line; get it over a channel you trust.",
            )
        key = request.key or request.log.key
        return TrustedRegistry(
            key=TrustedKey(key=key, name=name, roles=roles),
            log=request.log,
            url=request.url or (before.url if before else None),
            witnesses=request.witnesses or (before.witnesses if before else ()),
            witnesses_needed=request.witnesses_needed or (before.witnesses_needed if before else 0),
            max_age_days=request.max_age_days,
            added_at=now,
        )
    if request.log is not None and not roles:
        raise PinwardenError("USAGE", "this is the log key of a registry; add --role registry")
    if REGISTRY_ROLE in roles or request.key is None:
        raise PinwardenError("USAGE", "a registry has no other role, and an attester is trusted by a key of their own")
    return AttestationKey(key=TrustedKey(key=request.key, name=name, roles=tuple(dict.fromkeys(roles))), added_at=now)


def remove_trust(path: Path, text: str, now: str, *, revoked: bool, why: str) -> Report:
    """The report of ``pinwarden trust remove``: forget a key, or revoke it permanently."""
    names: dict[str, str] = {}

    def change(store: TrustStore) -> TrustStore:
        if not revoked:
            trusted = _find_trusted(store, text)
            names["who"] = trusted.key.name or trusted.key.key_id
            return remove_key(store, trusted.key.key_id)
        key = _revocable(store, text)
        names["who"] = key.name or key.key_id
        return store if store.find_revoked(key.key_id) else revoke_key(store, key, now, why or "revoked")

    store = change_trust(path, change)
    state = "revoked, and cannot be trusted again" if revoked else "no longer trusted"
    return _report("trust remove", names["who"], f"{names['who']} is {state}", store)


def _revocable(store: TrustStore, text: str) -> TrustedKey:
    """The key of a trusted entry, of a witness, or any other key. A revoked unknown key cannot be trusted later."""
    entry = store.find_entry(text)
    if entry is not None:
        return entry.key
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


def _find_trusted(store: TrustStore, text: str) -> TrustedRegistry | AttestationKey:
    trusted = store.find_entry(text)
    if trusted is None:
        raise PinwardenError(
            "TRUST_UNKNOWN", f"no trusted key has the id or name {text[:80]!a}, or several have that name"
        )
    return trusted


def _report(command: str, subject: str, summary: str, store: TrustStore) -> Report:
    return Report(
        command=command,
        subject=subject,
        summary=summary,
        exit_code=EXIT_CLEAN,
        facts={
            "registries": [_registry_facts(store, registry) for registry in store.registries],
            "keys": [_facts(known) for known in store.keys],
            "revoked": [_revoked_facts(revoked) for revoked in store.revoked],
        },
    )


def _facts(trusted: TrustedRegistry | AttestationKey) -> dict[str, Any]:
    return {
        "key_id": trusted.key.key_id,
        "name": trusted.key.name,
        "roles": list(trusted.key.roles),
        "added_at": trusted.added_at,
    }


def _registry_facts(store: TrustStore, registry: TrustedRegistry) -> dict[str, Any]:
    active = store.without_revoked(registry.witnesses)
    return {
        **_facts(registry),
        "log_id": registry.log.name,
        "checkpoint_key": str(registry.log),
        "url": registry.url,
        "witnesses": [str(witness) for witness in active],
        "witnesses_revoked": [str(witness) for witness in registry.witnesses if witness not in active],
        "witnesses_needed": registry.witnesses_needed,
        "max_age_days": registry.max_age_days,
        "ended_keys": [
            {"key_id": ended_key.key_id, "log_index": ended_key.seq, "seen_at": ended_key.seen_at}
            for ended_key in registry.ended
        ],
    }


def _revoked_facts(revoked: RevokedKey) -> dict[str, Any]:
    return {
        "key_id": revoked.key_id,
        "name": revoked.name,
        "roles": list(revoked.roles),
        "revoked_at": revoked.revoked_at,
        "why": revoked.why,
    }
