"""Installing, running and updating from the command line, over a static export and an OCI registry."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pinwarden.bundle.bundle_documents import SecurityPolicy
from pinwarden.bundle.trust_files import change_trust
from pinwarden.cli.main import main
from pinwarden.core.record import replace
from tests.docs.schemas import problems
from tests.install.desk import POISONED, QUESTIONS, REWORDED, Desk, relinked
from tests.install.world import VERA
from tests.registry.world import SERVER, Bundle, bundle
from tests.support import images
from tests.support.needs import needs
from tests.support.registries import DockerRegistry, docker_registry, needs_registry

needs_bwrap = needs("bwrap", install="apt-get install bubblewrap")
pytestmark = needs_bwrap


def test_a_bundle_is_installed_from_an_export_and_run(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    code, report = desk.install("--client", "claude")
    assert (code, report["result"], report["surface_from"]) == (0, "ACCEPT", "registry")
    assert report["provenance"]["attestations_used"] == [VERA.public_key.did]
    record = desk.record("acme.notes:claude")
    assert record["bundle"]["contentHash"] == report["content_hash"]
    assert (record["apiSurface"], record["surface"]["digest"]) == (report["api_surface"], report["surface"])
    assert record["bundle"]["provenance"] == report["provenance"]
    assert record["approval"]["by"] == "me"
    approved = json.loads((desk.root / record["surface"]["file"]["path"]).read_bytes())
    assert {tool["name"] for tool in approved["tools"]} == {"search_notes", "write_note", "delete_note"}
    config = json.loads((desk.root / ".mcp.json").read_bytes())
    assert config["mcpServers"]["acme.notes"]["args"] == ["run", "acme.notes"]
    assert main(["ci"]) == 0
    before = (desk.root / "mcp-lock.json").read_bytes()
    for command in (["init"], ["enforce", "--yes"], ["prove"], ["fetch", "--frozen"]):
        assert main(command) == 0
    assert (desk.root / "mcp-lock.json").read_bytes() == before
    answers = [json.loads(line) for line in desk.started(stdin=QUESTIONS).stdout.splitlines()]
    assert [tool["name"] for tool in answers[1]["result"]["tools"]] == ["search_notes", "write_note", "delete_note"]


def test_a_client_without_a_file_in_the_scope_is_refused_before_anything_is_written(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    code, report = desk.install("--client", "claude-desktop")
    assert (code, report["error"]["code"]) == (2, "USAGE")
    assert not (desk.root / "mcp-lock.json").exists()


def test_a_client_file_that_cannot_be_edited_stops_an_install_before_anything_is_locked(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    (desk.root / ".mcp.json").write_text('{"mcpServers": {')
    code, report = desk.install("--client", "claude")
    assert (code, report["result"], report["error"]["code"]) == (3, "REJECT", "CONFIG_INVALID")
    assert not (desk.root / "mcp-lock.json").exists()
    assert not (desk.root / "mcp-lock.surfaces").exists()


@pytest.mark.parametrize("is_locked", [False, True])
def test_a_client_file_that_cannot_be_written_undoes_the_whole_install(desk: Desk, is_locked: bool) -> None:
    desk.publish(bundle(content=SERVER))
    (desk.root / ".vscode").write_text("a file where the client has a folder")
    (desk.root / ".mcp.json").write_text('{"mcpServers": {}}')
    if is_locked:
        desk.install()

    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in desk.root.rglob("*") if path.is_file()}

    before = contents()
    code, report = desk.install("--client", "claude", "--client", "cursor", "--client", "vscode")
    assert (code, report["result"], report["error"]["code"]) == (3, "REJECT", "FILE_UNWRITABLE")
    assert contents() == before
    (desk.root / ".vscode").unlink()
    code, report = desk.install("--client", "claude", "--client", "cursor", "--client", "vscode")
    assert (code, [row["action"] for row in report["configs"]]) == (0, ["updated", "created", "created"])
    assert len(desk.lock["servers"]) == 3 + is_locked


def test_an_install_is_undone_to_the_byte(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    (desk.root / ".mcp.json").write_text('{"mcpServers": {}}')

    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in desk.root.rglob("*") if path.is_file()}

    before = contents()
    code, _ = desk.install("--client", "claude", "--client", "cursor")
    assert code == 0
    desk.capture.readouterr()
    assert main(["install", "acme.notes", "--undo", "--yes", "--format", "json"]) == 0
    report = json.loads(desk.capture.readouterr().out)
    assert problems("install", report) == []
    assert [row["action"] for row in report["undone"]] == ["restored", "restored"]
    assert contents() == before


def test_an_installed_bundle_is_explained_and_compared_with_the_live_server(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.publish(bundle(content=SERVER))
    desk.install()
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    assert main(["ci", "--live", "--allow-execute"]) == 0
    desk.capture.readouterr()
    assert main(["explain", "acme.notes"]) == 0
    report = " ".join(desk.capture.readouterr().out.split())
    assert "may use: network deny, filesystem deny, exec deny" in report
    assert f"attested by {VERA.public_key.did}" in report
    assert "the install verified every file against the manifest" in report
    assert "The install verified every byte against the registry's signature, its log and the attestations." in report
    assert "its bytes were not verified" not in report
    assert "Nothing is left to do." in report


def test_explain_names_a_bundle_that_was_installed_with_literal(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    assert desk.install("--literal")[0] == 0
    desk.capture.readouterr()
    assert main(["explain", "acme.notes"]) == 0
    report = " ".join(desk.capture.readouterr().out.split())
    assert "but --literal skipped the log" in report
    assert "Install it without --literal" in report


def test_attack_source_date_epoch_does_not_make_an_old_log_head_fresh(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SOURCE_DATE_EPOCH often stands in the environment of a build. It dates what is written, and judges nothing."""
    today = desk.user.world.clock.moment
    desk.user.world.clock.moment = today - timedelta(days=30)
    desk.publish(bundle(content=SERVER))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(int(desk.user.world.clock.moment.timestamp())))
    code, report = desk.install()
    assert (code, report["error"]["code"]) == (1, "LOG_FROZEN")
    desk.user.world.clock.moment = today
    desk.write_export()
    assert desk.install()[0] == 0
    written = desk.lock["servers"]["acme.notes:generic"]["lockedAt"]
    desk.user.world.clock.moment = today - timedelta(days=30)
    desk.publish(bundle(version="1.1.0", content=REWORDED))
    code, report = desk.update()
    assert (code, [row["code"] for row in report["changes"]]) == (1, ["LOG_FROZEN"])
    assert written == desk.user.world.clock()[:19] + ".000Z"


def test_installing_the_same_version_again_does_not_change_the_lock(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    desk.install()
    before = (desk.root / "mcp-lock.json").read_bytes()
    assert desk.install()[0] == 0
    assert (desk.root / "mcp-lock.json").read_bytes() == before


def test_the_probed_surface_is_compared_with_the_one_the_registry_recorded(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    assert desk.install("--allow-execute")[1]["surface_from"] == "here"
    two_faced = SERVER.replace(b'if "--update" in sys.argv', b"if __import__('os').path.isdir('.git')")
    made = bundle(version="2.0.0", content=two_faced)
    made.descriptor["security"]["policy"]["filesystem"] = "read_only"
    desk.publish(relinked(made))
    (desk.root / ".git").mkdir()
    before = (desk.root / "mcp-lock.json").read_bytes()
    code, report = desk.update("--allow-execute", "--yes")
    assert (code, codes(report)) == (1, ["SURFACE_DIFFERS"])
    assert (desk.root / "mcp-lock.json").read_bytes() == before


def test_a_refused_install_writes_only_the_log_state(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    blob = next((desk.export / "blobs").iterdir())
    blob.write_bytes(blob.read_bytes().replace(b"Search", b"Sabcde"))
    code, report = desk.install("--client", "claude")
    assert (code, report["result"], report["error"]["code"]) == (1, "REJECT", "ARTIFACT_MISMATCH")
    assert set(report["error"]) == {"code", "what", "why", "fix"}
    assert desk.written == []
    assert len(desk.user.seen) == 1


@pytest.mark.parametrize(
    ("client", "scope", "option"), [("windsurf", "project", "--scope user"), ("roo", "user", "--scope project")]
)
def test_a_client_without_a_file_of_this_scope_is_refused_with_a_hint_that_works(
    desk: Desk, client: str, scope: str, option: str
) -> None:
    desk.publish(bundle(content=SERVER))
    code, report = desk.install("--client", client, "--scope", scope)
    assert (code, report["error"]["code"], report["error"]["fix"]) == (2, "USAGE", f"Repeat with {option}.")
    assert "mcp-lock.json" not in " ".join(desk.written)
    code, report = desk.install("--client", client, *option.split())
    assert (code, report["configs"][0]["action"]) == (0, "created")


def test_the_plan_is_printed_line_by_line(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    assert main(["install", "acme.notes", "--registry", str(desk.export)]) == 0
    out = desk.capture.readouterr().out
    lines = [line.split() for line in out.splitlines() if line.startswith("note: ")]
    assert [line[1] for line in lines if line[2:3] == ["passed"]] == [*"12345678", "+", "+", "9"]


# What it may do


ASKING = b"""
import json, os, socket, subprocess
def works(act):
    try:
        act()
        return True
    except OSError:
        return False
where, port = os.environ["WHERE"], int(os.environ["PORT"])
print(json.dumps({
    "network": works(lambda: socket.create_connection(("127.0.0.1", port), 5).close()),
    "read": works(lambda: open(where + "/secret.txt").close()),
    "write": works(lambda: open(where + "/work/made.txt", "w").close()),
    "exec": works(lambda: subprocess.run(["/bin/true"], check=True)),
    "approve itself": works(lambda: open(where + "/mcp-lock.json", "a").close()),
    "plant a server": works(lambda: open(where + "/.mcp.json", "a").close()),
    "own": works(lambda: open(__file__).close()),
    "token": "TOKEN" in os.environ,
}))
"""


@pytest.mark.parametrize(
    ("requested", "can"),
    [
        (SecurityPolicy(), set()),
        (SecurityPolicy(filesystem="read_only"), {"read"}),
        (SecurityPolicy(filesystem="read_write", exec="allow"), {"read", "write", "exec"}),
        (SecurityPolicy(network="allow"), {"network"}),
    ],
)
def test_a_running_bundle_has_only_the_accepted_permissions(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, requested: SecurityPolicy, can: set[str]
) -> None:
    made = bundle(content=ASKING)
    made.descriptor["security"]["policy"] = {
        "network": requested.network,
        "filesystem": requested.filesystem,
        "exec": requested.exec,
    }
    desk.publish(relinked(made))
    allow = [word for name in ("network", "write-files", "exec") for word in ("--allow", name)]
    assert desk.install(*allow, "--env", "WHERE", "--env", "PORT")[0] == 0
    (desk.root / "secret.txt").write_text("x")
    (desk.root / ".mcp.json").write_text("{}")
    (desk.root / "work").mkdir()
    rule = '[[policy.sandbox]]\nserver = "acme.*"\nnetwork = true\nread = ["."]\nwrite = ["work"]\n'
    (desk.root / "pinwarden.toml").write_text(f"[policy]\nversion = 1\n{rule}")
    monkeypatch.setenv("TOKEN", "secret")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("WHERE", str(desk.root))
        monkeypatch.setenv("PORT", str(listening.getsockname()[1]))
        done = desk.started("acme.notes", "--without-gateway")
    report = json.loads(done.stdout)
    assert {name for name, works in report.items() if works} == {*can, "own"}


def test_attack_a_repository_policy_does_not_widen_the_accepted_permissions(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    desk.install()
    rule = '[[policy.sandbox]]\nserver = "acme.*"\nnetwork = true\nwrite = ["."]\n'
    (desk.root / "pinwarden.toml").write_text(f"[policy]\nversion = 1\n{rule}")
    shown = desk.started("acme.notes", "--show").stdout
    assert "--share-net" not in shown
    assert "--bind" not in shown.splitlines()
    assert str(desk.root) not in shown.splitlines()


def test_without_a_sandbox_a_bundle_starts_only_if_the_user_allows_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.publish(bundle(content=SERVER))
    desk.install()
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    refused = desk.started()
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "SANDBOX_UNAVAILABLE" in refused.stderr
    unsafe = desk.started("acme.notes", "--unsafe-no-sandbox", stdin=QUESTIONS)
    assert (unsafe.returncode, len(unsafe.stdout.splitlines())) == (0, 2)
    assert "without its sandbox" in unsafe.stderr


def test_attack_a_bundle_that_was_changed_on_disk_is_unpacked_again(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    desk.install()
    unpacked = next((desk.root.parent / "store" / "environments").glob("*/tree/main.py"))
    unpacked.write_bytes(b"print('evil')\n")
    done = desk.started(stdin=QUESTIONS)
    assert "unpacking it again" in done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert unpacked.read_bytes() == SERVER


def test_a_bundle_takes_no_arguments(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    desk.install()
    assert "ARGUMENTS_CHANGED" in desk.started("acme.notes", "--", "--update").stderr


# Updates


def codes(report: Any) -> list[str]:
    return [row["code"] for row in report["changes"]]


def test_an_update_shows_the_drift_and_writes_after_confirmation(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    desk.install("--floor", "1.0.0", "--client", "claude")
    assert desk.update() == (0, desk.update()[1])
    desk.publish(bundle(version="1.1.0", content=REWORDED))
    before = desk.lock
    code, report = desk.update()
    assert (code, report["written"]) == (1, False)
    assert {"newer_release", "content_changes", "api_surface_changes"} <= set(codes(report))
    assert report["updates"] == [{"name": "acme.notes", "client": "claude", "from": "1.0.0", "to": "1.1.0"}]
    assert desk.lock == before
    code, report = desk.update("--yes")
    assert (code, report["written"]) == (0, True)
    pinned = desk.record("acme.notes:claude")["bundle"]
    assert (pinned["version"], pinned["floor"]) == ("1.1.0", "1.0.0")
    assert main(["ci"]) == 0


def test_attack_an_update_with_critical_drift_is_blocked_although_confirmed(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    desk.install()
    desk.publish(bundle(version="1.1.0", content=POISONED))
    before = desk.lock
    code, report = desk.update("--yes")
    assert (code, report["written"]) == (1, False)
    assert "new_exfiltration" in codes(report)
    assert desk.lock == before


def test_attack_a_poisoned_update_is_locked_without_approving_its_surface(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    desk.install()
    approved = desk.record()["surface"]["digest"]
    desk.publish(bundle(version="1.1.0", content=POISONED))
    code, report = desk.update("--yes", "--on-drift", "warn")
    assert (code, report["written"], "exfiltration" in codes(report)) == (1, True, True)
    record = desk.record()
    assert (record["bundle"]["version"], record["surface"]["digest"]) == ("1.1.0", approved)


def test_approved_warnings_of_an_update_are_recorded(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    desk.install()
    approved = desk.record()["surface"]["digest"]
    desk.publish(bundle(version="1.1.0", content=POISONED))
    code, report = desk.update("--yes", "--on-drift", "warn", "--approve-warnings")
    assert (code, report["written"]) == (0, True)
    record = desk.record()
    assert (record["bundle"]["version"], record["surface"]["digest"] == approved) == ("1.1.0", False)
    assert "exfiltration" in record["approval"]["why"]


@pytest.mark.parametrize("options", [(), ("--allow-execute",), ("--why", "we need it")])
def test_attack_a_bundle_with_scan_warnings_is_not_installed(desk: Desk, options: tuple[str, ...]) -> None:
    desk.publish(bundle(content=POISONED))
    code, report = desk.install("--client", "claude", *options)
    assert (code, report["result"], report["error"]["code"]) == (1, "REJECT", "WARNINGS_NOT_APPROVED")
    assert {row["code"] for row in report["error"]["why"]["warnings"]} >= {"exfiltration"}
    assert not (desk.root / "mcp-lock.json").exists()
    assert not (desk.root / ".mcp.json").exists()


def test_approved_warnings_of_an_install_are_recorded(desk: Desk) -> None:
    desk.publish(bundle(content=POISONED))
    code, report = desk.install("--approve-warnings")
    assert (code, report["result"]) == (0, "ACCEPT")
    assert "exfiltration" in desk.record()["approval"]["why"]


def test_attack_installing_again_does_not_change_the_approval(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    desk.install()
    desk.publish(bundle(version="1.1.0", content=POISONED))
    before = desk.lock
    code, report = desk.install("--client", "claude")
    assert (code, report["error"]["code"]) == (1, "VERSION_LOCKED")
    assert desk.lock == before


def test_an_update_below_the_floor_is_refused(desk: Desk) -> None:
    desk.publish(bundle(version="1.1.0", content=SERVER))
    desk.install("--floor", "1.1.0")
    desk.publish(bundle(version="1.0.0", content=REWORDED), allow_older=True)
    before = desk.lock
    code, report = desk.update("--yes")
    assert (code, codes(report)) == (1, ["VERSION_BELOW_FLOOR"])
    assert desk.lock == before


def test_an_update_that_requests_more_permissions_is_reported_or_refused(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    desk.install()
    made = bundle(version="1.1.0", content=SERVER)
    made.descriptor["security"]["policy"]["network"] = "allow"
    desk.publish(relinked(made))
    assert codes(desk.update()[1]) == ["POLICY_BLOCKED_NETWORK"]
    assert "permission_changes" in codes(desk.update("--allow", "network")[1])
    assert desk.update("--allow", "network", "--yes")[0] == 0
    desk.publish(relinked(replaced_version(made, "1.2.0")))
    assert desk.update("--yes")[0] == 0, "what was approved for the tool before stays allowed"


def replaced_version(made: Bundle, version: str) -> Bundle:
    tool = {**made.descriptor["tool"], "version": version}
    return Bundle(descriptor={**made.descriptor, "tool": tool}, manifest=made.manifest, archive=made.archive)


def test_bundles_attested_by_a_revoked_key_are_reported(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    desk.install()
    assert main(["trust", "remove", "vera", "--revoke", "--why", "stolen"]) == 0
    code, report = desk.update()
    assert (code, codes(report)) == (1, ["key_revoked", "NO_VALID_ATTESTATIONS"])
    notice = "acme.notes was attested with vera, a key that was revoked (stolen)"
    assert notice in desk.started("acme.notes", "--show").stderr


def test_an_unreachable_registry_is_not_reported_as_clean(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    desk.install()
    code, report = desk.run("update", "--by", "me")
    assert (code, len(report["unchecked"])) == (3, 1)
    assert "--registry" in json.dumps(report) or "registry is not known" in json.dumps(report)


def test_frozen_fetches_only_what_the_lock_pins(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    desk.install("--client", "claude")
    pinned = desk.lock
    desk.publish(bundle(version="1.1.0", content=POISONED))
    store = desk.root.parent / "store"
    store.rename(store.with_name("gone"))
    (listed,) = desk.run("status")[1]["servers"]
    assert (listed["next_step"], listed["next_command"]) == ("fetch", "pinwarden fetch acme.notes")
    code, report = desk.run("fetch", "--frozen")
    assert (code, [row["code"] for row in report["findings"]]) == (3, ["artifact_missing"])
    code, report = desk.run("fetch", "--frozen", "--registry", str(desk.export))
    assert (code, [row["server"] for row in report["servers"]]) == (0, ["acme.notes"])
    assert desk.lock == pinned
    unpacked = next((store / "environments").glob("*/tree/main.py"))
    assert unpacked.read_bytes() == SERVER


def test_the_url_of_a_registry_comes_from_the_trust_store_not_from_the_lock(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    desk.install()
    assert desk.record()["bundle"]["registry"] == str(desk.export)
    assert desk.run("update")[1]["unchecked"] != []
    change_trust(
        desk.user.trust, lambda store: replace(store, registries=(replace(store.registries[0], url=str(desk.export)),))
    )
    assert desk.run("update")[0] == 0
    assert desk.run("install", "acme.notes", "--by", "me")[0] == 0


# Policies, names, letters


def test_the_users_policy_decides_which_permissions_tools_get(desk: Desk) -> None:
    made = bundle(content=SERVER)
    made.descriptor["security"]["policy"]["filesystem"] = "read_only"
    desk.publish(relinked(made))
    own = desk.user.trust.with_name("installer-policy.json")
    own.write_text(json.dumps({"network": "deny"}))
    assert desk.install()[1]["error"]["code"] == "POLICY_BLOCKED_FILESYSTEM"
    assert desk.install("--allow", "read-files")[0] == 0
    own.write_text(json.dumps({"netwerk": "deny"}))
    assert desk.install()[1]["error"]["code"] == "POLICY_INVALID"


def test_the_projects_policy_can_forbid_an_install(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    (desk.root / "pinwarden.toml").write_text('[policy]\nversion = 1\n[policy.servers]\ndeny = ["acme.*"]\n')
    code, report = desk.install()
    assert (code, report["error"]["code"]) == (1, "POLICY_REFUSED")
    assert not (desk.root / "mcp-lock.json").exists()


def test_a_literal_install_is_recorded_in_the_lock(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    code, report = desk.install("--literal")
    assert (code, report["literal"], report["log"]) == (0, True, None)
    assert (desk.record()["bundle"]["literal"], desk.record()["bundle"]["log"]) == (True, None)


@pytest.mark.parametrize("name", ["../evil", "acme..notes", "Acme", "acme.notes@../x", "acme.notes@yanked-1.0.0", ""])
def test_attack_a_tool_name_that_is_a_path_is_refused_before_any_request(desk: Desk, name: str) -> None:
    code, report = desk.install(tool=name)
    assert (code, report["error"]["code"]) == (2, "REGISTRY_NAME_INVALID")


def test_a_variable_with_a_value_is_not_recorded(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    code, report = desk.install("--env", "API_KEY=s3cret")
    assert (code, report["error"]["code"]) == (2, "USAGE")
    assert "s3cret" not in json.dumps(report)
    assert not (desk.root / "mcp-lock.json").exists()


def test_a_name_that_is_locked_for_another_server_is_refused(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    (desk.root / ".mcp.json").write_text(
        json.dumps({"mcpServers": {"acme.notes": {"command": "npx", "args": ["x@1.0.0"]}}})
    )
    assert main(["init"]) == 0
    before = desk.lock
    assert desk.install()[1]["error"]["code"] == "USAGE"
    assert desk.lock == before


def test_attack_an_edited_bundle_record_in_the_lock_does_not_start(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    desk.install()
    path = desk.root / "mcp-lock.json"
    path.write_text(path.read_text().replace('"network": "deny"', '"network": "allow"'))
    assert "LOCK_TAMPERED" in desk.started().stderr


# OCI registries


@pytest.fixture(scope="module")
def oci(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRegistry]:
    with docker_registry(tmp_path_factory.mktemp("oci")) as running:
        yield running


@needs_registry
def test_a_bundle_is_installed_from_an_oci_registry_with_a_separate_log(desk: Desk, oci: DockerRegistry) -> None:
    made = bundle(content=SERVER)
    desk.publish(made)
    reference = push(desk, oci, made)
    code, report = desk.run("install", "acme.notes", "--registry", reference, "--by", "me")
    assert (code, report["error"]["code"]) == (1, "POINTER_UNLOGGED")
    options = ("--registry", reference, "--log", str(desk.export), "--by", "me")
    code, report = desk.run("install", "acme.notes", *options)
    assert (code, report["result"], report["log"]["index"]) == (0, "ACCEPT", 0)
    assert desk.record()["bundle"]["ociDigest"].startswith("sha256:")
    assert desk.started(stdin=QUESTIONS).returncode == 0
    store = desk.root.parent / "store"
    store.rename(store.with_name("gone"))
    assert desk.run("fetch", "--frozen", "--registry", reference)[0] == 0
    # The registry moves on, and the artifact with the old pointer stays where it is.
    desk.publish(bundle(version="1.1.0", content=REWORDED))
    assert desk.run("install", "acme.notes", *options)[1]["error"]["code"] == "POINTER_UNLOGGED"


def push(desk: Desk, oci: DockerRegistry, made: Bundle) -> str:
    """The bundle as an artifact, with what the registry signed for it."""
    from pinwarden.bundle.document import encode_document
    from tests.registry.world import attested

    folder = desk.root.parent / "pushed"
    folder.mkdir()
    archive = folder / "notes.car"
    archive.write_bytes(made.archive)
    (folder / "notes.car.descriptor.json").write_bytes(encode_document(made.descriptor))
    (folder / "notes.car.manifest.json").write_bytes(encode_document(made.manifest))
    (folder / "attestation.json").write_bytes(encode_document(attested(made, VERA, "verifier")))
    (folder / "pointer.json").write_bytes(desk.user.world.files.get("pointers/acme.notes/stable.json"))
    reference = f"oci://{oci.host}/acme/notes"
    more = ("--attestation", str(folder / "attestation.json"), "--pointer", str(folder / "pointer.json"))
    assert main(["bundle", "push", str(archive), f"{reference}:stable", *more]) == 0
    return reference


@needs_registry
def test_an_image_is_locked_by_digest_and_a_moved_tag_is_reported(desk: Desk, oci: DockerRegistry) -> None:
    good, evil = images.image("good"), images.image("evil")
    images.push(oci, "acme/slack", "v2", good)
    reference = f"{oci.host}/acme/slack:v2"
    image = ("install", "acme.slack", "--image", reference, "--allow-private", "--by", "me")
    code, report = desk.run(*image)
    assert (code, report["digest"]) == (0, str(good.digest))
    images.push(oci, "acme/slack", "v2", evil)
    before = desk.lock
    code, report = desk.run("update", "--allow-private")
    assert (code, codes(report)) == (1, ["tag_moved"])
    assert desk.lock == before
    assert desk.run(*image)[1]["error"]["code"] == "ARTIFACT_MISMATCH"
    assert desk.lock == before
    assert desk.run("update", "--allow-private", "--yes", "--by", "me")[0] == 0
    assert desk.record("acme.slack:generic")["image"]["platforms"]["linux/amd64"] == str(evil.digest)
    by_digest = f"{oci.host}/acme/slack@{good.digest}"
    assert desk.run("install", "acme.old", "--image", by_digest, "--allow-private", "--by", "me")[1]["digest"] == str(
        good.digest
    )


def test_a_bundle_for_another_platform_is_refused_before_anything_is_locked(desk: Desk) -> None:
    made = bundle("acme.notes", "1.0.0", SERVER)
    made.descriptor["entrypoint"] |= {"platforms": ["plan9/mips"], "python": ["3.12"]}
    desk.publish(relinked(made))
    code, report = desk.install()
    assert (code, report["error"]["code"]) == (3, "NO_USABLE_FILE")
    assert "is for plan9/mips, and this machine is" in report["error"]["what"]
    assert not (desk.root / "mcp-lock.json").exists()
