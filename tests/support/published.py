"""Published servers whose handlers were read by people: their wheels, from the index that this machine's pip uses.

Nothing of them is kept in this repository but the truth about them, and nothing of them is run.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pinwarden.contract.entitlements.values import Source

_FILE: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "assets/entitlements/truth.json").read_text(encoding="utf-8")
)
TRUTH: dict[str, Any] = _FILE["packages"]
FIRST: dict[str, Any] = _FILE["first_measurement"]
"""What the held-out part gave before anybody had seen it; afterwards it only shows whether we fall back."""


class IndexUnreachableError(Exception):
    """The index could not be asked."""


def wheels(names: Iterable[str], folder: Path) -> dict[str, Path]:
    """The pinned wheels, fetched into a folder; pip refuses other bytes than the truth was written for."""
    wanted = {name: TRUTH[name] for name in names}
    lines = [f"{name}=={each['version']} --hash=sha256:{each['sha256']}\n" for name, each in wanted.items()]
    (folder / "wanted.txt").write_text("".join(lines))
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--quiet"]
    command += ["--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(folder / "wanted.txt")]
    done = subprocess.run([*command, "-d", str(folder)], capture_output=True, text=True, check=False, timeout=240)
    if done.returncode:
        raise IndexUnreachableError(done.stderr)
    found = {name: folder / each["file"] for name, each in wanted.items()}
    for name, file in found.items():
        assert hashlib.sha256(file.read_bytes()).hexdigest() == wanted[name]["sha256"]
    return found


def sources(wheel: Path) -> dict[str, Source]:
    """The modules of a wheel, without its own tests."""
    found = {}
    with zipfile.ZipFile(wheel) as archive:
        for path in archive.namelist():
            parts = path.removesuffix(".py").split("/")
            if not path.endswith(".py") or any(part.startswith("test") or "." in part for part in parts):
                continue
            package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if package else parts)
            found[name] = Source(path=path, text=archive.read(path).decode(), package=package)
    return found


class Score:
    """How often a verdict agrees with the truth, entitlement by entitlement."""

    def __init__(self) -> None:
        self.right, self.wrong, self.missed = 0, 0, 0
        self.differences: list[str] = []

    def add(self, handler: str, expected: Iterable[str], told: Iterable[str]) -> None:
        """Count one handler."""
        truth, verdict = set(expected), set(told)
        self.right += len(truth & verdict)
        self.wrong += len(verdict - truth)
        self.missed += len(truth - verdict)
        self.differences += [f"{handler}: {kind} is not true" for kind in sorted(verdict - truth)]
        self.differences += [f"{handler}: {kind} was not found" for kind in sorted(truth - verdict)]

    @property
    def precision(self) -> float:
        """Of what was told, how much is true."""
        return self.right / (self.right + self.wrong)

    @property
    def recall(self) -> float:
        """Of what is true, how much was told."""
        return self.right / (self.right + self.missed)
