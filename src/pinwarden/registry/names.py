"""Names in a registry (namespaces, tools, channels, versions) and the paths of its files.

Names are part of paths, so few characters are allowed. A live registry serves these paths; a static export has files
there. Content under a CID never changes and may be cached forever.
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
_PART = re.compile(r"[a-z0-9][a-z0-9_-]*")
_CHANNEL = re.compile(r"[a-z][a-z0-9._-]{0,63}")
_MAX_NAMESPACE = 128
_MAX_VERSION = 100


def check_tool(name: str) -> str:
    """A valid tool name: non-empty parts separated by dots."""
    if (
        len(name) > MAX_TOOL_NAME
        or not TOOL_NAME_PATTERN.fullmatch(name)
        or not all(map(_PART.fullmatch, name.split(".")))
    ):
        _refuse(f"{name[:80]!a} is not a valid tool name", "Tool names look like acme.notes.")
    return name


def check_namespace(name: str) -> str:
    """A valid namespace, which is the first part or parts of its tools' names."""
    if len(name) > _MAX_NAMESPACE or not name[:1].isalpha() or not all(map(_PART.fullmatch, name.split("."))):
        _refuse(f"{name[:80]!a} is not a valid namespace", "Namespaces look like acme or com.acme.")
    return name


def check_channel(name: str) -> str:
    """A valid channel name for publishers."""
    if not _CHANNEL.fullmatch(name) or ".." in name or name.startswith(YANKED_PREFIX):
        _refuse(f"{name[:80]!a} is not a valid channel", "Channels look like stable or beta.")
    return name


def check_version(version: str) -> str:
    """A valid exact version."""
    if len(version) > _MAX_VERSION or not VERSION_PATTERN.fullmatch(version):
        _refuse(f"{version[:80]!a} is not an exact version", "Versions look like 1.2.0.")
    return version


def is_in_namespace(tool: str, namespace: str) -> bool:
    """Whether a tool or namespace belongs to a namespace."""
    return tool == namespace or tool.startswith(f"{namespace}.")


def find_longest_namespace(tool: str, namespaces: Iterable[str]) -> str | None:
    """The longest namespace that contains a tool; None if there is none. An owner may delegate a longer namespace."""
    return max((namespace for namespace in namespaces if is_in_namespace(tool, namespace)), key=len, default=None)


def list_possible_namespaces(tool: str) -> list[str]:
    """All namespaces that a tool could belong to: ``acme`` and ``acme.notes`` for ``acme.notes``."""
    parts = tool.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _refuse(why: str, hint: str) -> NoReturn:
    raise PinwardenError("REGISTRY_NAME_INVALID", why, hint=hint)


IDENTITY = "registry.json"
"""The registry's name, log and key."""
TOOLS = "tools.json"
"""All tool names."""
CHECKPOINT = "log/checkpoint"
"""The head of the log as a signed note (C2SP); tiles and entries are in the same folder."""
SIGNED_CHECKPOINT = "log/checkpoint.json"
"""The same head as a `registry.pointerlog.checkpoint` document, with the time at which it was signed."""
KEY_CHANGES = "log/keys.json"
"""All changes of the registry's key, which are also entries of the log."""
LOG = "log"
IMMUTABLE = ("documents/", "manifests/", "blobs/")


def pointer_path(tool: str, channel: str) -> str:
    """The signed `registry.pointer` document of a channel."""
    return f"pointers/{tool}/{channel}.json"


def proof_path(tool: str, channel: str) -> str:
    """The proof (C2SP tlog-proof) that the pointer's event is in the log."""
    return f"pointers/{tool}/{channel}.tlog-proof"


def event_path(tool: str, channel: str) -> str:
    """The log entry of the pointer's event, which the proof covers."""
    return f"pointers/{tool}/{channel}.event"


def tool_path(tool: str) -> str:
    """All versions and channels of a tool."""
    return f"tools/{tool}.json"


def version_path(tool: str, version: str) -> str:
    """The signed document of one version."""
    return f"versions/{tool}/{version}.json"


def manifest_path(root_cid: str, descriptor_cid: str) -> str:
    """A manifest. Its root CID does not cover the link to its descriptor, so the path has both CIDs."""
    return f"manifests/{root_cid}/{descriptor_cid}.json"


def document_path(cid: str) -> str:
    """A descriptor, attestation or surface."""
    return f"documents/{cid}.json"


def blob_path(cid: str) -> str:
    """An archive."""
    return f"blobs/{cid}"


def attestations_path(root_cid: str, descriptor_cid: str) -> str:
    """The CIDs of a bundle's attestations."""
    return f"attestations/{root_cid}/{descriptor_cid}.json"
