"""Accepting and verifying a bundle, compared with the minimal work.

The minimal work is to hash the bytes of the archive once and to verify the same Ed25519 signatures. Pinwarden also runs
all nine acceptance steps, and verifies every file of the archive against the manifest. The bundle has 1,000 files of
ten kilobytes. With larger files, the ratio is lower.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measure import Goal, compare, table
from pinwarden import PrivateKey, signing_preimage
from pinwarden.bundle import attestation
from pinwarden.bundle.acceptance import accept
from pinwarden.bundle.acceptance_request import AcceptanceRequest
from pinwarden.bundle.attestation import Claim
from pinwarden.bundle.bundle_archive import check_archive
from pinwarden.bundle.bundle_documents import CAR_MEDIA_TYPE, TAR_ZSTD_MEDIA_TYPE
from pinwarden.bundle.document import add_signature, build_default_profile, encode_document
from pinwarden.bundle.log_documents import POINTER_SIGNED_FIELDS, Pointer, build_unsigned_pointers
from pinwarden.bundle.pack import PackedBundle, PackOptions, pack_folder
from pinwarden.bundle.trust import InstallerPolicy, Trust, TrustedKey
from pinwarden.core.keys import decode_base64url

FILES = 1000
FILE_BYTES = 10_000
NOW = "2026-03-01T12:00:00Z"
REGISTRY, VERIFIER = PrivateKey.from_seed(b"r" * 32), PrivateKey.from_seed(b"v" * 32)
SERVER = b'{"name": "acme.notes", "version": "1.0.0", "runtime": "node", "entry": "lib0/part0/file0.js"}'


def verifying_report() -> str:
    with TemporaryDirectory() as folder:
        write_tree(Path(folder))
        car, tar = (
            pack_folder(PackOptions(folder=Path(folder), output=Path(), media_type=kind))
            for kind in (CAR_MEDIA_TYPE, TAR_ZSTD_MEDIA_TYPE)
        )
    rows = compare(
        {
            "SHA-256 and signatures": lambda: minimal_work(car),
            "pinwarden, CAR": lambda: accept_and_verify(car),
            "pinwarden, tar+zstd": lambda: accept_and_verify(tar),
        },
        baseline="SHA-256 and signatures",
        rounds=21,
    )
    goals = [
        Goal(name=f"pinwarden, {kind}", against="SHA-256 and signatures", at_most=3) for kind in ("CAR", "tar+zstd")
    ]
    title = f"Verify a bundle of {FILES} files and {len(car.archive) // 1000} kB before it is installed"
    return table(title, rows, 1, goals)


def write_tree(folder: Path) -> None:
    random = Random(1)
    for index in range(FILES - 1):
        path = folder / f"lib{index % 40}" / f"part{index % 7}" / f"file{index}.js"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.randbytes(FILE_BYTES))
    (folder / "server.json").write_bytes(SERVER)


def pointer_to(bundle: PackedBundle) -> dict[str, Any]:
    row = Pointer(
        tool="acme.notes",
        channel="stable",
        root_cid=bundle.root_cid,
        descriptor_cid=bundle.descriptor_cid,
        cid_profile=build_default_profile(),
        updated_at_utc=NOW,
    )
    return add_signature(build_unsigned_pointers("acme", "acme", NOW, [row]), POINTER_SIGNED_FIELDS, REGISTRY)


def attestation_of(bundle: PackedBundle) -> dict[str, Any]:
    claim = Claim(
        type=attestation.INTEGRITY_CLAIM,
        issued_at_utc=NOW,
        issuer_key_id=VERIFIER.public_key.did,
        issuer_role="verifier",
        payload={"verified_root_cid": bundle.root_cid},
    )
    value = attestation.build_unsigned_attestation(
        bundle.root_cid, bundle.descriptor_cid, build_default_profile(), [claim]
    )
    return add_signature(value, attestation.ATTESTATION_SIGNED_FIELDS, VERIFIER)


def acceptance_request(bundle: PackedBundle) -> AcceptanceRequest:
    return AcceptanceRequest(
        pointer=encode_document(pointer_to(bundle)),
        descriptor=encode_document(bundle.descriptor),
        manifest=encode_document(bundle.manifest),
        attestations=(encode_document(attestation_of(bundle)),),
        policy=InstallerPolicy(),
        trust=Trust(
            registry_keys=(TrustedKey(key=REGISTRY.public_key),),
            known_keys=(TrustedKey(key=VERIFIER.public_key, roles=("verifier",)),),
        ),
        now=NOW,
    )


_PREPARED: dict[int, Any] = {}
"""Inputs that are prepared once per bundle and not measured."""


def minimal_work(bundle: PackedBundle) -> None:
    checks = _PREPARED.get(-id(bundle))
    if checks is None:
        documents = ((pointer_to(bundle), REGISTRY), (attestation_of(bundle), VERIFIER))
        checks = _PREPARED[-id(bundle)] = [
            (
                key.public_key,
                signing_preimage(document, document["signatures"][0]["signed_fields"]),
                document["signatures"][0]["sig"],
            )
            for document, key in documents
        ]
    hashlib.sha256(bundle.archive).digest()
    assert all(key.verifies(preimage, decode_base64url(sig)) for key, preimage, sig in checks)


def accept_and_verify(bundle: PackedBundle) -> None:
    request = _PREPARED.setdefault(id(bundle), None) or acceptance_request(bundle)
    _PREPARED[id(bundle)] = request
    documents = accept(request).documents
    assert documents is not None
    assert len(check_archive(documents.descriptor, documents.manifest, bundle.archive)) == FILES
