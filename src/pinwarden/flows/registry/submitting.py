"""The publisher's side: sign a request, send it, and tell what the registry made of it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pinwarden.adapters.clock import present
from pinwarden.adapters.files import read_file
from pinwarden.adapters.registry_files import HttpRegistry
from pinwarden.core.cid import blob_cid
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.keys import PublicKey, Signer
from pinwarden.core.record import Record
from pinwarden.documents.bundle.shape import LIMITS, read
from pinwarden.documents.bundle.signatures import signed, to_bytes
from pinwarden.documents.registry import layout, statement
from pinwarden.documents.registry.names import DEFAULT_CHANNEL, check_channel, check_tool, check_version
from pinwarden.documents.registry.version import Identity, parse_identity
from pinwarden.flows.bundle.files import BundleFiles, open_files
from pinwarden.flows.report import Report, counted

_JSON = "application/json"


class Publishing(Record):
    """What is to be published, where, and by whom."""

    registry: HttpRegistry
    files: BundleFiles
    signer: Signer
    attestations: tuple[Path, ...] = ()
    channel: str = DEFAULT_CHANNEL
    registry_key: PublicKey | None = None
    """The registry's key, if it is known. A request is signed for one log, so it is of no use to another."""


def publish_bundle(publishing: Publishing) -> Report:
    """The report of ``pinwarden publish``.

    1. Check every byte of the bundle here, before anybody else sees it.
    2. Send the archive under its CID.
    3. Sign a request for this bundle, this registry and this channel, and send it with the documents.
    """
    opened = open_files(publishing.files)
    documents, descriptor = opened.documents, opened.documents.descriptor
    check_tool(descriptor.name)
    check_version(descriptor.version)
    registry = publishing.registry
    identity = known_identity(registry, publishing.registry_key)
    archive_cid = str(blob_cid(opened.archive))
    registry.send("PUT", f"api/blobs/{archive_cid}", opened.archive, "application/octet-stream")
    body = {
        "tool": descriptor.name,
        "version": descriptor.version,
        "channel": check_channel(publishing.channel),
        "root_cid": documents.root_cid,
        "descriptor_cid": documents.descriptor_cid,
        "archive_cid": archive_cid,
    }
    request = {
        "statement": signed_request(identity, statement.PUBLISH, body, publishing.signer),
        "descriptor": dict(descriptor.document),
        "manifest": dict(documents.manifest.document),
        "attestations": [read(read_file(path, LIMITS.max_bytes)) for path in publishing.attestations],
    }
    version = registry.send("POST", "api/publish", to_bytes(request), _JSON)
    return _published(registry, publishing, version)


def _published(registry: HttpRegistry, publishing: Publishing, version: Any) -> Report:
    surface = version["surface"]
    told = f"API surface {surface['api_surface']}" if surface["api_surface"] else "its surface is not known"
    name = f"{version['tool']} {version['version']}"
    return Report(
        command="publish",
        subject=name,
        summary=f"{name} is on {publishing.channel} of {registry}, event {version['log_index']} of its log; {told}",
        exit_code=EXIT_CLEAN,
        notes=(f"the registry did not learn the surface: {surface['problem']}",) if surface["problem"] else (),
        facts={"registry": str(registry), "channel": publishing.channel, "published": version},
    )


def known_identity(registry: HttpRegistry, key: PublicKey | None) -> Identity:
    """Who the registry says it is; if its key is known, it must be that one."""
    identity = parse_identity(registry.get(layout.IDENTITY))
    if key is not None and identity.key != key:
        raise PinwardenError("REGISTRY_KEY_MISMATCH", f"the registry {registry} has the key {identity.key.did}")
    return identity


def signed_request(identity: Identity, action: str, body: Mapping[str, Any], signer: Signer) -> dict[str, Any]:
    """A request that nobody can send to another registry, or a second time."""
    value = statement.to_value(identity.log_id, action, body, present(), secrets.token_hex(16))
    return signed(value, statement.SIGNED_FIELDS, signer)


class Changing(Record):
    """A change that is asked of a registry."""

    registry: HttpRegistry
    signer: Signer
    registry_key: PublicKey | None = None


def request_change(changing: Changing, command: str, action: str, body: Mapping[str, Any]) -> Report:
    """The report of a command that asks a registry to change something."""
    identity = known_identity(changing.registry, changing.registry_key)
    request = {"statement": signed_request(identity, action, body, changing.signer)}
    done = changing.registry.send("POST", "api/change", to_bytes(request), _JSON)
    state = "done" if done["changed"] else "nothing to change"
    return Report(
        command=command,
        subject=str(done["subject"]),
        summary=f"{done['subject']}: {state}",
        exit_code=EXIT_CLEAN,
        facts={"registry": str(changing.registry), "subject": done["subject"], "changed": done["changed"]},
    )


def send_attestations(registry: HttpRegistry, files: Sequence[Path]) -> Report:
    """The report of ``pinwarden registry attest``."""
    taken = [registry.send("POST", "api/attestations", read_file(path, LIMITS.max_bytes), _JSON) for path in files]
    new = sum(each["changed"] is True for each in taken)
    return Report(
        command="registry attest",
        subject=str(registry),
        summary=f"{counted(new, 'new attestation')} at {registry}",
        exit_code=EXIT_CLEAN,
        facts={"registry": str(registry), "sent": len(taken), "new": new},
    )


def keys_body(
    namespace: str, owners: Sequence[str], publishers: Sequence[str], remove: Sequence[str]
) -> dict[str, Any]:
    """The request to change the keys of a namespace."""
    added = [{"key_id": PublicKey.from_did(each).did, "role": "owner"} for each in owners]
    added += [{"key_id": PublicKey.from_did(each).did, "role": "publisher"} for each in publishers]
    return {"namespace": namespace, "add": added, "remove": list(remove)}
