"""A command line that starts slowly is not used: which modules the light commands may load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Everything that costs more than a few milliseconds to import.
HEAVY = {
    "argparse",
    "asyncio",
    "cryptography",
    "dataclasses",
    "hashlib",
    "httpx",
    "json",
    "mcp",
    "orjson",
    "pydantic",
    "re",
    "subprocess",
    "typing",
    "urllib3",
}

PROBE = """
import sys
before = set(sys.modules)
from pinwarden.cli.main import main
try:
    main(sys.argv[1:])
finally:
    sys.stderr.write("\\n".join(sorted(set(sys.modules) - before)))
"""


def modules_after(*arguments: str, folder: Path | None = None) -> set[str]:
    env = {"HOME": str(folder)} if folder else None
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], capture_output=True, check=True, cwd=folder, env=env
    )
    return {name.split(".")[0] for name in done.stderr.decode().split()}


def test_version_loads_only_its_own_module() -> None:
    loaded = modules_after("--version")
    assert loaded & HEAVY == set()
    assert loaded == {"__future__", "pinwarden"}


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_help_loads_neither_encoders_nor_cryptography(arguments: tuple[str, ...]) -> None:
    assert modules_after(*arguments) & HEAVY <= {"argparse", "re", "typing"}


def test_importing_the_package_loads_nothing() -> None:
    code = "import sys; before = set(sys.modules); import pinwarden; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert set(done.stdout.decode().split()) == {"__future__", "pinwarden"}


def test_canonicalizing_loads_no_cryptography_and_no_network() -> None:
    code = "import sys, pinwarden; pinwarden.canonicalize({}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert not {"cryptography", "urllib3", "asyncio", "mcp"} & set(done.stdout.decode().split())


def test_a_plain_ci_run_loads_no_dataclasses_no_fast_encoder_and_no_network(tmp_path: Path) -> None:
    lock = Path(__file__).parents[1] / "vectors/toolpin/locks/npm.claude.mcp-lock.json"
    (tmp_path / "mcp-lock.json").write_bytes(lock.read_bytes())
    assert modules_after("ci", folder=tmp_path) & HEAVY <= {"argparse", "hashlib", "json", "re", "typing"}


@pytest.mark.parametrize("words", [("ci",), ("run", "--name", "x", "--", sys.executable, "-c", "pass")])
def test_ci_and_run_load_nothing_about_identities(words: tuple[str, ...], tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "PATH": "", "PINWARDEN_STATE": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *words],
        capture_output=True,
        check=False,
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    loaded = set(done.stderr.decode().split())
    assert "pinwarden.cli.main" in loaded
    assert {name for name in loaded if name.startswith(("pinwarden.identity", "jwt"))} == set()


def test_a_run_without_fleet_and_postgresql_loads_nothing_of_them(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    words = [sys.executable, "-c", PROBE, "run", "--", "true"]
    done = subprocess.run(
        words, capture_output=True, check=False, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, timeout=60
    )
    loaded = set(done.stderr.decode().split())
    assert "pinwarden.gateway.stdio" in loaded, done.stderr
    unused = {"psycopg", "urllib3", "pinwarden.system.change_feed", "pinwarden.system.postgresql"}
    assert not loaded & (unused | {"pinwarden.gateway.fleet_client", "pinwarden.gateway.published_lock"})
