"""The one CID profile that is computed here: how a bundle's identifiers come about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.bundle.shape import Shape

NORMALIZATION: Mapping[str, Any] = {
    "path_separator": "/",
    "sort_entries": True,
    "strip_timestamps": True,
    "strip_owner": True,
    "strip_permissions": True,
    "reject_symlinks": True,
}
_STATED: Mapping[str, str] = {
    "name": "mcp.cidprofile.default",
    "version": "1",
    "hash": "sha2-256",
    "codec": "dag-cbor",
    "base": "base32",
}


def default_profile() -> dict[str, Any]:
    """The profile as documents state it, with what was normalised."""
    return {**_STATED, "normalization": dict(NORMALIZATION)}


def is_supported(profile: Any) -> bool:
    """Whether a profile is the default one. ``normalization`` may be absent, and says nothing else if it is there."""
    if type(profile) is not dict or any(profile.get(member) != value for member, value in _STATED.items()):
        return False
    normalization = profile.get("normalization", {})
    if type(normalization) is not dict or profile.keys() - _STATED.keys() - {"normalization"}:
        return False
    return all(type(NORMALIZATION.get(k)) is type(v) and NORMALIZATION[k] == v for k, v in normalization.items())


def profile_in(shape: Shape) -> Mapping[str, Any]:
    """The profile that an object states, with text in each of its members."""
    profile = shape.inside("cid_profile")
    for member in _STATED:
        profile.text(member)
    return profile.value
