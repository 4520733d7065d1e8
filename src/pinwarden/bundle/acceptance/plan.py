"""The nine steps in their order.

Hardened, which is the default, closes what the letter of the rulebook leaves open: the manifest is bound to the
pointer, a claim to the key that signed it and to that key's roles, signatures to the fields that matter, attestations
to the descriptor; signers are counted once, paths are safe on every machine, and only one CID profile is used. What the
rulebook has no code for (a member of the wrong kind, another tool's name) is looked at last, so that it never stands
before a code of the rulebook.
"""

from __future__ import annotations

from typing import Any

from pinwarden.bundle import pointer as pointer_document
from pinwarden.bundle.acceptance.attestations import vouchers
from pinwarden.bundle.acceptance.bundle import documents_of
from pinwarden.bundle.acceptance.entries import check_entries
from pinwarden.bundle.acceptance.linkage import check_linkage
from pinwarden.bundle.acceptance.permissions import check_permissions
from pinwarden.bundle.acceptance.pointers import check_channel, check_signature, chosen_pointer
from pinwarden.bundle.acceptance.requirements import check_demands
from pinwarden.bundle.acceptance.values import read_all
from pinwarden.bundle.acceptance.verdict import BundleDocuments, Submission, Verdict, refusal_of
from pinwarden.bundle.provenance import Provenance
from pinwarden.core.errors import PinwardenError


def accept(submission: Submission) -> Verdict:
    """Whether a bundle may be installed. The first check that fails is the answer; there is exactly one code."""
    try:
        return _accept(submission)
    except PinwardenError as err:
        return Verdict(refusal=refusal_of(err))


def _accept(submission: Submission) -> Verdict:
    literal = submission.literal
    # 1. A trusted registry signed the pointer.
    document = read_all({"pointer": submission.pointer})["pointer"]
    check_signature(document, submission)
    pointer = chosen_pointer(document, submission)
    # 2. Its channel is not a legacy one, or those are allowed.
    check_channel(pointer, submission)
    # 3. The descriptor and the manifest have one meaning.
    read = read_all({"descriptor": submission.descriptor, "manifest": submission.manifest})
    descriptor, manifest = read["descriptor"], read["manifest"]
    # 4. All three are about the same bundle.
    check_linkage(pointer, descriptor, manifest, literal=literal)
    # 5. The files are in order, and stay inside.
    check_entries(manifest, literal=literal)
    # 6. Somebody known vouches for the bundle.
    found = vouchers(pointer, submission)
    # 7. They are those, and as many, as the registry demands.
    demanded = check_demands(pointer, found, literal=literal)
    # 8. The installer allows what the tool asks for.
    check_permissions(descriptor, submission.policy, literal=literal)
    documents = None if literal else _checked_documents(document, pointer, descriptor, manifest)
    # 9. Accepted.
    provenance = Provenance(
        tool=str(pointer.get("tool")),
        channel=str(pointer.get("channel")),
        root_cid=str(pointer.get("root_cid")),
        descriptor_cid=str(pointer.get("descriptor_cid")),
        attestations_used=tuple(each.key_id for each in found),
        require_verifier_attestation=demanded.require_verifier_attestation,
        min_attestations=demanded.min_attestations,
    )
    return Verdict(provenance=provenance, documents=documents)


def _checked_documents(document: Any, pointer: dict[str, Any], descriptor: Any, manifest: Any) -> BundleDocuments:
    """What the rulebook has no code for: members of the wrong kind, and a bundle under another name."""
    pointer_document.of(document)
    documents = documents_of(descriptor, manifest, str(pointer.get("descriptor_cid")))
    described = documents.descriptor
    if described.name != pointer["tool"]:
        raise PinwardenError(
            "TOOL_NAME_MISMATCH",
            f"asked for {str(pointer['tool'])[:80]!a}, the registry points to {described.name[:80]!a}",
            data={"pointer_tool": pointer["tool"], "descriptor_name": described.name},
        )
    return documents
