"""Steps 1 and 2: the registry's signature, the pointer that was asked for, and legacy channels."""

from __future__ import annotations

from typing import Any

from pinwarden.bundle import pointer as pointer_document
from pinwarden.bundle.acceptance.signatures import signers_of
from pinwarden.bundle.acceptance.values import listed, member
from pinwarden.bundle.acceptance.verdict import Submission
from pinwarden.core.errors import PinwardenError


def check_signature(document: Any, submission: Submission) -> None:
    """Step 1."""
    needed = pointer_document.SIGNED_FIELDS
    if not signers_of(document, submission.trust.registry, needed, literal=submission.literal):
        raise PinwardenError(
            "POINTER_SIGNATURE_INVALID",
            "no trusted registry signed this pointer",
            data={
                "signed_by": [str(member(each, "key_id"))[:80] for each in listed(document, "signatures")[:8]],
                "trusted": [each.key_id for each in submission.trust.registry_keys],
            },
        )


def chosen_pointer(document: Any, submission: Submission) -> dict[str, Any]:
    """The pointer for the tool and channel that were asked for, or the first."""
    for pointer in listed(document, "pointers"):
        wanted = {"tool": submission.tool, "channel": submission.channel}
        if type(pointer) is dict and all(text in (None, pointer.get(name)) for name, text in wanted.items()):
            return pointer
    raise PinwardenError(
        "POINTER_NOT_FOUND",
        f"the registry points to no {(submission.tool or 'tool')[:80]} on {(submission.channel or 'any channel')[:80]}",
        data={"tool": submission.tool, "channel": submission.channel},
    )


def check_channel(pointer: dict[str, Any], submission: Submission) -> None:
    """Step 2."""
    channel = pointer.get("channel")
    if submission.policy.allow_legacy or not str(channel).startswith(pointer_document.LEGACY_PREFIX):
        return
    raise PinwardenError(
        "LEGACY_NOT_ALLOWED",
        f"the channel {str(channel)[:80]} is a legacy one, which the installer policy does not allow",
        data={"channel": channel, "allow_legacy": False},
    )
