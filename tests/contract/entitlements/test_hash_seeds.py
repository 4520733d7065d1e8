"""The same source gives the same answer in every process, whatever the order of its hashes and addresses."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

SEEDS = range(10)

ANALYSE = """
import sys
from pathlib import Path
from pinwarden.contract.observation import read_folder
from pinwarden.contract.entitlements.analysis import analyse, find_handlers

for folder in sys.argv[1:]:
    sources = read_folder(Path(folder))
    handlers = find_handlers(sources)
    found = analyse(sources, handlers)
    print(folder, handlers, found)
"""

HEAD = """
import os, subprocess
from functools import partial

import httpx, requests
from elsewhere import later
from mcp.server.fastmcp import FastMCP

mcp = FastMCP("seeds")


def quiet(number):
    return number


@mcp.tool()
def choose(flag: int) -> str:
    later(requests.get if flag else httpx.get if flag > 2 else requests.post if flag > 3 else httpx.post)


@mcp.tool()
def many(flag: str) -> str:
    step = None
"""
STEP = """
    if flag == "quiet{0}":
        step = partial(quiet, "{0}")
    if flag == "remove{0}":
        step = partial(os.remove, "{0}")
    if flag == "start{0}":
        step = partial(subprocess.run, "{0}")
"""
"""More things than one variable is followed for: which of them are dropped must not depend on the process."""


def _installed(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _answer(seed: int, *folders: Path) -> str:
    command = [sys.executable, "-c", ANALYSE, *map(str, folders)]
    env = {**os.environ, "PYTHONHASHSEED": str(seed)}
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=300).stdout


def test_the_same_source_has_the_same_entitlements_with_every_hash_seed(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(HEAD + "".join(STEP.format(number) for number in range(40)) + "    step()\n")
    folders = [tmp_path, _installed("mcp_server_git"), _installed("mcp_server_time")]
    with ThreadPoolExecutor(2) as pool:
        answers = set(pool.map(lambda seed: _answer(seed, *folders), SEEDS))
    assert len(answers) == 1
    answer = next(iter(answers))
    for part in ("requests.get", "a variable can stand for too many things", "git_commit", "get_current_time"):
        assert part in answer
