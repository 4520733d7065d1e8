"""Describe a locked server for ``pinwarden explain``: approvals, bytes and trust."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.bundle.bundle_pin import BundlePin, find_bundle_pin
from pinwarden.clients.command_line import DANGERS, parse_launch
from pinwarden.clients.config import parse_configured_server
from pinwarden.clients.drift import describe_server
from pinwarden.clients.table import get_client
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.report import Report, Row
from pinwarden.lock import server_entry
from pinwarden.lock.entry import Entry, find_client
from pinwarden.lock.extension import has_surface, is_enforced, read_extension
from pinwarden.lock.launch_choice import choose_target, target_to_json
from pinwarden.lock.locked_config import CONFIG_SOURCE, NO_VERSION, read_locked_config
from pinwarden.lock.locked_launch import read_locked_launch, starts_local_command
from pinwarden.lock.lockfile import PROBLEMS
from pinwarden.lock.trust_explanation import (
    TierExplanation,
    check_metadata,
    compute_verdict,
    explain_bundle_tier,
    explain_configured_tier,
    explain_tier,
)
from pinwarden.lock.trust_tiers import Pillars, TierCap, TrustIssue, TrustReport, apply_gates, compute_trust_report
from pinwarden.project.config_secrets import SecretFinding, audit_servers
from pinwarden.project.lock_documents import LockDocument, build_problem_rows, find_entries, problems_to_json, read_lock
from pinwarden.system.masking import mask_text, mask_url, mask_words

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfiguredServer
    from pinwarden.lock.extension import LockExtension
    from pinwarden.lock.server_entry import ServerEntry
    from pinwarden.project.project import Project

_MAX_DESCRIPTION = 100
_MAX_TOOLS = 200  # more than any known server has; the rest is counted


def explain_locked(project: Project, server: str, *, now: str) -> Report:
    """Explain every entry of a server, or the one for the named client: the report of ``pinwarden explain``."""
    document = read_lock(project.lock)
    lock = document.lock
    entries = find_entries(lock, server)
    explained = [_EntryExplanation(entry, document, now) for entry in entries]
    tiers = ", ".join(f"{find_client(explanation.entry)}: {explanation.today.tier}" for explanation in explained)
    broken = "; the lock is not what was approved" if document.critical_problems else ""
    return Report(
        command="explain",
        subject=server,
        summary=f"{entries[0].name} is locked ({tiers}){broken}",
        exit_code=EXIT_REFUSED if document.critical_problems else EXIT_CLEAN,
        rows=build_problem_rows(document),
        facts={
            "server": entries[0].name,
            "origin": "lock",
            "entries": [explanation.facts() for explanation in explained],
            "problems": problems_to_json(document.problems),
        },
        rule_texts=PROBLEMS,
    )


def explain_configured(projects: Sequence[Project], server: str) -> Report | None:
    """Explain a server that no lock has: the report of ``pinwarden explain``. None if it is not configured either."""
    configured = [(project, one) for project in projects for one in project.find_servers() if one.name == server]
    if not configured:
        return None
    entries = []
    for project, one in configured:
        file = project.display_path(one.path)
        title = get_client(one.client).title
        dangers = parse_launch(one.target).dangers if one.target is not None else ()
        exposed = _find_exposed_secrets(one)
        warnings = [*(DANGERS[code] for code in dangers), *(finding.message for finding in exposed)]
        approve = f"approve it: pinwarden approve {shlex.quote(server)}"
        first = "first move the secret, then " if exposed else ""
        sections = [
            Section(heading="what it is", lines=(f"configured for {title} in {file}", *_describe_configured(one))),
            *([Section(heading="what is dangerous", lines=tuple(warnings))] if warnings else ()),
            Section(
                heading="what to do",
                lines=(
                    f"If it is yours, {first}{approve}",
                    f"If not: edit {file}",
                ),
            ),
        ]
        entries.append(
            {
                "client": one.client,
                "scope": one.scope,
                "file": file,
                "dangers": list(dangers),
                "sections": [section.to_json() for section in sections],
            }
        )
    return Report(
        command="explain",
        subject=server,
        summary=f"{server[:120]} is configured but not locked",
        exit_code=EXIT_CLEAN,
        facts={"server": server, "origin": "configuration", "entries": entries, "problems": []},
        rule_texts=PROBLEMS,
    )


def _find_exposed_secrets(server: ConfiguredServer) -> tuple[SecretFinding, ...]:
    """Return the secrets in the arguments and the address of a server, because of which it cannot be locked."""
    return tuple(finding for finding in audit_servers((server,)).findings if finding.secret_source in ("args", "url"))


def _describe_configured(server: ConfiguredServer) -> Iterator[str]:
    shown = describe_server(server)
    if "command" in shown:
        yield f"runs {' '.join(shown['command'])}"
    elif "url" in shown:
        yield f"connects to {shown['url']}"
    else:
        yield server.problem or "its entry cannot be used"


def explain_registry_entry(project: Project, server: str, *, now: str) -> Report:
    """Return the report of ``pinwarden explain --registry``: the entry in the project's caches and files."""
    document = project.load_registries(offline=True).find(server)
    entry = server_entry.parse_server_entry(document)
    trust = compute_trust_report(entry, now=now)
    issues = check_metadata(entry)
    explanation = explain_tier(trust, now=now)
    sections = (
        Section(heading="what it is", lines=tuple(_describe_registry_entry(entry))),
        *_build_trust_sections(explanation, trust),
    )
    target = choose_target(entry)
    return Report(
        command="explain",
        subject=server,
        summary=f"{entry.name} {entry.version or ''} would be {trust.tier} ({compute_verdict(trust, now=now).reason})",
        exit_code=EXIT_CLEAN,
        rows=tuple(
            Row(
                code=issue.code,
                severity=issue.severity,
                entity="server",
                name=entry.name,
                path="",
                message=issue.message,
            )
            for issue in issues
        ),
        notes=("these are claims of a registry entry, from a local copy; nothing of it is locked",),
        facts={
            "server": entry.name,
            "origin": "registry",
            "entries": [
                {
                    "version": entry.version,
                    "source": entry.source,
                    "status": entry.status,
                    "target": describe_target(target_to_json(target)) if target else None,
                    "trust": _trust_to_json(explanation, trust),
                    "findings": [issue.to_json() for issue in issues],
                    "sections": [section.to_json() for section in sections],
                }
            ],
            "problems": [],
        },
    )


class Section(Record):
    """A heading and the lines below it."""

    heading: str
    lines: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the section as JSON."""
        return {"heading": self.heading, "lines": list(self.lines)}


def parse_recorded_trust(recorded: Mapping[str, Any]) -> TrustReport:
    """Parse the trust report of a lock entry. A missing member gets its worst value."""
    pillars = recorded.get("pillars", {})
    return TrustReport(
        score=recorded["score"],
        overall_score=recorded.get("overallScore", 0),
        metadata_completeness=recorded.get("metadataCompleteness", recorded["score"]),
        tier=recorded.get("tier", "unverified"),
        cap_reason=recorded.get("capReason"),
        vetoes=tuple(TierCap(**_select_cap_members(row)) for row in recorded.get("vetoes", [])),
        gates=tuple(TierCap(**_select_cap_members(row)) for row in recorded.get("gates", [])),
        gated_by=tuple(recorded.get("gatedBy", [])),
        verified_provenance=recorded.get("verifiedProvenance") is True,
        pillars=Pillars(
            provenance=pillars.get("provenance", 0),
            integrity=pillars.get("integrity", 0),
            reputation=pillars.get("reputation", 0),
            metadata_completeness=pillars.get("metadataCompleteness", 0),
        ),
        evidence=tuple(recorded.get("evidence", [])),
        badges=tuple(recorded["badges"]),
        issues=tuple(
            TrustIssue(severity=row["severity"], code=row["code"], message=row["message"]) for row in recorded["issues"]
        ),
    )


def describe_target(target: Mapping[str, Any]) -> str:
    """Describe a target in words: a package with its release, or a URL."""
    if target.get("kind") == "remote":
        return f"{target.get('type')} {mask_url(str(target.get('url')))}"
    kind, version = str(target.get("registryType")), target.get("version")
    identifier = mask_text(str(target.get("identifier")))
    release = f" {version}" if isinstance(version, str) and version not in identifier else ""
    if kind in _LOCAL_PROGRAM_WORDS:
        return f"{_LOCAL_PROGRAM_WORDS[kind]} {identifier}{release}"
    return f"{kind} {_ARTIFACT_WORDS.get(kind, 'package')} {identifier}{release}"


def describe_config(entry: Entry) -> dict[str, Any] | None:
    """Return the approved configuration: command or address, and the names of variables and headers."""
    locked = read_locked_config(entry.key, entry.document)
    if locked.approved is None:
        return None
    shown = describe_server(parse_configured_server(entry.name, locked.approved, get_client(find_client(entry))))
    return {member: value for member, value in shown.items() if member not in ("client", "scope", "file")}


def find_release(entry: Entry) -> str | None:
    """Return the locked release; None if the configuration names none."""
    return None if entry.source == CONFIG_SOURCE and entry.version == NO_VERSION else entry.version


def find_approver(entry: Entry) -> str | None:
    """Return who approved the entry; None if the lock does not say."""
    extension = read_extension(entry)
    return extension.approval.by if extension and extension.approval else None


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """Return an entry of the lock as ``pinwarden status`` prints it."""
    return {
        "name": entry.name,
        "version": find_release(entry),
        "client": entry.client,
        "scope": entry.scope,
        "target": describe_target(entry.selected_target),
        "tier": entry.trust.get("tier"),
        "surface_pinned": has_surface(entry),
        "approved_by": find_approver(entry),
        "locked_at": entry.locked_at,
    }


class _EntryExplanation:
    """The explanation of one lock entry: bytes, configuration, tools, approval and trust."""

    def __init__(self, entry: Entry, document: LockDocument, now: str) -> None:
        self.entry = entry
        self.extension = read_extension(entry)
        self.document = document
        self.recorded = parse_recorded_trust(entry.trust)
        self.today = apply_gates(self.recorded, now=now) if "evidence" in entry.trust else self.recorded
        self.explanation = explain_tier(self.today, now=now, configured=_find_package_type(entry))
        pin = find_bundle_pin(entry)
        if pin is not None and not self.today.gates:
            self.explanation = explain_bundle_tier(self.explanation, pin.version, literal=pin.literal)
        elif _find_package_type(entry) in ("npm", "pypi", "oci"):
            known = self.extension
            pinned = known is not None and bool(known.artifacts or known.image)
            self.explanation = explain_configured_tier(self.explanation, entry.name, pinned=pinned)

    def facts(self) -> dict[str, Any]:
        """Return the explanation as JSON. ``sections`` has the same information as text."""
        extension = self.extension
        approval = extension.approval if extension else None
        sections = (
            Section(heading="what it is", lines=tuple(self._describe_server())),
            Section(heading="which bytes were approved", lines=tuple(_describe_bytes(self.entry, extension))),
            Section(heading="which configuration was approved", lines=tuple(self._describe_config())),
            Section(heading="which tools were approved", lines=tuple(self._describe_tools())),
            Section(heading="who approved it, and why", lines=tuple(self._describe_approval())),
            *_build_trust_sections(self.explanation, self.today, self.recorded.tier),
        )
        return {
            "key": self.entry.key,
            "version": find_release(self.entry),
            "client": self.entry.client,
            "scope": self.entry.scope,
            "source": self.entry.source,
            "locked_at": self.entry.locked_at,
            "target": describe_target(self.entry.selected_target),
            "config": describe_config(self.entry),
            "surface": str(extension.surface.digest) if extension and extension.surface else None,
            "approval": {"by": approval.by, "at": approval.at, "why": approval.why} if approval else None,
            "trust": {**_trust_to_json(self.explanation, self.today), "locked_tier": self.recorded.tier},
            "sections": [section.to_json() for section in sections],
        }

    def _describe_server(self) -> Iterator[str]:
        entry = self.entry
        release = find_release(entry) or "(no release named)"
        yield f"{entry.name} {release} for {find_client(entry)}, {entry.scope} scope"
        yield describe_target(entry.selected_target)
        where = f" from {entry.source}" if entry.source else ""
        yield f"resolved{where} at {entry.resolved_at or 'a time that is not recorded'}, locked at {entry.locked_at}"
        yield from (note for note in entry.document["notes"] if isinstance(note, str))

    def _describe_config(self) -> Iterator[str]:
        config = describe_config(self.entry)
        if config is None:
            yield "the lock has no configuration for this client"
            return
        if "command" in config:
            yield "runs " + " ".join(config["command"])
            yield from _describe_locked_command(self.entry)
        if "url" in config:
            yield f"contacts {config['url']}"
        for member, words in (("env", "variables"), ("headers", "headers")):
            if config.get(member):
                yield f"receives the {words} {', '.join(config[member])}"
        secrets = [str(row.get("name")) for row in self.entry.manifest.get("secrets", []) if isinstance(row, dict)]
        if secrets:
            yield f"needs these secrets: {', '.join(secrets)}"

    def _describe_tools(self) -> Iterator[str]:
        pin = self.extension.surface if self.extension else None
        if pin is not None:
            yield f"the complete surface is pinned: {pin.digest}"
            yield from _describe_surface(pin.items, self.document.files.get(pin.path))
            return
        hashed = self.entry.manifest.get("toolSurfaceHash")
        if isinstance(hashed, dict):
            covered = ", ".join(map(str, hashed.get("coverage", [])))
            yield f"one hash over {hashed.get('toolCount')} tools is pinned, over {covered}; their text is not stored"
        else:
            yield "none: the server's tools were never recorded, so changes are not detected"
            consent = " --allow-execute" if "command" in (describe_config(self.entry) or {}) else ""
            yield f"pin it with pinwarden approve {shlex.quote(self.entry.name)}{consent}"

    def _describe_approval(self) -> Iterator[str]:
        approval = self.extension.approval if self.extension else None
        if approval is None:
            yield "not recorded in the lock; see who committed it in the history of the repository"
        else:
            yield f"{approval.by} at {approval.at}: {approval.why or 'no reason given'}"


def _describe_locked_command(entry: Entry) -> Iterator[str]:
    """Say what ``pinwarden run`` starts for an enforced entry, and what it enforces for a local command."""
    if not is_enforced(entry):
        return
    try:
        command = read_locked_launch(entry).command
    except PinwardenError:
        return  # an address, which is in the description of the server
    yield "which starts " + " ".join(mask_words(list(command)))
    if starts_local_command(entry):
        yield "enforced are its command line and its tools, not the bytes of the program"


def _find_package_type(entry: Entry) -> str | None:
    """Return the kind of package of a configured server; None for servers from a registry."""
    if entry.source != CONFIG_SOURCE:
        return None
    target = entry.selected_target
    return "remote" if target.get("kind") == "remote" else str(target.get("registryType"))


def _describe_surface(items: Mapping[str, Mapping[str, str]], text: bytes | None) -> Iterator[str]:
    from pinwarden.surface.surface import ITEM_KINDS, parse_surface

    try:
        approved = parse_surface(text) if text is not None else None
    except PinwardenError:
        approved = None
    if approved is None:
        for member, rows in items.items():
            yield f"{member}: {', '.join(sorted(rows))}"
        yield "their approved surface cannot be read"
        return
    for kind in ITEM_KINDS:
        listed = approved.items_of_kind(kind)
        for item in listed[:_MAX_TOOLS]:
            about = item.value.get("description") if isinstance(item.value, dict) else None
            first = about.strip().partition("\n")[0] if isinstance(about, str) else ""
            first = first if len(first) <= _MAX_DESCRIPTION else f"{first[:_MAX_DESCRIPTION]}…"
            yield f"{kind.entity} {item.name}" + (f": {first}" if first else "")
        if len(listed) > _MAX_TOOLS:
            yield f"and {len(listed) - _MAX_TOOLS} more"


def _describe_bytes(entry: Entry, extension: LockExtension | None) -> Iterator[str]:
    if starts_local_command(entry):
        yield "none: it is a local command, and no registry has bytes of it to compare with"
        return
    named = False
    if extension is not None:
        for file in extension.artifacts:
            named = True
            yield f"{file.name}: {file.digest}" + (f", {file.size} bytes" if file.size is not None else "")
        if extension.image is not None:
            named = True
            if extension.image.index is not None:
                yield f"image index {extension.image.index}"
            yield from (f"image for {platform}: {digest}" for platform, digest in extension.image.platforms.items())
        if extension.closure is not None:
            yield f"{extension.closure.packages} packages in its closure, all with digests: {extension.closure.path}"
        pin = find_bundle_pin(entry)
        if pin is not None:
            named = True
            yield from _describe_bundle(pin)
        if extension.provenance is not None:
            yield "built by " + ", ".join(f"{name} {value}" for name, value in extension.provenance.items())
    for row in entry.trust.get("evidence", []):
        if row["code"] != "lock_integrity":
            named = named or row["status"] == "passed"
            yield f"{row['status']}: {row['message']}"
    if not named:
        yield "the bytes have not been verified yet"


def _describe_bundle(pin: BundlePin) -> Iterator[str]:
    yield f"bundle {pin.root_cid}: {pin.archive}, {pin.size} bytes"
    yield "the install verified every file against the manifest, and the manifest against the registry's signature"
    yield "every start verifies the unpacked files again"
    allowed = pin.policy
    yield f"may use: network {allowed.network}, filesystem {allowed.filesystem}, exec {allowed.exec}"
    yield f"attested by {', '.join(dict.fromkeys(pin.provenance.get('attestations_used', ())))}"
    logged = f"event {pin.log_index} of the log {pin.log_id}" if pin.log_id else "without a log (--literal)"
    yield f"from {pin.registry}, channel {pin.channel}, {logged}"


def _describe_registry_entry(entry: ServerEntry) -> Iterator[str]:
    yield f"{entry.name} {entry.version or 'without a version'} from {entry.source}, {entry.status}"
    if entry.description:
        yield entry.description
    yield f"source code: {entry.repository_url}" if entry.repository_url else "no source code repository is named"
    target = choose_target(entry)
    yield describe_target(target_to_json(target)) if target else "nothing that can be installed"


def _build_trust_sections(
    explanation: TierExplanation, trust: TrustReport, recorded: str | None = None
) -> Sequence[Section]:
    scores = f"overall score {trust.overall_score} of 100, metadata {trust.metadata_completeness}"
    since: tuple[str, ...] = ()
    if recorded is not None and recorded != explanation.tier:
        since = (f"It was {recorded} when it was locked; verification of an artifact counts for seven days.",)
    remedies = explanation.remedies or ("Nothing is left to do.",)
    return (
        Section(
            heading=f"how far it can be trusted: {explanation.tier}",
            lines=(explanation.meaning, *since, *explanation.reasons, scores),
        ),
        Section(heading="what would raise it", lines=remedies),
    )


def _trust_to_json(explanation: TierExplanation, trust: TrustReport) -> dict[str, Any]:
    return {
        "tier": explanation.tier,
        "overall_score": trust.overall_score,
        "meaning": explanation.meaning,
        "reasons": list(explanation.reasons),
        "remedies": list(explanation.remedies),
    }


def _select_cap_members(row: Mapping[str, Any]) -> dict[str, Any]:
    return {member: row[member] for member in ("code", "message", "tier")}


_ARTIFACT_WORDS = {"oci": "image", "mcpb": "bundle"}
_LOCAL_PROGRAM_WORDS = {"script": "script", "path": "program", "module": "module", "shell": "shell command"}
