"""The names that others import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pinwarden

REPOSITORY = Path(__file__).resolve().parents[2]

PUBLIC = [
    "Cid",
    "Digest",
    "Limits",
    "PinwardenError",
    "PrivateKey",
    "PublicKey",
    "__version__",
    "blob_cid",
    "canonicalize",
    "check_lockfile",
    "derive_contracts",
    "derive_prompts",
    "document_cid",
    "generate_lockfile",
    "guard",
    "manifest_root_cid",
    "parse_json",
    "parse_lockfile",
    "read_lockfile",
    "serialize_lockfile",
    "signing_preimage",
    "surface_from_listing",
    "tool_digest",
    "verify_signature",
    "write_lockfile",
]
"""A promise to others: a name is added here on purpose, and taken away with a new major version."""


def test_every_public_name_exists_and_is_documented() -> None:
    assert sorted(pinwarden.__all__) == PUBLIC
    for name in set(PUBLIC) - {"__version__"}:
        value = getattr(pinwarden, name)
        inherited = {base.__doc__ for base in getattr(value, "__mro__", ())[1:]}
        assert value.__doc__, name
        assert value.__doc__ not in inherited, name
    assert set(PUBLIC) <= set(dir(pinwarden))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pinwarden.nothing


def test_importing_the_package_loads_none_of_its_modules() -> None:
    """Start-up is measured, and every command imports the package."""
    code = "import sys, pinwarden; print(*sorted(name for name in sys.modules if name.startswith('pinwarden')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["pinwarden"]


def test_the_example_of_the_guide_uses_all_six_functions(tmp_path: Path) -> None:
    script = REPOSITORY / "examples" / "contract_functions.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "same bytes: True",
        "same value: True",
        "tools changed: search",
        "prompts added: summary",
        "the file was edited: LOCK_TAMPERED",
    ]
    for name in ("generate", "serialize", "check", "parse", "write", "read"):
        assert f"pinwarden.{name}_lockfile(" in script.read_text(encoding="utf-8")
