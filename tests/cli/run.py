"""Run the command line the way a user does: as its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


def pinwarden(
    *arguments: str, stdin: bytes = b"", cwd: Path | None = None, env: dict[str, str] | None = None
) -> Outcome:
    """Run ``pinwarden`` with these arguments."""
    done = subprocess.run(
        [sys.executable, "-m", "pinwarden", *arguments],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        timeout=120,
        check=False,
    )
    return Outcome(code=done.returncode, out=done.stdout.decode(), err=done.stderr.decode())
