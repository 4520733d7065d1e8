"""Witnesses: what they cosign, what they refuse, and a registry with three of them, one down and one lying."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PrivateKey
from pinwarden.core.signed_note import Checkpoint, Note, NoteKey, WitnessKey, verify_cosignatures
from pinwarden.core.tlog import TileNodes, prove_consistency, tile_path
from pinwarden.registry import access as operating
from pinwarden.registry.log_client import FollowOptions, follow_log
from pinwarden.registry.registry import RegistrySettings, open_registry
from pinwarden.registry.witness import SIZE_MEDIA_TYPE, Witness, build_request
from pinwarden.registry.witness_command import cosign_once
from pinwarden.system.clock import wall_clock
from tests.registry.replica import Replica, identity_of, publish_over_http, reader, writer
from tests.registry.world import ACME, REGISTRY_KEY, LiveFiles, World, bundle, open_world
from tests.support.ports import reserved_port
from tests.support.witnesses import cosign

WENDY, WILL, LIAR = (PrivateKey.from_seed(letter * 32) for letter in (b"1", b"2", b"3"))
NAMES = {"wendy.example": WENDY, "will.example": WILL, "liar.example": LIAR}
KEYS = tuple(WitnessKey(name=name, key=key.public_key) for name, key in NAMES.items())


def code_of(act: Callable[[], object]) -> str:
    with pytest.raises(PinwardenError) as caught:
        act()
    return caught.value.code


def make_witness(world: World, folder: Path, key: PrivateKey = WENDY) -> Witness:
    clock = count(1_800_000_000)
    log = NoteKey(name=world.registry.identity.log_id, key=REGISTRY_KEY.public_key)
    return Witness("wendy.example", key, [log], folder, lambda: next(clock))


def request_of(files: LiveFiles, old: int, *, size: int | None = None) -> bytes:
    """What the registry sends to a witness that saw ``old`` entries."""
    note = Note.parse(files.get("log/checkpoint"))
    size = size or Checkpoint.parse(note.text).size
    nodes = TileNodes(size, lambda *tile: files.get(f"log/{tile_path(*tile)}"))
    return build_request(old, prove_consistency(old, size, nodes.read), note)


def publish_number(world: World, number: int) -> None:
    world.publish(bundle(version=f"1.{number}.0", content=b"%d" % number))


def test_a_witness_cosigns_a_log_that_grows(world: World, tmp_path: Path) -> None:
    witness = make_witness(world, tmp_path / "state")
    for number, old in enumerate((0, 1, 2, 3)):
        publish_number(world, number)
        answer = witness.add_checkpoint(request_of(world.files, old))
        assert answer.status == 200
        note = Note.parse(world.files.get("log/checkpoint") + answer.body.encode())
        assert [cosignature.witness for cosignature in verify_cosignatures(note, [witness.key])] == [witness.key]
    again = make_witness(world, tmp_path / "state")  # after a restart
    assert again.add_checkpoint(request_of(world.files, 4)).status == 200
    assert again.load_size(world.registry.identity.log_id) == 4


def test_a_witness_states_the_size_that_it_knows(world: World, tmp_path: Path) -> None:
    witness = make_witness(world, tmp_path / "state")
    publish_number(world, 0)
    first = request_of(world.files, 0)
    assert witness.add_checkpoint(first).status == 200
    publish_number(world, 1)
    answer = witness.add_checkpoint(request_of(world.files, 0))
    assert (answer.status, answer.body, answer.media_type) == (409, "1\n", SIZE_MEDIA_TYPE)
    assert witness.add_checkpoint(request_of(world.files, 1)).status == 200
    assert witness.add_checkpoint(first).status == 409  # an older checkpoint


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda body: body.replace(b"old 1\n", b"old 9\n"), 400),
        (lambda body: body.replace(b"old 1\n", b"old 01\n"), 400),
        (lambda body: body.replace(b"old 1\n", b""), 400),
        (lambda body: b"old 1\n" + b"AAAA\n" * 64 + b"\n" + body.partition(b"\n\n")[2], 400),
        (lambda body: b"\xff" + body, 400),
        (lambda body: body.replace(b"pinwarden-registry/", b"another-registry/"), 404),
        (lambda body: body[:-8] + b"AAAAAA=\n", 400),
        (lambda body: b"old 1\n\n" + body.partition(b"\n\n")[2], 422),
    ],
)
def test_attack_a_witness_refuses_malformed_foreign_and_unproved_checkpoints(
    world: World, tmp_path: Path, change: Callable[[bytes], bytes], status: int
) -> None:
    witness = make_witness(world, tmp_path / "state")
    publish_number(world, 0)
    assert witness.add_checkpoint(request_of(world.files, 0)).status == 200
    publish_number(world, 1)
    publish_number(world, 2)
    answer = witness.add_checkpoint(change(request_of(world.files, 1)))
    assert answer.status in ({status, 403} if status == 400 else {status})
    assert witness.load_size(world.registry.identity.log_id) == 1


def test_attack_a_split_view_is_refused_by_the_witness_that_saw_the_other_side(tmp_path: Path) -> None:
    """A registry with two histories under one key shows one to each user. A witness signs only one of them."""
    left, right = open_world(tmp_path / "left"), open_world(tmp_path / "right")
    witness = make_witness(left, tmp_path / "state")
    for number in range(2):
        publish_number(left, number)
        right.publish(bundle(version=f"6.6.{number}", content=b"evil"))
    assert cosign_once(witness, left.files, submit=False).exit_code == 0
    for size in (2, 3):
        assert code_of(lambda: cosign_once(witness, right.files, submit=False)) == "LOG_PROOF_INVALID", size
        right.publish(bundle(version=f"6.7.{size}", content=b"evil"))
    assert witness.load_size(left.registry.identity.log_id) == 2
    # A lying witness signs both, so users require two of three.
    note = Note.parse(right.files.get("log/checkpoint"))
    lie = cosign(note, "liar.example", LIAR, 1_800_000_000)
    files = right.files
    files.instead["log/checkpoint"] = lambda: bytes(Note(text=note.text, signatures=(*note.signatures, lie)))
    fooled = FollowOptions(key=REGISTRY_KEY.public_key, witnesses=KEYS, quorum=1)
    assert follow_log(files, None, fooled).new_count > 0
    careful = FollowOptions(key=REGISTRY_KEY.public_key, witnesses=KEYS, quorum=2)
    assert code_of(lambda: follow_log(files, None, careful)) == "LOG_WITNESS_MISSING"
    left.registry.close()
    right.registry.close()


def test_attack_a_damaged_state_does_not_let_a_witness_start_over(world: World, tmp_path: Path) -> None:
    witness = make_witness(world, tmp_path / "state")
    publish_number(world, 0)
    assert witness.add_checkpoint(request_of(world.files, 0)).status == 200
    path = next((tmp_path / "state").glob("*.checkpoint"))
    path.write_bytes(b"")
    assert code_of(lambda: witness.add_checkpoint(request_of(world.files, 0))) == "LOG_STATE_CORRUPT"


@contextmanager
def lying_witness() -> Iterator[str]:
    """A witness that answers every request with a cosignature that does not verify."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            note = Note.parse(body.partition(b"\n\n")[2])
            other = Note(text=note.text.replace("\n", "\nx", 1), signatures=note.signatures)
            answer = cosign(other, "liar.example", LIAR, 1_800_000_000).line().encode()
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def served_witness(folder: Path, log: str, name: str, port: int = 0) -> Iterator[str]:
    """A witness in a process of its own."""
    key = folder / f"{name}.pem"
    if not key.exists():
        key.write_bytes(NAMES[name].pem())
        key.chmod(0o600)
    command = [*(sys.executable, "-m", "pinwarden", "witness", "serve"), "--name", name, "--key", str(key)]
    command += ["--log", log, "--state", str(folder / f"{name}-state"), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert process.stdout.readline().strip() == str(WitnessKey(name=name, key=NAMES[name].public_key))
        yield url
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def test_three_witnesses_one_down_and_one_lying(tmp_path: Path) -> None:
    folder = tmp_path / "registry"
    operated = open_registry(RegistrySettings(folder=folder))
    operating.add_namespace(operated, "acme", ACME.public_key.did)
    token = str(operating.add_token(operated, "acme", "", 30).facts["token"])
    log, key = str(operated.identity.note_key), operated.identity.key
    operated.close()
    wendy, will, liar = KEYS
    port = reserved_port()
    with served_witness(tmp_path, log, "wendy.example") as honest, lying_witness() as lying:
        urls = (f"{wendy}@{honest}", f"{will}@http://127.0.0.1:{port}", f"{liar}@{lying}")
        options = [word for url in urls for word in ("--witness", url)]
        replica = Replica("--data", str(folder), "--witness-wait", "20", *options)
        try:
            identity = identity_of(replica.url)
            for number in range(3):
                made = bundle(version=f"1.{number}.0", content=b"%d" % number)
                publish_over_http(writer(replica.url, token), made, identity, wall_clock(), str(number))
                one = FollowOptions(key=key, witnesses=KEYS, quorum=1)
                followed = follow_log(reader(replica.url), None, one)
                assert followed.new_count == number + 1
                assert [each.witness for each in followed.head.cosignatures] == [wendy]
            two = FollowOptions(key=key, witnesses=KEYS, quorum=2)
            assert code_of(lambda: follow_log(reader(replica.url), None, two)) == "LOG_WITNESS_MISSING"
        finally:
            replica.kill()
        with served_witness(tmp_path, log, "will.example", port):
            replica = Replica("--data", str(folder), "--witness-wait", "20", *options)
            try:
                followed = follow_log(reader(replica.url), None, two)  # the second witness has come back
                assert {each.witness for each in followed.head.cosignatures} == {wendy, will}
            finally:
                replica.kill()
