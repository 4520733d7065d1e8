"""The pages of the transparency log: its head, its latest entries, lookup, and one entry with its proof."""

from __future__ import annotations

import base64
import json
import shlex
from typing import Any

from pinwarden.core import strict_json
from pinwarden.core.signed_note import Checkpoint, TlogProof
from pinwarden.core.tlog import hash_leaf
from pinwarden.html.pages import PageContent
from pinwarden.registry.checkpoint_file import load_key_changes
from pinwarden.registry.pages.events import LoggedChange, describe_entries, describe_entry
from pinwarden.registry.pages.page_request import PageRequest
from pinwarden.registry.read_api import read_head_note
from pinwarden.registry.registry import Registry
from pinwarden.registry.registry_documents import PublishedVersion
from pinwarden.registry.store import pointer_log, publications
from pinwarden.system.database import Transaction

_ENTRIES = 50
_MAX_QUERY = 214


def build_log_page(registry: Registry, transaction: Transaction, request: PageRequest) -> PageContent:
    """Build the page of the log: its signed head, and its latest entries or those that match a query."""
    note = read_head_note(registry, transaction)
    head = Checkpoint.parse(note.text)
    query = request.query.get("q", "").strip()[:_MAX_QUERY]
    end = _read_end(request.query.get("before", ""), head.size)
    start = max(0, end - _ENTRIES)
    if query:
        entries, meaning = _find_entries(transaction, query, head.size)
    else:
        newest_first = pointer_log.read_entries(transaction, start, end)[::-1]
        entries, meaning = describe_entries(transaction, newest_first), ""
    values = {
        "size": head.size,
        "root_hash": base64.b64encode(head.root).decode(),
        "checkpoint": bytes(note).decode(),
        "checked_at": registry.now(),
        "cosigners": [line.name for line in note.signatures if line.name != registry.identity.log_id],
        "key_changes": load_key_changes(transaction),
        "entries": entries,
        "query": query,
        "meaning": meaning,
        "start": start,
        "end": end,
        "newer": min(end + _ENTRIES, head.size) if end < head.size else None,
        "older": start if start > 0 else None,
        "verify_command": f"pinwarden log verify {shlex.quote(request.base_url or 'URL')}",
    }
    return PageContent(template="log.html", values=values)


def build_entry_page(
    registry: Registry, transaction: Transaction, request: PageRequest, text: str
) -> PageContent | None:
    """Build the page of one entry with the proof that the log contains it; None if there is no such entry."""
    note, index = read_head_note(registry, transaction), int(text)
    size = Checkpoint.parse(note.text).size
    if index >= size:
        return None
    entry = pointer_log.read_entries(transaction, index, index + 1)[0]
    path = tuple(pointer_log.compute_inclusion_path(transaction, size, index))
    document: Any = strict_json.parse_json(entry)
    values = {
        "entry": describe_entry(transaction, entry),
        "index": index,
        "size": size,
        "leaf_hash": base64.b64encode(hash_leaf(entry)).decode(),
        "document": json.dumps(document, indent=2, ensure_ascii=False),
        "signers": [row.get("key_id", "") for row in document.get("signatures", []) if isinstance(row, dict)],
        "proof": bytes(TlogProof(index=index, path=path, checkpoint=note)).decode(),
        "verify_command": f"pinwarden log verify {shlex.quote(request.base_url or 'URL')}",
    }
    return PageContent(template="entry.html", values=values)


def _read_end(text: str, size: int) -> int:
    """Return the index after the last shown entry."""
    return min(int(text), size) if text.isascii() and text.isdecimal() and len(text) < 16 else size


def _find_entries(transaction: Transaction, query: str, size: int) -> tuple[list[LoggedChange], str]:
    """Return the entries for an index, a bundle or a CID, and what the query was taken for."""
    if query.isascii() and query.isdecimal() and len(query) < 16:
        if int(query) >= size:
            return [], f"an index; the last one is {size - 1}" if size else "an index; the log is empty"
        entries = pointer_log.read_entries(transaction, int(query), int(query) + 1)
        return describe_entries(transaction, entries), "the index of an entry"
    versions = publications.find_versions_by_cid(transaction, query, _ENTRIES)
    if versions:
        entries = [pointer_log.read_entries(transaction, row.seq, row.seq + 1)[0] for row in versions]
        return describe_entries(transaction, entries), _describe_cid(query, versions[0])
    entries = pointer_log.list_tool_entries(transaction, query.lower(), _ENTRIES)
    return describe_entries(transaction, entries), "the name of a bundle"


def _describe_cid(cid: str, version: PublishedVersion) -> str:
    meanings = {
        version.root_cid: "the content of a bundle",
        version.descriptor_cid: "the descriptor of a bundle",
        version.archive_cid: "the archive of a bundle",
    }
    return f"the CID of {meanings.get(cid, 'the recorded surface of a bundle')}"
