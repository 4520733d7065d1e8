"""A real MCP server that demands tokens of a real OpenID provider, and a person who connects it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.oidc_provider import Browser, OidcProvider, oidc_provider
from tests.support.ports import reserved_port

_SERVER = Path(__file__).resolve().parents[1] / "servers" / "protected_server.py"


class ProtectedServer:
    """A running server, and its issuer."""

    def __init__(self, provider: OidcProvider, port: int, log: Path) -> None:
        self.provider = provider
        self.url = f"http://127.0.0.1:{port}/mcp"
        self._log = log

    @property
    def subjects(self) -> list[str]:
        """Whose tokens were accepted, for each request in order."""
        return self._log.read_text().split() if self._log.exists() else []

    def revoke(self, token_id: str) -> None:
        """Refuse a token from now on, although it has not expired."""
        with self._log.with_suffix(".revoked").open("a") as file:
            file.write(f"{token_id}\n")

    def settings(self, name: str = "notes", **more: Any) -> str:
        """The table of the server in ``pinwarden.toml``, with a client that the provider knows."""
        members = {"issuer": self.provider.issuer, "client-id": "desk", "scopes": ["tools:read", "offline_access"]}
        lines = [f"{key} = {_format(value)}" for key, value in {**members, **more}.items() if value is not None]
        return "\n".join([f"[remotes.{name}]", *lines, ""])

    def log_in(self, url: str, user: str) -> str:
        """Allow access as a user. Returns the address that the browser is sent back to."""
        return Browser().log_in(url, user, self.provider.issuer)


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).replace("'", '"')


@contextmanager
def protected_server(folder: Path, **more: Any) -> Iterator[ProtectedServer]:
    """Run a server and its provider. ``more`` are settings of `oidc_provider`."""
    port = reserved_port()
    with oidc_provider(folder, resources=[f"http://127.0.0.1:{port}/mcp"], **more) as provider:
        log = folder / "subjects"
        process = subprocess.Popen(
            [sys.executable, str(_SERVER), provider.issuer, str(port), str(log)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(_SERVER.parents[2])},
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield ProtectedServer(provider, port, log)
        finally:
            process.kill()
            process.communicate()
