"""Every command in the guides runs, in the order in which a reader meets them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from pinwarden.bundle import acceptance
from pinwarden.bundle.platforms import detect_platform, detect_python
from pinwarden.install import decision
from pinwarden.project.bundle_packages import Target, list_tags
from tests.cli.run import pinwarden_in
from tests.registry.replica import Replica
from tests.servers.acme_packages import acme_registries
from tests.support.wheels import package_index

REPOSITORY = Path(__file__).resolve().parents[2]
GUIDES = [path for folder in ("guides", "roles") for path in sorted((REPOSITORY / "docs" / folder).glob("*.md"))]


NEEDS_REGISTRIES = "prove-and-run"
NEEDS_REAL_PACKAGES = "pack-servers"
NEEDS_A_REGISTRY = ("registry", "registry-operator", "install", "skills", NEEDS_REAL_PACKAGES)
SERVED = "http://127.0.0.1:8470"
LOCAL = {"command": "python3", "args": ["examples/notes_server.py"]}
PACKAGED = {"command": "npx", "args": ["-y", "@acme/notes@1.0.0"]}
OSV = {
    "id": "X-1",
    "modified": "2026-01-01T00:00:00Z",
    "affected": [{"package": {"ecosystem": "npm", "name": "other"}}],
}


@pytest.mark.parametrize("guide", GUIDES, ids=[guide.stem for guide in GUIDES])
def test_every_command_of_the_guide_runs(guide: Path, tmp_path: Path) -> None:
    """Blocks marked ``sh`` are run; blocks without a mark are examples that need a server of the reader's own."""
    project = tmp_path / "project"
    (project / "osv-export").mkdir(parents=True)
    (project / "osv-export" / "X-1.json").write_text(json.dumps(OSV))
    for name in ("tests", "examples"):
        (project / name).symlink_to(REPOSITORY / name)
    with ExitStack() as stack:
        environment = {"HOME": str(tmp_path), "PINWARDEN_STORE": str(tmp_path / "store")}
        if guide.stem == NEEDS_REGISTRIES:
            wheels = tmp_path / "wheels"
            wheels.mkdir()
            environment |= stack.enter_context(acme_registries(wheels)).variables
        if guide.stem == NEEDS_REAL_PACKAGES:
            del environment["PINWARDEN_STORE"]  # the default one is in the home folder, which probed servers know
            environment |= stack.enter_context(real_packages(tmp_path / "wheels"))
        address = SERVED
        if guide.stem in NEEDS_A_REGISTRY:
            probing = ("--probe", "required") if guide.stem == NEEDS_REAL_PACKAGES else ()
            replica = Replica(*probing, env=environment)
            stack.callback(replica.kill)
            address = replica.url.rstrip("/")
        notes = PACKAGED if guide.stem == NEEDS_REGISTRIES else LOCAL
        servers: dict[str, Any] = {} if guide.stem == NEEDS_REAL_PACKAGES else {"notes": notes}
        (project / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
        commands = _commands(guide)
        assert commands
        for command in commands:
            printed = _run(command.replace(SERVED, address), project, environment)
            if command.startswith("cp -r examples/packed/python"):
                (project / "units/pylock.toml").write_text(lock_wheels(tmp_path / "wheels", environment["WHEELS"]))
            if command.startswith("pinwarden registry token add"):
                environment["PINWARDEN_REGISTRY_TOKEN"] = printed.strip()
        if guide.stem == NEEDS_REAL_PACKAGES:
            assert call_tool("acme.units", "convert_temperature", {"celsius": 100}, project, environment) == "212.0 °F"
            assert 3 <= int(call_tool("acme.dice", "roll_dice", {"dice": 3}, project, environment)) <= 18


@contextmanager
def real_packages(folder: Path) -> Iterator[dict[str, str]]:
    """Serve the Python SDK and what it needs, from the index that pip is configured with; name npm's own settings."""
    folder.mkdir()
    tags = [tag.platform for tag in list_tags(Target(platform=detect_platform(), python=detect_python()))]
    platforms = [word for tag in dict.fromkeys(tags) if tag != "any" for word in ("--platform", tag)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", *platforms]
    subprocess.run(
        [*command, "-d", str(folder), f"mcp=={version('mcp')}"], check=True, capture_output=True, timeout=240
    )
    home = Path.home()
    npm = {"NPM_CONFIG_CACHE": str(home / ".npm"), "NPM_CONFIG_PREFER_OFFLINE": "true"}
    if (home / ".npmrc").is_file():
        npm["NPM_CONFIG_USERCONFIG"] = str(home / ".npmrc")
    with package_index(folder) as url:
        yield {**npm, "UV_DEFAULT_INDEX": url, "WHEELS": url.replace("/simple/", "/packages/")}


def lock_wheels(folder: Path, url: str) -> str:
    """Lock these wheels: the index has them for this platform only, so uv cannot resolve for all platforms from it."""
    text = 'lock-version = "1.0"\ncreated-by = "a test"\n'
    for wheel in sorted(folder.glob("*.whl")):
        name, release = wheel.name.split("-")[:2]
        sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
        text += f'[[packages]]\nname = "{name.replace("_", "-").lower()}"\nversion = "{release}"\n[[packages.wheels]]\n'
        text += f'url = "{url}{wheel.name}"\nhashes = {{ sha256 = "{sha256}" }}\n'
    return text


def call_tool(server: str, tool: str, arguments: dict[str, Any], project: Path, environment: dict[str, str]) -> str:
    """Call a tool of an installed server, as a client does."""
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    called = {"name": tool, "arguments": arguments}
    command = [sys.executable, "-m", "pinwarden", "run", server]
    with subprocess.Popen(
        command, cwd=project, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        for number, (method, params) in enumerate((("initialize", about), ("tools/call", called))):
            request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            started.stdin.write(json.dumps(request).encode() + b"\n")
            started.stdin.flush()
            answer = json.loads(started.stdout.readline())
            started.stdin.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n' if number == 0 else b"")
        started.stdin.close()
        text: str = answer["result"]["content"][0]["text"]
        started.wait(60)
    return text


def _commands(guide: Path) -> list[str]:
    text = guide.read_text(encoding="utf-8")
    return [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]


def _run(command: str, project: Path, environment: dict[str, str]) -> str:
    words = shlex.split(command, comments=True)
    if not words:
        return ""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, **environment}
    if words[0] == "pinwarden":
        outcome = pinwarden_in(variables, *words[1:], cwd=project)
        allowed = (0,) if "WHEELS" in environment else (0, 1)
        assert outcome.code in allowed, f"{command}\n{outcome.err}{outcome.out}"
        assert "Traceback" not in outcome.err
        return outcome.out
    done = subprocess.run(
        words,
        cwd=project,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert done.returncode in (0, 1), f"{command}\n{done.stderr.decode()}"
    assert done.returncode == 0 or "PINWARDEN_REGISTRY_TOKEN" not in environment, command
    assert b"Traceback" not in done.stderr
    return done.stdout.decode()


def test_the_guide_quotes_the_checks_of_install_as_they_are_printed() -> None:
    checks = {
        **{str(step.number): step.check for step in acceptance.STEPS},
        str(acceptance.LAST_STEP): decision.ACCEPTED_CHECK,
    }
    added = (decision.LOG_CHECK, decision.BYTES_CHECK)
    quoted = re.findall(
        r"^note: (\S)  passed +(.*)$", (REPOSITORY / "docs/guides/install.md").read_text(), re.MULTILINE
    )
    assert [mark for mark, _ in quoted] == [*"12345678", "+", "+", "9"]
    for mark, text in quoted:
        expected = (checks[mark],) if mark in checks else added
        assert text.startswith(expected), text
