"""npm as a resolver: it writes a lockfile for one exact package and installs nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from pinwarden.adapters.child_environment import child_environment
from pinwarden.adapters.endpoints.endpoint import Endpoint
from pinwarden.adapters.files import read_file
from pinwarden.adapters.programs import find_program
from pinwarden.adapters.resolvers.command import check_address, run_resolver
from pinwarden.core.errors import PinwardenError
from pinwarden.documents.artifacts.closure import LIMITS

RESOLVE_SECONDS = 300.0
# Where npm finds its settings, among which are credentials: npm sends them, we do not look at them.
_NPM_VARIABLES = ("NPM_CONFIG_USERCONFIG", "NPM_CONFIG_GLOBALCONFIG", "NPM_TOKEN", "NODE_AUTH_TOKEN")
_NETWORK = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS")


def resolve_npm(
    name: str,
    version: str,
    registries: Mapping[str, Endpoint],
    variables: Mapping[str, str],
    *,
    allow_plain_http: bool = False,
) -> tuple[bytes, str]:
    """The ``package-lock.json`` for one exact package, and the resolver's name with its version.

    ``registries`` are by scope: under ``""`` the one of packages without a scope, under ``@scope`` another one.
    """
    for endpoint in registries.values():
        check_address(endpoint, variables, allow_plain_http=allow_plain_http)
    npm = find_program("npm", variables.get("PATH", ""))
    if npm is None:
        raise PinwardenError(
            "RESOLVER_MISSING", "npm is needed to work out what this package depends on, and is not installed"
        )
    also = {each for word in (*_NPM_VARIABLES, *_NETWORK) for each in (word, word.lower())}
    environment = child_environment({}, variables, also)
    with TemporaryDirectory(prefix="pinwarden-resolve-") as made:
        folder = Path(made)
        wanted = {"name": "resolved-by-pinwarden", "version": "0.0.0", "private": True, "dependencies": {name: version}}
        (folder / "package.json").write_text(json.dumps(wanted))
        switches = (
            *("--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"),
            *("--lockfile-version=3", "--omit-lockfile-registry-resolved=false", "--install-links=false"),
            *("--include=optional", "--omit=dev", "--loglevel=error", *_named(registries)),
        )
        run_resolver([str(npm), "install", *switches], folder, environment, seconds=RESOLVE_SECONDS)
        version_text = run_resolver([str(npm), "--version"], folder, environment, seconds=30)
        return read_file(folder / "package-lock.json", LIMITS.max_bytes), f"npm {version_text.decode().strip()[:40]}"


def _named(registries: Mapping[str, Endpoint]) -> list[str]:
    return [f"--{f'{scope}:' if scope else ''}registry={endpoint.url}" for scope, endpoint in registries.items()]
