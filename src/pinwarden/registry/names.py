"""Names in a registry (namespaces, bundles, channels, versions) and the paths of its files.

Only a few characters are allowed in names, because names are part of paths. A live registry serves files under these
paths, and a static export writes them there. Content under a CID never changes, so it may be cached forever.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NoReturn

from pinwarden.bundle.bundle_documents import MAX_TOOL_NAME, TOOL_NAME_PATTERN, VERSION_PATTERN
from pinwarden.core.errors import PinwardenError

DEFAULT_CHANNEL = "stable"
YANKED_PREFIX = "yanked-"
"""The log records a yanked version on a channel with this prefix. Publishers cannot use such channels."""
OPERATOR_CHANNEL = "!operator"
"""The log stores actions of the operator under this channel, which publishers cannot use."""
_PART = re.compile(r"[a-z0-9][a-z0-9_-]*")
_CHANNEL = re.compile(r"[a-z][a-z0-9._-]{0,63}")
_MAX_NAMESPACE = 128
_MAX_VERSION = 100


def check_tool(name: str) -> str:
    """Return ``name`` if it is a valid bundle name: non-empty parts separated by dots. Otherwise raise."""
    if (
        len(name) > MAX_TOOL_NAME
        or not TOOL_NAME_PATTERN.fullmatch(name)
        or not all(map(_PART.fullmatch, name.split(".")))
    ):
        _refuse(f"{name[:80]!a} is not a valid tool name", "Tool names look like acme.notes.")
    return name


def check_namespace(name: str) -> str:
    """Return ``name`` if it is a valid namespace (the first part or parts of bundle names). Otherwise raise."""
    if len(name) > _MAX_NAMESPACE or not name[:1].isalpha() or not all(map(_PART.fullmatch, name.split("."))):
        _refuse(f"{name[:80]!a} is not a valid namespace", "Namespaces look like acme or com.acme.")
    return name


def check_channel(name: str) -> str:
    """Return ``name`` if publishers may use it as a channel name. Otherwise raise."""
    if not _CHANNEL.fullmatch(name) or ".." in name or name.startswith(YANKED_PREFIX):
        _refuse(f"{name[:80]!a} is not a valid channel", "Channels look like stable or beta.")
    return name


def check_version(version: str) -> str:
    """Return ``version`` if it is a valid exact version. Otherwise raise."""
    if len(version) > _MAX_VERSION or not VERSION_PATTERN.fullmatch(version):
        _refuse(f"{version[:80]!a} is not an exact version", "Versions look like 1.2.0.")
    return version


def is_in_namespace(tool: str, namespace: str) -> bool:
    """Whether ``tool``, a bundle or a namespace, is ``namespace`` itself or inside it."""
    return tool == namespace or tool.startswith(f"{namespace}.")


def find_longest_namespace(tool: str, namespaces: Iterable[str]) -> str | None:
    """Return the longest namespace that contains a bundle (owners may delegate longer ones); None if there is none."""
    return max((namespace for namespace in namespaces if is_in_namespace(tool, namespace)), key=len, default=None)


def list_possible_namespaces(tool: str) -> list[str]:
    """Return all namespaces that a bundle could belong to: ``acme`` and ``acme.notes`` for ``acme.notes``."""
    parts = tool.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _refuse(why: str, hint: str) -> NoReturn:
    raise PinwardenError("REGISTRY_NAME_INVALID", why, hint=hint)


IDENTITY = "registry.json"
"""The path of the document with the registry's name, log id and key."""
TOOLS = "tools.json"
SEARCH_INDEX = "search-index.json"
"""A file of static exports, in which clients search."""
"""The path of the list of all bundle names."""
CHECKPOINT = "log/checkpoint"
"""The path of the log's head as a signed note (C2SP). Tiles and entries of the log are in the same folder."""
SIGNED_CHECKPOINT = "log/checkpoint.json"
"""The path of the log's head as a `registry.pointerlog.checkpoint` document, with the time of its signature."""
KEY_CHANGES = "log/keys.json"
"""The path of the list of all changes of the registry's key. The changes are also entries of the log."""
LOG = "log"
IMMUTABLE = ("documents/", "manifests/", "blobs/")


def pointer_path(tool: str, channel: str) -> str:
    """Return the path of the signed `registry.pointer` document of a channel."""
    return f"pointers/{tool}/{channel}.json"


def proof_path(tool: str, channel: str) -> str:
    """Return the path of the proof (C2SP tlog-proof) that the pointer's event is in the log."""
    return f"pointers/{tool}/{channel}.tlog-proof"


def event_path(tool: str, channel: str) -> str:
    """Return the path of the pointer's log entry, which the proof covers."""
    return f"pointers/{tool}/{channel}.event"


def tool_path(tool: str) -> str:
    """Return the path of the list of a bundle's versions and channels."""
    return f"tools/{tool}.json"


def version_path(tool: str, version: str) -> str:
    """Return the path of the signed document of one version."""
    return f"versions/{tool}/{version}.json"


def manifest_path(root_cid: str, descriptor_cid: str) -> str:
    """Return the path of a manifest. A root CID does not cover the descriptor, so the path has both CIDs."""
    return f"manifests/{root_cid}/{descriptor_cid}.json"


def document_path(cid: str) -> str:
    """Return the path of a descriptor, attestation or surface."""
    return f"documents/{cid}.json"


def blob_path(cid: str) -> str:
    """Return the path of an archive."""
    return f"blobs/{cid}"


def attestations_path(root_cid: str, descriptor_cid: str) -> str:
    """Return the path of the list of a bundle's attestations."""
    return f"attestations/{root_cid}/{descriptor_cid}.json"
