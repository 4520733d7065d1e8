"""Dependency resolution with the user's own uv and npm, without building or installing anything.

``resolve_python`` runs uv and returns a ``pylock.toml``; ``resolve_npm`` runs npm and returns a ``package-lock.json``.
"""

from __future__ import annotations

import json
import re
import sys
from base64 import b64decode
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pinwarden.artifacts.pylock import MAX_BYTES
from pinwarden.artifacts.python_package import normalize_name, parse_exact_version
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.lock.closure import LIMITS
from pinwarden.system.environment_variables import build_child_environment
from pinwarden.system.files import find_program, read_file
from pinwarden.system.net.connections import (
    HostNotFoundError,
    NetworkRules,
    ServiceEndpoint,
    find_proxy,
    resolve_destinations,
)
from pinwarden.system.net.network_errors import fetch_error
from pinwarden.system.processes import BoundedTask, run_bounded

RESOLVE_SECONDS = 300.0
"""Timeout of one resolver run. Resolving the largest closures takes one or two minutes over a slow connection."""


def run_resolver(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], *, seconds: float, secrets: Sequence[str] = ()
) -> bytes:
    """Run a resolver and return its standard output. ``RESOLVER_FAILED`` includes the end of its error output."""
    task = BoundedTask(
        name=Path(command[0]).name, error_code="RESOLVER_FAILED", timeout_seconds=seconds, secrets=tuple(secrets)
    )
    return run_bounded(command, folder, environment, task)


def check_registry_address(
    index: ServiceEndpoint, variables: Mapping[str, str], *, allow_plain_http: bool = False
) -> None:
    """Raise if Pinwarden's own HTTP client would not contact this registry. A resolver would contact any address."""
    if find_proxy(index.address, variables) is not None:
        return  # the proxy resolves the host
    rules = NetworkRules(allow_private=index.private_allowed, allow_plain_http=allow_plain_http)
    try:
        resolve_destinations(index.address, rules)
    except HostNotFoundError as err:
        raise fetch_error("connect", f"the host {index.address.host} was not found") from err


_UV_NETWORK_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
_INDEX_NAME = "PINWARDEN"  # uv reads the index's credential from environment variables with this name


def find_uv(variables: Mapping[str, str]) -> Path:
    """Find uv in PATH or in the installed Python package uv. ``RESOLVER_MISSING`` if there is none."""
    uv = find_program("uv", variables.get("PATH", ""))
    if uv is not None and uv.is_absolute():  # ignore a uv in the current folder
        return uv
    try:
        from uv import find_uv_bin

        return Path(find_uv_bin())
    except (ImportError, OSError) as err:
        raise PinwardenError(
            "RESOLVER_MISSING", "uv is required to resolve the dependencies of this package, and is not installed"
        ) from err


def resolve_python(  # noqa: PLR0913  everything the result depends on
    name: str,
    version: str,
    index: ServiceEndpoint,
    *,
    uv: Path,
    variables: Mapping[str, str],
    extras: Sequence[str] = (),
    python_version: str | None = None,
    timeout: float = RESOLVE_SECONDS,
    allow_plain_http: bool = False,
) -> bytes:
    """Resolve one exact package with uv, for all platforms and from one index. Returns the ``pylock.toml``."""
    requirement = _build_requirement(name, version, extras)
    python = python_version or f"{sys.version_info[0]}.{sys.version_info[1]}"
    if not re.fullmatch(r"3\.[0-9]{1,2}(?:\.[0-9]{1,3})?", python):
        raise PinwardenError("PACKAGE_INVALID", f"{python[:40]!a} is not a Python version")
    check_registry_address(index, variables, allow_plain_http=allow_plain_http)
    with TemporaryDirectory(prefix="pinwarden-resolve-") as temporary:
        folder = Path(temporary)
        (folder / "requirements.in").write_text(requirement + "\n")
        environment, secrets = _build_uv_environment(index, variables, folder)
        options = (
            *("--universal", "--no-header", "--no-annotate", "--no-build", "--format", "pylock.toml", "--quiet"),
            *("--no-config", "--no-progress", "--color", "never", "--python-version", python),
            *("--python", sys.executable, "--output-file", "pylock.toml", "requirements.in"),
        )
        run_resolver([str(uv), "pip", "compile", *options], folder, environment, seconds=timeout, secrets=secrets)
        return read_file(folder / "pylock.toml", MAX_BYTES)


def read_uv_version(uv: Path, variables: Mapping[str, str]) -> str:
    """uv's name and version, as recorded in the lock."""
    with TemporaryDirectory(prefix="pinwarden-resolve-") as temporary:
        environment = build_child_environment({"UV_NO_CONFIG": "1", "HOME": temporary}, variables)
        output = run_resolver([str(uv), "--version"], Path(temporary), environment, seconds=30)
    return " ".join(output.decode("utf-8", "replace").split()[:2])[:40]


def _build_requirement(name: str, version: str, extras: Sequence[str]) -> str:
    """A requirement built from validated parts, so it cannot contain an option, a URL or a second requirement."""
    extra_names = ",".join(normalize_name(extra) for extra in extras)
    return f"{normalize_name(name)}{f'[{extra_names}]' if extra_names else ''}=={parse_exact_version(version)}"


def _build_uv_environment(
    index: ServiceEndpoint, variables: Mapping[str, str], folder: Path
) -> tuple[dict[str, str], list[str]]:
    """Return an environment in which uv uses one index and no settings, netrc or cache; and the secrets it contains."""
    settings = {
        "HOME": str(folder),
        "UV_CACHE_DIR": str(folder / "cache"),
        "UV_DEFAULT_INDEX": f"{_INDEX_NAME.lower()}={index.url}",
        "UV_KEYRING_PROVIDER": "disabled",
        "UV_NO_CONFIG": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        # The system's CA certificates, as for Pinwarden's own client; the second name is for older versions.
        "UV_SYSTEM_CERTS": "1",
        "UV_NATIVE_TLS": "1",
        "NETRC": str(folder / "no-netrc"),
    }
    if index.ca_file is not None:
        settings["SSL_CERT_FILE"] = str(index.ca_file)
    secrets: list[str] = []
    if index.authorization is not None:
        user, password = _decode_basic_credential(index.authorization)
        settings |= {f"UV_INDEX_{_INDEX_NAME}_USERNAME": user, f"UV_INDEX_{_INDEX_NAME}_PASSWORD": password}
        secrets = [index.authorization, password]
    inherited = {variable for word in _UV_NETWORK_VARIABLES for variable in (word, word.lower())}
    return build_child_environment(settings, variables, inherited), secrets


def _decode_basic_credential(authorization: str) -> tuple[str, str]:
    scheme, _, value = authorization.partition(" ")
    try:
        user, colon, password = b64decode(value, validate=True).decode().partition(":")
    except ValueError:
        colon = ""
    if scheme.lower() != "basic" or not colon:
        raise PinwardenError("RESOLVER_FAILED", "uv supports only a user name and password for an index")
    return user, password


# npm's settings files and credentials. npm reads and sends these credentials itself.
_NPM_VARIABLES = ("NPM_CONFIG_USERCONFIG", "NPM_CONFIG_GLOBALCONFIG", "NPM_TOKEN", "NODE_AUTH_TOKEN")
_INVALID_HOST = "refused.invalid"  # RFC 2606: there is no such host
_INVALID_REGISTRY = f"https://{_INVALID_HOST}/"
_NPM_NETWORK_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS")


class NpmRequirement(Record):
    """The package to resolve."""

    name: str
    version: str
    required_scopes: frozenset[str]
    """Scopes whose registries must be usable; other scopes matter only if a dependency has them."""


def resolve_npm(
    wanted: NpmRequirement,
    registries: Mapping[str, ServiceEndpoint],
    variables: Mapping[str, str],
    *,
    allow_plain_http: bool = False,
) -> tuple[bytes, str]:
    """Resolve one exact package with npm. Returns the ``package-lock.json``, and npm's name and version.

    ``registries`` maps scopes to registries; the key ``""`` is for packages without a scope.
    """
    addresses: dict[str, str] = {}
    rejected: dict[str, PinwardenError] = {}
    for scope, endpoint in registries.items():
        try:
            check_registry_address(endpoint, variables, allow_plain_http=allow_plain_http)
            addresses[scope] = endpoint.url
        except PinwardenError as err:
            if scope in wanted.required_scopes:
                raise
            # A dependency with this scope must fail instead of coming from the default registry.
            addresses[scope], rejected[scope] = _INVALID_REGISTRY, err
    npm = find_program("npm", variables.get("PATH", ""))
    if npm is None:
        raise PinwardenError(
            "RESOLVER_MISSING", "npm is required to resolve the dependencies of this package, and is not installed"
        )
    inherited = {variable for word in (*_NPM_VARIABLES, *_NPM_NETWORK_VARIABLES) for variable in (word, word.lower())}
    environment = build_child_environment({}, variables, inherited)
    with TemporaryDirectory(prefix="pinwarden-resolve-") as temporary:
        folder = Path(temporary)
        needs = {wanted.name: wanted.version}
        manifest = {"name": "resolved-by-pinwarden", "version": "0.0.0", "private": True, "dependencies": needs}
        (folder / "package.json").write_text(json.dumps(manifest))
        options = (
            *("--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"),
            *("--lockfile-version=3", "--omit-lockfile-registry-resolved=false", "--install-links=false"),
            *("--include=optional", "--omit=dev", "--loglevel=error", *_build_registry_options(addresses)),
            # A user who can write to the parent folder could make this folder a workspace with npm settings.
            "--no-workspaces",
            *(("--fetch-retries=0",) if rejected else ()),  # an invalid host needs no retries
        )
        try:
            run_resolver([str(npm), "install", *options], folder, environment, seconds=RESOLVE_SECONDS)
        except PinwardenError as err:
            for rejection in rejected.values() if _INVALID_HOST in str(err.data.get("stderr")) else ():
                raise rejection from err
            raise
        version = _read_npm_version(npm)
        if version is None:
            version = run_resolver([str(npm), "--version"], folder, environment, seconds=30).decode().strip()
        return read_file(folder / "package-lock.json", LIMITS.max_bytes), f"npm {version[:40]}"


def _read_npm_version(npm: Path) -> str | None:
    """Return the version in npm's own package.json. Reading it is faster than starting npm."""
    try:
        manifest = json.loads(read_file(npm.resolve().parent.parent / "package.json"))
        return str(manifest["version"]) if manifest["name"] == "npm" else None
    except (PinwardenError, ValueError, KeyError, TypeError):
        return None


def _build_registry_options(addresses: Mapping[str, str]) -> list[str]:
    return [f"--{f'{scope}:' if scope else ''}registry={url}" for scope, url in addresses.items()]
