"""Bundles in a real OCI registry: pushed, pulled by tag and digest, and refused where it was tampered with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from pinwarden.bundle.bundle_documents import CAR_MEDIA_TYPE
from pinwarden.bundle.document import add_signature, encode_document
from pinwarden.bundle.log_documents import POINTER_SIGNED_FIELDS, Pointer, build_unsigned_pointers
from pinwarden.cli.main import main
from pinwarden.core.keys import PrivateKey
from tests.docs.schemas import problems
from tests.support.bundle_world import BEFORE, REGISTRY, STRANGER, TRUST, VERIFIER, trust_value
from tests.support.registries import DockerRegistry, docker_registry, needs_registry

pytestmark = needs_registry
ARCHIVE = "acme.notes-1.0.0.car"
Run = Callable[..., tuple[int, Any]]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRegistry]:
    with docker_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command line in a folder with a packed bundle that a verifier vouches for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("server", "pulled"):
        Path(name).mkdir()
    server = {"name": "acme.notes", "version": "1.0.0", "runtime": "python", "entry": "main.py"}
    Path("server/server.json").write_text(json.dumps(server))
    Path("server/main.py").write_text(f"print('notes of {tmp_path.name}')\n")  # other blobs in every test
    Path("key").write_bytes(VERIFIER.pem())
    Path("key").chmod(0o600)

    def command(*arguments: str) -> tuple[int, Any]:
        code = main([*arguments, "--format", "json"])
        return code, json.loads(capsys.readouterr().out)

    assert command("bundle", "pack", "server")[0] == 0
    assert command("attest", ARCHIVE, "--key", "key", "--role", "verifier", "-o", "attestation.json")[0] == 0
    return command


def pulled() -> list[str]:
    return sorted(path.name for path in Path("pulled").iterdir())


def test_a_bundle_is_pushed_and_pulled_by_tag_and_by_digest(run: Run, registry: DockerRegistry) -> None:
    place = f"oci://{registry.host}/acme/notes:1.0.0"
    code, pushed = run("bundle", "push", ARCHIVE, place, "--attestation", "attestation.json")
    assert (code, pushed["attestations"], pushed["pointer"]) == (0, 1, False)
    code, by_tag = run("bundle", "pull", place, "-o", "pulled")
    assert problems("bundle-push", pushed, closed=True) + problems("bundle-pull", by_tag, closed=True) == []
    assert (code, by_tag["digest"], by_tag["root_cid"]) == (0, pushed["digest"], pushed["root_cid"])
    for name in (ARCHIVE, f"{ARCHIVE}.descriptor.json", f"{ARCHIVE}.manifest.json"):
        assert (Path("pulled") / name).read_bytes() == Path(name).read_bytes()
    assert (Path("pulled") / f"{ARCHIVE}.1.attestation.json").read_bytes() == Path("attestation.json").read_bytes()
    assert run("bundle", "verify", f"pulled/{ARCHIVE}")[0] == 0
    code, by_digest = run("bundle", "pull", f"{registry.host}/acme/notes@{pushed['digest']}", "-o", "pulled")
    assert (code, by_digest["files"]) == (0, by_tag["files"])


def test_pull_creates_a_missing_folder(run: Run, registry: DockerRegistry) -> None:
    place = f"{registry.host}/acme/absent:1"
    assert run("bundle", "push", ARCHIVE, place)[0] == 0
    code, output = run("bundle", "pull", place, "-o", "not/yet/there")
    assert (code, (Path("not/yet/there") / ARCHIVE).read_bytes()) == (0, Path(ARCHIVE).read_bytes()), output


def test_a_pull_that_fails_while_it_writes_leaves_nothing_behind(run: Run, registry: DockerRegistry) -> None:
    pull = pushed_with_pointer(run, f"{registry.host}/acme/partly:1")
    pull[pull.index("pulled")] = "new"
    Path("taken").write_text("mine")
    for unpack, code in (("taken", "FILE_EXISTS"), ("taken/below", "FILE_UNWRITABLE")):
        ended, report = run(*pull, "--unpack", unpack)
        assert (ended != 0, report["error"]["code"]) == (True, code)
        assert (Path("new").exists(), Path("taken").read_text()) == (False, "mine")
    assert run(*[word if word != "new" else "again" for word in pull], "--unpack", "installed")[0] == 0
    shutil.rmtree("installed")
    earlier = {path: f"earlier {path.name}".encode() for path in Path("again").iterdir()}
    for path, content in earlier.items():
        path.write_bytes(content)
    ended, report = run(*[word if word != "new" else "again" for word in pull], "--unpack", "taken/below")
    assert (ended, report["error"]["code"]) == (3, "FILE_UNWRITABLE")
    assert {path: path.read_bytes() for path in Path("again").iterdir()} == earlier
    pull[pull.index("new")] = "taken/output"
    ended, report = run(*pull, "--unpack", "installed")
    assert (report["error"]["code"], Path("installed").exists()) == ("FILE_UNWRITABLE", False)


def test_pushing_again_gives_the_same_digest(run: Run, registry: DockerRegistry) -> None:
    digests = {run("bundle", "push", ARCHIVE, f"{registry.host}/acme/again:1")[1]["digest"] for _ in range(2)}
    assert len(digests) == 1


def test_tampered_layer_in_the_registry_is_refused_and_nothing_is_written(run: Run, registry: DockerRegistry) -> None:
    place = f"{registry.host}/acme/tampered:1"
    run("bundle", "push", ARCHIVE, place)
    data = Path(ARCHIVE).read_bytes()
    stored = registry.blob_file(f"sha256:{sha256(data).hexdigest()}")
    stored.write_bytes(data.replace(b"print(", b"evil!("))
    code, report = run("bundle", "pull", place, "-o", "pulled")
    assert (code, report["error"]["code"], pulled()) == (1, "ARTIFACT_MISMATCH", [])


def test_moved_tag_does_not_change_what_a_digest_names(run: Run, registry: DockerRegistry) -> None:
    place = f"{registry.host}/acme/moved:1"
    _, first = run("bundle", "push", ARCHIVE, place)
    Path("server/main.py").write_text("print('evil')\n")
    run("bundle", "pack", "server")
    _, second = run("bundle", "push", ARCHIVE, place)
    assert first["digest"] != second["digest"]
    assert run("bundle", "pull", place, "-o", "pulled")[1]["root_cid"] == second["root_cid"]
    by_digest = run("bundle", "pull", f"{registry.host}/acme/moved@{first['digest']}", "-o", "pulled")[1]
    assert by_digest["root_cid"] == first["root_cid"]


def pushed_with_pointer(run: Run, place: str, signer: PrivateKey = REGISTRY) -> list[str]:
    """A bundle with a registry's pointer in an OCI registry, and the options of an installer that trusts both."""
    subject = json.loads(Path("attestation.json").read_text())["subject"]
    row = Pointer(tool="acme.notes", channel="stable", updated_at_utc=BEFORE, **subject)
    document = build_unsigned_pointers("acme", "acme", BEFORE, [row])
    Path("pointer.json").write_bytes(encode_document(add_signature(document, POINTER_SIGNED_FIELDS, signer)))
    Path("trust.json").write_bytes(encode_document(trust_value(TRUST)))
    Path("policy.json").write_text("{}")
    assert (
        run("bundle", "push", ARCHIVE, place, "--attestation", "attestation.json", "--pointer", "pointer.json")[0] == 0
    )
    return ["bundle", "pull", place, "-o", "pulled", "--policy", "policy.json", "--trust", "trust.json"]


def test_an_accepted_bundle_is_unpacked_with_its_provenance(run: Run, registry: DockerRegistry) -> None:
    pull = pushed_with_pointer(run, f"{registry.host}/acme/accepted:1")
    code, report = run(*pull, "--tool", "acme.notes", "--channel", "stable", "--unpack", "installed")
    assert problems("bundle-pull", report, closed=True) == []
    assert (code, report["unpacked"]) == (0, "installed")
    assert report["provenance"]["attestations_used"] == [VERIFIER.public_key.did]
    assert json.loads((Path("pulled") / f"{ARCHIVE}.provenance.json").read_text()) == report["provenance"]
    assert Path("installed/main.py").read_bytes() == Path("server/main.py").read_bytes()


def test_a_refused_bundle_is_neither_unpacked_nor_written(run: Run, registry: DockerRegistry) -> None:
    pull = pushed_with_pointer(run, f"{registry.host}/acme/refused:1", signer=STRANGER)
    code, report = run(*pull, "--unpack", "installed")
    assert (code, report["error"]["code"]) == (1, "POINTER_SIGNATURE_INVALID")
    pull = pushed_with_pointer(run, f"{registry.host}/acme/refused:2")
    code, report = run(*pull, "--unpack", "installed", "--tool", "acme.weather")
    assert (code, report["error"]["code"]) == (1, "POINTER_NOT_FOUND")
    run("bundle", "push", ARCHIVE, f"{registry.host}/acme/refused:2", "--attestation", "attestation.json")
    assert run(*pull, "--unpack", "installed")[1]["error"]["code"] == "POINTER_NOT_FOUND"
    for options in (["--unpack", "installed"], ["--trust", "trust.json"]):
        code, report = run("bundle", "pull", f"{registry.host}/acme/refused:2", "-o", "pulled", *options)
        assert (code, report["error"]["code"]) == (2, "USAGE")
    assert (pulled(), Path("installed").exists()) == ([], False)


@pytest.mark.parametrize(
    ("artifact_type", "layers"),
    [
        ("application/vnd.other", [CAR_MEDIA_TYPE]),
        ("application/vnd.mcp.toolbundle.v0.1", [CAR_MEDIA_TYPE]),
        ("application/vnd.mcp.toolbundle.v0.1", [CAR_MEDIA_TYPE, CAR_MEDIA_TYPE]),
        ("application/vnd.mcp.toolbundle.v0.1", ["application/x-sh"]),
    ],
    ids=["another artifact", "without documents", "two archives", "a smuggled layer"],
)
def test_an_artifact_that_is_not_a_bundle_is_refused(
    artifact_type: str, layers: list[str], run: Run, registry: DockerRegistry
) -> None:
    digest = f"sha256:{sha256(b'{}').hexdigest()}"
    registry.put_blob("acme/other", b"{}", digest)
    blob = {"digest": digest, "size": 2}
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "artifactType": artifact_type,
        "config": {"mediaType": "application/vnd.oci.empty.v1+json", **blob},
        "layers": [{"mediaType": media_type, **blob} for media_type in layers],
    }
    registry.put_manifest("acme/other", "1", json.dumps(manifest).encode(), str(manifest["mediaType"]))
    code, report = run("bundle", "pull", f"{registry.host}/acme/other:1", "-o", "pulled")
    assert (code, report["error"]["code"], pulled()) == (3, "IMAGE_INVALID", [])


def test_a_bundle_that_is_not_there_is_missing(run: Run, registry: DockerRegistry) -> None:
    code, report = run("bundle", "pull", f"{registry.host}/acme/nothing:1", "-o", "pulled")
    assert (code, report["error"]["code"], pulled()) == (3, "ARTIFACT_MISSING", [])


def test_damaged_bundles_and_foreign_attestations_are_not_pushed(run: Run, registry: DockerRegistry) -> None:
    place = f"{registry.host}/acme/unpushed:1"
    attestation = Path("attestation.json").read_bytes()
    Path("server/main.py").write_text("print('other')\n")
    run("bundle", "pack", "server")
    code, report = run("bundle", "push", ARCHIVE, place, "--attestation", "attestation.json")
    assert (code, report["error"]["code"]) == (2, "USAGE")
    Path(ARCHIVE).write_bytes(Path(ARCHIVE).read_bytes().replace(b"print(", b"evil!("))
    code, report = run("bundle", "push", ARCHIVE, place)
    assert (code, report["error"]["code"]) == (1, "ARTIFACT_MISMATCH")
    assert run("bundle", "pull", place)[1]["error"]["code"] == "ARTIFACT_MISSING"
    assert Path("attestation.json").read_bytes() == attestation
