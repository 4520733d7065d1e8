"""Prints the SBOM of a release: Pinwarden and the pinned packages that it needs at run time, as CycloneDX 1.6."""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pinwarden.core.version import __version__

_PINS = Path(__file__).resolve().parents[1] / "requirements" / "base.txt"
_PIN = re.compile(r"^([\w.-]+)==(\S+)[^\n]*((?:\n\s+--hash=sha256:[0-9a-f]{64}[ \\]*)*)", re.MULTILINE)
_OWN = f"pkg:pypi/pinwarden@{__version__}"


def main() -> int:
    """Print the SBOM."""
    pins: dict[str, dict[str, Any]] = {
        canonicalize_name(name): _describe(name, version, hashes) for name, version, hashes in _find_pins()
    }
    needs = _find_needs("pinwarden")
    if missing := needs.keys() - pins.keys() - {"pinwarden"}:
        sys.stderr.write(f"error: requirements/base.txt does not pin {', '.join(sorted(missing))}\n")
        return 1
    own = {"type": "application", "bom-ref": _OWN, "name": "pinwarden", "version": __version__, "purl": _OWN}
    refs = {name: pins[name]["bom-ref"] for name in needs if name in pins} | {"pinwarden": _OWN}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": [pins[name] for name in sorted(needs) if name in pins],
        "dependencies": [
            {"ref": refs[name], "dependsOn": sorted(refs[other] for other in others)}
            for name, others in sorted(needs.items())
        ],
    }
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    return 0


def _find_pins() -> list[tuple[str, str, str]]:
    return _PIN.findall(_PINS.read_text(encoding="utf-8"))


def _find_needs(root: str) -> dict[str, set[str]]:
    """Return what each installed package needs, beginning with one, without extras."""
    needs: dict[str, set[str]] = {}
    pending = [root]
    while pending:
        name = pending.pop()
        if name in needs:
            continue
        wanted = [Requirement(text) for text in requires(name) or ()]
        needs[name] = {
            canonicalize_name(one.name) for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})
        }
        pending += needs[name]
    return needs


def _describe(name: str, version: str, hashes: str) -> dict[str, Any]:
    """Return a pinned package. Its hashes are those of all files of the release."""
    purl = f"pkg:pypi/{canonicalize_name(name)}@{version}"
    digests = re.findall(r"sha256:([0-9a-f]{64})", hashes)
    return {
        "type": "library",
        "bom-ref": purl,
        "name": canonicalize_name(name),
        "version": version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in digests],
    }


if __name__ == "__main__":
    sys.exit(main())
