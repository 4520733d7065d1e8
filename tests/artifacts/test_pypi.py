"""Python releases: every file is hashed here, whatever the index says about it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import socket
import tarfile
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pinwarden.artifacts.artifact import (
    ArtifactFile,
    ArtifactProblem,
    FetchedArtifact,
    ListedFile,
    PackageRef,
    ReleaseFacts,
)
from pinwarden.artifacts.artifact_drift import ReleaseFinding, compare_release_files
from pinwarden.artifacts.endpoints.pypi import find_indexes
from pinwarden.artifacts.pypi import fetch_artifact
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.system.net.connections import ServiceEndpoint, SettingsSources
from pinwarden.system.net.fetch import Fetcher, FetchLimits, FetchRules
from tests.servers.plain_http import Answerer, Asked, PlainServer, Said, files, plain_server
from tests.support.wheels import make_wheel, make_zip, package_index, wheel_name

NOW = "2026-11-16T00:00:00Z"
SIMPLE = "application/vnd.pypi.simple.v1+json"
NOTES = PackageRef(ecosystem="pypi", name="Acme.Notes", version="1.0")
WHEEL = wheel_name("acme-notes", "1.0")
GOOD = make_wheel("acme-notes", "1.0", code="print('good')")


def fetcher() -> Fetcher:
    return Fetcher(FetchRules(limits=FetchLimits(attempts=1, idle_seconds=60)), {})


def endpoint(url: str, **more: Any) -> ServiceEndpoint:
    return ServiceEndpoint(url=url, configured_by="environment", **more)


def fetch(url: str, package: PackageRef = NOTES, **more: Any) -> FetchedArtifact:
    return fetch_artifact(package, fetcher(), endpoint(url), now=NOW, **more)


def said_json(value: Any, kind: str = "application/json") -> Said:
    return Said(body=json.dumps(value).encode(), headers={"content-type": kind})


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def listed(name: str, data: bytes, **more: Any) -> dict[str, Any]:
    return {"filename": name, "url": f"../../files/{name}", "hashes": {"sha256": sha256(data)}, **more}


def page(*rows: Mapping[str, Any], version: str = "1.1") -> Said:
    return said_json({"meta": {"api-version": version}, "name": "acme-notes", "files": list(rows)}, SIMPLE)


def index_of(content: Mapping[str, bytes], *rows: Mapping[str, Any], **others: Said) -> Answerer:
    """A PEP 691 index with these files; others by path, where ``__`` stands for a slash."""
    served: dict[str, bytes | Said] = {f"/files/{name}": data for name, data in content.items()}
    served["/simple/acme-notes/"] = page(*(rows or [listed(name, data) for name, data in content.items()]))
    return files(served | dict(others))


# A real index


def test_every_file_of_a_release_is_hashed_and_the_index_is_recorded(tmp_path: Path) -> None:
    other = make_wheel("acme-notes", "2.0")
    (tmp_path / WHEEL).write_bytes(GOOD)
    (tmp_path / "acme_notes-1.0.tar.gz").write_bytes(b"a source archive")
    (tmp_path / wheel_name("acme-notes", "2.0")).write_bytes(other)
    with package_index(tmp_path) as url:
        found = fetch(url)

    def file(name: str, data: bytes) -> ArtifactFile:
        digest = Digest.of_bytes(data)
        return ArtifactFile(name=name, size=len(data), digests=(digest,), claims=(digest,))

    assert sorted(found.files, key=lambda each: each.name) == [
        file(WHEEL, GOOD),
        file("acme_notes-1.0.tar.gz", b"a source archive"),
    ]
    assert (found.registry, found.checked_at, found.missing, found.problems) == (url, NOW, None, ())


def test_attack_an_index_and_file_changed_together_do_not_match_the_locked_digest(tmp_path: Path) -> None:
    """pypiserver computes its hashes from the disk, so wheel and index change together and pip accepts both."""
    (tmp_path / WHEEL).write_bytes(GOOD)
    with package_index(tmp_path) as url:
        locked = {file.name: file.sha256 for file in fetch(url).files}
    evil = make_wheel("acme-notes", "1.0", code="import os; os.system('id')")
    (tmp_path / WHEEL).write_bytes(evil)
    with package_index(tmp_path) as url:
        found = fetch(url)

    (file,) = found.files
    assert file.claims == (Digest.of_bytes(evil),) == file.digests  # the index agrees with itself
    assert compare_release_files(locked, found, now=NOW) == (
        ReleaseFinding(
            kind="file_changed",
            severity="critical",
            file=WHEEL,
            message=f"{WHEEL} changed: its digest is "
            f"{Digest.of_bytes(evil)}, the locked one is {Digest.of_bytes(GOOD)}",
        ),
    )


def test_a_real_index_distinguishes_a_missing_package_from_a_missing_version(tmp_path: Path) -> None:
    (tmp_path / WHEEL).write_bytes(GOOD)
    with package_index(tmp_path) as url:
        no_package = fetch(url, PackageRef(ecosystem="pypi", name="nobody", version="1.0"))
        no_version = fetch(url, PackageRef(ecosystem="pypi", name="acme-notes", version="1.1"))
    assert (no_package.missing, no_version.missing) == ("package", "version")
    assert (no_package.files, no_version.files) == ((), ())


# What an index says


def test_the_bytes_and_the_claim_stay_apart_where_they_differ() -> None:
    row = listed(WHEEL, b"what the index promises")
    with plain_server(index_of({WHEEL: GOOD}, row)) as server:
        (file,) = fetch(f"{server.url}simple/").files
    assert file.sha256 == Digest.of_bytes(GOOD)
    assert file.claims == (Digest.of_bytes(b"what the index promises"),)


def test_files_that_are_not_wanted_keep_their_claim_and_are_not_fetched() -> None:
    big = wheel_name("acme-notes", "1.0", "cp311-cp311-win_amd64")
    rows = (listed(WHEEL, GOOD), listed(big, b"big", size=3, **{"upload-time": "2026-01-02T03:04:05Z"}))
    with plain_server(index_of({WHEEL: GOOD, big: b"big"}, *rows)) as server:
        found = fetch(f"{server.url}simple/", select=lambda name: name == WHEEL)
        assert f"/files/{big}" not in server.paths
    assert [file.name for file in found.files] == [WHEEL]
    assert found.listed == (
        ListedFile(name=big, claims=(Digest.of_bytes(b"big"),), size=3, uploaded_at="2026-01-02T03:04:05Z"),
    )


def test_the_bytes_are_left_in_a_folder_under_their_digest(tmp_path: Path) -> None:
    with plain_server(index_of({WHEEL: GOOD})) as server:
        fetch(f"{server.url}simple/", save_folder=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {sha256(GOOD): GOOD}


def test_a_download_that_fails_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with plain_server(index_of({}, listed(WHEEL, GOOD))) as server, pytest.raises(PinwardenError) as caught:
        fetch(f"{server.url}simple/", save_folder=tmp_path)
    assert (caught.value.code, caught.value.data["status"]) == ("FETCH_FAILED", 404)
    assert list(tmp_path.iterdir()) == []


def test_times_owners_repository_and_withdrawal_are_reported() -> None:
    wheel = make_wheel("acme-notes", "1.0", headers=("Project-URL: Source, https://git.example/acme/notes",))
    document = {
        "info": {"version": "1.0", "project_urls": {"Source": "https://git.example/somebody/else"}},
        "urls": [
            {
                "filename": WHEEL,
                "url": f"/files/{WHEEL}",
                "digests": {"sha256": sha256(wheel), "md5": "00"},
                "size": len(wheel),
                "upload_time": "2024-05-06T07:08:09",
                "upload_time_iso_8601": "2024-05-06T07:08:09.123456Z",
                "yanked": True,
                "yanked_reason": "leaks keys",
            }
        ],
        "ownership": {
            "organization": None,
            "roles": [
                {"role": "Maintainer", "user": "mo"},
                {"role": "Owner", "user": "zoe"},
                {"role": "Owner", "user": "al"},
            ],
        },
    }
    others = {"/pypi/acme-notes/1.0/json": said_json(document)}
    with plain_server(index_of({WHEEL: wheel}, **others)) as server:
        found = fetch(f"{server.url}simple/")
    assert found == FetchedArtifact(
        package=NOTES,
        registry=f"{server.url}simple/",
        checked_at=NOW,
        files=(
            ArtifactFile(
                name=WHEEL,
                size=len(wheel),
                digests=(Digest.of_bytes(wheel),),
                claims=(Digest.of_bytes(wheel),),
                uploaded_at="2024-05-06T07:08:09.123456Z",
            ),
        ),
        facts=ReleaseFacts(
            published_at="2024-05-06T07:08:09.123456Z",
            publisher="al, zoe",
            repository="https://git.example/acme/notes",  # from the hashed bytes, not from the index
            yanked="leaks keys",
        ),
    )


def test_attack_two_interfaces_of_one_index_that_name_different_bytes_are_a_problem() -> None:
    document = {
        "info": {"version": "2.0"},
        "releases": {"1.0.0": [{"filename": WHEEL, "url": "x", "digests": {"sha256": sha256(b"other")}}], "2.0": []},
    }
    others = {"/pypi/acme-notes/json": said_json(document)}
    with plain_server(index_of({WHEEL: GOOD}, **others)) as server:
        found = fetch(f"{server.url}simple/")
    assert found.problems == (
        ArtifactProblem(
            code="pypi_index_disagrees", message=f"the simple API and the JSON API state different digests for {WHEEL}"
        ),
    )


def test_attack_a_page_that_lists_one_name_with_two_digests_is_a_problem() -> None:
    rows = (listed(WHEEL, GOOD), listed(WHEEL, b"other"))
    with plain_server(index_of({WHEEL: GOOD}, *rows)) as server:
        found = fetch(f"{server.url}simple/")
    assert [problem.code for problem in found.problems] == ["pypi_index_disagrees"]
    assert len(found.files) == 1


def test_an_index_that_keeps_its_second_interface_closed_is_still_read() -> None:
    def answer(asked: Asked) -> Said:
        return Said(status=403) if asked.path.startswith("/pypi/") else index_of({WHEEL: GOOD})(asked)

    with plain_server(answer) as server:
        assert fetch(f"{server.url}simple/").problems == ()


def test_a_second_interface_that_breaks_is_an_error() -> None:
    def answer(asked: Asked) -> Said:
        return Said(status=500) if asked.path.startswith("/pypi/") else index_of({WHEEL: GOOD})(asked)

    with plain_server(answer) as server, pytest.raises(PinwardenError) as caught:
        fetch(f"{server.url}simple/")
    assert (caught.value.code, caught.value.data["status"]) == ("FETCH_FAILED", 500)


# What is in a wheel


def test_attack_a_wheel_that_is_another_package_inside_is_a_problem() -> None:
    wheel = make_wheel("acme-notes", "1.0", says=("acme-evil", "6.6"))
    with plain_server(index_of({WHEEL: wheel})) as server:
        found = fetch(f"{server.url}simple/")
    assert found.problems == (
        ArtifactProblem(
            code="pypi_metadata_mismatch",
            message=f"the METADATA in {WHEEL} is for 'acme-evil' '6.6', not acme-notes 1.0",
        ),
    )


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(b"not a zip", id="not an archive"),
        pytest.param(make_zip({"x.py": b""}), id="no METADATA"),
        pytest.param(
            make_zip({"a-1.0.dist-info/METADATA": b"Name: a\n", "b-1.0.dist-info/METADATA": b"Name: b\n"}),
            id="METADATA twice",
        ),
        pytest.param(make_wheel("acme-notes", "1.0", more={"../../etc/cron.d/x": b""}), id="path traversal"),
        pytest.param(make_wheel("acme-notes", "1.0", more={"/etc/cron.d/x": b""}), id="absolute path"),
        pytest.param(
            make_zip({"acme_notes-1.0.dist-info/METADATA": b"Name: acme-notes\nVersion: 1.0\n" + b" " * 64_000_000}),
            id="zip bomb",
        ),
    ],
)
def test_attack_an_unsafe_wheel_is_a_problem_and_is_still_hashed(attack: bytes) -> None:
    with plain_server(index_of({WHEEL: attack})) as server:
        found = fetch(f"{server.url}simple/")
    assert [problem.code for problem in found.problems] == ["pypi_unsafe_archive"]
    assert found.files[0].sha256 == Digest.of_bytes(attack)


# PEP 740


def provenance(predicate: str = "https://index.example/attestations/publish/v1") -> dict[str, Any]:
    statement = {"_type": "https://in-toto.io/Statement/v1", "predicateType": predicate, "subject": []}
    return {
        "version": 1,
        "attestation_bundles": [
            {
                "publisher": {"kind": "GitHub", "repository": "acme/notes", "workflow": "release.yml"},
                "attestations": [
                    {
                        "version": 1,
                        "verification_material": {
                            "certificate": b64encode(b"certificate").decode(),
                            "transparency_entries": [{"logIndex": "7", "canonicalizedBody": "e30="}],
                        },
                        "envelope": {
                            "statement": b64encode(json.dumps(statement).encode()).decode(),
                            "signature": b64encode(b"signature").decode(),
                        },
                    }
                ],
            }
        ],
    }


def test_provenance_that_the_page_names_becomes_a_sigstore_bundle() -> None:
    document = provenance("https://slsa.dev/provenance/v1")
    row = listed(WHEEL, GOOD, provenance="/somewhere/provenance")
    with plain_server(index_of({WHEEL: GOOD}, row, **{"/somewhere/provenance": said_json(document)})) as server:
        found = fetch(f"{server.url}simple/")
    (attestation,) = found.attestations
    sent = document["attestation_bundles"][0]["attestations"][0]
    assert (attestation.kind, attestation.file) == ("https://slsa.dev/provenance/v1", WHEEL)
    assert attestation.source == json.dumps(document).encode()
    assert json.loads(attestation.bundle) == {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {
            "certificate": {"rawBytes": sent["verification_material"]["certificate"]},
            "tlogEntries": sent["verification_material"]["transparency_entries"],
        },
        "dsseEnvelope": {
            "payload": sent["envelope"]["statement"],
            "payloadType": "application/vnd.in-toto+json",
            "signatures": [{"sig": sent["envelope"]["signature"]}],
        },
    }


def test_attestation_times_go_into_the_bundle() -> None:
    """Entries of Rekor's second version have no time of their own, so a signed time comes beside them."""
    document = provenance()
    material = document["attestation_bundles"][0]["attestations"][0]["verification_material"]
    material["timestamps"] = [b64encode(b"time").decode()]
    row = listed(WHEEL, GOOD, provenance="/somewhere/provenance")
    with plain_server(index_of({WHEEL: GOOD}, row, **{"/somewhere/provenance": said_json(document)})) as server:
        (attestation,) = fetch(f"{server.url}simple/").attestations
    assert json.loads(attestation.bundle)["verificationMaterial"]["timestampVerificationData"] == {
        "rfc3161Timestamps": [{"signedTimestamp": b64encode(b"time").decode()}]
    }


def test_provenance_is_looked_for_at_its_usual_place_where_the_page_is_older() -> None:
    others = {f"/integrity/acme-notes/1.0/{WHEEL}/provenance": said_json(provenance())}
    with plain_server(index_of({WHEEL: GOOD}, **others)) as server:
        found = fetch(f"{server.url}simple/")
    assert [each.kind for each in found.attestations] == ["https://index.example/attestations/publish/v1"]


def test_no_provenance_is_requested_if_the_page_has_none() -> None:
    served: dict[str, bytes | Said] = {
        "/simple/acme-notes/": page(listed(WHEEL, GOOD), version="1.3"),
        f"/files/{WHEEL}": GOOD,
    }
    with plain_server(files(served)) as server:
        assert fetch(f"{server.url}simple/").attestations == ()
        assert not any("integrity" in path for path in server.paths)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Said(status=404), f"the index announces provenance for {WHEEL} but does not have it"),
        (said_json({"version": 2}), f"{WHEEL}: a provenance document is invalid: version is not 1"),
        (
            said_json({"version": 1, "attestation_bundles": []}),
            f"{WHEEL}: a provenance document is invalid: attestation_bundles has no attestation",
        ),
    ],
)
def test_attack_announced_provenance_that_vanishes_or_is_garbage_is_a_problem(answer: Said, why: str) -> None:
    row = listed(WHEEL, GOOD, provenance="/somewhere/provenance")
    with plain_server(index_of({WHEEL: GOOD}, row, **{"/somewhere/provenance": answer})) as server:
        found = fetch(f"{server.url}simple/")
    assert found.attestations == ()
    assert found.problems == (ArtifactProblem(code="pypi_provenance_invalid", message=why),)


# Names, credentials and addresses


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("../../etc", "1.0"),
        ("a b", "1"),
        ("", "1"),
        ("x", "latest"),
        ("x", ">=1"),
        ("x", "1.*"),
        ("x", ""),
        ("x", "1 "),
    ],
)
def test_names_and_versions_that_are_not_exact_are_refused_before_any_request(name: str, version: str) -> None:
    with plain_server(files({})) as server:
        with pytest.raises(PinwardenError) as caught:
            fetch(f"{server.url}simple/", PackageRef(ecosystem="pypi", name=name, version=version))
        assert server.asked == []
    assert caught.value.code == "PACKAGE_INVALID"


def test_the_credential_is_sent_only_to_the_index_and_its_files() -> None:
    secret = "Basic " + b64encode(b"user:hunter2-hunter2").decode()

    def with_credential(url: str, server: PlainServer) -> list[str | None]:
        fetch_artifact(NOTES, fetcher(), endpoint(url, authorization=secret), now=NOW)
        return server.sent("authorization")

    with plain_server(files({f"/{WHEEL}": GOOD})) as elsewhere:
        row = {**listed(WHEEL, GOOD), "url": f"{elsewhere.url}{WHEEL}"}
        with plain_server(index_of({}, row)) as server:
            assert set(with_credential(f"{server.url}simple/", server)) == {secret}
        assert elsewhere.sent("authorization") == [None]
    with plain_server(index_of({WHEEL: GOOD})) as server:
        assert set(with_credential(f"{server.url}simple/", server)) == {secret}
        assert f"/files/{WHEEL}" in server.paths


@pytest.mark.parametrize(
    "row",
    [
        {"filename": "../../evil.whl", "url": "evil.whl", "hashes": {}},
        {"filename": WHEEL, "url": "other-1.0-py3-none-any.whl", "hashes": {}},
        {"filename": WHEEL, "url": f"file:///etc/{WHEEL}", "hashes": {}},
        {"filename": WHEEL, "url": f"https://user:pass@host/{WHEEL}", "hashes": {}},
        {"filename": WHEEL, "url": WHEEL, "hashes": {"sha256": "123"}},
        {"filename": WHEEL, "url": WHEEL, "hashes": {}, "size": -1},
    ],
)
def test_attack_an_ambiguous_listing_is_refused(row: dict[str, Any]) -> None:
    with plain_server(index_of({WHEEL: GOOD}, row)) as server, pytest.raises(PinwardenError) as caught:
        fetch(f"{server.url}simple/")
    assert (caught.value.code, caught.value.data["reason"]) == ("FETCH_FAILED", "protocol")


# The index that a user without settings has


def default_index(nowhere: Path) -> ServiceEndpoint:
    index = find_indexes(SettingsSources(home=nowhere, project=None), system=nowhere).main
    place = urlsplit(index.url)
    try:
        socket.create_connection((place.hostname or "", place.port or 443), timeout=60).close()
    except OSError:
        pytest.skip("the default index is not reachable; run: connect this machine to the package registries")
    return index


@pytest.mark.parametrize("name", ["mcp-server-time", "mcp-server-git"])
def test_real_servers_match_the_default_index(tmp_path: Path, name: str) -> None:
    index = default_index(tmp_path)
    version = importlib.metadata.version(name)
    with_retries = Fetcher(FetchRules(), {})
    found = fetch_artifact(PackageRef(ecosystem="pypi", name=name, version=version), with_retries, index, now=NOW)
    kinds = sorted(file.name.rpartition(".")[2] for file in found.files)
    assert (found.missing, found.problems, kinds) == (None, (), ["gz", "whl"])
    assert all(file.claims == (file.sha256,) for file in found.files)


def test_real_provenance_becomes_a_bundle_that_sigstore_verifies_against_its_own_root(tmp_path: Path) -> None:
    """The source archive of pypi-attestations carries releases with the provenance that a public index gave out."""
    sigstore_models = pytest.importorskip("sigstore.models", reason="run: pip install sigstore")
    from sigstore.verify import Verifier, policy

    package = PackageRef(ecosystem="pypi", name="pypi-attestations", version="0.0.30")
    source = "pypi_attestations-0.0.30.tar.gz"
    fetch_artifact(
        package,
        Fetcher(FetchRules(), {}),
        default_index(tmp_path),
        now=NOW,
        save_folder=tmp_path,
        select=lambda name: name == source,
    )
    (archive,) = tmp_path.iterdir()
    name, stem = "pypi_attestations-0.0.19.tar.gz", "pypi_attestations-0.0.30/test/assets"
    with tarfile.open(archive) as opened:
        held = {member.name: opened.extractfile(member).read() for member in opened if member.isreg()}  # type: ignore[union-attr]
    data = held[f"{stem}/{name}"]
    served: dict[str, bytes | Said] = {
        "/simple/pypi-attestations/": page(listed(name, data, provenance="/provenance")),
        f"/files/{name}": data,
        "/provenance": held[f"{stem}/{name}.provenance"],
    }
    with plain_server(files(served)) as server:
        found = fetch(f"{server.url}simple/", PackageRef(ecosystem="pypi", name="pypi-attestations", version="0.0.19"))

    (attestation,) = found.attestations
    bundle = sigstore_models.Bundle.from_json(attestation.bundle)
    signer = "https://github.com/trailofbits/pypi-attestations/.github/workflows/release.yml@refs/tags/v0.0.19"
    _, statement = Verifier.production(offline=True).verify_dsse(bundle, policy.Identity(identity=signer))
    assert json.loads(statement)["subject"] == [{"name": name, "digest": {"sha256": found.files[0].sha256.hex}}]
