"""Pack, sign, attest and accept, as an author, an auditor and an installer do it on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pinwarden.bundle.document import build_default_profile
from pinwarden.bundle.log_documents import Constraints, Pointer, build_unsigned_pointers
from pinwarden.bundle.trust import Trust, TrustedKey
from pinwarden.cli.main import main
from pinwarden.core.keys import PrivateKey
from tests.support.bundle_world import BEFORE, LATER, MAINTAINER, REGISTRY, VERIFIER, trust_value

SERVER = {
    "name": "acme.notes",
    "version": "1.0.0",
    "runtime": "python",
    "entry": "main.py",
    "description": "Keeps notes.",
    "author": "Acme",
    "license": "MIT",
    "security": {"policy": {"filesystem": "read_only"}},
}
ARCHIVE = "out/acme.notes-1.0.0.car"
Run = Callable[..., tuple[int, Any]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command line in a folder with a server to pack, and keys."""
    monkeypatch.chdir(tmp_path)
    for name in ("server", "out"):
        Path(name).mkdir()
    Path("server/server.json").write_text(json.dumps(SERVER))
    Path("server/main.py").write_text("print('notes')\n")
    for name, key in {"verifier": VERIFIER, "maintainer": MAINTAINER, "registry": REGISTRY}.items():
        Path(name).write_bytes(key.pem())
        Path(name).chmod(0o600)

    def command(*arguments: str) -> tuple[int, Any]:
        code = main([*arguments, "--format", "json"])
        return code, json.loads(capsys.readouterr().out)

    return command


def pointed(facts: dict[str, Any], **constraints: Any) -> None:
    """A registry's pointer to a packed bundle, not signed yet, and whom the installer trusts."""
    row = Pointer(
        tool=facts["tool"],
        channel="stable",
        root_cid=facts["root_cid"],
        descriptor_cid=facts["descriptor_cid"],
        cid_profile=build_default_profile(),
        updated_at_utc=BEFORE,
        constraints=Constraints(**constraints),
    )
    Path("pointer.json").write_text(json.dumps(build_unsigned_pointers("acme", "registry@acme", BEFORE, [row])))
    known = Trust(
        registry_keys=(TrustedKey(key=REGISTRY.public_key, roles=("registry",)),),
        known_keys=(
            TrustedKey(key=VERIFIER.public_key, roles=("verifier",)),
            TrustedKey(key=MAINTAINER.public_key, roles=("maintainer",)),
        ),
    )
    Path("trust.json").write_text(json.dumps(trust_value(known)))
    Path("policy.json").write_text('{"filesystem": "read_only"}')


def accepting(*attestations: str) -> list[str]:
    words = ["bundle", "accept", "--pointer", "pointer.json", "--policy", "policy.json", "--trust", "trust.json"]
    words += ["--descriptor", f"{ARCHIVE}.descriptor.json", "--manifest", f"{ARCHIVE}.manifest.json"]
    return [*words, *(word for attestation in attestations for word in ("--attestation", attestation))]


def test_a_bundle_is_packed_signed_attested_and_accepted(run: Run) -> None:
    code, packed = run("bundle", "pack", "server", "-o", "out")
    assert (code, packed["archive"], packed["files"], packed["left_out"]) == (0, ARCHIVE, 2, [])
    code, verified = run("bundle", "verify", ARCHIVE)
    assert (code, verified["content_hash"], verified["files"]) == (0, packed["content_hash"], 2)
    pointed(packed, min_attestations=2, require_verifier_attestation=True)
    code, signature = run("sign", "pointer.json", "--key", "registry")
    assert (code, signature["key_id"], signature["signed_fields"]) == (
        0,
        REGISTRY.public_key.did,
        ["/pointers", "/registry"],
    )
    code, claim = run("attest", ARCHIVE, "--key", "maintainer", "--role", "maintainer", "--expires-in", "90d")
    assert (code, claim["claims"]) == (0, ["mcp.claim.integrity"])
    code, refused = run(*accepting(claim["file"]))
    assert (code, refused["error"]["code"]) == (1, "VERIFIER_ATTESTATION_REQUIRED")
    code, second = run(
        "attest",
        ARCHIVE,
        "--key",
        "verifier",
        "--role",
        "verifier",
        "--claim",
        "integrity",
        "audit",
        "--expires",
        LATER,
    )
    assert (code, second["claims"], second["expires_at_utc"]) == (0, ["mcp.claim.integrity", "mcp.claim.audit"], LATER)
    assert run(*accepting(claim["file"], second["file"])) == (
        0,
        {
            "result": "ACCEPT",
            "provenance": {
                "tool": "acme.notes",
                "channel": "stable",
                "root_cid": packed["root_cid"],
                "descriptor_cid": packed["descriptor_cid"],
                "attestations_used": [MAINTAINER.public_key.did, VERIFIER.public_key.did],
                "constraints_enforced": {"require_verifier_attestation": True, "min_attestations": 2},
            },
        },
    )


def test_inspect_shows_the_authors_text_and_the_requested_permissions(run: Run) -> None:
    run("bundle", "pack", "server", "-o", "out", "--archive", "tar+zstd", "--network", "allow")
    code, report = run("bundle", "inspect", "out/acme.notes-1.0.0.tar.zst")
    assert code == 0
    assert report["policy"] == {"network": "allow", "filesystem": "read_only", "exec": "deny"}
    assert [entry["path"] for entry in report["entries"]] == ["main.py", "server.json"]
    document = json.loads(Path("out/acme.notes-1.0.0.tar.zst.descriptor.json").read_text())
    assert document["tool"] == {
        "name": "acme.notes",
        "display_name": "acme.notes",
        "version": "1.0.0",
        "description": "Keeps notes.",
        "license": "MIT",
        "author": "Acme",
    }


def test_both_kinds_of_archive_are_the_same_bundle_under_two_descriptors(run: Run) -> None:
    _, car = run("bundle", "pack", "server", "-o", "out")
    _, tar = run("bundle", "pack", "server", "-o", "out", "--archive", "tar+zstd")
    assert car["root_cid"] == tar["root_cid"]
    assert car["descriptor_cid"] != tar["descriptor_cid"]
    assert [run("bundle", "verify", report["archive"])[0] for report in (car, tar)] == [0, 0]


def test_documents_are_found_under_the_names_that_other_packers_give_them(run: Run) -> None:
    run("bundle", "pack", "server", "-o", "out")
    for kind in ("descriptor", "manifest"):
        Path(f"{ARCHIVE}.{kind}.json").rename(f"out/acme.notes-1.0.0.{kind}.json")
    assert run("bundle", "verify", ARCHIVE)[0] == 0


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"name": None}, "SERVER_ENTRY_INVALID"),
        ({"name": "1notes"}, "SERVER_ENTRY_INVALID"),
        ({"version": "1.0"}, "SERVER_ENTRY_INVALID"),
        ({"runtime": "cobol"}, "SERVER_ENTRY_INVALID"),
        ({"entry": "../main.py"}, "SERVER_ENTRY_INVALID"),
        ({"entry": "other.py"}, "SERVER_ENTRY_INVALID"),
        ({"license": 1}, "SERVER_ENTRY_INVALID"),
        ({"security": {"policy": {"sudo": "allow"}}}, "SERVER_ENTRY_INVALID"),
        ({"security": {"policy": {"network": "some"}}}, "DOCUMENT_INVALID"),
    ],
)
def test_a_server_without_the_required_members_is_not_packed(change: dict[str, Any], code: str, run: Run) -> None:
    Path("server/server.json").write_text(json.dumps({**SERVER, **change}))
    assert run("bundle", "pack", "server", "-o", "out")[1]["error"]["code"] == code
    assert list(Path("out").iterdir()) == []


def test_a_folder_without_a_description_is_not_packed(run: Run) -> None:
    Path("server/server.json").unlink()
    assert run("bundle", "pack", "server", "-o", "out")[1]["error"]["code"] == "SERVER_ENTRY_INVALID"


@pytest.mark.parametrize("names", [("aux.py",), ("a:b",), ("Notes.py", "notes.py"), ("e\u0301",)])
def test_the_hint_about_a_file_name_is_for_the_author_who_packs(names: tuple[str, ...], run: Run) -> None:
    for name in names:
        Path("server", name).write_text("")
    code, report = run("bundle", "pack", "server", "-o", "out")
    error = report["error"]
    assert (code, error["code"]) == (1, "ARCHIVE_UNSAFE")
    assert "pack" in error["hint"]
    assert "author" not in error["hint"]
    assert "archive" not in error["message"]


def test_a_scoped_name_and_bun_are_explained_in_terms_of_the_descriptor(run: Run) -> None:
    Path("server/server.json").write_text(json.dumps({**SERVER, "name": "@acme/deploy", "runtime": "bun"}))
    _, packed = run("bundle", "pack", "server", "-o", "out")
    document = json.loads(Path(packed["descriptor"]).read_text())
    assert document["tool"]["name"] == "acme.deploy"
    assert document["entrypoint"] == {"runtime": "node", "target": "main.py", "engine": "bun"}


def test_a_bundle_is_not_written_into_its_own_source_folder(run: Run) -> None:
    code, report = run("bundle", "pack", "server", "-o", "server")
    assert (code, report["error"]["code"]) == (2, "USAGE")
    assert run("bundle", "pack", "server", "-o", "out", "--compress")[1]["error"]["code"] == "USAGE"
    assert sorted(path.name for path in Path("server").iterdir()) == ["main.py", "server.json"]


def test_a_tampered_bundle_is_not_attested(run: Run) -> None:
    run("bundle", "pack", "server", "-o", "out")
    archive = Path(ARCHIVE)
    archive.write_bytes(archive.read_bytes().replace(b"notes')", b"evil!')"))
    code, report = run("attest", ARCHIVE, "--key", "verifier", "--role", "verifier")
    assert (code, report["error"]["code"]) == (1, "ARTIFACT_MISMATCH")
    assert run("bundle", "verify", ARCHIVE)[1]["error"]["code"] == "ARTIFACT_MISMATCH"
    assert [path.name for path in Path("out").iterdir() if "attestation" in path.name] == []


def test_swapped_manifest_is_found_without_a_registry(run: Run) -> None:
    run("bundle", "pack", "server", "-o", "out")
    manifest = Path(f"{ARCHIVE}.manifest.json")
    manifest.write_text(manifest.read_text().replace("main.py", "male.py"))
    assert run("bundle", "verify", ARCHIVE)[1]["error"]["code"] == "MANIFEST_CID_MISMATCH"


def test_a_key_in_the_environment_signs_and_is_shown_nowhere(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, packed = run("bundle", "pack", "server", "-o", "out")
    pointed(packed)
    monkeypatch.setenv("SIGNING_KEY", REGISTRY.pem().decode())
    code, report = run("sign", "pointer.json", "--key-env", "SIGNING_KEY", "-o", "signed.json")
    assert (code, report["file"], report["key_id"]) == (0, "signed.json", REGISTRY.public_key.did)
    assert "signatures" not in json.loads(Path("pointer.json").read_text())
    monkeypatch.setenv("SIGNING_KEY", "not a key SECRET")
    assert run("sign", "pointer.json", "--key-env", "SIGNING_KEY")[1]["error"]["code"] == "KEY_INVALID"
    monkeypatch.delenv("SIGNING_KEY")
    assert run("sign", "pointer.json", "--key-env", "SIGNING_KEY")[1]["error"]["code"] == "VARIABLE_MISSING"
    assert "SECRET" not in "".join(capsys.readouterr())


def test_an_encrypted_key_in_the_environment_is_opened_with_its_passphrase(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, packed = run("bundle", "pack", "server", "-o", "out")
    pointed(packed)
    monkeypatch.setenv("SIGNING_KEY", REGISTRY.pem(b"open sesame").decode())
    assert run("sign", "pointer.json", "--key-env", "SIGNING_KEY")[1]["error"]["code"] == "KEY_PASSPHRASE_REQUIRED"
    monkeypatch.setenv("PINWARDEN_KEY_PASSPHRASE", "open sesame")
    assert run("sign", "pointer.json", "--key-env", "SIGNING_KEY")[0] == 0


def test_signing_again_replaces_and_another_key_adds(run: Run) -> None:
    _, packed = run("bundle", "pack", "server", "-o", "out")
    pointed(packed)
    counts = [
        run("sign", "pointer.json", "--key", name)[1]["signatures"] for name in ("registry", "registry", "verifier")
    ]
    assert counts == [1, 1, 2]


def test_only_documents_of_bundles_and_logs_are_signed(run: Run) -> None:
    Path("other.json").write_text('{"schema_version": "registry.pointer.v0.1", "pointers": [], "registry": 1}')
    before = Path("other.json").read_bytes()
    for text in (None, "[]", '{"schema_version": "else"}'):
        if text is not None:
            Path("other.json").write_text(text)
            before = text.encode()
        assert run("sign", "other.json", "--key", "registry")[1]["error"]["code"] == "DOCUMENT_INVALID"
        assert Path("other.json").read_bytes() == before


@pytest.mark.parametrize("until", [["--expires", "never"], ["--expires", BEFORE], ["--expires-in", "soon"]])
def test_an_invalid_or_past_expiry_is_refused(until: list[str], run: Run) -> None:
    run("bundle", "pack", "server", "-o", "out")
    code, report = run("attest", ARCHIVE, "--key", "verifier", "--role", "verifier", *until)
    assert (code, report["error"]["code"]) == (2, "USAGE")


def test_duplicate_json_keys_in_a_pointer_are_refused(run: Run) -> None:
    _, packed = run("bundle", "pack", "server", "-o", "out")
    pointed(packed)
    run("sign", "pointer.json", "--key", "registry")
    text = Path("pointer.json").read_text()
    Path("pointer.json").write_text('{"pointers": [],' + text[1:])
    code, report = run(*accepting())
    assert (code, report["result"], report["error"]["code"]) == (1, "REJECT", "JSON_CANONICALIZATION_ERROR")


def test_a_time_without_a_zone_and_an_unreadable_trust_file_are_errors_and_not_refusals(run: Run) -> None:
    _, packed = run("bundle", "pack", "server", "-o", "out")
    pointed(packed)
    code, report = run(*accepting(), "--now", "2026-03-01T12:00:00")
    assert (code, report["error"]["code"]) == (2, "USAGE")
    Path("trust.json").write_text("[]")
    code, report = run(*accepting())
    assert (code, report["error"]["code"]) == (3, "TRUST_INVALID")
    assert "result" not in report


def test_a_refusal_shows_its_code_and_what_to_do(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    _, packed = run("bundle", "pack", "server", "-o", "out")
    pointed(packed)
    assert main([*accepting(), "--literal"]) == 1
    output = capsys.readouterr().out
    assert "REJECT POINTER_SIGNATURE_INVALID" in output
    assert "has known gaps" in output


def test_any_object_with_a_public_key_can_sign(run: Run) -> None:
    from pinwarden.bundle.signed_documents import sign_file

    class Token:
        public_key = REGISTRY.public_key

        def sign(self, message: bytes) -> bytes:
            return PrivateKey.from_seed(b"registry".ljust(32, b".")).sign(message)

    _, packed = run("bundle", "pack", "server", "-o", "out")
    pointed(packed)
    sign_file(Path("pointer.json"), Token(), Path("by-token.json"))
    run("sign", "pointer.json", "--key", "registry")
    assert Path("by-token.json").read_bytes() == Path("pointer.json").read_bytes()
