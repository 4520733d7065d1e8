"""From a folder to a running server: pack, attest, sign, publish, install, run; and attacks on the way over HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pinwarden.bundle.trust import parse_trust
from tests.docs.schemas import problems
from tests.registry.test_serving import Site, needs_bwrap, packed, run, site, token
from tests.registry.world import SERVER
from tests.support.registries import needs_registry

__all__ = ["site", "token"]  # the served registries of the other file, embedded and on PostgreSQL with an OCI registry
pytestmark = [needs_registry, needs_bwrap]
QUESTIONS = "".join(
    json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": {}}) + "\n"
    for number, method in enumerate(("initialize", "tools/list"))
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's project, and a home of its own."""
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.chdir(root)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PINWARDEN_TRUST", str(tmp_path / "trust.json"))
    monkeypatch.setenv("PINWARDEN_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PINWARDEN_APPROVER", "me")
    return root


def trust(site: Site, folder: Path) -> None:
    """Trust the registry, a verifier and the maintainer."""
    for name in ("verifier", "stranger"):
        assert run("keygen", str(folder / f"{name}.key")) == 0
    named = ("--role", "registry", "--name", "acme", "--url", site.replica.url)
    assert run("trust", "add", site.replica.checkpoint_key, *named) == 0
    assert run("trust", "add", str(folder / "verifier.key.pub"), "--role", "verifier", "--name", "vera") == 0
    maintainer = str(site.folder / "acme.key.pub")
    assert run("trust", "add", maintainer, "--role", "maintainer", "--name", "acme people") == 0


def published(site: Site, folder: Path, version: str, server: bytes = SERVER, key: str = "verifier") -> str:
    """Pack, attest, sign and publish."""
    archive = packed(folder, version, server)
    attestation = f"{archive}.{key}.json"
    made = ("--key", str(folder / f"{key}.key"), "--role", "verifier", "--expires-in", "30d", "-o", attestation)
    assert run("attest", archive, *made) == 0
    assert run("sign", attestation, "--key", str(site.folder / "acme.key"), "-o", attestation) == 0
    assert run("publish", archive, "--attestation", attestation, *site.publisher) == 0
    return archive


def answered(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    """What a command prints under --format json."""
    capsys.readouterr()
    assert run(*arguments, "--format", "json") == code, capsys.readouterr()
    return json.loads(capsys.readouterr().out)


def install(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    report = answered(capsys, "install", *(arguments or ("acme.notes",)), code=code)
    assert problems("error" if set(report) == {"error"} else "install", report) == []
    return report


@pytest.mark.usefixtures("token", "project")
def test_a_server_is_packed_published_installed_and_run_in_a_sandbox(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(site, tmp_path)
    published(site, tmp_path, "10.0.0")
    report = install(capsys, "acme.notes", "--allow-execute", "--client", "claude")
    assert (report["result"], report["version"], report["surface_from"]) == ("ACCEPT", "10.0.0", "here")
    assert [line["step"] for line in report["plan"] if line["result"] == "passed"] == [*range(1, 9), None, None, 9]
    assert run("ci") == 0
    command = [sys.executable, "-m", "pinwarden", "run", "acme.notes"]
    done = subprocess.run(command, input=QUESTIONS, capture_output=True, text=True, timeout=240, check=False)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [tool["name"] for tool in answers[1]["result"]["tools"]] == ["search_notes", "write_note", "delete_note"]

    # The same trust file is what an auditor gives to bundle accept.
    known = parse_trust((tmp_path / "trust.json").read_bytes())
    assert [len(known.registry_keys), len(known.known_keys)] == [1, 2]

    # Attack: an untrusted key attests the next version.
    published(site, tmp_path, "10.1.0", SERVER + b"# next\n", key="stranger")
    assert answered(capsys, "update", code=1)["changes"][0]["code"] == "NO_VALID_ATTESTATIONS"
    before = Path("mcp-lock.json").read_bytes()
    assert install(capsys, code=1)["error"]["code"] == "NO_VALID_ATTESTATIONS"
    assert Path("mcp-lock.json").read_bytes() == before

    # Attack: a stolen token is of no use outside its namespace, nor with another key.
    owner = str(tmp_path / "stranger.key.pub")
    assert run("registry", "namespace", "add", "globex", "--owner", owner, *site.operator) == 0
    other = answered(capsys, "registry", "token", "add", "globex", *site.operator)["token"]
    monkeypatch.setenv("PINWARDEN_REGISTRY_TOKEN", other)
    archive = packed(tmp_path, "10.2.0", SERVER + b"# stolen\n")
    stolen = ("--key", str(tmp_path / "stranger.key"), "--registry", site.replica.url)
    assert answered(capsys, "publish", archive, *stolen, code=1)["error"]["code"] == "NAMESPACE_REFUSED"
    assert answered(capsys, "publish", archive, *site.publisher, code=1)["error"]["code"] == "NAMESPACE_REFUSED"


@pytest.mark.usefixtures("token", "project")
def test_publishing_an_old_version_again_is_refused_and_the_reported_event_is_the_logged_one(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archives = [packed(tmp_path, f"0.{minor}.0", SERVER + b"# older %d\n" % minor) for minor in (1, 2)]
    there = ("--channel", "going-back", *site.publisher)
    first, second = (answered(capsys, "publish", archive, *there) for archive in archives)
    assert problems("publish", first) == []
    assert second["event"]["log_index"] == second["published"]["log_index"] > first["event"]["log_index"]
    refused = answered(capsys, "publish", archives[0], *there, code=1)["error"]
    assert (refused["code"], "--allow-older" in refused["hint"]) == ("VERSION_OLDER", True)
    assert "refused" not in refused["message"]  # nothing was sent
    back = answered(capsys, "publish", archives[0], "--allow-older", *there)["event"]
    assert (back["previous"], back["changed"]) == ("0.2.0", True)
    assert back["log_index"] > second["event"]["log_index"]
    assert run("publish", archives[0], *there) == 0
    assert f", since event {back['log_index']} of the log" in capsys.readouterr().out


@pytest.mark.usefixtures("token", "project")
def test_attack_archives_that_were_changed_on_disk_are_not_served(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An attacker who can change the registry's disk, or the OCI registry behind it, can only cause errors."""
    trust(site, tmp_path)
    archive = Path(published(site, tmp_path, "11.0.0", SERVER + b"# eleven\n")).read_bytes()
    kept = [path for path in site.folder.rglob("*") if path.is_file() and path.stat().st_size == len(archive)]
    copies = [path for path in kept if path.read_bytes() == archive]
    assert copies
    for path in copies:
        path.chmod(0o600)
        path.write_bytes(archive.replace(b"eleven", b"twelve"))
    report = install(capsys, code=3)
    # The registry looks at its bytes before it gives them out; if it did not, the installer would.
    assert report["error"]["code"] == "FETCH_FAILED"
    assert not Path("mcp-lock.json").exists()
    assert not (tmp_path / "store").exists()
