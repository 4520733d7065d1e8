"""Environments of installed bundles: unpacked from verified bytes, audited before every start, started as described."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from pinwarden.artifacts.environments.python import Interpreter
from pinwarden.artifacts.environments.store import Store
from pinwarden.artifacts.environments.tree import TREE, Row, audit_tree, write_manifest
from pinwarden.bundle import descriptor as descriptor_document
from pinwarden.bundle.acceptance.bundle import check_documents
from pinwarden.bundle.archive.bundle_archive import check_archive
from pinwarden.bundle.archive.unpack import unpack
from pinwarden.bundle.bundle_pin import BundlePin
from pinwarden.bundle.descriptor import SecurityPolicy
from pinwarden.bundle.manifest import Entry
from pinwarden.core.cid import Cid, document_cid
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.lock.closure import tree_digest
from pinwarden.system.files import find_program, read_file

BUILDER = "bundle/1"
_SECTION = "bundle"


def tree_rows(entries: Iterable[Entry]) -> list[Row]:
    """The files of a manifest as an environment lists them; a blob's CID holds its SHA-256."""
    return [(each.path, each.executable, bytes(Cid.parse(each.blob_cid))[4:].hex()) for each in entries]


def tree_of(entries: Iterable[Entry]) -> Digest:
    """What unpacks from a bundle."""
    return tree_digest(tree_rows(entries))


def environment_key(pin: BundlePin) -> str:
    """The name of the environment: what it is made from."""
    return Digest.of_bytes(f"{BUILDER}\n{pin.root_cid}\n{pin.descriptor_cid}".encode()).hex[:40]


def missing_files(pin: BundlePin, store: Store) -> list[Digest]:
    """Which of a bundle's files the store does not have."""
    return [each for each in (pin.archive, pin.descriptor, pin.manifest) if not store.has(each)]


def check_described(pin: BundlePin, store: Store) -> None:
    """What a lock says of a bundle is what its descriptor says, by which it was attested and accepted.

    A lock lies in a repository, where whoever writes it can seal it again with wider permissions in it.
    """
    found = descriptor_document.parse(_stored(pin.descriptor, store))
    if str(document_cid(dict(found.document))) != pin.descriptor_cid:
        raise PinwardenError(
            "ARTIFACT_MISMATCH", "the descriptor in the store is that of another bundle than was locked"
        )
    stated = (pin.tool, pin.version, pin.root_cid, pin.runtime, pin.target, pin.policy)
    if stated != (found.name, found.version, found.root_cid, found.runtime, found.target, found.policy):
        raise PinwardenError(
            "LOCK_TAMPERED",
            f"the lock says something else of {pin.tool[:80]!a} than the descriptor that was accepted",
            data={"described": {"target": found.target, "runtime": found.runtime, "policy": _words(found.policy)}},
        )


def _words(policy: SecurityPolicy) -> dict[str, str]:
    return {"network": policy.network, "filesystem": policy.filesystem, "exec": policy.exec}


def build(folder: Path, pin: BundlePin, store: Store) -> None:
    """Unpack a bundle into a folder. Every blob is checked before the first file is written."""
    archive, descriptor, manifest = (_stored(each, store) for each in (pin.archive, pin.descriptor, pin.manifest))
    documents = check_documents(descriptor, manifest)
    if (documents.root_cid, documents.descriptor_cid) != (pin.root_cid, pin.descriptor_cid):
        raise PinwardenError("ARTIFACT_MISMATCH", "the documents in the store are of another bundle than was locked")
    entries = documents.manifest.entries
    contents = check_archive(documents.descriptor, documents.manifest, archive)
    if tree_of(entries) != pin.tree:
        raise PinwardenError("ARTIFACT_MISMATCH", "the bundle unpacks to something else than was locked")
    unpack(entries, contents, folder / TREE)
    write_manifest(folder, {_SECTION: tree_rows(entries)})


def audit(folder: Path, pin: BundlePin) -> str | None:
    """What is wrong with a built environment, None if nothing is."""
    return audit_tree(folder, {_SECTION: frozenset([pin.tree.raw])}, [_SECTION])


def start_command(folder: Path, pin: BundlePin, search_path: str) -> tuple[str, ...]:
    """The command that starts a bundle's server, with the runtime that it asks for."""
    entry = folder / TREE / pin.entry
    if not entry.is_file() or entry.is_symlink():
        raise PinwardenError("PROGRAM_UNKNOWN", f"the bundle does not hold what it starts: {pin.entry[:120]!a}")
    if pin.runtime == "native":
        return (str(entry),)
    if pin.runtime == "python":
        # Nothing is written beside the files of the bundle, which are audited, and nothing of the user's is imported.
        return (str(Interpreter.here().executable), "-B", "-s", str(entry))
    program = find_program(pin.runtime, search_path)
    if program is None:
        raise PinwardenError("PROGRAM_UNKNOWN", f"{pin.runtime} is needed to start this server, and is not installed")
    return (str(program), *(_deno(pin) if pin.runtime == "deno" else ()), str(entry))


def shown_folders(pin: BundlePin) -> tuple[str, ...]:
    """What else a started server must be able to read."""
    return (sys.base_prefix,) if pin.runtime == "python" else ()


def _deno(pin: BundlePin) -> tuple[str, ...]:
    """Deno has permissions of its own; it gets those that were accepted."""
    allowed = ["run", "--no-prompt", "--allow-env"]
    allowed += ["--allow-net"] if pin.policy.network == "allow" else []
    allowed += ["--allow-read"] if pin.policy.filesystem != "deny" else []
    allowed += ["--allow-write"] if pin.policy.filesystem == "read_write" else []
    allowed += ["--allow-run"] if pin.policy.exec == "allow" else []
    return tuple(allowed)


def _stored(digest: Digest, store: Store) -> bytes:
    found = store.find(digest)
    if found is None:
        raise PinwardenError("ARTIFACT_MISSING", "a file of the bundle is not in the store", data={"name": str(digest)})
    return read_file(found, found.stat().st_size)
