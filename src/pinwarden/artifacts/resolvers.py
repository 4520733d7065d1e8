"""Resolves dependencies with the user's own uv or npm, without building or installing anything.

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
from pinwarden.system.bounded_task import BoundedTask, list_error_lines, run_bounded
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
from pinwarden.system.program_installers import describe_installation

RESOLVE_SECONDS = 300.0
"""Timeout of one resolver run. Resolving the largest closures takes one or two minutes over a slow connection."""


def run_resolver(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], *, seconds: float, secrets: Sequence[str] = ()
) -> bytes:
    """Run a resolver and return its standard output.

    Raises ``RESOLVER_FAILED``, with the end of the resolver's error output, if it fails.
    """
    task = BoundedTask(
        name=Path(command[0]).name, error_code="RESOLVER_FAILED", timeout_seconds=seconds, secrets=tuple(secrets)
    )
    return run_bounded(command, folder, environment, task)


_NOISE = ("npm warn", "warning:", "npm error A complete log")
_MAX_REASONS = 3


def list_reasons(err: PinwardenError) -> list[str]:
    """Return the lines with which a resolver says why it failed; empty for other errors.

    Both npm and uv begin with the reason, and end with advice.
    """
    if err.code != "RESOLVER_FAILED":
        return []
    return [line for line in list_error_lines(err) if not line.startswith(_NOISE)][:_MAX_REASONS]


def check_registry_address(
    index: ServiceEndpoint, variables: Mapping[str, str], *, allow_plain_http: bool = False
) -> None:
    """Raise if Pinwarden's HTTP client would not contact this registry. uv and npm do not check addresses."""
    if find_proxy(index.address, variables) is not None:
        return  # the proxy resolves the host name
    rules = NetworkRules(allow_private=index.private_allowed, allow_plain_http=allow_plain_http)
    try:
        resolve_destinations(index.address, rules)
    except HostNotFoundError as err:
        raise fetch_error("connect", f"the host {index.address.host} was not found") from err


_UV_NETWORK_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
_INDEX_NAME = "PINWARDEN"  # uv reads the index's credential from environment variables with this name


def find_uv(variables: Mapping[str, str]) -> Path:
    """Find uv in PATH or in the Python package ``uv``. Raises ``RESOLVER_MISSING`` if it is in neither."""
    uv = find_program("uv", variables.get("PATH", ""))
    if uv is not None and uv.is_absolute():  # ignore a uv in the current folder
        return uv
    try:
        from uv import find_uv_bin

        return Path(find_uv_bin())
    except (ImportError, OSError) as err:
        raise _resolver_missing("uv", "Python", variables) from err


def _resolver_missing(program: str, kind: str, variables: Mapping[str, str]) -> PinwardenError:
    way = describe_installation(program, variables)
    return PinwardenError(
        "RESOLVER_MISSING",
        f"{program}, which resolves the dependencies of {kind} packages, is not installed",
        hint=f"To install it: {way}",
    )


def resolve_python(  # noqa: PLR0913
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
    cache: Path | None = None,
) -> bytes:
    """Resolve one version of a package with uv, for all platforms and from one index.

    Returns the ``pylock.toml``.
    """
    return resolve_python_requirements(
        [_build_requirement(name, version, extras)],
        index,
        uv=uv,
        variables=variables,
        python_version=python_version,
        timeout=timeout,
        allow_plain_http=allow_plain_http,
        cache=cache,
    )


def resolve_python_requirements(  # noqa: PLR0913
    requirements: Sequence[str],
    index: ServiceEndpoint,
    *,
    uv: Path,
    variables: Mapping[str, str],
    python_version: str | None = None,
    timeout: float = RESOLVE_SECONDS,
    allow_plain_http: bool = False,
    cache: Path | None = None,
) -> bytes:
    """Resolve requirements (PEP 508) with uv, for all platforms and from one index. Returns the ``pylock.toml``.

    The caller must have parsed the requirements, because a line could also be an option of uv.
    """
    python = python_version or f"{sys.version_info[0]}.{sys.version_info[1]}"
    if not re.fullmatch(r"3\.[0-9]{1,2}(?:\.[0-9]{1,3})?", python):
        raise PinwardenError("PACKAGE_INVALID", f"{python[:40]!a} is not a Python version")
    check_registry_address(index, variables, allow_plain_http=allow_plain_http)
    with TemporaryDirectory(prefix="pinwarden-resolve-") as temporary:
        folder = Path(temporary)
        (folder / "requirements.in").write_text("".join(f"{line}\n" for line in requirements))
        environment, secrets = _build_uv_environment(index, variables, folder)
        environment |= {} if cache is None else {"UV_CACHE_DIR": str(cache)}
        options = (
            *("--universal", "--no-header", "--no-annotate", "--no-build", "--format", "pylock.toml", "--quiet"),
            *("--no-config", "--no-progress", "--color", "never", "--python-version", python),
            *("--python", sys.executable, "--output-file", "pylock.toml", "requirements.in"),
        )
        run_resolver([str(uv), "pip", "compile", *options], folder, environment, seconds=timeout, secrets=secrets)
        return read_file(folder / "pylock.toml", MAX_BYTES)


def export_uv_lock(folder: Path, uv: Path, variables: Mapping[str, str]) -> bytes:
    """Convert the ``uv.lock`` of a project, as it is, to a ``pylock.toml`` without development packages."""
    with TemporaryDirectory(prefix="pinwarden-resolve-") as temporary:
        copy = Path(temporary)
        for name in ("pyproject.toml", "uv.lock"):
            (copy / name).write_bytes(read_file(folder / name, MAX_BYTES))
        settings = {"HOME": temporary, "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_OFFLINE": "1"}
        options = ("--frozen", "--no-dev", "--no-emit-project", "--no-header", "--no-progress", "--color", "never")
        command = [str(uv), "export", *options, "--format", "pylock.toml", "--python", sys.executable, "--quiet"]
        environment = build_child_environment(settings, variables)
        run_resolver([*command, "--output-file", "pylock.toml"], copy, environment, seconds=60)
        return read_file(copy / "pylock.toml", MAX_BYTES)


def read_uv_version(uv: Path, variables: Mapping[str, str]) -> str:
    """Return uv's name and version, such as ``uv 0.8.3``, for the lock."""
    with TemporaryDirectory(prefix="pinwarden-resolve-") as temporary:
        environment = build_child_environment({"UV_NO_CONFIG": "1", "HOME": temporary}, variables)
        output = run_resolver([str(uv), "--version"], Path(temporary), environment, seconds=30)
    return " ".join(output.decode("utf-8", "replace").split()[:2])[:40]


def _build_requirement(name: str, version: str, extras: Sequence[str]) -> str:
    """Build a requirement such as ``notes[extra]==1.2``.

    All parts are validated, so the requirement cannot contain an option, a URL or a second requirement.
    """
    extra_names = ",".join(normalize_name(extra) for extra in extras)
    return f"{normalize_name(name)}{f'[{extra_names}]' if extra_names else ''}=={parse_exact_version(version)}"


def _build_uv_environment(
    index: ServiceEndpoint, variables: Mapping[str, str], folder: Path
) -> tuple[dict[str, str], list[str]]:
    """Return an environment in which uv uses only this index, and the secrets that the environment contains.

    uv does not use the user's settings, netrc or cache; its cache is new, unless the caller shares one.
    """
    settings = {
        "HOME": str(folder),
        "UV_CACHE_DIR": str(folder / "cache"),
        "UV_DEFAULT_INDEX": f"{_INDEX_NAME.lower()}={index.url}",
        "UV_KEYRING_PROVIDER": "disabled",
        "UV_NO_CONFIG": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        # Trust the system's CA certificates, as Pinwarden's HTTP client does. Older versions of uv read UV_NATIVE_TLS.
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
        raise PinwardenError("RESOLVER_FAILED", "the index has a token, but uv supports only a user name and password")
    return user, password


# Variables with which npm finds its settings files and credentials.
_NPM_VARIABLES = ("NPM_CONFIG_USERCONFIG", "NPM_CONFIG_GLOBALCONFIG", "NPM_TOKEN", "NODE_AUTH_TOKEN")
_INVALID_HOST = "refused.invalid"  # RFC 2606: no host has a name that ends in .invalid
_INVALID_REGISTRY = f"https://{_INVALID_HOST}/"
_NPM_NETWORK_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS")


class NpmRequirement(Record):
    """The package to resolve."""

    name: str
    version: str
    required_scopes: frozenset[str]
    """The scopes whose registries must be usable. Other registries matter only if a dependency has their scope."""


class NpmCache(Record):
    """A cache of npm that several resolutions share, in which nothing gets stale while they run."""

    folder: Path
    user_agent: str


def resolve_npm(
    requirement: NpmRequirement,
    registries: Mapping[str, ServiceEndpoint],
    variables: Mapping[str, str],
    *,
    allow_plain_http: bool = False,
    cache: NpmCache | None = None,
) -> tuple[bytes, str]:
    """Resolve one version of a package with npm. Returns the ``package-lock.json``, and npm's name and version.

    ``registries`` maps each scope to its registry. The key ``""`` is for packages without a scope.
    """
    urls: dict[str, str] = {}
    address_errors: list[PinwardenError] = []
    for scope, endpoint in registries.items():
        try:
            check_registry_address(endpoint, variables, allow_plain_http=allow_plain_http)
            urls[scope] = endpoint.url
        except PinwardenError as err:
            if scope in requirement.required_scopes:
                raise
            # A dependency with this scope must fail to resolve. npm must not get it from the default registry.
            urls[scope] = _INVALID_REGISTRY
            address_errors.append(err)
    npm = find_program("npm", variables.get("PATH", ""))
    if npm is None:
        raise _resolver_missing("npm", "npm", variables)
    inherited = {variable for word in (*_NPM_VARIABLES, *_NPM_NETWORK_VARIABLES) for variable in (word, word.lower())}
    environment = build_child_environment({}, variables, inherited)
    with TemporaryDirectory(prefix="pinwarden-resolve-") as temporary:
        folder = Path(temporary)
        dependencies = {requirement.name: requirement.version}
        manifest = {"name": "resolved-by-pinwarden", "version": "0.0.0", "private": True, "dependencies": dependencies}
        (folder / "package.json").write_text(json.dumps(manifest))
        options = (
            *("--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"),
            *("--lockfile-version=3", "--omit-lockfile-registry-resolved=false", "--install-links=false"),
            *("--include=optional", "--omit=dev", "--loglevel=error", *_build_registry_options(urls)),
            # A user who can write to the parent folder could make this folder a workspace with other npm settings.
            "--no-workspaces",
            *(("--fetch-retries=0",) if address_errors else ()),  # retries cannot help for an invalid host
            *(() if cache is None else _build_cache_options(cache)),
        )
        try:
            run_resolver([str(npm), "install", *options], folder, environment, seconds=RESOLVE_SECONDS)
        except PinwardenError as err:
            if address_errors and _INVALID_HOST in str(err.data.get("stderr")):
                raise address_errors[0] from err
            raise
        version = _read_npm_version(npm)
        if version is None:
            version = run_resolver([str(npm), "--version"], folder, environment, seconds=30).decode().strip()
        return read_file(folder / "package-lock.json", LIMITS.max_bytes), f"npm {version[:40]}"


def _build_cache_options(cache: NpmCache) -> tuple[str, ...]:
    return f"--cache={cache.folder}", "--prefer-offline", f"--user-agent={cache.user_agent}", "--logs-max=0"


def _read_npm_version(npm: Path) -> str | None:
    """Return the version in npm's own package.json. Reading it is faster than starting npm."""
    try:
        manifest = json.loads(read_file(npm.resolve().parent.parent / "package.json"))
        return str(manifest["version"]) if manifest["name"] == "npm" else None
    except (PinwardenError, ValueError, KeyError, TypeError):
        return None


def _build_registry_options(urls: Mapping[str, str]) -> list[str]:
    return [f"--{f'{scope}:' if scope else ''}registry={url}" for scope, url in urls.items()]
