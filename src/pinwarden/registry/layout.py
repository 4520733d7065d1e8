"""Where everything lies in a registry. A live registry answers at these paths; a static export has files there.

What is addressed by a CID never changes and may be kept for ever. The rest is signed, or is only a convenience.
"""

from __future__ import annotations

IDENTITY = "registry.json"
"""Who the registry is: its name, its log, its keys."""
TOOLS = "tools.json"
"""Every tool, for people who look around."""
CHECKPOINT = "log/checkpoint"
"""The head of the log as a signed note (C2SP); tiles and entries lie beside it."""
SIGNED_CHECKPOINT = "log/checkpoint.json"
"""The same head as a `registry.pointerlog.checkpoint` document, with the moment at which it was issued."""
KEY_CHANGES = "log/keys.json"
"""Every change of the registry's key, each of which is an entry of the log too."""
LOG = "log"
IMMUTABLE = ("documents/", "manifests/", "blobs/")


def pointer_path(tool: str, channel: str) -> str:
    """The signed `registry.pointer` document of a channel."""
    return f"pointers/{tool}/{channel}.json"


def proof_path(tool: str, channel: str) -> str:
    """The proof (C2SP tlog-proof) that the pointer's event is in the log."""
    return f"pointers/{tool}/{channel}.tlog-proof"


def event_path(tool: str, channel: str) -> str:
    """The event that the proof is about, as it is in the log."""
    return f"pointers/{tool}/{channel}.event"


def tool_path(tool: str) -> str:
    """All versions and channels of a tool."""
    return f"tools/{tool}.json"


def version_path(tool: str, version: str) -> str:
    """What the registry knows of one version."""
    return f"versions/{tool}/{version}.json"


def manifest_path(root_cid: str, descriptor_cid: str) -> str:
    """A manifest. Its root CID leaves out the descriptor that it is linked to, so both name it."""
    return f"manifests/{root_cid}/{descriptor_cid}.json"


def document_path(cid: str) -> str:
    """A descriptor, attestation or surface."""
    return f"documents/{cid}.json"


def blob_path(cid: str) -> str:
    """An archive."""
    return f"blobs/{cid}"


def attestations_path(root_cid: str, descriptor_cid: str) -> str:
    """The list of what was attested of a bundle, by CID."""
    return f"attestations/{root_cid}/{descriptor_cid}.json"
