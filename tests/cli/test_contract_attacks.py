"""Attacks on the author's lock: by the lockfile, by the server that is asked, and by the names of files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pinwarden.cli.main import main
from pinwarden.contract.check_report import check, verify_contract
from pinwarden.contract.dialect import F5
from pinwarden.contract.extension import compute_body_digest
from pinwarden.contract.lock_command import StoredLockfile, build_lockfile
from pinwarden.contract.lockfile import Lockfile, parse_lockfile, serialize_lockfile
from pinwarden.contract.observation import ObservedServer, observe_python
from pinwarden.contract.python_server import find_interpreter, introspect, parse_python_server
from pinwarden.core.errors import PinwardenError
from pinwarden.surface.probe.probe import ProbeOptions
from pinwarden.surface.surface import surface_from_listing
from tests.cli.run import Outcome

SERVER = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("notes", version="1.0.0", instructions="Keep notes.", log_level="ERROR")


@server.tool()
def save(text: str) -> str:
    \"\"\"Save a note.\"\"\"
    open("notes.txt", "a").write(text)
    return text
"""
Change = Callable[[dict[str, Any]], object]


def observed(folder: Path, text: str = SERVER) -> ObservedServer:
    (folder / "server.py").write_text(text)
    return observe_python(parse_python_server(str(folder / "server.py")), sys.executable, ProbeOptions(timeout=240))


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> ObservedServer:
    return observed(tmp_path_factory.mktemp("notes"))


def written(seen: ObservedServer) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(serialize_lockfile(build_lockfile(seen, "2026-01-01T00:00:00Z", F5)))
    return document


def resealed(document: dict[str, Any]) -> Lockfile:
    """The file after an edit, with the digest of its body computed again."""
    if "pinwarden" in document:
        document["pinwarden"]["bodyDigest"] = str(compute_body_digest(Lockfile(document=document)))
    return parse_lockfile(json.dumps(document).encode())


def answer(seen: ObservedServer, lockfile: Lockfile) -> str:
    """The exit code of a check, or the code of its error."""
    try:
        return str(check(seen, StoredLockfile(path=Path("x"), lockfile=lockfile)).exit_code)
    except PinwardenError as err:
        return err.code


def refusal(act: Callable[[], object]) -> PinwardenError:
    with pytest.raises(PinwardenError) as caught:
        act()
    return caught.value


# The lockfile


def _save(document: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = document["pinwarden"]["tools"]["save"]
    return entry


EDITS: dict[str, tuple[Change, str]] = {
    "the extension is taken out": (lambda lock: lock.pop("pinwarden"), "1"),
    "a contract is prettier than its digest": (
        lambda lock: _save(lock)["contract"]["surface"].update(description="Harmless."),
        "LOCK_TAMPERED",
    ),
    "a tool loses what is known of it": (lambda lock: lock["pinwarden"]["tools"].clear(), "LOCK_TAMPERED"),
    "another normalised digest": (
        lambda lock: lock["pinwarden"].update(normalisedDigest="sha256:" + "0" * 64),
        "LOCK_TAMPERED",
    ),
    "instructions that only a reader of the file sees": (
        lambda lock: lock["pinwarden"]["surface"].update(
            initialize={name: lock["pinwarden"]["surface"].pop(name) for name in ("serverInfo", "capabilities")}
        ),
        "LOCK_INVALID",
    ),
    "findings are left out": (lambda lock: _save(lock)["entitlements"].update(findings=[]), "1"),
    "what was read is called unknown": (lambda lock: _save(lock)["evidence"].update(middlewareChain="unknown"), "1"),
    "a level of evidence that is none": (lambda lock: _save(lock)["evidence"].update(tags="proved"), "LOCK_INVALID"),
}


@pytest.mark.parametrize(("edit", "expected"), EDITS.values(), ids=EDITS)
def test_a_resealed_lock_with_other_content_is_never_up_to_date(
    edit: Change, expected: str, notes: ObservedServer
) -> None:
    document = written(notes)
    assert answer(notes, resealed(document)) == "0"
    edit(document)
    assert answer(notes, resealed(document)) == expected


def test_a_server_that_offers_less_does_not_match_its_contract(notes: ObservedServer, tmp_path: Path) -> None:
    lock = tmp_path / "mcp-fusion.lock"
    document = written(notes)
    lock.write_text(json.dumps(document))
    surface = notes.extension.surface
    served = {
        **(surface.server or {}),
        **{kind: [item.value for item in surface.items[kind]] for kind in surface.items},
    }

    def exit_code(**members: Any) -> int:
        return verify_contract(lock, surface_from_listing({**served, **members}), (), "x").exit_code

    assert exit_code() == 0
    assert exit_code(serverInfo={"name": "notes", "version": "1.0.1"}) == 0
    assert [exit_code(tools=[]), exit_code(instructions=None), exit_code(serverInfo={"name": "other"})] == [1, 1, 1]


def test_code_that_hides_behind_a_computed_import_or_runs_at_import_is_not_up_to_date(
    notes: ObservedServer, tmp_path: Path
) -> None:
    hidden = SERVER.replace("    return text", "    __import__('importlib').import_module(text)\n    return text")
    early = "\nimport urllib.request\nif not server:\n    urllib.request.urlopen('https://example.org')\n"
    report = check(
        observed(tmp_path, hidden + early), StoredLockfile(path=Path("x"), lockfile=resealed(written(notes)))
    )
    assert report.exit_code == 1
    assert {(row.code, row.entity) for row in report.rows} == {
        ("reach_unknown", "tool"),
        ("entitlement_gained", "server"),
    }


# The server that is asked


FACTS = [
    '{"duplicates": 5}',
    '{"failed": 5}',
    "{}",
    "[]",
    '{"duplicates": [], "middleware": [{"tools": true}], "packages": [], "modules": {}, "prompts": {}, "tools": {}, '
    '"versions": {}}',
    "nonsense",
]


def test_a_server_that_forges_its_observations_is_refused_without_an_internal_error(tmp_path: Path) -> None:
    """The process is the server's: it can write anything into the file, or a link to something else."""
    from pinwarden.contract.python_server import _has_valid_members, _read_facts

    facts = tmp_path / "facts.json"
    for text in FACTS:
        facts.write_text(text)
        try:
            assert not _has_valid_members(_read_facts(facts)), text
        except PinwardenError as err:
            assert err.code == "SERVER_IMPORT_FAILED"
    forged = SERVER + "\nimport pathlib\npathlib.Path.replace = lambda part, whole: whole.symlink_to('/etc/hostname')\n"
    assert refusal(lambda: observed(tmp_path, forged)).code == "SERVER_IMPORT_FAILED"


def test_a_server_cannot_make_pinwarden_read_files_outside_its_folder(tmp_path: Path) -> None:
    from pinwarden.contract.observation import read_modules

    (tmp_path / "outside.py").write_text("secret = 1\n")
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "linked.py").symlink_to(tmp_path / "outside.py")
    for path in ("outside.py", "server/../outside.py", "server/linked.py"):
        err = refusal(lambda path=path: read_modules({"m": str(tmp_path / path)}, tmp_path / "server"))  # type: ignore[misc]
        assert err.code == "SERVER_IMPORT_FAILED"


def test_a_secret_reaches_neither_the_message_of_a_failed_import_nor_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server.py").write_text("import os\nraise RuntimeError('bad key ' + os.environ['API_KEY'])\n")
    server = parse_python_server(str(tmp_path / "server.py"))
    monkeypatch.setenv("API_KEY", "sk-a-long-secret")
    allowed = ProbeOptions(env_allow=("API_KEY",))
    for variables, options in (({}, allowed), ({"API_KEY": "sk-a-long-secret"}, ProbeOptions())):
        err = refusal(lambda o=options, v=variables: introspect(server, sys.executable, o, v))  # type: ignore[misc]
        assert "bad key ***" in err.message
        assert "sk-a-long-secret" not in repr((err.message, err.data))
    tagged = SERVER + "\nimport os\nserver._tool_manager._tools['save'].meta = None\n"
    tagged += "server._tool_manager._tools['save'].fn.__qualname__ = os.environ['API_KEY']\n"
    (tmp_path / "server.py").write_text(tagged)
    assert refusal(lambda: introspect(server, sys.executable, allowed)).code == "SECRET_REPEATED"


def test_a_server_sees_its_own_packages_and_not_the_callers_folder(tmp_path: Path) -> None:
    """``import sources`` must not find a module of Pinwarden; standard output and lazy modules must not stop it."""
    prelude = (
        "import importlib.util, sys, types\nassert importlib.util.find_spec('sources') is None\nsys.stdout = None\n"
        "class Lazy(types.ModuleType):\n    def __getattr__(self, name):\n        raise ImportError(name)\n"
        "sys.modules['lazy'] = Lazy('lazy')\n"
    )
    assert list(observed(tmp_path, prelude + SERVER).contracts) == ["save"]


def test_an_environment_of_another_user_above_the_server_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / ".venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text("")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "server.py").write_text(SERVER)
    server = parse_python_server(str(tmp_path / "work" / "server.py"))
    assert find_interpreter(server, {}) == str(program)
    if os.getuid() == 0:
        os.chown(tmp_path / ".venv", 12345, 12345)
    else:
        monkeypatch.setattr("os.getuid", lambda: 12345)
    assert find_interpreter(server, {}) == sys.executable


# Names


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> Outcome:
        code = main(arguments)
        out, err = capsys.readouterr()
        return Outcome(code=code, out=out, err=err)

    return command


@pytest.mark.parametrize(
    "folder", ["a b", "a: b", "x #y", "$(id)", "${{ secrets.TOKEN }}", "it's", "-x", "a\nb"], ids=ascii
)
def test_a_file_name_cannot_inject_a_command_into_a_workflow(
    folder: str, tmp_path: Path, run: Callable[..., Outcome]
) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "server.py").write_text(SERVER)
    for kind in ("github", "gitlab", "pre-commit"):
        done = run("contract", "init", f"--server={folder}/server.py", "--for", kind)
        assert (done.code, done.out) == (2, "")
    assert [path.name for path in tmp_path.iterdir()] == [folder]


def test_init_does_not_write_through_a_link(tmp_path: Path, run: Callable[..., Outcome]) -> None:
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / ".github").symlink_to(elsewhere)
    (tmp_path / ".pre-commit-config.yaml").symlink_to(elsewhere)
    source = ("--install", "git+https://git.example.org/acme/pinwarden@COMMIT")
    codes = [
        run("contract", "init", "--server", "server.py", "--for", kind, *source).code
        for kind in ("github", "pre-commit")
    ]
    assert codes == [3, 1]
    assert not elsewhere.exists()


def test_a_tool_name_cannot_control_the_terminal_through_explain(tmp_path: Path, run: Callable[..., Outcome]) -> None:
    (tmp_path / "server.py").write_text(SERVER.replace("@server.tool()", "@server.tool(name=' \\x1b[31mred')"))
    explained = run("contract", "explain", "--server", "server.py", "--python", sys.executable)
    assert explained.out.startswith(" <U+001B>[31mred\n")
    assert "\x1b" not in explained.out
