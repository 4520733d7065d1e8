"""The example service starts, and the reference lists every page and variable."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

from pinwarden import parse_json, tool_digest
from tests.cli.run import pinwarden_in
from tests.servers.authority import Authority

REPOSITORY = Path(__file__).resolve().parents[2]
REFERENCE = REPOSITORY / "docs" / "reference"
UNIT = REPOSITORY / "deploy" / "pinwarden-gateway.service"


def options(name: str) -> list[str]:
    """What the unit says under a name, as often as it does."""
    lines = UNIT.read_text(encoding="utf-8").splitlines()
    return [value for line in lines for key, _, value in [line.partition("=")] if key == name]


def test_the_command_of_the_service_serves_a_locked_server(tmp_path: Path) -> None:
    project = tmp_path / "etc" / "pinwarden"
    (project / "tls").mkdir(parents=True)
    server = {"command": "python3", "args": [str(REPOSITORY / "examples" / "notes_server.py")]}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"notes": server}}))
    authority = Authority(tmp_path)
    authority.server("127.0.0.1")
    for name in ("cert.pem", "key.pem"):
        (project / "tls" / name).write_bytes((tmp_path / "server-127.0.0.1.pem").read_bytes())
    environment = dict(line.partition("=")[::2] for line in _moved(options("Environment"), tmp_path))
    assert environment.keys() == {"HOME", "PINWARDEN_STATE", "PINWARDEN_STORE"}
    locked = pinwarden_in(environment, "init", "--scope", "project", "--allow-execute", cwd=project)
    assert locked.code == 0, locked.err
    (command,) = options("ExecStart")
    program, *words = _moved(shlex.split(command), tmp_path)
    assert program.endswith("/bin/pinwarden")
    words[words.index("--listen") + 1] = "127.0.0.1:0"
    checked = pinwarden_in(environment, *words, "--check", "--allow-execute", cwd=project)
    assert (checked.code, "notes" in checked.out) == (0, True), checked.err


def _moved(words: list[str], root: Path) -> list[str]:
    """The same with folders of the system below another one."""
    return [re.sub(r"(?<![\w.])/(etc|var)/", rf"{root}/\1/", word) for word in words]


def test_the_digest_in_the_policy_example_is_that_of_the_example_server(tmp_path: Path) -> None:
    guide = (REPOSITORY / "docs" / "guides" / "gateway.md").read_text(encoding="utf-8")
    table = next(each for each in re.findall(r"```toml\n(.*?)```", guide, re.DOTALL) if "policy.gateway.allow" in each)
    (allowed,) = tomllib.loads(table)["policy"]["gateway"]["allow"]
    words = ("inspect", "--allow-execute", "--format", "json", "--", "python3", "examples/notes_server.py")
    listed = parse_json(pinwarden_in({"HOME": str(tmp_path)}, *words, cwd=REPOSITORY).out.encode())
    (tool,) = [each for each in listed["surface"]["tools"] if each["name"] == allowed["tool"]]
    assert str(tool_digest(tool)) == allowed["digest"]


def test_every_page_of_the_reference_is_in_its_index() -> None:
    index = (REFERENCE / "README.md").read_text(encoding="utf-8")
    pages = {path.name for path in REFERENCE.glob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"\]\(([\w-]+\.md)\)", index))


def test_the_page_of_variables_lists_exactly_the_variables_in_the_code() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "src").rglob("*.py"))
    page = (REFERENCE / "environment.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(PINWARDEN_[A-Z_]+)` \|", page, re.MULTILINE))
    assert listed == {name for name in re.findall(r"PINWARDEN_[A-Z_]+", sources) if not name.endswith("_")}
