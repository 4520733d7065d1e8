"""A user who trusts a registry and a verifier, and registries that can be as hostile as a test likes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinwarden.bundle.document import encode_document
from pinwarden.bundle.trust import AttestationKey, InstallerPolicy, TrustedKey, TrustedRegistry, add_key, add_registry
from pinwarden.bundle.trust_files import change_trust, load_trust
from pinwarden.core.digest import document_cid
from pinwarden.core.keys import PrivateKey
from pinwarden.core.signed_note import NoteKey
from pinwarden.install.bundle_download import download_bundle
from pinwarden.install.decision import InstallDecision, InstallRequest
from pinwarden.install.registry_log import LogFollower
from pinwarden.install.sources import RegistryBundleSource
from pinwarden.registry import names
from pinwarden.registry.log_writer import PointerChange, append_pointer_changes
from pinwarden.registry.registry_documents import PublishedVersion
from pinwarden.registry.store import pointer_log, publications
from tests.registry.world import ACME, Bundle, LiveFiles, World, attested

VERA = PrivateKey.from_seed(b"v" * 32)
ADDED = "2026-01-01T00:00:00Z"
POINTER, EVENT, PROOF = (f"pointers/acme.notes/stable{suffix}" for suffix in (".json", ".event", ".tlog-proof"))
CHECKPOINT, VIEW = names.CHECKPOINT, names.SIGNED_CHECKPOINT


@dataclass(slots=True)
class User:
    """A user with a trust store, who installs from a registry."""

    world: World
    trust: Path

    def request(self, **changes: Any) -> InstallRequest:
        return InstallRequest(
            **{
                "tool": "acme.notes",
                "policy": InstallerPolicy(filesystem="read_only"),
                "trusted": load_trust(self.trust),
                "now": self.world.clock(),
                **changes,
            }
        )

    def decide(self, files: LiveFiles | None = None, **changes: Any) -> InstallDecision:
        """Download and check what the registry serves."""
        request = self.request(**changes)
        follower = LogFollower(self.trust, request.now)
        return download_bundle(request, RegistryBundleSource(files or self.world.files), follower)

    def code(self, files: LiveFiles | None = None, **changes: Any) -> str:
        """The one code of a refusal."""
        decision = self.decide(files, **changes)
        assert decision.accepted is None
        assert decision.refusal is not None
        assert [line.result for line in decision.checks].count("failed") == 1
        return decision.refusal.code

    def accepts(self, files: LiveFiles | None = None, **changes: Any) -> bool:
        return self.decide(files, **changes).accepted is not None

    def publish(self, made: Bundle, **more: Any) -> PublishedVersion:
        """Publish a bundle with an attestation of the verifier."""
        given = more.pop("attestations", None)
        return self.world.publish(
            made, attestations=[attested(made, VERA, "verifier")] if given is None else given, **more
        )

    @property
    def seen(self) -> dict[str, bytes]:
        """What was kept of logs."""
        return {path.name: path.read_bytes() for path in self.trust.parent.glob("logs/*.json")}


def root_of(world: World, name: str) -> TrustedRegistry:
    """The registry as users pin it."""
    log = NoteKey(name=world.registry.identity.log_id, key=world.registry.identity.key)
    return TrustedRegistry(key=TrustedKey(key=log.key, name=name, roles=("registry",)), log=log, added_at=ADDED)


def new_user(world: World, folder: Path) -> User:
    """A user who trusts the registry, and Vera as a verifier."""
    trust = folder / "settings" / "trust.json"
    root = root_of(world, "acme")
    vera = AttestationKey(key=TrustedKey(key=VERA.public_key, name="vera", roles=("verifier",)), added_at=ADDED)
    change_trust(trust, lambda store: add_key(add_registry(store, root), vera))
    return User(world=world, trust=trust)


def showing(world: World, **instead: bytes | None) -> LiveFiles:
    """The registry, with something else at some of its paths."""
    files = world.files
    for path, data in instead.items():
        files.instead[path] = lambda data=data: data  # type: ignore[misc]
    return files


def copy_of(world: World, *paths: str) -> dict[str, bytes]:
    """What the registry serves now, to be played again later."""
    files = world.files
    return {path: files.get(path) for path in paths}


def smuggle(world: World, made: Bundle, **changes: Any) -> None:
    """A hostile registry: it publishes what an honest one refuses, signs it and logs it."""
    registry = world.registry
    described = made.descriptor
    attestation = attested(made, VERA, "verifier")
    version = PublishedVersion(
        **{
            "tool": described["tool"]["name"],
            "version": described["tool"]["version"],
            "namespace": "acme",
            "description": "",
            "root_cid": made.root_cid,
            "descriptor_cid": made.descriptor_cid,
            "archive_cid": registry.blobs.put(made.archive),
            "archive_size": len(made.archive),
            "media_type": described["artifact"]["media_type"],
            "content_hash": "sha256:" + "0" * 64,
            "api_surface": None,
            "surface_cid": None,
            "surface_problem": None,
            "published_at": world.clock(),
            "published_by": ACME.public_key.did,
            "seq": 0,
            **changes,
        }
    )
    with registry.database.transaction(exclusive=pointer_log.WRITE_LOCK) as transaction:
        publications.put_document(transaction, made.descriptor_cid, encode_document(described))
        publications.put_manifest(transaction, made.root_cid, made.descriptor_cid, encode_document(made.manifest))
        cid = str(document_cid(attestation))
        publications.add_attestations(
            transaction, made.root_cid, made.descriptor_cid, [(cid, encode_document(attestation))]
        )
        publications.add_version(transaction, version)
        change = PointerChange(tool=version.tool, channel="stable", version=version, reason="publish")
        append_pointer_changes(transaction, registry, [change])
