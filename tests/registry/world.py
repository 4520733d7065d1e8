"""A small world for a registry: publishers with keys and tokens, bundles, and a clock that a test can move."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pinwarden.bundle import attestation
from pinwarden.bundle.attestation import Claim
from pinwarden.bundle.bundle_archive import build_archive, build_manifest_entry
from pinwarden.bundle.bundle_documents import (
    CAR_MEDIA_TYPE,
    BundleDescriptor,
    SecurityPolicy,
    build_unlinked_manifest,
    descriptor_to_json,
    link_manifest,
)
from pinwarden.bundle.document import add_signature, build_default_profile, encode_document
from pinwarden.bundle.source_tree import SourceFile
from pinwarden.core.digest import blob_cid, document_cid, manifest_root_cid
from pinwarden.core.keys import PrivateKey
from pinwarden.core.record import replace
from pinwarden.registry import access as operating
from pinwarden.registry import registry_documents
from pinwarden.registry.access import authenticate
from pinwarden.registry.changes import ChangeResult, apply_change
from pinwarden.registry.publish import PublishResult, publish, store_archive
from pinwarden.registry.read_api import find_file
from pinwarden.registry.registry import Registry, RegistrySettings, open_registry
from pinwarden.registry.registry_client import RegistryReader
from pinwarden.registry.registry_documents import PublishedVersion
from pinwarden.registry.version_pair import compare_pair, find_pair

REGISTRY_KEY = PrivateKey.from_seed(b"r" * 32)
ACME = PrivateKey.from_seed(b"a" * 32)
MALLORY = PrivateKey.from_seed(b"m" * 32)
SERVER = (Path(__file__).parents[2] / "examples" / "notes_server.py").read_bytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle in memory."""

    descriptor: dict[str, Any]
    manifest: dict[str, Any]
    archive: bytes

    @property
    def root_cid(self) -> str:
        return str(self.manifest["root_cid"])

    @property
    def descriptor_cid(self) -> str:
        return str(self.manifest["descriptor_cid"])

    @property
    def archive_cid(self) -> str:
        return str(blob_cid(self.archive))


def bundle(
    name: str = "acme.notes",
    version: str = "1.0.0",
    content: bytes = b"pass\n",
    *,
    files: Mapping[str, bytes] | None = None,
    described: Mapping[str, str] | None = None,
    **more: bytes,
) -> Bundle:
    """A bundle with one program, and what else is given by name. ``described`` has texts of the descriptor."""
    return _build_bundle(
        name,
        version,
        {"main.py": content, **{f"{path}.txt": data for path, data in more.items()}, **(files or {})},
        described or {},
    )


def _build_bundle(name: str, version: str, contents: Mapping[str, bytes], texts: Mapping[str, str]) -> Bundle:
    files = [SourceFile(path=path, data=data) for path, data in contents.items()]
    unlinked = build_unlinked_manifest(build_manifest_entry(file) for file in files)
    root = manifest_root_cid(unlinked)
    archive = build_archive(CAR_MEDIA_TYPE, unlinked, root, sorted(files, key=lambda file: file.path))
    described = descriptor_to_json(
        BundleDescriptor(
            name=name,
            display_name=texts.get("display_name", name),
            version=version,
            description=texts.get("description", f"What {name} does"),
            license=texts.get("license", "MIT"),
            root_cid=str(root),
            cid_profile=build_default_profile(),
            media_type=CAR_MEDIA_TYPE,
            size_bytes=len(archive),
            runtime="python",
            target="main.py",
            policy=SecurityPolicy(),
        )
    )
    linked = link_manifest(unlinked, str(document_cid(described)))
    return Bundle(descriptor=described, manifest=linked, archive=archive)


def attested(made: Bundle, key: PrivateKey, role: str = "maintainer") -> dict[str, Any]:
    """An integrity claim about a bundle."""
    claim = Claim(
        type=attestation.INTEGRITY_CLAIM,
        issued_at_utc="2026-01-01T00:00:00Z",
        issuer_key_id=key.public_key.did,
        issuer_role=role,
        payload={"kind": "integrity", "verified_root_cid": made.root_cid},
    )
    value = attestation.build_unsigned_attestation(made.root_cid, made.descriptor_cid, build_default_profile(), [claim])
    return add_signature(value, attestation.ATTESTATION_SIGNED_FIELDS, key)


@dataclass(slots=True)
class Clock:
    moment: datetime = field(default_factory=lambda: datetime(2026, 11, 16, 12, 0, tzinfo=UTC))

    def __call__(self) -> str:
        return self.moment.strftime("%Y-%m-%dT%H:%M:%S.000Z")

    def pass_by(self, **span: float) -> None:
        self.moment += timedelta(**span)


@dataclass(slots=True)
class World:
    """A registry with a namespace acme, its owner's key and a token for it."""

    registry: Registry
    clock: Clock
    token: str
    key: PrivateKey = ACME

    def request(
        self,
        made: Bundle,
        *,
        key: PrivateKey | None = None,
        channel: str = "stable",
        log_id: str | None = None,
        attestations: list[dict[str, Any]] | None = None,
        **changes: Any,
    ) -> bytes:
        """What a publisher sends."""
        body = {
            "tool": made.descriptor["tool"]["name"],
            "version": made.descriptor["tool"]["version"],
            "channel": channel,
            "root_cid": made.root_cid,
            "descriptor_cid": made.descriptor_cid,
            "archive_cid": made.archive_cid,
            **changes,
        }
        value = {
            "statement": self.statement(registry_documents.PUBLISH, body, key=key, log_id=log_id),
            "descriptor": made.descriptor,
            "manifest": made.manifest,
            "attestations": attestations or [],
        }
        return encode_document(value)

    def statement(
        self, action: str, body: Mapping[str, Any], *, key: PrivateKey | None = None, log_id: str | None = None
    ) -> dict[str, Any]:
        nonce = f"{next(_NONCES)}"
        value = registry_documents.build_unsigned_statement(
            log_id or self.registry.identity.log_id, action, body, self.clock(), nonce
        )
        return add_signature(value, registry_documents.STATEMENT_SIGNED_FIELDS, key or self.key)

    def publish(self, made: Bundle, *, token: str | None = None, **more: Any) -> PublishedVersion:
        """Publish a bundle the way the HTTP face does."""
        return self.send(self.request(made, **more), made, token=token)

    def send(self, request: bytes, made: Bundle | None = None, *, token: str | None = None) -> PublishedVersion:
        if made is not None:
            store_archive(self.registry, made.archive, made.archive_cid)
        return self.send_for_event(request, token=token).version

    def send_for_event(self, request: bytes, *, token: str | None = None) -> PublishResult:
        return publish(self.registry, authenticate(self.registry, token or self.token, "publish"), request)

    def change(
        self, action: str, *, key: PrivateKey | None = None, token: str | None = None, **body: Any
    ) -> ChangeResult:
        request = encode_document({"statement": self.statement(action, body, key=key)})
        return apply_change(self.registry, authenticate(self.registry, token or self.token, "change"), request)

    def add_namespace(self, name: str, key: PrivateKey) -> str:
        """A namespace of its own; returns a token for it."""
        operating.add_namespace(self.registry, name, key.public_key.did)
        return str(operating.add_token(self.registry, name, "", 30).facts["token"])

    @property
    def files(self) -> LiveFiles:
        return LiveFiles(self.registry)


_NONCES = iter(range(10**9))


class LiveFiles(RegistryReader):
    """What the registry serves, without a network between. A test may put something else at a path."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.asked: list[str] = []
        self.instead: dict[str, Callable[[], bytes | None]] = {}

    def __str__(self) -> str:
        return "memory"

    def find(self, path: str, max_bytes: int = 0) -> bytes | None:  # noqa: ARG002 - as the port has it
        self.asked.append(path)
        if path in self.instead:
            return self.instead[path]()
        file = find_file(self._registry, path)
        return None if file is None else file.body


def open_world(folder: Path, database: str | None = None, **settings: Any) -> World:
    """A registry in a folder, or with that database."""
    clock = settings.pop("clock", None) or Clock()
    key = settings.pop("key", REGISTRY_KEY)
    made = RegistrySettings(folder=folder, database=database, probing=settings.pop("probing", "never"), **settings)
    registry = replace(open_registry(made, key), now=clock)
    world = World(registry=registry, clock=clock, token="")
    world.token = world.add_namespace("acme", ACME)
    return world


def as_json(data: bytes | None) -> Any:
    assert data is not None
    return json.loads(data)


def compare_versions(registry: Registry, tool: str, before: str, after: str) -> dict[str, Any]:
    """What changed between two published versions, as the registry answers it."""
    changes = compare_pair(registry, find_pair(registry, tool, before, after))
    return {"tool": tool, "before": before, "after": after, **changes}
