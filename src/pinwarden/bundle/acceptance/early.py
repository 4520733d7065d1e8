"""The first two steps by themselves: nothing else is fetched because of a pointer that nobody trusted signed."""

from __future__ import annotations

from typing import Any

from pinwarden.bundle import pointer as pointer_document
from pinwarden.bundle.acceptance.pointers import check_channel, check_signature, chosen_pointer
from pinwarden.bundle.acceptance.signatures import signers_of
from pinwarden.bundle.acceptance.values import read_all
from pinwarden.bundle.acceptance.verdict import Submission


def first_steps(submission: Submission) -> tuple[dict[str, Any], str]:
    """The pointer that was asked for, and the key of the registry that signed it; the errors are those of the plan."""
    document = read_all({"pointer": submission.pointer})["pointer"]
    check_signature(document, submission)
    pointer = chosen_pointer(document, submission)
    check_channel(pointer, submission)
    needed = pointer_document.SIGNED_FIELDS
    signers = signers_of(document, submission.trust.registry, needed, literal=submission.literal)
    return pointer, signers[0].key_id
