"""Pinwarden: a chain of custody for MCP servers, from review to call.

The names below are the public API. Each is loaded on first use, so that importing the package is fast.
"""

from __future__ import annotations

TYPE_CHECKING = False

__all__ = [
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

if TYPE_CHECKING:
    from pinwarden.contract.check import check_lockfile
    from pinwarden.contract.lock_command import read_lockfile, write_lockfile
    from pinwarden.contract.lockfile import generate_lockfile, parse_lockfile, serialize_lockfile
    from pinwarden.contract.surface_contracts import derive_contracts, derive_prompts
    from pinwarden.core.canonical import canonicalize
    from pinwarden.core.digest import Cid, Digest, blob_cid, document_cid, manifest_root_cid, tool_digest
    from pinwarden.core.errors import PinwardenError
    from pinwarden.core.keys import PrivateKey, PublicKey, signing_preimage, verify_signature
    from pinwarden.core.strict_json import Limits, parse_json
    from pinwarden.core.version import __version__
    from pinwarden.gateway.client_guard import guard
    from pinwarden.surface.surface import surface_from_listing

_MODULES = {
    "Cid": "core.digest",
    "Digest": "core.digest",
    "Limits": "core.strict_json",
    "PinwardenError": "core.errors",
    "PrivateKey": "core.keys",
    "PublicKey": "core.keys",
    "__version__": "core.version",
    "blob_cid": "core.digest",
    "canonicalize": "core.canonical",
    "check_lockfile": "contract.check",
    "derive_contracts": "contract.surface_contracts",
    "derive_prompts": "contract.surface_contracts",
    "document_cid": "core.digest",
    "generate_lockfile": "contract.lockfile",
    "guard": "gateway.client_guard",
    "manifest_root_cid": "core.digest",
    "parse_json": "core.strict_json",
    "parse_lockfile": "contract.lockfile",
    "read_lockfile": "contract.lock_command",
    "serialize_lockfile": "contract.lockfile",
    "signing_preimage": "core.keys",
    "surface_from_listing": "surface.surface",
    "tool_digest": "core.digest",
    "verify_signature": "core.keys",
    "write_lockfile": "contract.lock_command",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"pinwarden.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
