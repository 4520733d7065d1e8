"""What a registry answers at each of its paths. The live server and the static export both ask here."""

from __future__ import annotations

import re
from collections.abc import Callable

from pinwarden.bundle import attestation as attestation_document
from pinwarden.bundle import checkpoint as checkpoint_document
from pinwarden.bundle.attestation_renewal import in_force
from pinwarden.bundle.checkpoint import PointerLogCheckpoint
from pinwarden.bundle.signatures import signed, to_bytes
from pinwarden.core.cid import Cid
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.signed_note import Checkpoint, Note, TlogProof
from pinwarden.core.tlog import TILE_WIDTH
from pinwarden.registry.checkpoint import key_changes
from pinwarden.registry.key_change import list_value
from pinwarden.registry.registry import Registry, check_key
from pinwarden.registry.store import pointer_log, publications
from pinwarden.registry.store.publications import Channel
from pinwarden.registry.version import SIGNED_FIELDS, identity_value, version_value
from pinwarden.system.database import Transaction

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
BYTES = "application/octet-stream"
FOREVER, BRIEFLY, NEVER = "forever", "briefly", "never"
"""How long an answer may be kept by whoever asked."""
_NAME = r"([a-z0-9._-]{1,214})"
_CID = r"(b[a-z2-7]{58})"
_VERSION = r"([0-9A-Za-z.+-]{1,100})"


class Found(Record):
    """An answer."""

    body: bytes = field(repr=False)
    media_type: str = JSON
    kept: str = NEVER


def find(registry: Registry, path: str) -> Found | None:
    """What lies at a path (without a slash before it); None if nothing does."""
    with registry.database.transaction() as step:
        return find_in(registry, step, path)


def find_in(registry: Registry, step: Transaction, path: str) -> Found | None:
    """The same, as part of a transaction."""
    for pattern, answer in _ROUTES:
        match = pattern.fullmatch(path)
        if match is not None:
            return answer(registry, step, *match.groups())
    return None


def _identity(registry: Registry, step: Transaction) -> Found:
    check_key(step, registry)
    return Found(body=to_bytes(identity_value(registry.identity)), kept=BRIEFLY)


def _tools(_registry: Registry, step: Transaction) -> Found:
    return Found(body=to_bytes({"tools": publications.every_tool(step)}), kept=BRIEFLY)


def _tool(_registry: Registry, step: Transaction, tool: str) -> Found | None:
    versions = publications.versions_of(step, tool)
    if not versions:
        return None
    channels = [each for each in publications.channels_of(step, tool) if each.pointer is not None]
    value = {
        "tool": tool,
        "channels": {each.channel: each.version for each in channels},
        "versions": [version_value(each) for each in versions],
    }
    return Found(body=to_bytes(value))


def _version(registry: Registry, step: Transaction, tool: str, version: str) -> Found | None:
    found = publications.version_of(step, tool, version)
    if found is None:
        return None
    check_key(step, registry)
    return Found(body=to_bytes(signed(version_value(found), SIGNED_FIELDS, registry.signer)))


def _pointer(_registry: Registry, step: Transaction, tool: str, channel: str) -> Found | None:
    found = publications.channel_of(step, tool, channel)
    return None if found is None or found.pointer is None else Found(body=found.pointer)


def _event(_registry: Registry, step: Transaction, tool: str, channel: str) -> Found | None:
    found = _pointing(step, tool, channel)
    return None if found is None else Found(body=pointer_log.entries(step, found.seq, found.seq + 1)[0])


def _proof(registry: Registry, step: Transaction, tool: str, channel: str) -> Found | None:
    found = _pointing(step, tool, channel)
    if found is None:
        return None
    note = head_note(registry, step)
    size = Checkpoint.parse(note.text).size
    path = tuple(pointer_log.inclusion_path(step, size, found.seq))
    return Found(body=bytes(TlogProof(index=found.seq, path=path, checkpoint=note)), media_type=TEXT)


def _pointing(step: Transaction, tool: str, channel: str) -> Channel | None:
    found = publications.channel_of(step, tool, channel)
    return None if found is None or found.pointer is None else found


def _document(_registry: Registry, step: Transaction, cid: str) -> Found | None:
    body = publications.document(step, cid)
    return None if body is None else Found(body=body, kept=FOREVER)


def _manifest(_registry: Registry, step: Transaction, root_cid: str, descriptor_cid: str) -> Found | None:
    body = publications.manifest(step, root_cid, descriptor_cid)
    return None if body is None else Found(body=body, kept=FOREVER)


def _attestations(_registry: Registry, step: Transaction, root_cid: str, descriptor_cid: str) -> Found | None:
    if publications.manifest(step, root_cid, descriptor_cid) is None:
        return None
    found = {
        cid: attestation_document.parse(body)
        for cid in publications.attestations_of(step, root_cid, descriptor_cid)
        if (body := publications.document(step, cid)) is not None
    }
    return Found(body=to_bytes({"attestations": in_force(found)}))


def _blob(registry: Registry, _step: Transaction, cid: str) -> Found | None:
    try:
        Cid.parse(cid)
    except PinwardenError:
        return None
    data = registry.blobs.get(cid, registry.limits.archive_bytes)
    return None if data is None else Found(body=data, media_type=BYTES, kept=FOREVER)


# The log


def head_note(registry: Registry, step: Transaction) -> Note:
    """The head of the log, with the lines of witnesses that have seen it."""
    head = pointer_log.head_of(step)
    if head is None:
        raise PinwardenError("DATABASE_CORRUPT", f"the log {registry.identity.log_id} has no head")
    lines = "".join(pointer_log.cosignatures(step, head.size))
    return Note.parse(head.note + lines.encode())


def _checkpoint(registry: Registry, step: Transaction) -> Found:
    return Found(body=bytes(head_note(registry, step)), media_type=TEXT)


def _signed_checkpoint(registry: Registry, step: Transaction) -> Found:
    """Issued when it is asked for: its moment says that the registry still stands by this head."""
    check_key(step, registry)
    head = Checkpoint.parse(head_note(registry, step).text)
    view = PointerLogCheckpoint(log_id=head.origin, size=head.size, root=head.root, issued_at_utc=registry.now())
    value = signed(checkpoint_document.to_value(view), checkpoint_document.SIGNED_FIELDS, registry.signer)
    return Found(body=to_bytes(value))


def _key_changes(registry: Registry, step: Transaction) -> Found:
    return Found(body=to_bytes(list_value(registry.identity.log_id, key_changes(step))))


def _tile(_registry: Registry, step: Transaction, kind: str, number: str, partial: str | None) -> Found | None:
    index = int(number.replace("/", "").replace("x", ""))
    width = int(partial) if partial else TILE_WIDTH
    head = pointer_log.head_of(step)
    size = head.size if head else 0
    if kind == "entries":
        body = pointer_log.entry_bundle(step, size, index, width)
    else:
        body = pointer_log.tile(step, size, int(kind), index, width)
    return None if body is None else Found(body=body, media_type=BYTES, kept=FOREVER)


_Answer = Callable[..., Found | None]
_ROUTES: tuple[tuple[re.Pattern[str], _Answer], ...] = tuple(
    (re.compile(pattern, re.ASCII), answer)
    for pattern, answer in (
        (rf"pointers/{_NAME}/{_NAME}\.json", _pointer),
        (rf"pointers/{_NAME}/{_NAME}\.tlog-proof", _proof),
        (rf"pointers/{_NAME}/{_NAME}\.event", _event),
        (rf"documents/{_CID}\.json", _document),
        (rf"manifests/{_CID}/{_CID}\.json", _manifest),
        (rf"attestations/{_CID}/{_CID}\.json", _attestations),
        (rf"blobs/{_CID}", _blob),
        (r"log/checkpoint", _checkpoint),
        (r"log/checkpoint\.json", _signed_checkpoint),
        (r"log/keys\.json", _key_changes),
        (
            r"log/tile/([0-9]|[1-5][0-9]|6[0-3]|entries)/((?:x[0-9]{3}/){0,5}[0-9]{3})"
            r"(?:\.p/([1-9]|[1-9][0-9]|1[0-9][0-9]|2[0-4][0-9]|25[0-5]))?",
            _tile,
        ),
        (rf"versions/{_NAME}/{_VERSION}\.json", _version),
        (rf"tools/{_NAME}\.json", _tool),
        (r"tools\.json", _tools),
        (r"registry\.json", _identity),
    )
)
