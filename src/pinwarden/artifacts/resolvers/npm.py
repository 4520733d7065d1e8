"""npm as a resolver: it writes a lockfile for one exact package and installs nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from pinwarden.artifacts.resolvers.command import RESOLVE_SECONDS, check_address, run_resolver
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.lock.closure import LIMITS
from pinwarden.system.child_environment import child_environment
from pinwarden.system.files import read_file
from pinwarden.system.net.endpoint import Endpoint
from pinwarden.system.programs import find_program

# Where npm finds its settings, among which are credentials: npm sends them, we do not look at them.
_NPM_VARIABLES = ("NPM_CONFIG_USERCONFIG", "NPM_CONFIG_GLOBALCONFIG", "NPM_TOKEN", "NODE_AUTH_TOKEN")
_NOWHERE_HOST = "refused.invalid"  # RFC 2606: nobody has a host of that name
_NOWHERE = f"https://{_NOWHERE_HOST}/"
_NETWORK = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS")


class WantedPackage(Record):
    """What is resolved."""

    name: str
    version: str
    needs: frozenset[str]
    """The scopes whose registries are asked in any case."""


def resolve_npm(
    wanted: WantedPackage,
    registries: Mapping[str, Endpoint],
    variables: Mapping[str, str],
    *,
    allow_plain_http: bool = False,
) -> tuple[bytes, str]:
    """The ``package-lock.json`` for one exact package, and the resolver's name with its version.

    ``registries`` are by scope: under ``""`` the one of packages without a scope, under ``@scope`` another one.
    """
    addresses: dict[str, str] = {}
    refused: dict[str, PinwardenError] = {}
    for scope, endpoint in registries.items():
        try:
            check_address(endpoint, variables, allow_plain_http=allow_plain_http)
            addresses[scope] = endpoint.url
        except PinwardenError as err:
            if scope in wanted.needs:
                raise
            # Perhaps no dependency has this scope. If one has, it must not come from the usual registry instead.
            addresses[scope], refused[scope] = _NOWHERE, err
    npm = find_program("npm", variables.get("PATH", ""))
    if npm is None:
        raise PinwardenError(
            "RESOLVER_MISSING", "npm is needed to work out what this package depends on, and is not installed"
        )
    also = {each for word in (*_NPM_VARIABLES, *_NETWORK) for each in (word, word.lower())}
    environment = child_environment({}, variables, also)
    with TemporaryDirectory(prefix="pinwarden-resolve-") as made:
        folder = Path(made)
        needs = {wanted.name: wanted.version}
        about = {"name": "resolved-by-pinwarden", "version": "0.0.0", "private": True, "dependencies": needs}
        (folder / "package.json").write_text(json.dumps(about))
        switches = (
            *("--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"),
            *("--lockfile-version=3", "--omit-lockfile-registry-resolved=false", "--install-links=false"),
            *("--include=optional", "--omit=dev", "--loglevel=error", *_named(addresses)),
            # Whoever may write beside the folder could call it a workspace, and npm would take settings from there.
            "--no-workspaces",
            *(("--fetch-retries=0",) if refused else ()),  # what is nowhere is not there a minute later either
        )
        try:
            run_resolver([str(npm), "install", *switches], folder, environment, seconds=RESOLVE_SECONDS)
        except PinwardenError as err:
            for reason in refused.values() if _NOWHERE_HOST in str(err.data.get("stderr")) else ():
                raise reason from err
            raise
        version = _version_beside(npm)
        if version is None:
            version = run_resolver([str(npm), "--version"], folder, environment, seconds=30).decode().strip()
        return read_file(folder / "package-lock.json", LIMITS.max_bytes), f"npm {version[:40]}"


def _version_beside(npm: Path) -> str | None:
    """What npm's own package says, which takes no time; asking npm takes as long as starting it."""
    try:
        about = json.loads(read_file(npm.resolve().parent.parent / "package.json"))
        return str(about["version"]) if about["name"] == "npm" else None
    except (PinwardenError, ValueError, KeyError, TypeError):
        return None


def _named(addresses: Mapping[str, str]) -> list[str]:
    return [f"--{f'{scope}:' if scope else ''}registry={url}" for scope, url in addresses.items()]
