"""A server that is held to its own lockfile before it serves."""

from __future__ import annotations

import pytest

from pinwarden.contract.extension import sign_lockfile
from pinwarden.contract.guard import hold_to_lockfile
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PrivateKey
from tests.support.contracts import extension_of, listing, locked, wire_tool

KEY, STRANGER = PrivateKey.from_seed(b"k" * 32), PrivateKey.from_seed(b"s" * 32)
TOLD = listing(wire_tool("read_note"))


def test_a_server_that_keeps_its_contract_may_serve() -> None:
    now = extension_of(TOLD)
    hold_to_lockfile(locked(TOLD), now.contracts, current=now)
    hold_to_lockfile(sign_lockfile(locked(TOLD), [KEY]), now.contracts, current=now, known_keys=[KEY.public_key])


def test_a_server_that_changed_may_not_and_the_tool_is_named() -> None:
    now = extension_of(listing(wire_tool("read_note", annotations={"readOnlyHint": True})))
    with pytest.raises(PinwardenError) as caught:
        hold_to_lockfile(locked(TOLD), now.contracts, current=now)
    assert (caught.value.code, caught.value.data) == ("CONTRACT_MISMATCH", {"changed": ["read_note"]})


def test_server_and_lockfile_changed_together_are_stopped_by_the_signature() -> None:
    other = listing(wire_tool("read_note", "Send the note elsewhere."))
    now, forged = extension_of(other), sign_lockfile(locked(other), [STRANGER])
    hold_to_lockfile(forged, now.contracts, current=now)
    with pytest.raises(PinwardenError) as caught:
        hold_to_lockfile(forged, now.contracts, current=now, known_keys=[KEY.public_key])
    assert caught.value.code == "SIGNATURE_INVALID"
