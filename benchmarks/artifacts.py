"""Verifying the bytes of artifacts, compared with openssl on the same file."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Goal, compare, table
from pinwarden.system.files import file_digest

SIZE = 200_000_000
MIN_THROUGHPUT = 0.7
"""The required throughput, as a share of openssl's. The goal compares times, so its limit is the inverse of this."""


def hashing_report() -> str:
    openssl = shutil.which("openssl")
    if openssl is None:
        return "Verifying a file: openssl is not installed, so there is no baseline: NOT MET"
    with TemporaryDirectory() as folder:
        file = Path(folder) / "artifact"
        _write(file)

        def with_openssl() -> str:
            command = [openssl, "dgst", "-sha256", "-r", str(file)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            return done.stdout.partition(" ")[0]

        if with_openssl() != file_digest(file).hex:
            raise AssertionError("openssl computed another digest")
        rows = compare(
            {"openssl dgst -sha256": with_openssl, "pinwarden": lambda: file_digest(file)},
            baseline="openssl dgst -sha256",
            rounds=9,
        )
    speeds = ", ".join(f"{row.name} {SIZE / row.microseconds:.0f} MB/s" for row in rows)
    goal = Goal(name="pinwarden", against="openssl dgst -sha256", at_most=1 / MIN_THROUGHPUT)
    title = f"Verifying a file of {SIZE / 1e6:.0f} MB ({speeds}; at least {MIN_THROUGHPUT}x the throughput)"
    return table(title, rows, 1, [goal])


def _write(file: Path) -> None:
    block = random.Random(7).randbytes(1_000_000)
    with file.open("wb") as stream:
        for _ in range(SIZE // len(block)):
            stream.write(block)
