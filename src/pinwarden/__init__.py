"""Pinwarden: a chain of custody for MCP servers, from review to call.

The names below are the public API. Each is loaded on first use, so that importing the package is fast.
"""

from __future__ import annotations

TYPE_CHECKING = False

__version__ = "0.1.0"

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
    "document_cid",
    "manifest_root_cid",
    "parse_json",
    "signing_preimage",
    "tool_digest",
    "verify_signature",
]

if TYPE_CHECKING:
    from pinwarden.core.canonical import canonicalize
    from pinwarden.core.digest import Cid, Digest, blob_cid, document_cid, manifest_root_cid, tool_digest
    from pinwarden.core.errors import PinwardenError
    from pinwarden.core.keys import PrivateKey, PublicKey, signing_preimage, verify_signature
    from pinwarden.core.strict_json import Limits, parse_json

_MODULES = {
    "Cid": "digest",
    "Digest": "digest",
    "Limits": "strict_json",
    "PinwardenError": "errors",
    "PrivateKey": "keys",
    "PublicKey": "keys",
    "blob_cid": "digest",
    "canonicalize": "canonical",
    "document_cid": "digest",
    "manifest_root_cid": "digest",
    "parse_json": "strict_json",
    "signing_preimage": "keys",
    "tool_digest": "digest",
    "verify_signature": "keys",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"pinwarden.core.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
