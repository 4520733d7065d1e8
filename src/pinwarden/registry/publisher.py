"""The publisher's side: sign a request, send it, and tell what the registry made of it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pinwarden.bundle.bundle_files import BundleFiles, OpenedBundle, open_files
from pinwarden.bundle.shape import LIMITS, Shape, read
from pinwarden.bundle.signatures import signed, to_bytes
from pinwarden.core.cid import blob_cid
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.keys import PublicKey, Signer
from pinwarden.core.record import Record
from pinwarden.core.report import Report, plural
from pinwarden.core.versions import refuse_older
from pinwarden.registry import layout, statement
from pinwarden.registry.files import HttpRegistry
from pinwarden.registry.names import DEFAULT_CHANNEL, check_channel, check_tool, check_version
from pinwarden.registry.version import (
    Identity,
    PublishedVersion,
    parse_identity,
    published_version,
    version_value,
)
from pinwarden.system.clock import wall_clock
from pinwarden.system.files import read_file

_JSON = "application/json"


class Publishing(Record):
    """What is to be published, where, and by whom."""

    registry: HttpRegistry
    files: BundleFiles
    signer: Signer
    attestations: tuple[Path, ...] = ()
    channel: str = DEFAULT_CHANNEL
    allow_older: bool = False
    """Whether the channel may go back from a newer version to this one."""
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
    if not publishing.allow_older:  # the registry refuses it too, unless it is of an older release
        present = _channel_version(registry, descriptor.name, publishing.channel)
        refuse_older(descriptor.name, descriptor.version, publishing.channel, present)
    archive_cid = str(blob_cid(opened.archive))
    registry.send("PUT", f"api/blobs/{archive_cid}", opened.archive, "application/octet-stream")
    body = {
        "tool": descriptor.name,
        "version": descriptor.version,
        "channel": check_channel(publishing.channel),
        "root_cid": documents.root_cid,
        "descriptor_cid": documents.descriptor_cid,
        "archive_cid": archive_cid,
        **({"allow_older": True} if publishing.allow_older else {}),
    }
    request = {
        "statement": signed_request(identity, statement.PUBLISH, body, publishing.signer),
        "descriptor": dict(descriptor.document),
        "manifest": dict(documents.manifest.document),
        "attestations": [read(read_file(path, LIMITS.max_bytes)) for path in publishing.attestations],
    }
    answer = registry.send("POST", "api/publish", to_bytes(request), _JSON)
    version = published_version(answer)
    _check_published(version, opened, archive_cid, registry)
    return _published(registry, publishing, version, _event(answer))


def _channel_version(registry: HttpRegistry, tool: str, channel: str) -> str | None:
    """The version that a channel points to, as the registry says; None if it points nowhere."""
    found = registry.find(layout.tool_path(tool))
    if found is None:
        return None
    try:
        document = read(found)
    except PinwardenError as err:
        raise PinwardenError("DOCUMENT_INVALID", f"what {registry} says of {tool} cannot be read") from err
    channels = Shape(document, "tool").value.get("channels")
    version = channels.get(channel) if isinstance(channels, dict) else None
    return version if isinstance(version, str) else None


def _event(answer: Any) -> dict[str, Any] | None:
    """What the registry says that it did; None of a registry of an older release, which does not say it."""
    shape = Shape(answer, "answer")
    if "event" not in shape.value:
        return None
    event = shape.inside("event")
    previous = event.value.get("previous")
    return {
        "channel": event.text("channel"),
        "log_index": event.number("log_index"),
        "previous": None if previous is None else event.text("previous"),
        "changed": event.flag("changed"),
    }


def _check_published(version: PublishedVersion, opened: OpenedBundle, archive_cid: str, registry: HttpRegistry) -> None:
    """What the registry says that it published is what was sent. What it gives out is checked by whoever installs."""
    documents, descriptor = opened.documents, opened.documents.descriptor
    sent = (descriptor.name, descriptor.version, documents.root_cid, documents.descriptor_cid, archive_cid)
    said = (version.tool, version.version, version.root_cid, version.descriptor_cid, version.archive_cid)
    if said != sent or version.content_hash != str(opened.content_hash):
        raise PinwardenError(
            "ARTIFACT_MISMATCH",
            f"the registry {registry} says that it published something else than was sent",
            data={"sent": list(sent), "said": list(said)},
        )


def _published(
    registry: HttpRegistry, publishing: Publishing, version: PublishedVersion, event: dict[str, Any] | None
) -> Report:
    told = f"API surface {version.api_surface}" if version.api_surface else "its surface is not known"
    name = f"{version.tool} {version.version}"
    return Report(
        command="publish",
        subject=name,
        summary=f"{name} {_done(publishing, version, event)} of {registry}; {told}",
        exit_code=EXIT_CLEAN,
        notes=(f"the registry did not learn the surface: {version.surface_problem}",)
        if version.surface_problem
        else (),
        facts={
            "registry": str(registry),
            "channel": publishing.channel,
            "published": version_value(version),
            "event": event,
        },
    )


def _done(publishing: Publishing, version: PublishedVersion, event: dict[str, Any] | None) -> str:
    if event is None:
        return f"is on {publishing.channel}"
    if not event["changed"]:
        return f"was on {event['channel']} already, since event {event['log_index']} of the log"
    moved = f", which was at {event['previous']}" if event["previous"] else ""
    again = " again" if event["log_index"] != version.seq else ""
    return f"is{again} on {event['channel']}{moved}, event {event['log_index']} of the log"


def known_identity(registry: HttpRegistry, key: PublicKey | None) -> Identity:
    """Who the registry says it is; if its key is known, it must be that one."""
    identity = parse_identity(registry.get(layout.IDENTITY))
    if key is not None and identity.key != key:
        raise PinwardenError(
            "REGISTRY_KEY_MISMATCH",
            f"the registry {registry} has the key {identity.key.did}",
            hint="If it changed its key, its log leads from the one you know to the new one: pinwarden log verify.",
        )
    return identity


def signed_request(identity: Identity, action: str, body: Mapping[str, Any], signer: Signer) -> dict[str, Any]:
    """A request that nobody can send to another registry, or a second time."""
    value = statement.to_value(identity.log_id, action, body, wall_clock(), secrets.token_hex(16))
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
    done = _answered(changing.registry.send("POST", "api/change", to_bytes(request), _JSON))
    subject, changed = done.text("subject"), done.flag("changed")
    state = "done" if changed else "nothing to change"
    return Report(
        command=command,
        subject=subject,
        summary=f"{subject}: {state}",
        exit_code=EXIT_CLEAN,
        facts={"registry": str(changing.registry), "subject": subject, "changed": changed},
    )


def _answered(value: Any) -> Shape:
    """What a registry answers is looked at member by member: it may answer anything."""
    return Shape(value, "answer")


def send_attestations(registry: HttpRegistry, files: Sequence[Path]) -> Report:
    """The report of ``pinwarden registry attest``."""
    taken = [registry.send("POST", "api/attestations", read_file(path, LIMITS.max_bytes), _JSON) for path in files]
    new = sum(_answered(each).flag("changed") for each in taken)
    return Report(
        command="registry attest",
        subject=str(registry),
        summary=f"{plural(new, 'new attestation')} at {registry}",
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
