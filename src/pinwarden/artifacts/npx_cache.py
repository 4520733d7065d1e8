"""What npx installed for a package that was named without an exact version."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from pinwarden.core.errors import PinwardenError
from pinwarden.core.strict_json import parse
from pinwarden.system.files import read_file

_MAX_MANIFEST_BYTES = 4 * 1024 * 1024


def npx_release(spec: str, name: str, project: Path, home: Path, variables: Mapping[str, str]) -> str | None:
    """The release that npx has for this word, such as ``notes`` or ``notes@latest``; None if it cannot be told.

    npx keeps one folder for each list of packages and names it after their digest. A project that has the package
    itself is started from there.
    """
    if (project / "node_modules" / name).exists():
        return None
    cache = Path(variables.get("npm_config_cache") or variables.get("NPM_CONFIG_CACHE") or home / ".npm")
    folder = hashlib.sha512(spec.encode()).hexdigest()[:16]
    try:
        manifest = parse(
            read_file(cache / "_npx" / folder / "node_modules" / name / "package.json", _MAX_MANIFEST_BYTES)
        )
    except PinwardenError:
        return None
    version = manifest.get("version") if type(manifest) is dict and manifest.get("name") == name else None
    return version if type(version) is str else None
