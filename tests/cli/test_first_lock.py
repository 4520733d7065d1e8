"""What comes with the first lock of a project: the default policy, the files to commit, and what ``ci`` is about."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pinwarden.project.policy_commands import DEFAULT_POLICY
from tests.cli.configured_world import ConfiguredWorld, harmless

FLOATING: dict[str, Any] = {"command": "npx", "args": ["-y", "@acme/notes"]}
EXACT: dict[str, Any] = {"command": "npx", "args": ["-y", "@acme/notes@1.0.0"]}


@pytest.fixture
def world(tmp_path: Path) -> ConfiguredWorld:
    return ConfiguredWorld(tmp_path)


def policy_file(world: ConfiguredWorld) -> Path:
    return world.root / "pinwarden.toml"


class TestDefaultPolicy:
    def test_ci_fails_on_a_floating_version_until_it_is_pinned_or_the_policy_allows_it(
        self, world: ConfiguredWorld
    ) -> None:
        world.configure(notes=FLOATING)
        outcome = world.run("init")
        assert outcome.code == 0
        assert "note: pinwarden.toml written: ci fails on servers without an exact release" in outcome.out
        code, report = world.run_json("ci")
        assert (code, [row["code"] for row in report["failures"]]) == (1, ["floating_release"])
        assert report["failures"][0]["message"].endswith("Pin them: pinwarden pin")
        file = policy_file(world)
        file.write_text(file.read_text().replace("exact-releases = true", "exact-releases = false"))
        assert world.run("ci").code == 0

    @pytest.mark.parametrize("name", ["pinwarden.toml", ".toolpin/policy.json"])
    def test_a_policy_that_exists_is_kept(self, world: ConfiguredWorld, name: str) -> None:
        text = '{"version": 1}\n' if name.endswith("json") else '[policy.servers]\ndeny = ["other"]\n'
        (world.root / name).parent.mkdir(exist_ok=True)
        (world.root / name).write_text(text)
        world.configure(notes=FLOATING)
        assert world.run_json("init")[1]["policy"] is None
        assert (world.root / name).read_text() == text
        assert policy_file(world).exists() == (name == "pinwarden.toml")

    def test_a_link_in_place_of_the_policy_is_not_followed(self, world: ConfiguredWorld) -> None:
        """Attack: a repository has a link, so that the first init writes a file elsewhere."""
        policy_file(world).symlink_to(world.home / "elsewhere")
        world.configure(now=harmless())
        assert world.run_json("init")[1]["policy"] is None
        assert not (world.home / "elsewhere").exists()

    def test_a_policy_that_was_removed_is_not_written_again(self, world: ConfiguredWorld) -> None:
        world.configure(now=harmless())
        assert world.run_json("init")[1]["policy"] == "pinwarden.toml"
        assert policy_file(world).read_text() == DEFAULT_POLICY
        policy_file(world).unlink()
        world.configure(now=harmless(), later=harmless("later"))
        assert world.run("init", "--accept-all").code == 0
        assert not policy_file(world).exists()

    def test_the_servers_of_a_user_get_no_policy(self, world: ConfiguredWorld) -> None:
        world.configure_user(now=harmless())
        assert world.run("init").code == 0
        assert list(world.home.rglob("pinwarden.toml")) == []
        assert not policy_file(world).exists()

    def test_policy_init_replaces_it_without_force(self, world: ConfiguredWorld) -> None:
        world.configure(now=harmless())
        world.run("init")
        assert world.run("policy", "init", "--recommended").code == 0
        assert "minimum-tier" in policy_file(world).read_text()
        assert "[FILE_EXISTS]" in world.run("policy", "init").err

    def test_a_signature_covers_it_and_reveals_a_change(self, world: ConfiguredWorld) -> None:
        world.configure(notes=EXACT)
        world.run("init")
        world.run("keygen", "ada")
        assert world.run("lock", "sign", "--dsse", "--key", "ada").code == 0
        assert world.run("lock", "verify-signature", "--public-key", "ada.pub").code == 0
        assert world.run("ci", "--public-key", "ada.pub").code == 0
        file = policy_file(world)
        file.write_text(file.read_text().replace("exact-releases = true", "exact-releases = false"))
        assert world.run("lock", "verify-signature", "--public-key", "ada.pub").code == 1
        assert world.run("ci", "--public-key", "ada.pub").code == 1


class TestScope:
    def git(self, world: ConfiguredWorld, *words: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *identity, *words], cwd=world.root, check=True, capture_output=True)

    def test_the_files_to_commit_are_named_in_a_command_that_works(self, world: ConfiguredWorld) -> None:
        (world.root / ".git").rmdir()
        self.git(world, "init", "--quiet")
        world.configure(now=harmless())
        (world.root / ".cursor").mkdir()
        (world.root / ".cursor" / "mcp.json").write_text((world.root / ".mcp.json").read_text())
        (world.root / ".gitignore").write_text(".cursor/\n")
        outcome = world.run("init", "--allow-execute")
        (line,) = [line for line in outcome.out.splitlines() if line.startswith("Commit: ")]
        assert line == "Commit: git add mcp-lock.json mcp-lock.surfaces pinwarden.toml .mcp.json"
        self.git(world, *shlex.split(line)[2:])
        self.git(world, "commit", "--quiet", "--message", "x")
        assert "Commit: " not in world.run("init").out

    def test_the_lock_of_the_user_is_named_and_ci_says_what_it_did_not_check(self, world: ConfiguredWorld) -> None:
        world.configure(notes=EXACT)
        world.configure_user(own=harmless())
        sentence = "Your own servers are locked in ~/.config/pinwarden/mcp-lock.json, outside the repository."
        assert sentence in world.run("init").out
        assert sentence in world.run("status").out
        notes = world.run_json("ci")[1]["notes"]
        assert "0 of 1 server enforced (started through pinwarden run)" in notes
        assert "1 server of your own not checked: ci is about the project (--scope user checks yours)" in notes
        assert world.run("ci", "--scope", "user").code == 0
