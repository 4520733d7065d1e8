"""Signed notes and checkpoints: the known answers of C2SP and Go, and hostile notes."""

from __future__ import annotations

from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwarden import PinwardenError, PrivateKey
from pinwarden.core.signed_note import Checkpoint, Note, NoteKey

C2SP_KEY = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
C2SP_NOTE = (
    "This is an example message.\n\n"
    "— example.com/foo Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=\n"
).encode()
GO_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GO_SEED = b64decode("AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz")[1:]
GO_TEXT = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
GO_LINE = (
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)
CHECKPOINT = (
    "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n"
    "— example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9"
    "nTo+zyWE+xeMcTOAYQ8=\n"
).encode()
KEY = PrivateKey.from_seed(b"k" * 32)


def code_of_note(data: bytes, *keys: NoteKey) -> str:
    with pytest.raises(PinwardenError) as caught:
        Note.parse(data).verify(keys)
    return caught.value.code


def test_the_example_of_c2sp_verifies() -> None:
    key = NoteKey.parse(C2SP_KEY)
    note = Note.parse(C2SP_NOTE)
    assert note.text == "This is an example message.\n"
    assert note.verify([key]) == (key,)
    assert str(key) == C2SP_KEY
    assert bytes(note) == C2SP_NOTE


def test_signing_gives_the_same_bytes_as_the_go_implementation() -> None:
    key = PrivateKey.from_seed(GO_SEED)
    note = Note(text=GO_TEXT, signatures=()).sign("PeterNeumann", key)
    assert bytes(note).decode() == GO_TEXT + "\n" + GO_LINE
    assert str(NoteKey(name="PeterNeumann", key=key.public_key)) == GO_KEY


def test_signatures_by_unknown_keys_are_kept_and_ignored() -> None:
    note = Note.parse(C2SP_NOTE).sign("witness.example", KEY)
    known = NoteKey.parse(C2SP_KEY)
    assert Note.parse(bytes(note)).verify([known]) == (known,)
    assert code_of_note(bytes(note), NoteKey.parse(GO_KEY)) == "SIGNATURE_INVALID"


def test_an_invalid_signature_by_a_known_key_makes_the_note_invalid() -> None:
    good = NoteKey(name="witness.example", key=KEY.public_key)
    note = bytes(Note.parse(C2SP_NOTE).sign("witness.example", KEY))
    tampered = note.replace(b"example message", b"changed message")
    resigned = bytes(Note(text="This is an changed message.\n", signatures=()).sign("witness.example", KEY))
    spoiled = resigned + C2SP_NOTE.split(b"\n\n")[1]
    assert code_of_note(tampered, NoteKey.parse(C2SP_KEY)) == "SIGNATURE_INVALID"
    assert code_of_note(spoiled, good, NoteKey.parse(C2SP_KEY)) == "SIGNATURE_INVALID"
    assert Note.parse(spoiled).verify([good]) == (good,)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no signature\n",
        b"text\n\n",
        C2SP_NOTE[:-1],
        C2SP_NOTE.replace(b"message.", b"message.\r"),
        C2SP_NOTE.replace("—".encode(), b"-"),
        C2SP_NOTE.replace(b"example.com/foo ", b"example.com/foo  "),
        C2SP_NOTE.replace(b"Uw2Q", b"Uw2!"),
        b"text\n\n" + "— name AAAA\n".encode(),
        b"\xff\n\n",
        b"text\n\n" + "— name AAAAAAAA\n".encode() * 65,
        b"x" * 2_000_000,
    ],
)
def test_a_malformed_note_is_refused(data: bytes) -> None:
    assert code_of_note(data) == "NOTE_INVALID"


@pytest.mark.parametrize(
    "vkey",
    ["", "x", "example.com/foo+530d903b+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k", "a b+00000000+AQ==", "+00+AQ=="],
)
def test_a_verifier_key_with_a_wrong_id_or_form_is_refused(vkey: str) -> None:
    with pytest.raises(PinwardenError) as caught:
        NoteKey.parse(vkey)
    assert caught.value.code in ("NOTE_INVALID", "KEY_INVALID")


class TestCheckpoints:
    def test_the_example_of_c2sp_reads_and_writes_byte_for_byte(self) -> None:
        note = Note.parse(CHECKPOINT)
        checkpoint = Checkpoint.parse(note.text)
        assert (checkpoint.origin, checkpoint.size) == ("example.com/behind-the-sofa", 20852163)
        assert checkpoint.note().text == note.text
        assert bytes(note) == CHECKPOINT

    def test_extension_lines_survive(self) -> None:
        text = Note.parse(CHECKPOINT).text + "extra line\n"
        assert Checkpoint.parse(text).note().text == text

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "o\n1\n",
            "o\n01\n" + "A" * 43 + "=\n",
            "o\n-1\n" + "A" * 43 + "=\n",
            "o\n\u0661\n" + "A" * 43 + "=\n",
            "o\n" + "9" * 19 + "\n" + "A" * 43 + "=\n",
            "o\n" + "9" * 400 + "\n" + "A" * 43 + "=\n",
            "o\n1\nAAAA\n",
            "\n1\n" + "A" * 43 + "=\n",
            "o\n1\n" + "A" * 43 + "=",
            "o\n1\n" + "A" * 43 + "=\n\nx\n",
        ],
    )
    def test_a_malformed_checkpoint_is_refused(self, text: str) -> None:
        with pytest.raises(PinwardenError) as caught:
            Checkpoint.parse(text)
        assert caught.value.code == "NOTE_INVALID"

    def test_a_checkpoint_cannot_smuggle_a_line(self) -> None:
        with pytest.raises(PinwardenError):
            Checkpoint(origin="a\nb", size=1, root=bytes(32)).note()


@given(st.binary(max_size=300) | st.binary(max_size=100).map(lambda b: C2SP_NOTE[:60] + b))
def test_for_any_bytes_only_a_pinwarden_error_escapes(data: bytes) -> None:
    try:
        Note.parse(data)
    except PinwardenError as err:
        assert err.code == "NOTE_INVALID"
