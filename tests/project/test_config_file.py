"""``config check`` and ``config explain`` read ``pinwarden.toml`` as a whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.run import Outcome, pinwarden

IDENTITY = """\
[identity]
issuer = "https://login.example.com"
[identity.clients]
url = "https://mcp.example.com"
"""


def config(folder: Path, text: str, *words: str) -> Outcome:
    (folder / "pinwarden.toml").write_text(text)
    return pinwarden("config", *words, cwd=folder)


def explained(folder: Path, text: str) -> dict[str, tuple[str, str]]:
    answer: dict[str, Any] = json.loads(config(folder, text, "explain", "--json").out)
    return {row["key"]: (row["value"], row["from"]) for row in answer["settings"]}


def test_every_mistake_is_found_in_one_run(tmp_path: Path) -> None:
    text = '[policy]\nminimum-teir = "verified"\n[identity]\nissuer = "x"\n[remotes.notes]\naccount = "all"\n'
    done = config(tmp_path, text, "check", "--json")
    tables = [problem["table"] for problem in json.loads(done.out)["problems"]]
    shown = config(tmp_path, text, "check").out
    assert (done.code, tables) == (1, ["[policy]", "[identity]", "[remotes]"])
    assert [word in shown for word in ("minimum-teir", "identity", "remotes.notes.account", "3 problems")] == [True] * 4


@pytest.mark.parametrize("text", ["", '[policy]\nminimum-tier = "verified"\n', IDENTITY])
def test_a_file_without_mistakes_is_valid(tmp_path: Path, text: str) -> None:
    done = config(tmp_path, text or '[policy]\nminimum-tier = "conditional"\n', "check")
    assert (done.code, "valid" in done.out) == (0, True)


def test_a_secret_that_is_only_on_the_server_is_not_needed_for_the_check(tmp_path: Path) -> None:
    login = (
        IDENTITY + '[identity.login]\nclient-id = "d"\nclient-secret-variable = "S"\n[identity.roles]\nadmin = ["a"]\n'
    )
    assert config(tmp_path, login, "check").code == 0


def test_attack_a_misspelled_table_does_not_silently_not_apply(tmp_path: Path) -> None:
    """A table ``[polcy]`` beside a valid one would otherwise have no effect and no message."""
    text = '[policy]\nminimum-tier = "verified"\n[polcy.gateway]\nenforcement = "block"\n'
    (tmp_path / "pinwarden.toml").write_text(text)
    for words in (("config", "check"), ("policy", "digest"), ("ci",)):
        done = pinwarden(*words, cwd=tmp_path)
        assert done.code in (1, 3), words
        assert "polcy is not a known table" in done.out + done.err


def test_defaults_and_settings_of_the_file_are_told_apart(tmp_path: Path) -> None:
    rule = '[[policy.gateway.rules]]\nserver = "notes"\nrate = "3/minute"\n'
    settings = explained(tmp_path, f"[policy.gateway]\nrelist-seconds = 5\n{rule}")
    assert settings["policy.gateway.relist-seconds"] == ("5", "file")
    assert settings["policy.gateway.enforcement"] == ("block", "default")
    assert settings["policy.gateway.rules[0].rate"] == ("3/minute", "file")


def test_without_a_file_the_defaults_are_shown(tmp_path: Path) -> None:
    done = pinwarden("config", "explain", "--json", cwd=tmp_path)
    assert {row["from"] for row in json.loads(done.out)["settings"]} == {"default"}


def run_without_pyjwt(folder: Path, *words: str) -> tuple[int, str]:
    """Run a command as in an installation without the extra ``identity``."""
    script = (
        f"import sys; sys.modules['jwt'] = None\nfrom pinwarden.cli.main import main; sys.exit(main({list(words)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stderr


def test_a_comment_about_remotes_needs_no_optional_package(tmp_path: Path) -> None:
    """The policy that ``policy init`` writes has such comments."""
    assert pinwarden("policy", "init", cwd=tmp_path).code == 0
    assert "remotes" in (tmp_path / "pinwarden.toml").read_text()
    code, err = run_without_pyjwt(tmp_path, "status")
    assert (code, err) == (0, "")


def test_a_command_without_its_optional_package_names_the_extra(tmp_path: Path) -> None:
    code, err = run_without_pyjwt(tmp_path, "remote", "list")
    assert (code, "needs the package jwt" in err, 'pip install ".[identity]"' in err) == (2, True, True)


@pytest.mark.parametrize("also", [False, True])
def test_setup_is_not_clean_if_a_file_of_a_client_cannot_be_read(tmp_path: Path, also: bool) -> None:
    (tmp_path / ".mcp.json").write_text("{broken")
    if also:
        (tmp_path / ".cursor").mkdir()
        (tmp_path / ".cursor" / "mcp.json").write_text('{"mcpServers": {}}')
    done = pinwarden("setup", "--yes", "--scope", "project", cwd=tmp_path, env={"HOME": str(tmp_path / "home")})
    assert (done.code, ".mcp.json could not be read" in done.err) == (3, True)
