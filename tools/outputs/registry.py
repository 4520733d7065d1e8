"""Output schemas of the commands about a registry of bundles and its log."""

from __future__ import annotations

from collections.abc import Callable

from pinwarden.registry import operator_documents
from pinwarden.registry import registry_documents as registry_version
from pinwarden.registry.store import publishers
from tools.outputs.parts import BLOB_CID, DID, DOCUMENT_CID, output
from tools.schema_words import (
    BARE_SHA256,
    COUNT,
    FULL_TEXT,
    SHA256,
    TEXT,
    TRUTH,
    Schema,
    array,
    exactly,
    mapping,
    one_of,
    or_null,
)

MOMENT: Schema = {"type": "string", "format": "date-time"}


def published_version() -> Schema:
    archive = {"cid": BLOB_CID, "size_bytes": COUNT, "media_type": TEXT, "content_hash": SHA256}
    surface = {"api_surface": or_null(SHA256), "cid": or_null(DOCUMENT_CID), "problem": or_null(TEXT)}
    return exactly(
        {
            "schema_version": one_of((registry_version.VERSION_SCHEMA,)),
            "tool": TEXT,
            "version": TEXT,
            "namespace": TEXT,
            "description": TEXT,
            "root_cid": DOCUMENT_CID,
            "descriptor_cid": DOCUMENT_CID,
            "archive": exactly(archive),
            "surface": exactly(surface),
            "published_at_utc": MOMENT,
            "published_by": DID,
            "log_index": COUNT,
            "yanked": or_null(TEXT),
            "taken_down": or_null(TEXT),
            "attestations": array(DOCUMENT_CID),
        }
    )


def publish() -> Schema:
    event = exactly({"channel": TEXT, "log_index": COUNT, "previous": or_null(TEXT), "changed": TRUTH})
    members = {"registry": TEXT, "channel": TEXT, "published": published_version(), "event": or_null(event)}
    return output("publish", exactly({**members, "probe_output": array(TEXT)}))


def search() -> Schema:
    texts = {"tool": TEXT, "namespace": TEXT, "latest": or_null(TEXT), "description": TEXT}
    tool = exactly({**texts, "versions": COUNT, "published_at_utc": MOMENT})
    members = {"registry": TEXT, "query": TEXT, "page": COUNT, "total": COUNT, "tools": array(tool)}
    return output("search", exactly(members))


def registry_export() -> Schema:
    return output("registry export", exactly({"folder": FULL_TEXT, "written": COUNT, "log_size": COUNT}))


def registry_namespace() -> Schema:
    namespace = exactly({"namespace": TEXT, "keys": mapping(one_of(publishers.ROLES))})
    return output("registry namespace", exactly({"namespaces": array(namespace)}))


def registry_token() -> Schema:
    texts = dict.fromkeys(("id", "namespace", "label"), TEXT)
    token = exactly({**texts, "created_at_utc": MOMENT, "expires_ms": COUNT, "revoked": TRUTH})
    return output("registry token", exactly({"tokens": array(token)}, {"token": TEXT}))


def registry_rotate_key() -> Schema:
    keys = {"old_key_id": DID, "new_key_id": DID}
    return output(
        "registry rotate-key", exactly({"log_id": TEXT, "seq": COUNT, **keys, "reason": TEXT, "pointers": COUNT})
    )


def registry_audit() -> Schema:
    texts = dict.fromkeys(("action", "namespace", "subject", "outcome"), TEXT)
    request = exactly({**texts, "at_ms": COUNT, "token": or_null(TEXT), "key_id": or_null(DID), "size": COUNT})
    return output("registry audit", exactly({"requests": array(request)}))


def registry_change(command: str) -> Callable[[], Schema]:
    return lambda: output(command, exactly({"registry": TEXT, "subject": TEXT, "changed": TRUTH}))


def registry_attest() -> Schema:
    return output("registry attest", exactly({"registry": TEXT, "sent": COUNT, "new": COUNT}))


def log_members() -> dict[str, Schema]:
    witness = exactly({"name": TEXT, "time": COUNT})
    ended = array(exactly({"key_id": DID, "seq": COUNT}))
    return {
        "log_id": TEXT,
        "key_id": DID,
        "ended_keys": ended,
        "size": COUNT,
        "root": BARE_SHA256,
        "witnesses": array(witness),
    }


def log_verify() -> Schema:
    return output("log verify", exactly({**log_members(), "issued_at_utc": MOMENT, "tools": COUNT}))


def log_monitor() -> Schema:
    return output("log monitor", exactly({**log_entries(), "new": COUNT}))


def log_show() -> Schema:
    return output("log show", exactly(log_entries()))


def log_entries() -> dict[str, Schema]:
    cids = dict.fromkeys(("prev_root_cid", "new_root_cid", "descriptor_cid"), or_null(DOCUMENT_CID))
    texts = dict.fromkeys(("tool", "channel", "reason"), TEXT)
    event = exactly({"seq": COUNT, **texts, **cids, "issued_at_utc": MOMENT})
    return {**log_members(), "events": array(event), "actions": array(operator_action())}


def operator_action() -> Schema:
    texts = dict.fromkeys(("name", "version", "channel", "reason"), TEXT)
    lists = dict.fromkeys(("old_key_ids", "require_signers"), array(TEXT))
    details = {
        **dict.fromkeys(("root_cid", "new_key_id", "due_at_utc", "objected_by"), TEXT),
        **lists,
        "min_attestations": COUNT,
        "require_verifier_attestation": TRUTH,
    }
    return exactly(
        {
            "seq": COUNT,
            "action": one_of(operator_documents.ACTIONS),
            **texts,
            "details": exactly({}, details),
            "issued_at_utc": MOMENT,
        }
    )


def registry_takedown() -> Schema:
    members = {"changed": TRUTH, "action": or_null(operator_action()), "pointers": COUNT}
    return output("registry takedown", exactly(members))


def registry_transfer() -> Schema:
    return output("registry transfer", exactly({"action": operator_action()}))


def registry_recover() -> Schema:
    texts = {"namespace": TEXT, "new_key_id": DID, "due_at_utc": MOMENT, "index": COUNT}
    return output("registry recover", exactly({}, {"action": operator_action(), "waiting": array(exactly(texts))}))


def witness_cosign() -> Schema:
    texts = dict.fromkeys(("log_id", "witness", "cosignature"), TEXT)
    return output("witness cosign", exactly({**texts, "previous_size": COUNT, "size": COUNT, "submitted": TRUTH}))


def registry_backup() -> Schema:
    counts = dict.fromkeys(("log_size", "archives", "copied", "removed"), COUNT)
    return output("registry backup", exactly({"snapshot": FULL_TEXT, **counts, "has_key": TRUTH}))


def registry_restore() -> Schema:
    return output("registry restore", exactly({"log_id": TEXT, "key_id": DID, "log_size": COUNT, "archives": COUNT}))


def registry_require() -> Schema:
    row = {
        "name": TEXT,
        "channel": TEXT,
        "index": COUNT,
        "min_attestations": COUNT,
        "require_signers": array(DID),
        "require_verifier_attestation": TRUTH,
    }
    members = {"action": operator_action(), "pointers": COUNT, "requirements": array(exactly(row))}
    return output("registry require", exactly({}, members))


BY_COMMAND: dict[str, Callable[[], Schema]] = {
    "publish": publish,
    "search": search,
    "registry export": registry_export,
    "registry namespace": registry_namespace,
    "registry token": registry_token,
    "registry rotate-key": registry_rotate_key,
    "registry audit": registry_audit,
    "registry point": registry_change("registry point"),
    "registry yank": registry_change("registry yank"),
    "registry attest": registry_attest,
    "registry keys": registry_change("registry keys"),
    "registry object": registry_change("registry object"),
    "registry takedown": registry_takedown,
    "registry transfer": registry_transfer,
    "registry recover": registry_recover,
    "registry require": registry_require,
    "registry backup": registry_backup,
    "witness cosign": witness_cosign,
    "registry restore": registry_restore,
    "log verify": log_verify,
    "log show": log_show,
    "log monitor": log_monitor,
}
