"""Files: bounded reading, writing that cannot be torn, key files that only their owner can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from pinwarden import Digest, PinwardenError, PrivateKey
from pinwarden.system.files import create_file, file_digest, read_file, write_atomically
from pinwarden.system.key_files import create_key_file, generate_key, load_key_file


def code_of(error: pytest.ExceptionInfo[PinwardenError]) -> str:
    return error.value.code


def test_a_file_is_read_and_digested_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 3_000_000)
    assert read_file(path) == b"x" * 3_000_000
    assert file_digest(path) == Digest.of_bytes(b"x" * 3_000_000)


def test_a_missing_or_oversized_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"12345")
    for path in (tmp_path / "none", tmp_path, tmp_path / "big"):
        with pytest.raises(PinwardenError) as caught:
            read_file(path, max_bytes=4)
        assert code_of(caught) == "FILE_UNREADABLE"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_does_not_make_reading_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PinwardenError, match="not a regular file") as caught:
        read_file(tmp_path / "pipe")
    assert code_of(caught) == "FILE_UNREADABLE"


def test_replacing_a_file_keeps_its_mode_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    path.chmod(0o640)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def no_room(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(PinwardenError, match="No space left") as caught:
        write_atomically(path, b"new")
    assert code_of(caught) == "FILE_UNWRITABLE"
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_existing_file_is_not_overwritten_by_create(tmp_path: Path) -> None:
    path = tmp_path / "f"
    create_file(path, b"first")
    with pytest.raises(PinwardenError) as caught:
        create_file(path, b"second")
    assert code_of(caught) == "FILE_EXISTS"
    assert path.read_bytes() == b"first"


def test_writing_into_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    for write in (create_file, write_atomically):
        with pytest.raises(PinwardenError) as caught:
            write(tmp_path / "none" / "f", b"")
        assert code_of(caught) == "FILE_UNWRITABLE"


class TestKeyFiles:
    @pytest.mark.parametrize("passphrase", [None, b"open sesame"])
    def test_a_key_survives_its_file_which_only_the_owner_can_read(
        self, tmp_path: Path, passphrase: bytes | None
    ) -> None:
        key = generate_key()
        create_key_file(tmp_path / "key.pem", key, passphrase)
        assert stat.S_IMODE((tmp_path / "key.pem").stat().st_mode) == 0o600
        assert load_key_file(tmp_path / "key.pem", passphrase).public_key == key.public_key

    def test_two_generated_keys_differ(self) -> None:
        assert generate_key().public_key != generate_key().public_key

    @pytest.mark.skipif(os.name != "posix", reason="file modes are those of POSIX")
    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
    def test_a_key_file_open_to_others_is_refused(self, tmp_path: Path, mode: int) -> None:
        path = tmp_path / "key.pem"
        create_key_file(path, PrivateKey.from_seed(b"k" * 32))
        path.chmod(mode)
        with pytest.raises(PinwardenError) as caught:
            load_key_file(path)
        assert code_of(caught) == "KEY_FILE_UNSAFE"

    def test_an_existing_key_is_never_overwritten(self, tmp_path: Path) -> None:
        path = tmp_path / "key.pem"
        create_key_file(path, PrivateKey.from_seed(b"k" * 32))
        before = path.read_bytes()
        with pytest.raises(PinwardenError) as caught:
            create_key_file(path, PrivateKey.from_seed(b"j" * 32))
        assert code_of(caught) == "FILE_EXISTS"
        assert path.read_bytes() == before
