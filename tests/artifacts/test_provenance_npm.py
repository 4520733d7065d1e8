"""npm attestations end to end: fetched from a registry on loopback by the npm adapter, checked, and compared."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from pinwarden.artifacts import npm
from pinwarden.artifacts.artifact import PackageRef
from pinwarden.artifacts.provenance import RegistryKey, choose_strongest_identity
from pinwarden.artifacts.provenance_check import ProvenanceVerifier, fetch_registry_keys
from pinwarden.artifacts.provenance_drift import compare_provenance
from pinwarden.core.errors import PinwardenError
from pinwarden.system.net.connections import ServiceEndpoint
from pinwarden.system.net.fetch import Fetcher, FetchLimits, FetchRules
from tests.servers.npm_registry import package, version_document
from tests.servers.plain_http import Answerer, files, plain_server
from tests.support.forged_sigstore import Build, Forge, b64, compact, new_key, spki

NOW = "2026-11-16T00:00:00Z"
NPM_PUBLISH = "https://github.com/npm/attestation/tree/main/specs/publish/v0.1"
SLSA = "https://slsa.dev/provenance/v1"


def statement(archive: bytes, predicate_type: str, predicate: Any) -> bytes:
    digest = {"sha512": hashlib.sha512(archive).hexdigest()}
    subject = [{"name": "pkg:npm/tool@1.0.0", "digest": digest}]
    kind = "https://in-toto.io/Statement/v1"
    return compact({"_type": kind, "subject": subject, "predicateType": predicate_type, "predicate": predicate})


def test_a_release_is_verified_and_a_later_one_from_a_fork_is_detected(tmp_path: Path) -> None:
    forge, key = Forge(), new_key()
    root = tmp_path / "root.json"
    root.write_text(json.dumps(forge.trusted_root()))
    manifest, archive = package("tool", repository="github:acme/slack-mcp")

    def registry(who: Build) -> Answerer:
        publish = statement(archive, NPM_PUBLISH, {"name": "tool", "version": "1.0.0"})
        rows = [
            {"predicateType": NPM_PUBLISH, "bundle": forge.key_bundle(publish, key, "SHA256:abc")},
            {"predicateType": SLSA, "bundle": forge.statement_bundle(statement(archive, SLSA, {}), who, kind="intoto")},
        ]

        def answer(asked: Any) -> Any:
            url = f"http://{asked.headers['host']}/tool.tgz"
            version = version_document(manifest, archive, url, attestations={"url": "x"})
            packument = {"name": "tool", "versions": {"1.0.0": version}, "time": {"1.0.0": "2026-03-01T12:00:00Z"}}
            keys = {"keys": [{"keyid": "SHA256:abc", "key": b64(spki(key)), "expires": None}]}
            content = {
                "/tool": json.dumps(packument).encode(),
                "/tool.tgz": archive,
                "/-/npm/v1/attestations/tool@1.0.0": json.dumps({"attestations": rows}).encode(),
                "/-/npm/v1/keys": json.dumps(keys).encode(),
            }
            return files(content)(asked)

        return answer

    def fetch(who: Build) -> Any:
        client = Fetcher(FetchRules(limits=FetchLimits(attempts=1)), {})
        with plain_server(registry(who)) as server:
            endpoint = ServiceEndpoint(url=server.url, configured_by="user")
            wanted = PackageRef(ecosystem="npm", name="tool", version="1.0.0")
            artifact = npm.fetch_artifact(wanted, client, endpoint, now=NOW)
            verifier = ProvenanceVerifier(now=NOW, trust_root=root, registry_keys=fetch_registry_keys(client, endpoint))
        client.close()
        return artifact, verifier.verify_all(artifact)

    artifact, first = fetch(Build())
    _, second = fetch(Build(repository="https://github.com/evil/slack-mcp", repository_id="6", owner_id="6"))

    assert [each.state for each in (*first, *second)] == ["verified"] * 4
    locked = choose_strongest_identity(first)
    assert locked is not None
    assert locked.repository == "https://github.com/acme/slack-mcp"
    assert compare_provenance(locked, first, metadata_repository=artifact.facts.repository) == ()
    found = compare_provenance(locked, second, metadata_repository=artifact.facts.repository)
    assert {(each.code, each.severity) for each in found} == {
        ("provenance_changed", "critical"),
        ("provenance_repository_mismatch", "review"),
    }


def keys_of(body: bytes | None) -> tuple[RegistryKey, ...]:
    client = Fetcher(FetchRules(limits=FetchLimits(attempts=1)), {})
    try:
        with plain_server(files({} if body is None else {"/-/npm/v1/keys": body})) as server:
            return fetch_registry_keys(client, ServiceEndpoint(url=server.url, configured_by="user"))
    finally:
        client.close()


def test_a_registry_without_keys_has_none_and_invalid_keys_are_an_error() -> None:
    assert keys_of(None) == ()
    assert keys_of(b'{"keys": []}') == ()
    for body in (b"<html>", b"[]", b'{"keys": 1, "keys": []}'):
        with pytest.raises(PinwardenError) as caught:
            keys_of(body)
        assert caught.value.code == "FETCH_FAILED"
