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
from pinwarden.core.report import Report
from pinwarden.core.signed_note import NoteKey, WitnessKey
from pinwarden.core.text import plural


class TrustRequest(Record):
    """The key to trust, with its name and roles."""

    name: str
    roles: tuple[str, ...]
    key: PublicKey | None = None
    """The key of an attester, or the pointer key of a registry if that differs from its log key."""
    log: NoteKey | None = None
    """The registry's log key with its origin, as ``registry serve`` prints it."""
    url: str | None = None
    witnesses: tuple[WitnessKey, ...] = ()
    witnesses_needed: int = 0
    max_age_days: int = MAX_AGE_DAYS
    replaces: str | None = None
    """The id or name of the key that the new key replaces."""
    why: str = ""
    """The reason for revoking the replaced key."""


def add_trust(path: Path, request: TrustRequest, now: str) -> Report:
    """Trust a key, and return the report of ``pinwarden trust add``. A replaced key is revoked in the same write."""
    _refuse_credentials(request.url)
    added: list[TrustedRegistry | AttestationKey] = []

    def change(store: TrustStore) -> TrustStore:
        old = _find_trusted(store, request.replaces) if request.replaces else None
        if old is not None:
            store = revoke_key(store, old.key, now, request.why or "replaced by a new key")
        trusted = _build_trusted(request, old, now)
        added[:] = [trusted]
        return add_registry(store, trusted) if isinstance(trusted, TrustedRegistry) else add_key(store, trusted)

    store = change_trust(path, change)
    key = added[0].key
    name = key.name or key.key_id
    return _build_report("trust add", name, f"{name} is trusted as {', '.join(key.roles)}", store)


def _refuse_credentials(url: str | None) -> None:
    """Refuse a URL with credentials, because the trust store is a readable file and ``trust list`` prints it."""
    if url and "@" in url.partition("://")[2].partition("/")[0]:
        raise PinwardenError("USAGE", "--url must not contain a user name or password")


def _build_trusted(
    request: TrustRequest, old: TrustedRegistry | AttestationKey | None, now: str
) -> TrustedRegistry | AttestationKey:
    roles = request.roles or (old.key.roles if old else ())
    name = request.name or (old.key.name if old else "")
    if roles == (REGISTRY_ROLE,):
        before = old if isinstance(old, TrustedRegistry) else None
        if request.log is None:
            raise PinwardenError(
                "USAGE",
                "--role registry needs the key of the registry's log, in the form name+id+key",
                hint="`pinwarden registry serve` prints the key in its third line. Get it over a channel you trust.",
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
        raise PinwardenError("USAGE", "the given key is the log key of a registry; add --role registry")
    if REGISTRY_ROLE in roles or request.key is None:
        raise PinwardenError(
            "USAGE", "--role registry excludes other roles, and every other role needs the key of an attester"
        )
    return AttestationKey(key=TrustedKey(key=request.key, name=name, roles=tuple(dict.fromkeys(roles))), added_at=now)


def remove_trust(path: Path, text: str, now: str, *, revoked: bool, why: str) -> Report:
    """Stop trusting a key, or revoke it for good, and return the report of ``pinwarden trust remove``.

    ``text`` is a key, a key id or a name.
    """
    names: list[str] = []

    def change(store: TrustStore) -> TrustStore:
        if not revoked:
            trusted = _find_trusted(store, text)
            names.append(trusted.key.name or trusted.key.key_id)
            return remove_key(store, trusted.key.key_id)
        key = _find_or_parse_key(store, text)
        names.append(key.name or key.key_id)
        return store if store.find_revoked_key(key.key_id) else revoke_key(store, key, now, why or "revoked")

    store = change_trust(path, change)
    state = "revoked, and cannot be trusted again" if revoked else "no longer trusted"
    return _build_report("trust remove", names[-1], f"{names[-1]} is {state}", store)


def _find_or_parse_key(store: TrustStore, text: str) -> TrustedKey:
    """Find a key in the trust store, or parse an unknown key. Unknown keys can be revoked too."""
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
    """Return the report of ``pinwarden trust list``: all trusted and revoked keys."""
    store = load_trust(path)
    registries, keys = plural(len(store.registries), "registry", "registries"), plural(len(store.keys), "key")
    return _build_report(
        "trust list", str(path), f"{registries} and {keys} are trusted, {len(store.revoked)} revoked", store
    )


def _find_trusted(store: TrustStore, text: str) -> TrustedRegistry | AttestationKey:
    trusted = store.find_entry(text)
    if trusted is None:
        raise PinwardenError(
            "TRUST_UNKNOWN",
            f"no trusted key has the id {text[:80]!a}, and not exactly one key has that name",
        )
    return trusted


def _build_report(command: str, subject: str, summary: str, store: TrustStore) -> Report:
    return Report(
        command=command,
        subject=subject,
        summary=summary,
        exit_code=EXIT_CLEAN,
        facts={
            "registries": [_registry_to_json(store, registry) for registry in store.registries],
            "keys": [_key_to_json(known) for known in store.keys],
            "revoked": [_revoked_to_json(revoked) for revoked in store.revoked],
        },
    )


def _key_to_json(trusted: TrustedRegistry | AttestationKey) -> dict[str, Any]:
    return {
        "key_id": trusted.key.key_id,
        "name": trusted.key.name,
        "roles": list(trusted.key.roles),
        "added_at": trusted.added_at,
    }


def _registry_to_json(store: TrustStore, registry: TrustedRegistry) -> dict[str, Any]:
    active = store.exclude_revoked(registry.witnesses)
    return {
        **_key_to_json(registry),
        "log_id": registry.log.name,
        "checkpoint_key": str(registry.log),
        "url": registry.url,
        "witnesses": [str(witness) for witness in active],
        "witnesses_revoked": [str(witness) for witness in registry.witnesses if witness not in active],
        "witnesses_needed": registry.witnesses_needed,
        "max_age_days": registry.max_age_days,
        "ended_keys": [
            {"key_id": ended_key.key_id, "log_index": ended_key.seq, "seen_at": ended_key.seen_at}
            for ended_key in registry.replaced_keys
        ],
    }


def _revoked_to_json(revoked: RevokedKey) -> dict[str, Any]:
    return {
        "key_id": revoked.key_id,
        "name": revoked.name,
        "roles": list(revoked.roles),
        "revoked_at": revoked.revoked_at,
        "why": revoked.why,
    }
