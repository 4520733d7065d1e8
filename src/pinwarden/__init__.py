"""Pinwarden: one chain of custody for MCP servers, from review to call.

The names below are the public API. They are loaded on first use, so that importing the package costs nothing.
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
    from pinwarden.core.cid import Cid, blob_cid, document_cid, manifest_root_cid
    from pinwarden.core.digest import Digest
    from pinwarden.core.errors import PinwardenError
    from pinwarden.core.keys import PrivateKey, PublicKey
    from pinwarden.core.limits import Limits
    from pinwarden.core.signing import signing_preimage, verify_signature
    from pinwarden.core.strict_json import parse_json
    from pinwarden.core.tool_digest import tool_digest

_HOMES = {
    "Cid": "cid",
    "Digest": "digest",
    "Limits": "limits",
    "PinwardenError": "errors",
    "PrivateKey": "keys",
    "PublicKey": "keys",
    "blob_cid": "cid",
    "canonicalize": "canonical",
    "document_cid": "cid",
    "manifest_root_cid": "cid",
    "parse_json": "strict_json",
    "signing_preimage": "signing",
    "tool_digest": "tool_digest",
    "verify_signature": "signing",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"pinwarden.core.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
