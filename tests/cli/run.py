"""Run the command line the way a user does: as its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.cli import zygote


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


def pinwarden(
    *arguments: str, stdin: bytes = b"", cwd: Path | None = None, env: dict[str, str] | None = None
) -> Outcome:
    """Run ``pinwarden`` with these arguments, in the environment of the tests and these variables."""
    return pinwarden_in({**os.environ, **(env or {})}, *arguments, stdin=stdin, cwd=cwd)


def pinwarden_in(environment: dict[str, str], *arguments: str, stdin: bytes = b"", cwd: Path | None = None) -> Outcome:
    """Run ``pinwarden`` in exactly this environment."""
    if zygote.can_run(environment):
        code, out, err = zygote.run(arguments, cwd, environment, stdin)
        return Outcome(code=code, out=out.decode(), err=err.decode())
    done = subprocess.run(
        [sys.executable, "-m", "pinwarden", *arguments],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        env=environment,
        timeout=240,
        check=False,
    )
    return Outcome(code=done.returncode, out=done.stdout.decode(), err=done.stderr.decode())
