"""Published npm servers whose handlers were read by people: their packages, from the registry that npm uses here.

Nothing of them is kept in this repository but the truth about them, and nothing of them is run.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pinwarden.contract.entitlements.javascript.analysis import analyse_javascript
from pinwarden.contract.entitlements.values import Analysis
from pinwarden.contract.javascript_server import find_source_in_folder
from pinwarden.contract.javascript_worker import SourceFiles
from tests.support.published import IndexUnreachableError

_FILE: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "assets/entitlements/truth-javascript.json").read_text(encoding="utf-8")
)
NPM_TRUTH: dict[str, Any] = _FILE["packages"]
FIRST_NPM: dict[str, Any] = _FILE["first_measurements"]
"""What each set gave before anybody had seen it; afterwards it only shows whether we fall back."""


def packages(names: Iterable[str], folder: Path) -> dict[str, Path]:
    """The pinned packages, unpacked into a folder; other bytes than the truth was written for are refused."""
    wanted = {name: NPM_TRUTH[name] for name in names}
    specifiers = [f"{name}@{each['version']}" for name, each in wanted.items()]
    command = ["npm", "pack", "--silent", "--ignore-scripts", *specifiers]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=240)
    if done.returncode:
        raise IndexUnreachableError(done.stderr)
    found = {}
    for name, each in wanted.items():
        file = folder / each["file"]
        assert hashlib.sha256(file.read_bytes()).hexdigest() == each["sha256"], name
        target = folder / file.stem
        with tarfile.open(file) as archive:
            archive.extractall(target, filter="data")
        found[name] = next(path for path in target.iterdir() if (path / "package.json").is_file())
    return found


def analyse_package(folder: Path, tools: Iterable[str]) -> Analysis:
    """What the tools of an unpacked package can do."""
    source = find_source_in_folder(folder)
    assert source is not None
    with deep_recursion():
        return analyse_javascript(SourceFiles(source.folder), source.entries, {"tool": tools})


@contextmanager
def deep_recursion() -> Iterator[None]:
    """The recursion limit of the process in which the analysis usually runs."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
