"""Environments of installed bundles, unpacked from verified bytes and checked before every start."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from pinwarden.artifacts.environments.python import Interpreter
from pinwarden.artifacts.environments.store import Store
from pinwarden.artifacts.environments.tree import TREE, audit_tree, write_manifest
from pinwarden.bundle.acceptance import check_documents
from pinwarden.bundle.bundle_archive import check_archive
from pinwarden.bundle.bundle_documents import BundleDescriptor, ManifestEntry, SecurityPolicy, parse_descriptor
from pinwarden.bundle.bundle_files import unpack
from pinwarden.bundle.bundle_pin import BundlePin
from pinwarden.core.digest import Cid, Digest, TreeFile, document_cid, hash_file_list
from pinwarden.core.errors import PinwardenError
from pinwarden.system.files import find_program, read_file

BUILDER = "bundle/1"
_SECTION = "bundle"


def list_tree_files(entries: Iterable[ManifestEntry]) -> list[TreeFile]:
    """Return path, executable bit and SHA-256 of each file. The SHA-256 is part of the blob's CID."""
    return [(entry.path, entry.executable, bytes(Cid.parse(entry.blob_cid))[4:].hex()) for entry in entries]


def compute_tree_digest(entries: Iterable[ManifestEntry]) -> Digest:
    """Compute the digest of a bundle's unpacked files."""
    return hash_file_list(list_tree_files(entries))


def derive_environment_key(pin: BundlePin) -> str:
    """Return the folder name of a bundle's environment, derived from the bundle's CIDs."""
    return Digest.of_bytes(f"{BUILDER}\n{pin.root_cid}\n{pin.descriptor_cid}".encode()).hex[:40]


def find_missing_files(pin: BundlePin, store: Store) -> list[Digest]:
    """Return the digests of the files (archive, descriptor, manifest) that the store does not have."""
    return [digest for digest in (pin.archive, pin.descriptor, pin.manifest) if not store.has(digest)]


def check_pinned_descriptor(pin: BundlePin, store: Store) -> BundleDescriptor:
    """Check a bundle pin in the lock against the descriptor that was attested and accepted, and return that.

    Anyone with write access to a repository can edit a lock and seal it again with wider permissions.
    """
    descriptor = parse_descriptor(_read_stored(pin.descriptor, store))
    if str(document_cid(dict(descriptor.document))) != pin.descriptor_cid:
        raise PinwardenError("ARTIFACT_MISMATCH", "the stored descriptor belongs to another bundle than the lock pins")
    pinned = (pin.tool, pin.version, pin.root_cid, pin.runtime, pin.target, pin.policy)
    if pinned != (
        descriptor.name,
        descriptor.version,
        descriptor.root_cid,
        descriptor.runtime,
        descriptor.target,
        descriptor.policy,
    ):
        raise PinwardenError(
            "LOCK_TAMPERED",
            f"the lock's pin of {pin.tool[:80]!a} differs from the accepted descriptor",
            data={
                "described": {
                    "target": descriptor.target,
                    "runtime": descriptor.runtime,
                    "policy": _policy_to_json(descriptor.policy),
                }
            },
        )
    return descriptor


def _policy_to_json(policy: SecurityPolicy) -> dict[str, str]:
    return {"network": policy.network, "filesystem": policy.filesystem, "exec": policy.exec}


def build_environment(folder: Path, pin: BundlePin, store: Store) -> None:
    """Unpack a bundle into a folder. Every blob is verified before the first file is written."""
    archive, descriptor, manifest = (
        _read_stored(digest, store) for digest in (pin.archive, pin.descriptor, pin.manifest)
    )
    documents = check_documents(descriptor, manifest)
    if (documents.root_cid, documents.descriptor_cid) != (pin.root_cid, pin.descriptor_cid):
        raise PinwardenError("ARTIFACT_MISMATCH", "the stored documents belong to another bundle than the lock pins")
    entries = documents.manifest.entries
    contents = check_archive(documents.descriptor, documents.manifest, archive)
    if compute_tree_digest(entries) != pin.tree:
        raise PinwardenError("ARTIFACT_MISMATCH", "the bundle's files differ from the files in the lock")
    unpack(entries, contents, folder / TREE)
    write_manifest(folder, {_SECTION: list_tree_files(entries)})


def find_tree_problem(folder: Path, pin: BundlePin) -> str | None:
    """Return the first problem of a built environment; None if the environment is unchanged."""
    return audit_tree(folder, {_SECTION: frozenset([pin.tree.raw])}, [_SECTION])


def build_start_command(folder: Path, pin: BundlePin, search_path: str) -> tuple[str, ...]:
    """Return the command line that starts a bundle's server, including its runtime."""
    entry = folder / TREE / pin.entry_path
    if not entry.is_file() or entry.is_symlink():
        raise PinwardenError("PROGRAM_UNKNOWN", f"the bundle's entry point is missing: {pin.entry_path[:120]!a}")
    if pin.runtime == "native":
        return (str(entry),)
    if pin.runtime == "python":
        # -B: no bytecode next to the audited files. -s: no packages from the user's site directory.
        return (str(Interpreter.current().executable), "-B", "-s", str(entry))
    program = find_program(pin.runtime, search_path)
    if program is None:
        raise PinwardenError("PROGRAM_UNKNOWN", f"this server needs {pin.runtime}, which is not installed")
    return (str(program), *(_build_deno_options(pin) if pin.runtime == "deno" else ()), str(entry))


def list_readable_folders(pin: BundlePin) -> tuple[str, ...]:
    """Return the folders outside the bundle that the server must be able to read."""
    return (sys.base_prefix,) if pin.runtime == "python" else ()


def _build_deno_options(pin: BundlePin) -> tuple[str, ...]:
    """Return Deno's permission options for the accepted permissions."""
    allowed = ["run", "--no-prompt", "--allow-env"]
    allowed += ["--allow-net"] if pin.policy.network == "allow" else []
    allowed += ["--allow-read"] if pin.policy.filesystem != "deny" else []
    allowed += ["--allow-write"] if pin.policy.filesystem == "read_write" else []
    allowed += ["--allow-run"] if pin.policy.exec == "allow" else []
    return tuple(allowed)


def _read_stored(digest: Digest, store: Store) -> bytes:
    path = store.find(digest)
    if path is None:
        raise PinwardenError("ARTIFACT_MISSING", "the store lacks a file of the bundle", data={"name": str(digest)})
    return read_file(path, path.stat().st_size)
