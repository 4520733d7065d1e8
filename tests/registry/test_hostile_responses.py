"""Publishing at a registry that answers whatever it likes: nothing is taken for done on its word, or falls over."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from pinwarden.bundle.document import encode_document
from pinwarden.cli.main import main
from pinwarden.core.record import replace
from pinwarden.registry.registry_documents import RegistryIdentity, identity_to_json, version_to_json
from pinwarden.system.key_files import create_key_file
from tests.registry.world import ACME, MALLORY, Bundle, bundle, open_world

MINE = bundle()
EVIL = bundle(content=b"evil\n")
IDENTITY = encode_document(
    identity_to_json(RegistryIdentity(name="evil", log_id="evil.example/log", key=MALLORY.public_key))
)


class Hostile:
    """A registry that answers every request with the same bytes."""

    def __init__(self) -> None:
        self.answer = b""
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def _answered(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                body = IDENTITY if self.path == "/registry.json" else owner.answer
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = do_POST = _answered  # noqa: N815  # as the library names them

            def log_message(self, *_: Any) -> None:
                """Nothing is written."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"


@pytest.fixture(scope="module")
def hostile() -> Iterator[Hostile]:
    made = Hostile()
    Thread(target=made.server.serve_forever, daemon=True).start()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def ask(
    hostile: Hostile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, Any]]:
    monkeypatch.setenv("PINWARDEN_REGISTRY_TOKEN", "pwt_token")
    monkeypatch.chdir(tmp_path)
    create_key_file(tmp_path / "acme.key", ACME)
    (tmp_path / "notes.car").write_bytes(MINE.archive)
    (tmp_path / "notes.car.descriptor.json").write_bytes(encode_document(MINE.descriptor))
    (tmp_path / "notes.car.manifest.json").write_bytes(encode_document(MINE.manifest))
    (tmp_path / "attestation.json").write_bytes(b"{}")

    def command(answer: bytes, *words: str) -> tuple[int, Any]:
        hostile.answer = answer
        signed = () if words[:2] == ("registry", "attest") else ("--key", "acme.key")
        code = main([*words, *signed, "--registry", hostile.url, "--allow-plain-http", "--format", "json"])
        return code, json.loads(capsys.readouterr().out)

    return command


PUBLISH = ("publish", "notes.car")
YANK = ("registry", "yank", "acme.notes", "1.0.0")
ATTEST = ("registry", "attest", "attestation.json")


@pytest.mark.parametrize("words", [PUBLISH, YANK, ATTEST], ids=["publish", "yank", "attest"])
@pytest.mark.parametrize(
    "answer",
    [b"", b"null", b"[]", b"{}", b'{"surface": null}', b'{"changed": 1, "subject": []}', b'{"a":' * 5000, b"\xff"],
)
def test_attack_an_invalid_response_is_an_error(
    ask: Callable[..., tuple[int, Any]], words: tuple[str, ...], answer: bytes
) -> None:
    code, report = ask(answer, *words)
    assert (code, report["error"]["code"]) == (3, "DOCUMENT_INVALID")


def published(made: Bundle, folder: Path, **changes: Any) -> bytes:
    """What an honest registry answers to a publish, and what is changed in it."""
    world = open_world(folder)
    version = replace(world.publish(made), **changes)
    world.registry.close()
    return encode_document(version_to_json(version))


def test_attack_a_registry_that_published_something_else_is_detected(
    ask: Callable[..., tuple[int, Any]], tmp_path: Path
) -> None:
    honest = published(MINE, tmp_path / "a")
    assert ask(honest, *PUBLISH)[0] == 0
    lies = [published(EVIL, tmp_path / "b")]
    lies += [
        published(MINE, tmp_path / name, **{name: value})
        for name, value in (("version", "6.6.6"), ("tool", "acme.other"), ("content_hash", "sha256:" + "0" * 64))
    ]
    for lie in lies:
        code, report = ask(lie, *PUBLISH)
        assert (code, report["error"]["code"]) == (1, "ARTIFACT_MISMATCH")
