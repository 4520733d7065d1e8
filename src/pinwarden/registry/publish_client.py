"""Send a publisher's requests to a registry: sign a request, send it, and report the response."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pinwarden.bundle.bundle_files import BundleFiles, OpenedBundle, open_files
from pinwarden.bundle.document import DOCUMENT_LIMITS, DocumentReader, add_signature, encode_document, read_json
from pinwarden.core.digest import blob_cid
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.keys import PublicKey, Signer
from pinwarden.core.record import Record
from pinwarden.core.report import Report
from pinwarden.core.text import plural, show_invisible
from pinwarden.core.versions import refuse_older
from pinwarden.registry import names, registry_documents
from pinwarden.registry.names import DEFAULT_CHANNEL, check_channel, check_tool, check_version
from pinwarden.registry.registry_client import HttpRegistry
from pinwarden.registry.registry_documents import (
    PublishedVersion,
    RegistryIdentity,
    parse_identity,
    version_from_json,
    version_to_json,
)
from pinwarden.system.clock import wall_clock
from pinwarden.system.files import read_file

_JSON = "application/json"
_MAX_OUTPUT_LINES = 100
_MAX_OUTPUT_LINE = 500


class PublishOptions(Record):
    """The bundle to publish, the registry and channel, and the publisher's key."""

    registry: HttpRegistry
    files: BundleFiles
    signer: Signer
    attestations: tuple[Path, ...] = ()
    channel: str = DEFAULT_CHANNEL
    allow_older: bool = False
    """Whether the channel may move from a newer version to this one."""
    registry_key: PublicKey | None = None
    """The expected key of the registry; None accepts any key."""


def publish_bundle(options: PublishOptions) -> Report:
    """Publish a bundle, and return the report of ``pinwarden publish``.

    1. Verify every byte of the bundle.
    2. Upload the archive under its CID.
    3. Sign a request for this bundle, registry and channel, and send it with the documents.
    """
    opened = open_files(options.files)
    documents, descriptor = opened.documents, opened.documents.descriptor
    check_tool(descriptor.name)
    check_version(descriptor.version)
    registry = options.registry
    identity = fetch_identity(registry, options.registry_key)
    if not options.allow_older:  # registries of older releases do not check this themselves
        present = _find_channel_version(registry, descriptor.name, options.channel)
        refuse_older(descriptor.name, descriptor.version, options.channel, present)
    archive_cid = str(blob_cid(opened.archive))
    registry.send("PUT", f"api/blobs/{archive_cid}", opened.archive, "application/octet-stream")
    body = {
        "tool": descriptor.name,
        "version": descriptor.version,
        "channel": check_channel(options.channel),
        "root_cid": documents.root_cid,
        "descriptor_cid": documents.descriptor_cid,
        "archive_cid": archive_cid,
        **({"allow_older": True} if options.allow_older else {}),
    }
    request = {
        "statement": sign_request(identity, registry_documents.PUBLISH, body, options.signer),
        "descriptor": dict(descriptor.document),
        "manifest": dict(documents.manifest.document),
        "attestations": [read_json(read_file(path, DOCUMENT_LIMITS.max_bytes)) for path in options.attestations],
    }
    response = registry.send("POST", "api/publish", encode_document(request), _JSON)
    version = version_from_json(response)
    _check_published(version, opened, archive_cid, registry)
    return _build_report(registry, options, version, _parse_event(response), _parse_probe_output(response))


def _find_channel_version(registry: HttpRegistry, tool: str, channel: str) -> str | None:
    """Fetch the current version of a channel from the registry; None if the channel has none."""
    data = registry.find(names.tool_path(tool))
    if data is None:
        return None
    try:
        document = read_json(data)
    except PinwardenError as err:
        raise PinwardenError("DOCUMENT_INVALID", f"the response of {registry} for {tool} is invalid") from err
    channels = DocumentReader(document, "tool").value.get("channels")
    version = channels.get(channel) if isinstance(channels, dict) else None
    return version if isinstance(version, str) else None


def _parse_event(response: Any) -> dict[str, Any] | None:
    """Return the ``event`` member of the response; None if the registry's release is too old to send it."""
    reader = DocumentReader(response, "response")
    if "event" not in reader.value:
        return None
    event = reader.object("event")
    previous = event.value.get("previous")
    return {
        "channel": event.text("channel"),
        "log_index": event.integer("log_index"),
        "previous": None if previous is None else event.text("previous"),
        "changed": event.boolean("changed"),
    }


def _parse_probe_output(response: Any) -> tuple[str, ...]:
    """Return the last lines that the server wrote to stderr at the registry, if its probe failed there."""
    lines = DocumentReader(response, "response").strings("probe_output", default=[], max_items=_MAX_OUTPUT_LINES)
    return tuple(show_invisible(line[:_MAX_OUTPUT_LINE]) for line in lines)


def _check_published(version: PublishedVersion, opened: OpenedBundle, archive_cid: str, registry: HttpRegistry) -> None:
    """Raise ARTIFACT_MISMATCH if the registry's response does not describe the uploaded bundle."""
    documents, descriptor = opened.documents, opened.documents.descriptor
    sent = (descriptor.name, descriptor.version, documents.root_cid, documents.descriptor_cid, archive_cid)
    published = (version.tool, version.version, version.root_cid, version.descriptor_cid, version.archive_cid)
    if published != sent or version.content_hash != str(opened.content_hash):
        raise PinwardenError(
            "ARTIFACT_MISMATCH",
            f"the registry {registry} published another bundle than the uploaded one",
            data={"sent": list(sent), "said": list(published)},
        )


def _build_report(
    registry: HttpRegistry,
    options: PublishOptions,
    version: PublishedVersion,
    event: dict[str, Any] | None,
    probe_output: Sequence[str],
) -> Report:
    surface = f"API surface {version.api_surface}" if version.api_surface else "no surface recorded"
    name = f"{version.tool} {version.version}"
    return Report(
        command="publish",
        subject=name,
        summary=f"{name} {_describe_outcome(options, version, event)} of {registry}; {surface}",
        exit_code=EXIT_CLEAN,
        notes=(
            f"the registry could not probe the server: {version.surface_problem}",
            *(f"  | {line}" for line in probe_output),
        )
        if version.surface_problem
        else (),
        facts={
            "registry": str(registry),
            "channel": options.channel,
            "published": version_to_json(version),
            "event": event,
            "probe_output": list(probe_output),
        },
    )


def _describe_outcome(options: PublishOptions, version: PublishedVersion, event: dict[str, Any] | None) -> str:
    if event is None:
        return f"is on {options.channel}"
    if not event["changed"]:
        return f"was already on {event['channel']}, since event {event['log_index']} of the log"
    moved = f", which was at {event['previous']}" if event["previous"] else ""
    again = " again" if event["log_index"] != version.seq else ""
    return f"is{again} on {event['channel']}{moved}, event {event['log_index']} of the log"


def fetch_identity(registry: HttpRegistry, key: PublicKey | None) -> RegistryIdentity:
    """Fetch the identity of a registry. Raises if its key is not ``key``; None accepts any key."""
    identity = parse_identity(registry.get(names.IDENTITY))
    if key is not None and identity.key != key:
        raise PinwardenError(
            "REGISTRY_KEY_MISMATCH",
            f"the registry {registry} has another key than expected: {identity.key.did}",
            hint="If the registry rotated its key, verify the rotation in its log: pinwarden log verify.",
        )
    return identity


def sign_request(identity: RegistryIdentity, action: str, body: Mapping[str, Any], signer: Signer) -> dict[str, Any]:
    """Build and sign a statement. The registry with this identity accepts it once; other registries refuse it."""
    value = registry_documents.build_unsigned_statement(
        identity.log_id, action, body, wall_clock(), secrets.token_hex(16)
    )
    return add_signature(value, registry_documents.STATEMENT_SIGNED_FIELDS, signer)


class ChangeOptions(Record):
    """The registry and key for a change request."""

    registry: HttpRegistry
    signer: Signer
    registry_key: PublicKey | None = None


def request_change(options: ChangeOptions, command: str, action: str, body: Mapping[str, Any]) -> Report:
    """Send a change request, and report the result."""
    identity = fetch_identity(options.registry, options.registry_key)
    request = {"statement": sign_request(identity, action, body, options.signer)}
    result = _read_response(options.registry.send("POST", "api/change", encode_document(request), _JSON))
    subject, changed = result.text("subject"), result.boolean("changed")
    state = "done" if changed else "nothing to change"
    return Report(
        command=command,
        subject=subject,
        summary=f"{subject}: {state}",
        exit_code=EXIT_CLEAN,
        facts={"registry": str(options.registry), "subject": subject, "changed": changed},
    )


def _read_response(value: Any) -> DocumentReader:
    """Return a typed reader for a registry's response, which is untrusted."""
    return DocumentReader(value, "response")


def send_attestations(registry: HttpRegistry, files: Sequence[Path]) -> Report:
    """Send attestations to a registry, and return the report of ``pinwarden registry attest``."""
    responses = [
        registry.send("POST", "api/attestations", read_file(path, DOCUMENT_LIMITS.max_bytes), _JSON) for path in files
    ]
    new = sum(_read_response(response).boolean("changed") for response in responses)
    return Report(
        command="registry attest",
        subject=str(registry),
        summary=f"{plural(new, 'new attestation')} at {registry}",
        exit_code=EXIT_CLEAN,
        facts={"registry": str(registry), "sent": len(responses), "new": new},
    )


def build_keys_body(
    namespace: str, owners: Sequence[str], publishers: Sequence[str], remove: Sequence[str]
) -> dict[str, Any]:
    """Build the body of a request to change the keys of a namespace."""
    added = [{"key_id": PublicKey.from_did(key_id).did, "role": "owner"} for key_id in owners]
    added += [{"key_id": PublicKey.from_did(key_id).did, "role": "publisher"} for key_id in publishers]
    return {"namespace": namespace, "add": added, "remove": list(remove)}
