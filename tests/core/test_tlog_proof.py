"""Proof files and witnesses: written as C2SP writes them, and what a forged one meets."""

from __future__ import annotations

from base64 import b64encode

import pytest

from pinwarden import PinwardenError, PrivateKey
from pinwarden.core.record import replace
from pinwarden.core.signed_note import Checkpoint, Cosignature, Note, TlogProof, WitnessKey, verify_cosignatures
from pinwarden.core.tlog import compute_root, hash_leaf, prove_inclusion
from tests.core.node_store import NodeStore
from tests.support.witnesses import cosign

KEY = PrivateKey.from_seed(b"l" * 32)
WITNESS = PrivateKey.from_seed(b"w" * 32)
WITNESS_KEY = WitnessKey(name="witness.example/w1", key=WITNESS.public_key)
ENTRIES = [b"%d" % number for number in range(11)]


def proof_of(index: int) -> TlogProof:
    nodes = NodeStore(map(hash_leaf, ENTRIES))
    checkpoint = Checkpoint(origin="log.example", size=11, root=compute_root(11, nodes.read))
    path = tuple(prove_inclusion(index, 11, nodes.read))
    return TlogProof(index=index, path=path, checkpoint=checkpoint.note().sign("log.example", KEY))


@pytest.mark.parametrize("index", range(11))
def test_a_proof_file_proves_its_entry_and_no_other(index: int) -> None:
    proof = TlogProof.parse(bytes(proof_of(index)))
    assert proof == proof_of(index)
    assert proof.verify_entry(ENTRIES[index]).size == 11
    with pytest.raises(PinwardenError) as caught:
        proof.verify_entry(ENTRIES[index - 1])
    assert caught.value.code == "LOG_PROOF_INVALID"


def test_a_proof_file_is_written_line_by_line_as_c2sp_has_it() -> None:
    proof = replace(proof_of(3), extra=b"more")
    lines = bytes(proof).decode().split("\n")
    assert lines[:3] == ["c2sp.org/tlog-proof@v1", f"extra {b64encode(b'more').decode()}", "index 3"]
    assert lines[3 : 3 + len(proof.path)] == [b64encode(digest).decode() for digest in proof.path]
    assert lines[3 + len(proof.path)] == ""
    assert bytes(proof).endswith(b"\n\n" + bytes(proof.checkpoint))
    assert TlogProof.parse(bytes(proof)) == proof


@pytest.mark.parametrize(
    "spoilt",
    [
        b"",
        bytes(proof_of(3)).replace(b"@v1", b"@v2"),
        bytes(proof_of(3)).replace(b"index 3", b"index 03"),
        bytes(proof_of(3)).replace(b"index 3", b"index -3"),
        bytes(proof_of(3)).replace(b"index 3\n", b""),
        bytes(proof_of(3)).replace(b"index 3\n", b"index 3\nAAAA\n"),
        bytes(proof_of(3)).replace(b"index 3\n", b"index 3\n" + b64encode(b"x" * 32) * 2 + b"\n"),
        bytes(proof_of(3)).replace(b"index 3\n", b"index 3\n" + (b64encode(b"x" * 32) + b"\n") * 64),
        b"\xff" + bytes(proof_of(3)),
        b"x" * (1 << 20) + bytes(proof_of(3)),
    ],
)
def test_a_proof_file_that_is_not_well_formed_is_refused(spoilt: bytes) -> None:
    with pytest.raises(PinwardenError) as caught:
        TlogProof.parse(spoilt)
    assert caught.value.code == "NOTE_INVALID"


def cosigned() -> Note:
    note = proof_of(0).checkpoint
    return Note(text=note.text, signatures=(*note.signatures, cosign(note, WITNESS_KEY.name, WITNESS, 1700000000)))


def test_a_known_witness_is_returned_with_the_time_of_its_signature() -> None:
    note = Note.parse(bytes(cosigned()))
    assert verify_cosignatures(note, [WITNESS_KEY]) == (Cosignature(witness=WITNESS_KEY, time=1700000000),)
    assert WitnessKey.parse(str(WITNESS_KEY)) == WITNESS_KEY
    assert verify_cosignatures(note, []) == ()
    assert verify_cosignatures(proof_of(0).checkpoint, [WITNESS_KEY]) == ()


@pytest.mark.parametrize("what", ["time", "text", "signature", "length"])
def test_an_invalid_cosignature_by_a_known_witness_makes_the_note_invalid(what: str) -> None:
    note = cosigned()
    line = note.signatures[-1]
    signature = {
        "time": b"\0" * 8 + line.signature[8:],
        "signature": line.signature[:-1] + bytes([line.signature[-1] ^ 1]),
        "length": line.signature[8:],
    }.get(what, line.signature)
    text = note.text.replace("11\n", "12\n") if what == "text" else note.text
    forged = Note(text=text, signatures=(note.signatures[0], replace(line, signature=signature)))
    with pytest.raises(PinwardenError) as caught:
        verify_cosignatures(forged, [WITNESS_KEY])
    assert caught.value.code == "SIGNATURE_INVALID"


def test_the_signature_of_a_log_does_not_count_as_a_cosignature() -> None:
    """A line made with the log's own type of key has another key id, and signs other bytes."""
    signed = proof_of(0).checkpoint.sign(WITNESS_KEY.name, WITNESS)
    assert verify_cosignatures(signed, [WITNESS_KEY]) == ()


@pytest.mark.parametrize("vkey", ["", "name", "name+00+AAAA", str(WITNESS_KEY)[:-4], "x" + str(WITNESS_KEY)])
def test_a_malformed_witness_key_is_refused(vkey: str) -> None:
    with pytest.raises(PinwardenError) as caught:
        WitnessKey.parse(vkey)
    assert caught.value.code in ("NOTE_INVALID", "KEY_INVALID")


def test_a_cosignature_equals_that_of_another_implementation() -> None:
    """The line and the key were written by aics-tlog 0.2.1 from the same seed, moment and checkpoint."""
    note = Checkpoint(origin="log.example", size=11, root=bytes(range(32))).note()
    line = cosign(note, "witness.example/w1", WITNESS, 1700000000).line()
    assert str(WITNESS_KEY) == "witness.example/w1+773a6c12+BMhTrQ8M0rYZrqks7sT9VqJNZJnVhM55JX5Fz9gTm2Cn"
    assert line == (
        "\u2014 witness.example/w1 dzpsEgAAAABlU/EASH9crVNuex+eYhzw4d/3NpDCZ2Z3dYGScfaY5q5LeSCoxsNg6Ed0WPzNcjrVQ6Hl9T/"
        "E2Vrwq16P/aHqkYQOBQ==\n"
    )
