"""Replicas of a registry as processes of their own, and publishers that do not give up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pinwarden.bundle.document import add_signature, encode_document
from pinwarden.registry import registry_documents
from pinwarden.registry.registry_client import MAX_DOCUMENT_BYTES, HttpRegistry, RegistryReader
from pinwarden.registry.registry_documents import RegistryIdentity, parse_identity
from pinwarden.system.net.fetch import Fetcher, FetchLimits, FetchRules
from tests.registry.world import ACME, Bundle
from tests.support.ports import reserved_port


class Replica:
    """One process that serves a registry."""

    def __init__(self, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self._command = [sys.executable, "-m", "pinwarden", "registry", "serve", "--probe", "never", *arguments]
        self._env = {**os.environ, **(env or {})}
        self.url = ""
        self.start(reserved_port())  # which stays its own while it is killed and started again

    def start(self, port: int) -> None:
        """Start, and wait until it says that it listens."""
        self._process = subprocess.Popen(
            [*self._command, "--port", str(port)], stdout=subprocess.PIPE, text=True, env=self._env
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        self.key_id = self._process.stdout.readline().strip()
        self.checkpoint_key = self._process.stdout.readline().strip()
        assert self.checkpoint_key, "the replica did not start"

    def kill(self) -> None:
        """End it in the middle of whatever it does."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(60)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def start_again(self) -> None:
        """Start it at the same address."""
        self.start(int(self.url.rstrip("/").rpartition(":")[2]))

    def stop(self) -> int:
        """Ask it to end."""
        self._process.terminate()
        code = self._process.wait(60)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code


@contextmanager
def replicas(count: int, folder: Path, *arguments: str) -> Iterator[list[Replica]]:
    """Several replicas that share a folder, a key and whatever the arguments name."""
    running: list[Replica] = []
    try:
        running.extend(Replica("--data", str(folder), *arguments) for _ in range(count))
        yield running
    finally:
        for replica in running:
            replica.kill()


_RULES = FetchRules(limits=FetchLimits(attempts=1, total_seconds=60.0))
_FETCHER = Fetcher(_RULES, {})


def reader(url: str) -> HttpRegistry:
    """A registry to read from, that is asked once and not for long."""
    return HttpRegistry(url, _FETCHER)


def writer(url: str, token: str) -> HttpRegistry:
    """The same to write to."""
    return HttpRegistry(url, _FETCHER, token)


class Remembered(RegistryReader):
    """A registry of which each file is fetched once."""

    def __init__(self, files: RegistryReader) -> None:
        self._files = files
        self._kept: dict[str, bytes | None] = {}

    def find(self, path: str, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes | None:
        if path not in self._kept:
            self._kept[path] = self._files.find(path, max_bytes)
        return self._kept[path]


def identity_of(url: str) -> RegistryIdentity:
    """Who serves there."""
    return parse_identity(reader(url).get("registry.json"))


def publish_over_http(registry: HttpRegistry, made: Bundle, identity: RegistryIdentity, now: str, nonce: str) -> Any:
    """Upload and publish; returns what the registry says of the version."""
    registry.send("PUT", f"api/blobs/{made.archive_cid}", made.archive, "application/octet-stream")
    body = {
        "tool": made.descriptor["tool"]["name"],
        "version": made.descriptor["tool"]["version"],
        "channel": "stable",
        "root_cid": made.root_cid,
        "descriptor_cid": made.descriptor_cid,
        "archive_cid": made.archive_cid,
        "allow_older": True,  # versions of one tool are published at the same time
    }
    value = registry_documents.build_unsigned_statement(identity.log_id, registry_documents.PUBLISH, body, now, nonce)
    request = {
        "statement": add_signature(value, registry_documents.STATEMENT_SIGNED_FIELDS, ACME),
        "descriptor": made.descriptor,
        "manifest": made.manifest,
        "attestations": [],
    }
    return registry.send("POST", "api/publish", encode_document(request), "application/json")
