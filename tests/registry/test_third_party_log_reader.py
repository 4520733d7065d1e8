"""What others wrote to verify transparency logs takes ours for one: here, what sigstore checks Rekor's log with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pinwarden.core.signed_note import TlogProof
from tests.registry.world import World, bundle


def entry_of(world: World, channel: str) -> tuple[Any, str]:
    """A pointer's event and its proof as sigstore holds an entry of a log, and the checkpoint under it."""
    from sigstore._internal.rekor.checkpoint import SignedCheckpoint

    files = world.files
    proof = TlogProof.parse(files.get(f"pointers/acme.notes/{channel}.tlog-proof"))
    checkpoint = SignedCheckpoint.from_text(bytes(proof.checkpoint).decode()).checkpoint
    inclusion = SimpleNamespace(
        log_index=proof.index,
        tree_size=checkpoint.log_size,
        hashes=list(proof.path),
        root_hash=bytes.fromhex(checkpoint.log_hash),
    )
    body = files.get(f"pointers/acme.notes/{channel}.event")
    return SimpleNamespace(
        _inner=SimpleNamespace(inclusion_proof=inclusion, canonicalized_body=body)
    ), checkpoint.origin


def test_sigstore_verifies_the_proofs_of_every_pointer_and_refuses_changed_ones(world: World) -> None:
    from sigstore._internal.merkle import verify_merkle_inclusion
    from sigstore.errors import VerificationError

    for patch in range(7):
        world.publish(bundle(version=f"1.0.{patch}"), channel=f"c{patch}")
    for patch in range(7):
        entry, origin = entry_of(world, f"c{patch}")
        assert origin == world.registry.identity.log_id
        verify_merkle_inclusion(entry)
        entry._inner.canonicalized_body += b" "
        with pytest.raises(VerificationError):
            verify_merkle_inclusion(entry)
