"""Wheels made by hand, and a real package index on loopback that serves a folder of them."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import subprocess
import sys
import time
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tests.support.needs import missing
from tests.support.ports import reserved_port


def wheel_name(name: str, version: str, tag: str = "py3-none-any") -> str:
    return f"{name.replace('-', '_')}-{version}-{tag}.whl"


def make_wheel(
    name: str,
    version: str,
    *,
    code: str = "",
    says: tuple[str, str] | None = None,
    headers: tuple[str, ...] = (),
    tag: str = "py3-none-any",
    more: Mapping[str, bytes] | None = None,
) -> bytes:
    """A wheel. ``says`` is the name and version that its METADATA has, where that is a lie."""
    stem = name.replace("-", "_")
    told = says or (name, version)
    lines = ["Metadata-Version: 2.1", f"Name: {told[0]}", f"Version: {told[1]}", *headers]
    content = {
        f"{stem}.py": code.encode(),
        **(more or {}),
        f"{stem}-{version}.dist-info/METADATA": ("\n".join(lines) + "\n").encode(),
        f"{stem}-{version}.dist-info/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    record = f"{stem}-{version}.dist-info/RECORD"
    rows = [f"{path},sha256={_short(data)},{len(data)}" for path, data in content.items()]
    content[record] = ("\n".join([*rows, f"{record},,"]) + "\n").encode()
    return make_zip(content)


def make_zip(content: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in content.items():
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _short(data: bytes) -> str:
    return urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@contextmanager
def package_index(folder: Path) -> Iterator[str]:
    """pypiserver over a folder. It computes the digests in its pages from the files as they are on disk."""
    if find_spec("pypiserver") is None:
        missing("pypiserver", "pip install pypiserver")
    port = reserved_port()
    command = [sys.executable, "-m", "pypiserver", "run", "-i", "127.0.0.1", "-p", str(port)]
    command += ["-a", ".", "-P", ".", "--disable-fallback", "--hash-algo", "sha256", "--backend", "simple-dir"]
    process = subprocess.Popen(
        [*command, str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
    )
    try:
        _wait_for(port, process)
        yield f"http://127.0.0.1:{port}/simple/"
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the index ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)  # nothing else tells when it listens
        else:
            return
    raise RuntimeError("the index did not start")
