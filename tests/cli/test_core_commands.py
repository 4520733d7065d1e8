"""canonicalize, digest and cid, as a user meets them: also with wrong arguments and hostile files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pinwarden import __version__, document_cid, tool_digest
from tests.cli.run import pinwarden

TIME = Path(__file__).parents[1] / "vectors" / "real-servers" / "mcp-server-time@2026.10.19.json"


def test_version_is_printed() -> None:
    outcome = pinwarden("--version")
    assert (outcome.code, outcome.out, outcome.err) == (0, f"pinwarden {__version__}\n", "")


def test_help_lists_every_command_and_the_exit_codes() -> None:
    for arguments in ((), ("--help",), ("help",)):
        outcome = pinwarden(*arguments)
        assert outcome.code == 0
        exit_codes = (
            "Exit codes: 0 everything is as expected, 1 something changed or was refused, 2 the command line is wrong, "
            "3 a check could not be completed"
        )
        assert exit_codes in " ".join(outcome.out.split())
        for command in ("canonicalize", "digest", "cid"):
            assert f"  {command}" in outcome.out


def test_only_the_canonical_bytes_go_to_stdout() -> None:
    outcome = pinwarden("canonicalize", "-", "--profile", "rulebook", stdin=b'{"b": 1.0, "a": [ ]}')
    assert (outcome.code, outcome.out, outcome.err) == (0, '{"a":[],"b":1}', "")


def test_every_tool_of_a_listing_is_digested() -> None:
    outcome = pinwarden("digest", str(TIME), "--format", "json")
    tools = json.loads(TIME.read_bytes())["tools"]
    assert outcome.code == 0
    assert json.loads(outcome.out) == {
        "profile": "pinwarden",
        "tools": [{"name": tool["name"], "digest": str(tool_digest(tool))} for tool in tools],
    }


def test_one_undigestable_tool_is_named_and_does_not_hide_the_others(tmp_path: Path) -> None:
    listing = {"tools": [{"name": "good"}, {"name": "big", "inputSchema": {"maximum": 10**400}}, {"title": "no name"}]}
    (tmp_path / "list.json").write_text(json.dumps(listing))
    outcome = pinwarden("digest", "list.json", cwd=tmp_path)
    assert outcome.code == 1
    rows = outcome.out.splitlines()
    assert rows[0] == f"{tool_digest({'name': 'good'})}  'good'"
    assert rows[1].startswith("undigestable: an integer is beyond 2^53-1")
    assert rows[2] == "undigestable: the tool has no name  None"


def test_a_tool_name_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    """Attack: ANSI escape in a tool name repaints the line that a person approves."""
    (tmp_path / "list.json").write_text(json.dumps([{"name": "safe\x1b[2K\rgood\u202e"}]))
    outcome = pinwarden("digest", "list.json", cwd=tmp_path)
    assert outcome.out.endswith("'safe\\x1b[2K\\rgood\\u202e'\n")


def test_cids_of_documents_manifests_and_blobs(tmp_path: Path) -> None:
    (tmp_path / "doc.json").write_text('{"n": 1.0}')
    assert pinwarden("cid", "doc.json", cwd=tmp_path).out == f"{document_cid({'n': 1})}\n"
    assert pinwarden("cid", "doc.json", "--kind", "blob", cwd=tmp_path).out.startswith("bafkrei")
    assert pinwarden("cid", "doc.json", "--kind", "manifest-root", cwd=tmp_path).code == 3


@pytest.mark.parametrize(
    ("arguments", "code", "name"),
    [
        (("digset",), 2, "USAGE"),
        (("--frobnicate",), 2, "USAGE"),
        (("digest",), 2, "USAGE"),
        (("digest", "a", "b"), 2, "USAGE"),
        (("digest", "none.json"), 3, "FILE_UNREADABLE"),
        (("digest", "."), 3, "FILE_UNREADABLE"),
        (("digest", "broken.json"), 3, "JSON_PARSE_ERROR"),
        (("digest", "twice.json"), 3, "JSON_CANONICALIZATION_ERROR"),
        (("canonicalize", "broken.json"), 3, "JSON_PARSE_ERROR"),
        (("canonicalize", "twice.json", "--profile", "none"), 2, "USAGE"),
        (("cid", "broken.json"), 3, "JSON_PARSE_ERROR"),
    ],
)
def test_errors_have_a_code_a_hint_and_the_right_exit_code(
    tmp_path: Path, arguments: tuple[str, ...], code: int, name: str
) -> None:
    (tmp_path / "broken.json").write_bytes(b'{"a":')
    (tmp_path / "twice.json").write_bytes(b'{"a":1,"a":2}')
    outcome = pinwarden(*arguments, cwd=tmp_path)
    assert outcome.code == code
    assert outcome.out == ""
    first, second = outcome.err.splitlines()
    assert first.startswith("error: ")
    assert first.endswith(f"[{name}]")
    assert second.startswith("hint: ")


def test_an_error_is_json_if_json_is_requested(tmp_path: Path) -> None:
    for arguments in (("digest", "none", "--format", "json"), ("digest", "--format=json")):
        outcome = pinwarden(*arguments, cwd=tmp_path)
        assert set(json.loads(outcome.out)["error"]) == {"code", "message", "hint", "data"}


@pytest.mark.parametrize(
    ("typed", "meant"), [("digets", "digest"), ("undo", "enforce --undo"), ("upgrade", "update"), ("accept", "approve")]
)
def test_an_unknown_command_is_answered_with_the_one_that_is_meant(typed: str, meant: str) -> None:
    assert f"did you mean {meant}?" in pinwarden(typed).err


def test_a_closed_pipe_prints_no_error_and_does_not_exit_clean(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text(json.dumps([{"name": f"tool-{n}"} for n in range(5000)]))
    command = f"{sys.executable} -m pinwarden digest list.json | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (3, b"")


def test_an_internal_error_is_reported_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pinwarden.cli.commands.digest import digest
    from pinwarden.cli.main import main

    def explode(_: object) -> int:
        raise RuntimeError("boom")

    monkeypatch.setattr(digest, "run", explode)
    assert main(["digest", str(TIME)]) == 3
    assert "error: RuntimeError: boom [INTERNAL]" in capsys.readouterr().err
    monkeypatch.setenv("PINWARDEN_DEBUG", "1")
    with pytest.raises(RuntimeError):
        main(["digest", str(TIME)])


def test_every_command_can_be_loaded_and_every_family_has_a_line_of_help() -> None:
    from pinwarden.cli.commands import COMMANDS, FAMILIES, TASKS, load_command

    assert [name for name in COMMANDS if not load_command(name).description] == []
    first_words = [name for names in TASKS.values() for name in names]
    assert len(first_words) == len(set(first_words))
    assert set(FAMILIES) == {name for name in first_words if name not in COMMANDS}
