"""Lock a container image by the digest that its tag has now, or by the digest in the reference.

Tags are only labels, even if they look like versions. Therefore an image has no minimum version, and ``update`` reports
tags that were moved to another digest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinwarden.artifacts.oci_reference import parse_reference
from pinwarden.bundle.acceptance import REJECT, rejection_from_error
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Report
from pinwarden.install.decision import refusal_to_json
from pinwarden.install.install import refuse_entries_by_policy
from pinwarden.install.staging import compute_api_surface
from pinwarden.lock import entry as lock_entry
from pinwarden.lock import lock_store
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import ImagePin, LockExtension, read_extension, with_extension
from pinwarden.lock.install_plan import PlanOptions, build_install_plan
from pinwarden.lock.locked_config import BUNDLE_SOURCE, NO_VERSION
from pinwarden.lock.server_entry import parse_server_entry
from pinwarden.project.api_surfaces import NOT_STARTED, build_isolated_command
from pinwarden.project.approval_candidate import ApprovalCandidate, warnings_not_approved_error
from pinwarden.project.artifact_check import check_artifact, find_first_refusal
from pinwarden.project.lock import build_approval_candidate, build_extension, keep_earlier_pins, write_entries
from pinwarden.project.prove import VerifiedArtifact, add_pins
from pinwarden.project.run import build_container_command

if TYPE_CHECKING:
    from pinwarden.install.install import InstallTarget
    from pinwarden.project.fetch_context import FetchContext
    from pinwarden.project.lock import LockOptions
    from pinwarden.project.project import Policies, Project
    from pinwarden.surface.probe.probe import ProbeOptions
    from pinwarden.surface.surface import Surface


class ImageInstall(Record):
    """The container image to lock, and the name of its server."""

    name: str
    image: str
    project: Project
    target: InstallTarget
    policies: Policies
    lock_options: LockOptions
    probe: ProbeOptions | None = None
    """The options of a probe that records the image's surface; None to lock the image without starting it."""
    must_probe: bool = False
    """Whether a failed probe stops the install, and the image is started with all of its options."""


def install_image(request: ImageInstall, context: FetchContext) -> Report:
    """Lock a container image, and return the report of ``pinwarden install --image``.

    1. Build an entry for each client. An earlier pin of the same reference stays, so that a moved tag is not followed.
    2. Refuse entries that the policy does not allow.
    3. Resolve the image to digests and verify it.
    4. Start the image by its digest, in a container without network and folders, and scan its surface. Warnings stop
       the install. A failure does not: the lock then has the reason. With ``--allow-execute``, the container is the one
       that clients start, and a failure stops the install.
    5. Write the lock entries and the approved surface.
    """
    project, lock_options = request.project, request.lock_options
    old = lock_store.read(project.lock)
    entries_to_verify = [keep_earlier_pins(old, _build_entry(request, client)) for client in request.target.clients]
    refuse_entries_by_policy(request.policies, entries_to_verify, lock_options.now)
    check = check_artifact(entries_to_verify[0], context, lock_options.now)
    error = find_first_refusal(check) if check.refused else None
    if error is not None:
        raise error
    entries = [
        add_pins(entry, VerifiedArtifact(artifact_check=check, closure=None), "", lock_options.now)
        for entry in entries_to_verify
    ]
    seen, problem = _probe(request, entries[0])
    candidate = build_approval_candidate(project, request.name, seen, lock_options)
    if candidate is not None:
        if candidate.is_blocked:
            return _build_refusal_report(candidate)
        entries = [_add_surface(entry, candidate, request) for entry in entries]
    elif problem is not None:
        entries = [_add_reason(entry, problem) for entry in entries]
    write_entries(project, entries, candidate, lock_options)
    surface = None if candidate is None else candidate.surface
    notes = [row.message for row in check.rows]
    notes += [f"the API surface is unknown: {problem}"] if problem is not None else []
    return _build_image_report(request, entries, surface, notes)


def _build_entry(request: ImageInstall, client: str) -> Entry:
    reference = parse_reference(request.image)
    package: dict[str, Any] = {
        "registryType": "oci",
        "identifier": request.image,
        "transport": {"type": "stdio"},
        "environmentVariables": [{"name": name, "isRequired": True} for name in request.target.variables],
    }
    server = {"name": request.name, "description": "", "version": reference.tag or NO_VERSION, "packages": [package]}
    server_entry = parse_server_entry({"server": server, "_meta": {}}, source=BUNDLE_SOURCE)
    options = PlanOptions(scope=request.target.scope, dialect="modern")
    plan = build_install_plan(server_entry, client, now=request.lock_options.now, options=options)
    entry = lock_entry.with_integrity(Entry(key=lock_entry.build_entry_key(request.name, client), document=plan))
    return with_extension(entry, build_extension(None, request.project, request.name, request.lock_options))


def _probe(request: ImageInstall, entry: Entry) -> tuple[Surface | None, str | None]:
    """Start the image by its digest, never by its tag, and read its surface. Returns the reason if it is unknown."""
    if request.probe is None:
        return None, NOT_STARTED
    from pinwarden.project.server_start import prepare_probe, prepare_run_probe, probe_server
    from pinwarden.system.target import StdioTarget

    if request.must_probe:
        target = StdioTarget(command=build_container_command(request.project, entry, lambda _: None))
        return probe_server(prepare_probe(request.project, request.name, target, request.probe)), None
    try:
        target = StdioTarget(command=build_isolated_command(request.project, entry))
        return probe_server(prepare_run_probe(request.project, target, request.probe)), None
    except PinwardenError as err:
        return None, f"{err.code}: {err.message}"


def _add_reason(entry: Entry, problem: str) -> Entry:
    extension = read_extension(entry) or LockExtension()
    return with_extension(entry, replace(extension, api_surface_unknown=problem))


def _build_refusal_report(candidate: ApprovalCandidate) -> Report:
    refusal = rejection_from_error(warnings_not_approved_error(candidate))
    return Report(
        command="install",
        subject=candidate.server,
        summary=f"REJECT {refusal.code}: {refusal.fix}",
        exit_code=EXIT_REFUSED,
        rows=candidate.warnings,
        facts={"result": REJECT, "error": refusal_to_json(refusal), "plan": [], "literal": False},
        rule_texts={refusal.code: refusal.fix},
    )


def _add_surface(entry: Entry, candidate: ApprovalCandidate, request: ImageInstall) -> Entry:
    extension = read_extension(entry) or LockExtension()
    approved = build_extension(candidate, request.project, request.name, request.lock_options)
    return with_extension(
        entry,
        replace(extension, surface=approved.surface, api_surface=approved.api_surface, approval=approved.approval),
    )


def _build_image_report(
    request: ImageInstall, entries: list[Entry], surface: Surface | None, notes: list[str]
) -> Report:
    pin = _require_image_pin(entries[0])
    digest = str(pin.index or next(iter(pin.platforms.values())))
    return Report(
        command="install",
        subject=request.name,
        summary=f"locked {request.image} as {request.name} at {digest}; start it with: pinwarden run {request.name}",
        exit_code=EXIT_CLEAN,
        notes=(*notes, *([] if surface else [f"its tools are not approved yet: pinwarden approve {request.name}"])),
        facts={
            "image": request.image,
            "digest": digest,
            "platforms": {name: str(digest) for name, digest in pin.platforms.items()},
            "api_surface": compute_api_surface(surface) if surface else None,
            "entries": [{"key": entry.key, "integrity": entry.integrity} for entry in entries],
        },
    )


def _require_image_pin(entry: Entry) -> ImagePin:
    extension = read_extension(entry)
    if extension is None or extension.image is None or not (extension.image.index or extension.image.platforms):
        raise PinwardenError("BYTES_NOT_LOCKED", f"the locked image of {entry.name[:120]!a} has no digest")
    return extension.image
