"""npm packages made for tests, and a real npm registry (verdaccio) on loopback that serves them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import Request, urlopen

from tests.support.needs import missing
from tests.support.ports import reserved_port

PROGRAM = Path(__file__).parent.parent / "verdaccio" / "node_modules" / "verdaccio" / "bin" / "verdaccio"

CONFIG = """
storage: {folder}/storage
auth: {{htpasswd: {{file: {folder}/htpasswd, max_users: 100}}}}
uplinks: {{}}
packages:
  '@locked/*': {{access: $authenticated, publish: $authenticated}}
  '**': {{access: $all, publish: $authenticated}}
log: {{type: stdout, format: json, level: warn}}
"""


def tarball(files: Mapping[str, bytes | tarfile.TarInfo] | list[tuple[str, bytes | tarfile.TarInfo]]) -> bytes:
    """A tarball as npm packs one, always the same for the same files. Names may come twice in a list."""
    pairs = list(files.items()) if isinstance(files, Mapping) else files
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, content in pairs:
            if isinstance(content, tarfile.TarInfo):
                content.name = name
                archive.addfile(content)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), mtime=0)


def package(name: str, version: str = "1.0.0", /, **members: Any) -> tuple[dict[str, Any], bytes]:
    """A package.json and the tarball that holds it."""
    manifest = {"name": name, "version": version, "main": "index.js", **members}
    return manifest, tarball({"package/package.json": json.dumps(manifest).encode(), "package/index.js": b"// hello\n"})


def sri(data: bytes, algorithm: str = "sha512") -> str:
    return f"{algorithm}-{b64encode(hashlib.new(algorithm, data).digest()).decode()}"


def version_document(manifest: dict[str, Any], data: bytes, url: str, **dist: Any) -> dict[str, Any]:
    """What a publisher tells the registry about a version."""
    told = {"integrity": sri(data), "shasum": hashlib.sha1(data).hexdigest(), "tarball": url, **dist}
    return {**manifest, "_id": f"{manifest['name']}@{manifest['version']}", "dist": told}


@dataclass(frozen=True, kw_only=True)
class Verdaccio:
    """A running registry, whose files can be tampered with."""

    url: str
    token: str
    storage: Path

    def publish(self, manifest: dict[str, Any], data: bytes) -> None:
        """What ``npm publish`` sends."""
        name, version = manifest["name"], manifest["version"]
        file = f"{name.rpartition('/')[2]}-{version}.tgz"
        document = {
            "_id": name,
            "name": name,
            "dist-tags": {"latest": version},
            "versions": {version: version_document(manifest, data, f"{self.url}{name}/-/{file}")},
            "_attachments": {
                file: {
                    "content_type": "application/octet-stream",
                    "data": b64encode(data).decode(),
                    "length": len(data),
                }
            },
        }
        _put(f"{self.url}{name.replace('/', '%2f')}", document, self.token)

    def tarball_path(self, manifest: dict[str, Any]) -> Path:
        name = str(manifest["name"])
        return self.storage / name / f"{name.rpartition('/')[2]}-{manifest['version']}.tgz"

    def packument_path(self, manifest: dict[str, Any]) -> Path:
        return self.storage / str(manifest["name"]) / "package.json"


@contextmanager
def verdaccio(folder: Path) -> Iterator[Verdaccio]:
    """Start the registry, make a user, and stop it when the block ends."""
    node = shutil.which("node")
    if node is None or not PROGRAM.exists():
        missing("verdaccio, an npm registry,", "tools/npm-packages.sh")
    (folder / "config.yaml").write_text(CONFIG.format(folder=folder))
    port = reserved_port()
    process = subprocess.Popen(
        [node, str(PROGRAM), "-c", str(folder / "config.yaml"), "-l", f"127.0.0.1:{port}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env={"PATH": str(Path(node).parent), "HOME": str(folder)},
    )
    assert process.stdout is not None
    output = process.stdout
    drain = Thread(target=lambda: list(output), daemon=True)
    try:
        said: list[bytes] = []
        for line in output:
            said.append(line)
            if b"http address" in line:
                break
        else:
            raise AssertionError(f"verdaccio did not start: {b''.join(said)[-2000:]!r}")
        drain.start()
        url = f"http://127.0.0.1:{port}/"
        answer = _put(f"{url}-/user/org.couchdb.user:bob", {"name": "bob", "password": "not-a-secret"}, None)
        yield Verdaccio(url=url, token=answer["token"], storage=folder / "storage")
    finally:
        process.terminate()
        process.wait(60)
        if drain.ident is not None:
            drain.join(60)  # it must not read what is closed
        output.close()


def _put(url: str, document: dict[str, Any], token: str | None) -> Any:
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {token}"} if token else {})}
    with urlopen(Request(url, data=json.dumps(document).encode(), headers=headers, method="PUT"), timeout=60) as answer:
        return json.load(answer)
