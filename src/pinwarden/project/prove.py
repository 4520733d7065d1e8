"""Pinning the bytes of locked servers: fetched and hashed here, with their whole dependency closure.

What was pinned before is never replaced here: other bytes under the same name are a refusal. A new release, or newer
dependencies of the same one, come in through ``update``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinwarden.artifacts.artifact import ArtifactFacts, PackageRef
from pinwarden.artifacts.provenance import to_json
from pinwarden.core.digest import Digest
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import COULD_NOT_CHECK, Report, Row, hints_for_failures, is_failing, plural, row_facts
from pinwarden.lock import closure as closure_document
from pinwarden.lock import lock_store
from pinwarden.lock.closure import Closure, approved_digests, closure_path, not_approved, still_approved
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import (
    Artifact,
    ClosurePin,
    Extension,
    ImagePin,
    ScriptApproval,
    extended,
    extension_of,
    surface_path,
)
from pinwarden.lock.relock import relock
from pinwarden.project.artifact_check import Examined, examine
from pinwarden.project.fetch import chosen_entries
from pinwarden.project.fetch_context import Workshop, npm_closure, pypi_closure
from pinwarden.project.install_scripts import AllowedScripts, left_out_rows, unknown_rows, with_new
from pinwarden.project.project import Project


class Proof(Record):
    """What is written into the lock about one server."""

    examined: Examined
    closure: Closure | None
    data: bytes = b""
    """The closure's file."""
    scripts: tuple[ScriptApproval, ...] = ()
    """Install scripts that are approved with it."""
    tree: Digest | None = None
    """What unpacks from a bundle."""


def prove(
    project: Project,
    names: Sequence[str],
    shop: Workshop,
    now: str,
    allowed: AllowedScripts = AllowedScripts(),  # noqa: B008  a frozen value
) -> Report:
    """Pin the bytes of every locked server that is named, or of all."""
    rows: list[Row] = []
    done: list[dict[str, Any]] = []
    closures: list[Closure] = []
    failures: list[tuple[str, PinwardenError]] = []
    for entry in chosen_entries(project, names):
        try:
            examined = examine(entry, shop, now)
            rows += examined.rows
            if not examined.refused:
                proof = _proof(project, entry, examined, shop)
                if proof.closure is not None:
                    closures.append(proof.closure)
                    proof = replace(proof, scripts=allowed.approvals(proof.closure, now))
                approved = write_proof(project, entry, proof, now)
                if proof.closure is not None:
                    rows += left_out_rows(entry.name, proof.closure, approved, shop.store)
                done.append(_told(entry, proof, approved))
        except PinwardenError as err:
            rows.append(_failure(entry, err))
            failures.append((entry.name, err))
    rows += unknown_rows(allowed, closures)
    open_rows = [row for row in rows if is_failing(row)]
    exit_code = EXIT_CLEAN
    if open_rows:
        exit_code = EXIT_UNCHECKED if all(row.code == COULD_NOT_CHECK for row in open_rows) else EXIT_REFUSED
    return Report(
        command="prove",
        subject=project.lock.name,
        summary=_summary(done, open_rows, failures),
        exit_code=exit_code,
        rows=tuple(rows),
        notes=hints_for_failures(failures),
        facts={"servers": done, "findings": [row_facts(row) for row in rows]},
    )


def prove_entry(project: Project, key: str, shop: Workshop, now: str) -> None:
    """Pin the bytes of one entry, and of every client that has the same server; raises what speaks against it."""
    lock = lock_store.read(project.lock)
    entry = next((entry for entry in (lock.entries if lock is not None else ()) if entry.key == key), None)
    if entry is None:
        raise PinwardenError("SERVER_NOT_LOCKED", f"{key[:120]!a} is not locked")
    examined = examine(entry, shop, now)
    if examined.refused:
        reason = next(row.message for row in examined.rows if is_failing(row))
        raise PinwardenError("BYTES_NOT_LOCKED", f"the bytes of its new release were refused: {reason}")
    write_proof(project, entry, _proof(project, entry, examined, shop), now)


def _summary(
    done: Sequence[Mapping[str, Any]], open_rows: Sequence[Row], failures: Sequence[tuple[str, PinwardenError]]
) -> str:
    """What was pinned now, what was refused, and what nobody could look at: that says nothing about earlier pins."""
    missed = {row.name for row in open_rows if row.code == COULD_NOT_CHECK}
    refused = {row.name for row in open_rows} - missed
    parts = [f"the bytes of {plural(len(done), 'server')} are pinned"] if done or not missed else []
    if refused:
        parts.append(f"{'those' if parts else 'the bytes'} of {plural(len(refused), 'server')} were refused")
    if missed:
        hosts = dict.fromkeys(str(err.data["host"]) for _, err in failures if "host" in err.data)
        why = f" ({', '.join(hosts)} not reached)" if hosts else ""
        whose = plural(len(missed), "server")
        what = f"{'those' if parts else 'the bytes'} of {whose} could not be fetched{why}"
        parts.append(f"{what}, so nothing about them changed in the lock")
    return "; ".join(parts)


def _failure(entry: Entry, err: PinwardenError) -> Row:
    code, level = err.code.lower(), "info" if err.code == "NOTHING_TO_RUN" else "critical"
    if level == "critical" and err.exit_code != EXIT_REFUSED:
        code, level = COULD_NOT_CHECK, "review"
    return Row(code=code, severity=level, entity="server", name=entry.name, path="", message=err.message)


def _proof(project: Project, entry: Entry, examined: Examined, shop: Workshop) -> Proof:
    """The closure is resolved once; after that it is what the lock says it is."""
    known = extension_of(entry)
    if examined.package.ecosystem == "mcpb":
        return bundle_proof(examined, shop)
    if examined.package.ecosystem not in ("npm", "pypi"):
        return Proof(examined=examined, closure=None)
    if known is not None and known.closure is not None:
        data = lock_store.read_pinned(project.lock, known.closure)
        if data is None or Digest.of_bytes(data) != known.closure.file_digest:
            raise PinwardenError("LOCK_TAMPERED", f"{known.closure.path} is not the file that the lock pins")
        return Proof(examined=examined, closure=closure_document.parse(data), data=data)
    closure = closure_for(examined.package, shop)
    _agree(closure, examined.facts)
    return Proof(examined=examined, closure=closure, data=closure_document.to_bytes(closure))


def bundle_proof(examined: Examined, shop: Workshop) -> Proof:
    """The proof of a bundle, with what unpacks from it. It stays in the store."""
    from pinwarden.project.server_environments import tree_of

    tree = tree_of(examined.package.name, examined.facts.files[0].sha256, shop)
    return Proof(examined=examined, closure=None, tree=tree)


def closure_for(package: PackageRef, shop: Workshop) -> Closure:
    """The closure of a package, resolved now."""
    if package.ecosystem == "npm":
        return npm_closure(package.name, package.version, shop)
    return pypi_closure(package.name, package.version, (), shop)


def _agree(closure: Closure, facts: ArtifactFacts) -> None:
    """The resolver and the registry must have spoken of the same bytes."""
    proven = {digest for file in facts.files for digest in file.digests}
    for file in closure.root.files:
        if file.digest not in proven:
            raise PinwardenError(
                "ARTIFACT_MISMATCH", f"{file.name} is not the file that the registry gave out a moment ago"
            )


def write_proof(project: Project, entry: Entry, proof: Proof, now: str) -> frozenset[Digest]:
    """Write what was proved into the lock, for every client that starts the same thing.

    Tells whose install scripts are approved now.
    """
    approved: frozenset[Digest] = frozenset()

    def change(old: Any) -> lock_store.LockWrite:
        nonlocal approved
        same = [each for each in old.entries if _is_same_server(each, entry)]
        path = _closure_file(project, entry, [each for each in old.entries if each not in same])
        made = [pinned(each, proof, path, now) for each in same]
        approved = frozenset().union(*(approved_digests(extension_of(each)) for each in made))
        return lock_store.LockWrite(lock=relock(old, made, now), files={path: proof.data} if proof.data else {})

    lock_store.update(project.lock, change)
    return approved


def _closure_file(project: Project, entry: Entry, others: Sequence[Entry]) -> str:
    """Where the closure goes. Clients that have different things under one name do not share a file."""
    taken = {known.closure.path for each in others if (known := extension_of(each)) is not None and known.closure}
    path = closure_path(project.lock.stem, surface_path(entry.name))
    return path if path not in taken else closure_path(project.lock.stem, surface_path(entry.name, entry.client))


def _is_same_server(entry: Entry, other: Entry) -> bool:
    """Whether two entries are the same server of several clients. One that is not understood is only itself."""
    from pinwarden.project.server_identity import entry_identity

    identity = entry_identity(entry)
    return entry.name == other.name and (entry.key == other.key or identity == entry_identity(other) is not None)


def pinned(entry: Entry, proof: Proof, path: str, now: str) -> Entry:
    """The entry with what was proved in our record of it."""
    known, facts = extension_of(entry) or Extension(), proof.examined.facts
    pin = None
    if proof.closure is not None:
        pin = ClosurePin(packages=len(proof.closure.packages), path=path, file_digest=Digest.of_bytes(proof.data))
    scripts = still_approved(with_new(known, proof.scripts), proof.closure) if proof.closure is not None else ()
    artifacts = tuple(Artifact(name=file.name, digest=file.sha256, size=file.size) for file in facts.files)
    fresh = replace(
        known,
        artifacts=() if facts.image is not None else artifacts,
        image=_image_pin(facts),
        closure=pin,
        registry=facts.registry,
        provenance=to_json(proof.examined.identity) if proof.examined.identity else None,
        install_scripts=scripts,
        bundle_tree=proof.tree if proof.tree is not None else known.bundle_tree,
        evidence=_kept_evidence(known, proof.examined, now),
        published_at=facts.published_at or known.published_at,
        publisher=known.publisher or _publisher(facts),
    )
    return extended(entry, fresh)


def _publisher(facts: ArtifactFacts) -> str | None:
    """Who published the release. Only npm says that; other registries say who owns the project today."""
    return (facts.publisher or None) if facts.package.ecosystem == "npm" else None


def _image_pin(facts: ArtifactFacts) -> ImagePin | None:
    if facts.image is None:
        return None
    return ImagePin(
        index=facts.image.index.digest if facts.image.index is not None else None,
        platforms={platform: manifest.digest for platform, manifest in sorted(facts.image.platforms.items())},
    )


def _kept_evidence(known: Extension, examined: Examined, now: str) -> tuple[Mapping[str, Any], ...]:
    """The rows of evidence; those that say the same as before keep the time at which it was first found out.

    So proving again leaves the lock as it is, to the byte, and its signatures stay good. After a day the time moves on.
    """
    before = known.evidence
    rows = [dict(row) for row in examined.outcome.evidence]
    if before is not None and len(before) == len(rows):
        timeless = [{**row, "verifiedAt": None} for row in rows]
        if [{**row, "verifiedAt": None} for row in before] == timeless:
            times = [str(row.get("verifiedAt", "")) for row in before if "verifiedAt" in row]
            if all(time[:10] == now[:10] for time in times):
                return before
    return tuple(rows)


def _told(entry: Entry, proof: Proof, approved: frozenset[Digest]) -> dict[str, Any]:
    facts, closure = proof.examined.facts, proof.closure
    told: dict[str, Any] = {
        "server": entry.name,
        "package": str(proof.examined.package),
        "registry": facts.registry,
        "files": [{"name": file.name, "digest": str(file.sha256), "size": file.size} for file in facts.files],
        "evidence": [dict(row) for row in proof.examined.outcome.evidence],
        "packages": len(closure.packages) if closure else 0,
        "scripts": [package.name for package in not_approved(closure, approved)] if closure else [],
    }
    if facts.image is not None:
        told["image"] = {
            "reference": facts.image.reference,
            "digest": str(facts.image.root),
            "platforms": {name: str(each.digest) for name, each in sorted(facts.image.platforms.items())},
        }
    return told
