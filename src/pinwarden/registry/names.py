"""Names in a registry: namespaces, tools, channels. All of them stand in paths, so all are narrow."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NoReturn

from pinwarden.bundle.descriptor import MAX_TOOL_NAME, TOOL_NAME, VERSION
from pinwarden.core.errors import PinwardenError

DEFAULT_CHANNEL = "stable"
YANKED_PREFIX = "yanked-"
"""Channels of this kind are the log's own: they say of a version that it was taken back."""
_PART = re.compile(r"[a-z0-9][a-z0-9_-]*")
_CHANNEL = re.compile(r"[a-z][a-z0-9._-]{0,63}")
_MAX_NAMESPACE = 128
_MAX_VERSION = 100


def check_tool(name: str) -> str:
    """The name of a tool: parts that are separated by dots, none of them empty."""
    if len(name) > MAX_TOOL_NAME or not TOOL_NAME.fullmatch(name) or not all(map(_PART.fullmatch, name.split("."))):
        _refuse(f"{name[:80]!a} is not the name of a tool in a registry", "Names look like acme.notes.")
    return name


def check_namespace(name: str) -> str:
    """The name of a namespace, which is the beginning of the names of its tools."""
    if len(name) > _MAX_NAMESPACE or not name[:1].isalpha() or not all(map(_PART.fullmatch, name.split("."))):
        _refuse(f"{name[:80]!a} is not the name of a namespace", "Names look like acme or com.acme.")
    return name


def check_channel(name: str) -> str:
    """The name of a channel that publishers may point somewhere."""
    if not _CHANNEL.fullmatch(name) or ".." in name or name.startswith(YANKED_PREFIX):
        _refuse(f"{name[:80]!a} is not the name of a channel", "Names look like stable or beta.")
    return name


def check_version(version: str) -> str:
    """One exact version."""
    if len(version) > _MAX_VERSION or not VERSION.fullmatch(version):
        _refuse(f"{version[:80]!a} is not one exact version", "Versions look like 1.2.0.")
    return version


def is_inside(tool: str, namespace: str) -> bool:
    """Whether a tool, or a namespace, belongs to a namespace."""
    return tool == namespace or tool.startswith(f"{namespace}.")


def namespace_of(tool: str, namespaces: Iterable[str]) -> str | None:
    """The namespace that a tool belongs to: the longest, so that a part can be given away."""
    return max((each for each in namespaces if is_inside(tool, each)), key=len, default=None)


def beginnings(tool: str) -> list[str]:
    """Every namespace that a tool could belong to."""
    parts = tool.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _refuse(why: str, hint: str) -> NoReturn:
    raise PinwardenError("REGISTRY_NAME_INVALID", why, hint=hint)
