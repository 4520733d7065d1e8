"""JSON Schemas of bundle documents and of the author's lockfile."""

from __future__ import annotations

from pinwarden.bundle import attestation, bundle_documents, log_documents
from pinwarden.bundle import document as bundle_document
from pinwarden.contract import dialect
from pinwarden.contract import extension as contract_extension
from pinwarden.contract import lockfile as contract_lockfile
from pinwarden.core import keys
from pinwarden.surface import surface
from tools.schema_words import (
    ANYTHING,
    COUNT,
    OBJECT,
    SHA256,
    TEXT,
    TRUTH,
    Schema,
    array,
    document,
    mapping,
    members,
    one_of,
    or_null,
    ref,
)

_SAID: Schema = {"type": "string", "minLength": 1, "maxLength": bundle_document._MAX_TEXT}
_TIME: Schema = {**_SAID, "pattern": r"^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d.*(?:[Zz]|[+-]\d\d:?\d\d)$"}


def _cid(prefix: str) -> Schema:
    return {"type": "string", "pattern": f"^{prefix}[a-z2-7]{{52}}$"}


def _matching(pattern: str) -> Schema:
    return {"type": "string", "pattern": f"^(?:{pattern})$", "maxLength": bundle_documents.MAX_TOOL_NAME}


def _definitions() -> dict[str, Schema]:
    profile = members(dict.fromkeys(bundle_document._PROFILE_MEMBERS, _SAID), {"normalization": ANYTHING})
    signature = members(
        {"alg": {"const": keys.ALGORITHM}, "key_id": _SAID, "sig": _SAID}, {"signed_fields": array(TEXT)}
    )
    return {
        "profile": profile,
        "signature": signature,
        "document": _cid(bundle_document.DOCUMENT_CID),
        "blob": _cid(bundle_document.BLOB_CID),
    }


def _build(name: str, title: str, description: str, body: Schema, *used: str) -> Schema:
    definitions = _definitions()
    return document(name, title, description, body, **{used_name: definitions[used_name] for used_name in used})


def descriptor_schema() -> Schema:
    tool = {
        "name": _matching(bundle_documents.TOOL_NAME_PATTERN.pattern),
        "display_name": _SAID,
        "version": _matching(bundle_documents.VERSION_PATTERN.pattern.replace(r"\d", "[0-9]")),
        "description": {"type": "string", "maxLength": bundle_document._MAX_TEXT},
        "license": _SAID,
    }
    artifact = {
        "root_cid": ref("document"),
        "cid_profile": ref("profile"),
        "media_type": one_of(bundle_documents.MEDIA_TYPES),
        "size_bytes": COUNT,
    }
    links = array(members({"name": _SAID, "cid": _SAID}))
    policy = {
        "network": one_of(("deny", "allow")),
        "filesystem": one_of(("deny", "read_only", "read_write")),
        "exec": one_of(("deny", "allow")),
    }
    body = members(
        {
            "schema_version": {"const": bundle_documents.DESCRIPTOR_SCHEMA},
            "tool": members(tool),
            "artifact": members(artifact),
            "entrypoint": members({"runtime": one_of(bundle_documents.RUNTIMES), "target": _SAID}),
            "schemas": members({"request": links, "response": links}),
            "security": members({"policy": members(policy)}),
        }
    )
    text = "What a bundle is, what starts it, and which permissions it requests."
    return _build("bundle-descriptor:0.1", "Bundle descriptor", text, body, "document", "profile")


def manifest_schema() -> Schema:
    entry = members({"path": _SAID, "blob_cid": ref("blob"), "size_bytes": COUNT, "executable": TRUTH})
    body = members(
        {
            "schema_version": {"const": bundle_documents.MANIFEST_SCHEMA},
            "cid_profile": ref("profile"),
            "entries": array(entry),
            "descriptor_cid": ref("document"),
            "root_cid": ref("document"),
        }
    )
    text = "Every file of a bundle, with the CID of its bytes. Acceptance also checks order and safety of the paths."
    return _build("bundle-manifest:0.1", "Bundle manifest", text, body, "document", "blob", "profile")


def pointer_schema() -> Schema:
    constraints = members(
        {},
        {
            "require_signers": array(TEXT),
            "require_verifier_attestation": TRUTH,
            "min_attestations": {"type": "integer", "minimum": 1},
        },
    )
    pointer = members(
        {
            "tool": _SAID,
            "channel": _SAID,
            "root_cid": ref("document"),
            "descriptor_cid": ref("document"),
            "cid_profile": ref("profile"),
            "updated_at_utc": _TIME,
        },
        {"constraints": constraints},
    )
    body = members(
        {
            "schema_version": {"const": log_documents.POINTER_SCHEMA},
            "registry": members({"name": _SAID, "generated_at_utc": _TIME, "issuer": _SAID}),
            "pointers": array(pointer),
            "signatures": array(ref("signature"), minItems=1),
        }
    )
    text = "Which bundle a registry serves on each channel, signed by the registry."
    return _build("registry-pointer:0.1", "Registry pointer", text, body, "document", "profile", "signature")


def attestation_schema() -> Schema:
    claim = members(
        {
            "type": one_of(attestation.CLAIM_TYPES),
            "issued_at_utc": _TIME,
            "issuer": members({"key_id": _SAID, "role": one_of(attestation.ROLES)}),
            "payload": OBJECT,
        },
        {"expires_at_utc": _TIME},
    )
    subject = {"root_cid": ref("document"), "descriptor_cid": ref("document"), "cid_profile": ref("profile")}
    body = members(
        {
            "schema_version": {"const": attestation.ATTESTATION_SCHEMA},
            "subject": members(subject),
            "claims": array(claim, minItems=1),
            "signatures": array(ref("signature"), minItems=1),
        }
    )
    text = "Signed claims of a verifier, maintainer or auditor about a bundle."
    return _build("bundle-attestation:0.1", "Bundle attestation", text, body, "document", "profile", "signature")


def contract_schema() -> Schema:
    locked = {"integrityDigest": SHA256}
    tool = members({**locked, **dict.fromkeys(contract_lockfile._SECTIONS, OBJECT)})
    versions = tuple(dict.fromkeys(entry.version_key for entry in dialect.DIALECTS.values()))
    body = members(
        {
            "lockfileVersion": {"const": contract_lockfile.LOCKFILE_VERSION},
            "serverName": TEXT,
            "generatedAt": TEXT,
            **locked,
            "capabilities": members({"tools": mapping(tool)}, {"prompts": mapping(members(locked))}),
        },
        {"pinwarden": ref("extension")},
        anyOf=[{"required": [name], "properties": {name: TEXT}} for name in versions],
    )
    return document(
        "contract:1",
        "The author's lockfile (mcp-fusion.lock, vurb.lock)",
        "MCP Fusion's capability lockfile, and Pinwarden's member with the surface, the contracts and the evidence. "
        "A description that both parts have is only in MCP Fusion's.",
        body,
        extension=_contract_extension(),
    )


def _contract_extension() -> Schema:
    level = one_of(contract_extension.EVIDENCE)
    tool = members(
        {
            "contract": OBJECT,
            "annotations": members(dict.fromkeys(contract_extension.HINTS, or_null(TRUTH))),
            "outputSchemaDigest": or_null(SHA256),
            "evidence": mapping(level),
            "entitlements": OBJECT,
            "middleware": array(OBJECT),
            "details": OBJECT,
        }
    )
    lists = {kind.member: array(ANYTHING) for kind in surface.ITEM_KINDS}
    server = dict.fromkeys(surface.SERVER_MEMBERS, ANYTHING)
    return members(
        {
            "format": {"const": contract_extension.FORMAT},
            "bodyDigest": SHA256,
            "surfaceDigest": SHA256,
            "normalisedDigest": SHA256,
            "evidence": level,
            "versions": mapping(TEXT),
            "surface": members({}, {**server, **lists}, additionalProperties=False),
            "tools": mapping(tool),
            "details": OBJECT,
        },
        {"signature": OBJECT},
    )
