"""Output schemas of the commands about bundles."""

from __future__ import annotations

from collections.abc import Callable

from pinwarden.bundle import attestation as bundle_attestation
from pinwarden.bundle import bundle_documents as bundle_descriptor
from pinwarden.bundle.signed_documents import SIGNED_FIELDS as SIGNED_DOCUMENTS
from pinwarden.core.errors import CODES
from tools.outputs.parts import BLOB_CID, DID, DOCUMENT_CID, POINTER, output
from tools.schema_words import COUNT, FULL_TEXT, OBJECT, SHA256, TEXT, TRUTH, Schema, array, exactly, one_of, or_null


def bundle_identity() -> dict[str, Schema]:
    return {
        "tool": TEXT,
        "version": TEXT,
        "root_cid": DOCUMENT_CID,
        "descriptor_cid": DOCUMENT_CID,
        "media_type": one_of(bundle_descriptor.MEDIA_TYPES),
        "size_bytes": COUNT,
    }


def bundle_start() -> dict[str, Schema]:
    permission = one_of(("deny", "allow"))
    files = one_of(("deny", "read_only", "read_write"))
    return {
        "runtime": one_of(bundle_descriptor.RUNTIMES),
        "target": TEXT,
        "policy": exactly({"network": permission, "filesystem": files, "exec": permission}),
    }


def bundle_pack() -> Schema:
    places = {"archive": FULL_TEXT, "descriptor": FULL_TEXT, "manifest": FULL_TEXT, "left_out": array(FULL_TEXT)}
    packages = {"packages": array(TEXT), "platforms": array(TEXT), "python": array(TEXT)}
    seen = {"content_hash": SHA256, "files": COUNT}
    return output("bundle pack", exactly({**bundle_identity(), **seen, **places, **packages}))


def bundle_inspect() -> Schema:
    entry = exactly({"path": FULL_TEXT, "size_bytes": COUNT, "executable": TRUTH, "blob_cid": BLOB_CID})
    return output("bundle inspect", exactly({**bundle_identity(), **bundle_start(), "entries": array(entry)}))


def bundle_verify() -> Schema:
    verified = {"content_hash": SHA256, "files": COUNT, "unpacked_bytes": COUNT}
    return output("bundle verify", exactly({**bundle_identity(), **bundle_start(), **verified}))


def bundle_in_oci() -> dict[str, Schema]:
    return {
        "reference": TEXT,
        "digest": SHA256,
        "tool": TEXT,
        "version": TEXT,
        "root_cid": DOCUMENT_CID,
        "descriptor_cid": DOCUMENT_CID,
        "attestations": COUNT,
        "pointer": TRUTH,
    }


def bundle_push() -> Schema:
    return output("bundle push", exactly(bundle_in_oci()))


def bundle_pull() -> Schema:
    more = {"files": array(FULL_TEXT), "provenance": or_null(bundle_provenance()), "unpacked": or_null(FULL_TEXT)}
    return output("bundle pull", exactly({**bundle_in_oci(), **more}))


def sign() -> Schema:
    schemas = one_of(SIGNED_DOCUMENTS)
    fields = array(POINTER)
    return output(
        "sign",
        exactly(
            {"file": FULL_TEXT, "schema_version": schemas, "key_id": DID, "signed_fields": fields, "signatures": COUNT}
        ),
    )


def attest() -> Schema:
    return output(
        "attest",
        exactly(
            {
                "file": FULL_TEXT,
                "root_cid": DOCUMENT_CID,
                "descriptor_cid": DOCUMENT_CID,
                "key_id": DID,
                "role": one_of(bundle_attestation.ROLES),
                "claims": array(one_of(bundle_attestation.CLAIM_TYPES)),
                "expires_at_utc": or_null(TEXT),
            }
        ),
    )


def bundle_provenance() -> Schema:
    return exactly(
        {
            "tool": TEXT,
            "channel": TEXT,
            "root_cid": TEXT,
            "descriptor_cid": TEXT,
            "attestations_used": array(TEXT),
            "constraints_enforced": exactly({"require_verifier_attestation": TRUTH, "min_attestations": COUNT}),
        }
    )


def bundle_refusal() -> Schema:
    return exactly({"code": one_of(CODES), "what": TEXT, "why": OBJECT, "fix": TEXT})


def bundle_accept() -> Schema:
    accepted = exactly({"result": one_of(["ACCEPT"]), "provenance": bundle_provenance()})
    refused = exactly({"result": one_of(["REJECT"]), "error": bundle_refusal()})
    return output("bundle accept", {"oneOf": [accepted, refused]})


BY_COMMAND: dict[str, Callable[[], Schema]] = {
    "bundle pack": bundle_pack,
    "bundle inspect": bundle_inspect,
    "bundle verify": bundle_verify,
    "bundle push": bundle_push,
    "bundle pull": bundle_pull,
    "sign": sign,
    "attest": attest,
    "bundle accept": bundle_accept,
}
