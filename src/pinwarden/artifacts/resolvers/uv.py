"""uv as a resolver: it writes a ``pylock.toml`` for one exact package, builds nothing and installs nothing."""

from __future__ import annotations

import re
import sys
from base64 import b64decode
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pinwarden.artifacts.pylock import MAX_BYTES
from pinwarden.artifacts.python_package import exact_version, normalized_name
from pinwarden.artifacts.resolvers.command import RESOLVE_SECONDS, check_address, run_resolver
from pinwarden.core.errors import PinwardenError
from pinwarden.system.child_environment import child_environment
from pinwarden.system.files import read_file
from pinwarden.system.net.endpoint import Endpoint
from pinwarden.system.programs import find_program

_NETWORK = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
_INDEX = "PINWARDEN"  # the name by which uv finds the credential for the index in its environment


def find_uv(variables: Mapping[str, str]) -> Path:
    """The uv program: on the search path, or from the Python package of that name beside us."""
    found = find_program("uv", variables.get("PATH", ""))
    if found is not None and found.is_absolute():  # not one that lies in whatever folder we were started in
        return found
    try:
        from uv import find_uv_bin

        return Path(find_uv_bin())
    except (ImportError, OSError) as err:
        raise PinwardenError(
            "RESOLVER_MISSING", "uv is needed to work out what this package depends on, and is not installed"
        ) from err


def resolve(  # noqa: PLR0913  one question with all that the answer depends on
    name: str,
    version: str,
    index: Endpoint,
    *,
    uv: Path,
    variables: Mapping[str, str],
    extras: Sequence[str] = (),
    python_version: str | None = None,
    timeout: float = RESOLVE_SECONDS,
    allow_plain_http: bool = False,
) -> bytes:
    """The ``pylock.toml`` for one exact package, for every platform, from one index and no other."""
    wanted = _requirement(name, version, extras)
    python = python_version or f"{sys.version_info[0]}.{sys.version_info[1]}"
    if not re.fullmatch(r"3\.[0-9]{1,2}(?:\.[0-9]{1,3})?", python):
        raise PinwardenError("PACKAGE_INVALID", f"{python[:40]!a} is not a version of Python")
    check_address(index, variables, allow_plain_http=allow_plain_http)
    with TemporaryDirectory(prefix="pinwarden-resolve-") as made:
        folder = Path(made)
        (folder / "requirements.in").write_text(wanted + "\n")
        environment, secrets = _environment(index, variables, folder)
        switches = (
            *("--universal", "--no-header", "--no-annotate", "--no-build", "--format", "pylock.toml", "--quiet"),
            *("--no-config", "--no-progress", "--color", "never", "--python-version", python),
            *("--python", sys.executable, "--output-file", "pylock.toml", "requirements.in"),
        )
        run_resolver([str(uv), "pip", "compile", *switches], folder, environment, seconds=timeout, secrets=secrets)
        return read_file(folder / "pylock.toml", MAX_BYTES)


def uv_version(uv: Path, variables: Mapping[str, str]) -> str:
    """The resolver's name with its version, for the record."""
    with TemporaryDirectory(prefix="pinwarden-resolve-") as made:
        environment = child_environment({"UV_NO_CONFIG": "1", "HOME": made}, variables)
        said = run_resolver([str(uv), "--version"], Path(made), environment, seconds=30)
    return " ".join(said.decode("utf-8", "replace").split()[:2])[:40]


def _requirement(name: str, version: str, extras: Sequence[str]) -> str:
    """Made of parts that were each checked: nothing in it can be an option, an address or another requirement."""
    chosen = ",".join(normalized_name(each) for each in extras)
    return f"{normalized_name(name)}{f'[{chosen}]' if chosen else ''}=={exact_version(version)}"


def _environment(index: Endpoint, variables: Mapping[str, str], folder: Path) -> tuple[dict[str, str], list[str]]:
    """A short environment in which uv sees one index, no settings, no netrc and no cache of ours; and its secrets."""
    own = {
        "HOME": str(folder),
        "UV_CACHE_DIR": str(folder / "cache"),
        "UV_DEFAULT_INDEX": f"{_INDEX.lower()}={index.url}",
        "UV_KEYRING_PROVIDER": "disabled",
        "UV_NO_CONFIG": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        # The authorities of this machine, as for our own client; the second is the name that older versions know.
        "UV_SYSTEM_CERTS": "1",
        "UV_NATIVE_TLS": "1",
        "NETRC": str(folder / "no-netrc"),
    }
    if index.ca_file is not None:
        own["SSL_CERT_FILE"] = str(index.ca_file)
    secrets: list[str] = []
    if index.authorization is not None:
        user, password = _pair(index.authorization)
        own |= {f"UV_INDEX_{_INDEX}_USERNAME": user, f"UV_INDEX_{_INDEX}_PASSWORD": password}
        secrets = [index.authorization, password]
    also = {each for word in _NETWORK for each in (word, word.lower())}
    return child_environment(own, variables, also), secrets


def _pair(authorization: str) -> tuple[str, str]:
    scheme, _, value = authorization.partition(" ")
    try:
        user, mark, password = b64decode(value, validate=True).decode().partition(":")
    except ValueError:
        mark = ""
    if scheme.lower() != "basic" or not mark:
        raise PinwardenError("RESOLVER_FAILED", "uv takes only a user name and password for an index")
    return user, password
