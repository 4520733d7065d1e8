"""Ref-mode: a container image by its tag, which is resolved to the digest that it has now. A digest is taken as it is.

Tags that look like versions are labels: they have no floor, and ``update`` tells when one has moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinwarden.artifacts.oci_reference import parse_reference
from pinwarden.bundle.acceptance_result import REJECT, rejection_from_error
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import Report
from pinwarden.install.install import refusal_value, refuse_forbidden
from pinwarden.install.staging import api_surface_of
from pinwarden.lock import entry as lock_entry
from pinwarden.lock import lock_store
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import Extension, ImagePin, extended, extension_of
from pinwarden.lock.install_plan import Installation, install_plan
from pinwarden.lock.locked_config import INSTALLED, NO_RELEASE
from pinwarden.lock.server_entry import from_value
from pinwarden.project.approvable import Approvable, not_approved
from pinwarden.project.artifact_check import examine, first_refusal
from pinwarden.project.lock import extension_for, offered_surface, with_earlier_pins, write_entries
from pinwarden.project.prove import Proof, pinned
from pinwarden.project.run import container_line

if TYPE_CHECKING:
    from pinwarden.install.install import Placed
    from pinwarden.project.fetch_context import Workshop
    from pinwarden.project.lock import LockWriting
    from pinwarden.project.project import Policies, Project
    from pinwarden.surface.probe.probe import ProbeOptions
    from pinwarden.surface.surface import Surface


class ImageInstall(Record):
    """What is locked under which name."""

    name: str
    image: str
    project: Project
    placed: Placed
    policies: Policies
    writing: LockWriting
    probe: ProbeOptions | None = None
    """If given, the image is started by its digest to learn what it tells the model."""


def install_image(wanted: ImageInstall, shop: Workshop) -> Report:
    """The report of ``pinwarden install --image``."""
    project, writing = wanted.project, wanted.writing
    old = lock_store.read(project.lock)
    # With what was pinned for the same reference before, so that installing again is no way to follow a moved tag.
    made = [with_earlier_pins(old, _entry(wanted, client)) for client in wanted.placed.clients]
    refuse_forbidden(wanted.policies, made, writing.now)
    examined = examine(made[0], shop, writing.now)
    refusal = first_refusal(examined) if examined.refused else None
    if refusal is not None:
        raise refusal
    entries = [pinned(each, Proof(examined=examined, closure=None), "", writing.now) for each in made]
    offered = offered_surface(project, wanted.name, _asked(wanted, entries[0]), writing)
    if offered is not None:
        if offered.blocked:
            return _refused(offered)
        entries = [_with_surface(each, offered, wanted) for each in entries]
    write_entries(project, entries, offered, writing)
    seen = None if offered is None else offered.surface
    return _report(wanted, entries, seen, [row.message for row in examined.rows])


def _entry(wanted: ImageInstall, client: str) -> Entry:
    reference = parse_reference(wanted.image)
    package: dict[str, Any] = {
        "registryType": "oci",
        "identifier": wanted.image,
        "transport": {"type": "stdio"},
        "environmentVariables": [{"name": name, "isRequired": True} for name in wanted.placed.variables],
    }
    server = {"name": wanted.name, "description": "", "version": reference.tag or NO_RELEASE, "packages": [package]}
    made_up = from_value({"server": server, "_meta": {}}, source=INSTALLED)
    how = Installation(scope=wanted.placed.scope, dialect="modern")
    plan = install_plan(made_up, client, now=wanted.writing.now, how=how)
    entry = lock_entry.with_integrity(Entry(key=lock_entry.entry_key(wanted.name, client), document=plan))
    return extended(entry, extension_for(None, wanted.project, wanted.name, wanted.writing))


def _asked(wanted: ImageInstall, entry: Entry) -> Surface | None:
    """What the image tells the model, started by its digest and never by its tag."""
    if wanted.probe is None:
        return None
    from pinwarden.project.server_start import ask, prepare_probe
    from pinwarden.system.target import StdioTarget

    target = StdioTarget(command=container_line(wanted.project, entry, lambda _: None))
    return ask(prepare_probe(wanted.project, wanted.name, target, wanted.probe))


def _refused(offered: Approvable) -> Report:
    refusal = rejection_from_error(not_approved(offered))
    return Report(
        command="install",
        subject=offered.server,
        summary=f"REJECT {refusal.code}: {refusal.fix}",
        exit_code=EXIT_REFUSED,
        rows=offered.warnings,
        facts={"result": REJECT, "error": refusal_value(refusal), "plan": [], "literal": False},
        rule_texts={refusal.code: refusal.fix},
    )


def _with_surface(entry: Entry, offered: Approvable, wanted: ImageInstall) -> Entry:
    known = extension_of(entry) or Extension()
    fresh = extension_for(offered, wanted.project, wanted.name, wanted.writing)
    return extended(
        entry, replace(known, surface=fresh.surface, api_surface=fresh.api_surface, approval=fresh.approval)
    )


def _report(wanted: ImageInstall, entries: list[Entry], seen: Surface | None, told: list[str]) -> Report:
    pin = _image(entries[0])
    digest = str(pin.index or next(iter(pin.platforms.values())))
    return Report(
        command="install",
        subject=wanted.name,
        summary=f"{wanted.name} is {wanted.image} at {digest}; start it with: pinwarden run {wanted.name}",
        exit_code=EXIT_CLEAN,
        notes=(*told, *([] if seen else ["what it tells the model is not approved yet: pinwarden approve"])),
        facts={
            "image": wanted.image,
            "digest": digest,
            "platforms": {name: str(each) for name, each in pin.platforms.items()},
            "api_surface": api_surface_of(seen) if seen else None,
            "entries": [{"key": each.key, "integrity": each.integrity} for each in entries],
        },
    )


def _image(entry: Entry) -> ImagePin:
    extension = extension_of(entry)
    if extension is None or extension.image is None or not (extension.image.index or extension.image.platforms):
        raise PinwardenError("BYTES_NOT_LOCKED", f"the image of {entry.name[:120]!a} has no digest")
    return extension.image
