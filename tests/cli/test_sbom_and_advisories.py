"""Bills of materials against the official schemas, and locked versions against known vulnerabilities."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pinwarden.core.digest import Digest
from pinwarden.core.record import replace
from pinwarden.lock import closure as closure_document
from pinwarden.lock import lock_store
from pinwarden.lock.closure import Closure, ClosureFile, ClosurePackage
from pinwarden.lock.extension import Artifact, ClosurePin, ImagePin, LockExtension, read_extension, with_extension
from pinwarden.lock.lockfile import put_entries, seal_lock, to_bytes
from tests.cli.project import ProjectFolder

NOW = "2026-07-20T12:00:00.000Z"
SHA = Digest.of_bytes


class World(ProjectFolder):
    """A project whose servers have closures that were made by hand."""

    def run_json(self, *arguments: str) -> tuple[int, Any]:
        outcome = self.run(*arguments, "--format", "json")
        return outcome.code, json.loads(outcome.out)

    def configure(self, **servers: Any) -> None:
        (self.root / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
        (self.root / "pinwarden.toml").write_text("[policy.require]\nexact-releases = false\n")
        outcome = self.run("init")
        assert outcome.code == 0, outcome

    def pin(self, server: str, **members: Any) -> None:
        """Write something into our record of a server."""
        files: dict[str, bytes] = {}
        closure = members.pop("closure", None)
        if closure is not None:
            data = closure_document.to_bytes(closure)
            path = f"mcp-lock.closures/{server}.json"
            members["closure"] = ClosurePin(
                packages=len(closure.packages), path=path, file_digest=Digest.of_bytes(data)
            )
            files[path] = data

        def change(old: Any) -> lock_store.LockWrite:
            made = [
                with_extension(entry, replace(read_extension(entry) or LockExtension(), **members))
                for entry in old.entries
                if entry.name == server
            ]
            return lock_store.LockWrite(lock=put_entries(old, made, NOW), files=files)

        lock_store.update(self.lock, change)

    def export(self, name: str, *records: Mapping[str, Any]) -> None:
        (self.root / name).mkdir()
        for record in records:
            (self.root / name / f"{record['id']}.json").write_text(json.dumps(record))


def npm(*packages: tuple[str, str], url: str = "https://registry.example/{name}.tgz") -> Closure:
    """A closure whose first package is the server."""
    return Closure(
        ecosystem="npm",
        name=packages[0][0],
        version=packages[0][1],
        resolver="npm 11",
        registry="https://registry.example/",
        packages=tuple(
            ClosurePackage(
                name=name,
                version=version,
                path=f"node_modules/{name}",
                files=(
                    ClosureFile(
                        name=f"{name.rpartition('/')[2]}-{version}.tgz",
                        url=url.format(name=name),
                        digest=SHA(f"{name}@{version}".encode()),
                    ),
                ),
                has_install_scripts=name == "builds",
                is_optional=name == "maybe",
            )
            for name, version in packages
        ),
    )


def pypi() -> Closure:
    clock = ClosureFile(name="acme_clock-1.0-py3-none-any.whl", url="https://index.example/c.whl", digest=SHA(b"c"))
    ticks = tuple(
        ClosureFile(name=f"ticks-2.0-{tag}.whl", url=f"https://index.example/{tag}.whl", digest=SHA(tag.encode()))
        for tag in ("cp311-cp311-linux_x86_64", "cp311-cp311-win_amd64")
    )
    return Closure(
        ecosystem="pypi",
        name="acme-clock",
        version="1.0",
        resolver="uv 0.9",
        registry="https://index.example/simple/",
        packages=(
            ClosurePackage(name="acme-clock", version="1.0", files=(clock,)),
            ClosurePackage(name="ticks", version="2.0", files=ticks),
        ),
    )


SERVERS: dict[str, Any] = {
    "notes": {"command": "npx", "args": ["-y", "@acme/notes@1.2.3"]},
    "clock": {"command": "uvx", "args": ["acme-clock==1.0"]},
    "docs": {"url": "https://mcp.example.com/docs"},
    "image": {"command": "docker", "args": ["run", "-i", "--rm", "ghcr.example/acme/tool:1"]},
    "remote": {"command": "npx", "args": ["-y", "mcp-remote@0.1.0", "https://mcp.example.com/far"]},
    "local": {"command": "python3", "args": ["server.py"]},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The world; tests work in copies of it."""
    world = World(tmp_path_factory.mktemp("made"))
    world.configure(**SERVERS)
    notes = npm(("@acme/notes", "1.2.3"), ("builds", "1.0.0"), ("maybe", "2.0.0"))
    artifact = Artifact(name="notes-1.2.3.tgz", digest=SHA(b"@acme/notes@1.2.3"), size=3)
    world.pin("notes", closure=notes, artifacts=(artifact,), registry="https://registry.example/")
    world.pin("clock", closure=pypi())
    world.pin("image", image=ImagePin(index=SHA(b"index"), platforms={"linux/amd64": SHA(b"amd64")}))
    return world


@pytest.fixture
def world(made: World, tmp_path: Path) -> World:
    shutil.copytree(made.root, tmp_path / "project")
    return World(tmp_path)


def bill(world: World, kind: str = "cyclonedx") -> Any:
    outcome = world.run("sbom", "--kind", kind)
    assert outcome.code == 0, outcome
    return json.loads(outcome.out)


def named(rows: Any, name: str) -> Any:
    [row] = [row for row in rows if row["name"] == name]
    return row


def properties(component: Any) -> set[tuple[str, str]]:
    return {(row["name"], row["value"]) for row in component["properties"]}


class TestCycloneDx:
    def test_the_official_schema_accepts_it(self, world: World) -> None:
        from cyclonedx.schema import SchemaVersion
        from cyclonedx.validation.json import JsonStrictValidator

        text = world.run("sbom").out
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
        spoilt = text.replace('"application"', '"no such thing"')
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(spoilt) is not None

    def test_a_server_is_an_application_with_its_package_url_hash_and_origin(self, world: World) -> None:
        component = named(bill(world)["components"], "notes")
        sha256 = {"alg": "SHA-256", "content": SHA(b"@acme/notes@1.2.3").hex}
        assert {name: value for name, value in component.items() if name != "properties"} == {
            "type": "application",
            "bom-ref": "server:notes:claude",
            "name": "notes",
            "version": "1.2.3",
            "hashes": [sha256],
            "purl": "pkg:npm/%40acme/notes@1.2.3",
            "externalReferences": [
                {
                    "type": "distribution",
                    "url": "https://registry.example/@acme/notes.tgz",
                    "comment": "notes-1.2.3.tgz",
                    "hashes": [sha256],
                }
            ],
        }
        assert properties(component) >= {
            ("pinwarden:server", "notes"),
            ("pinwarden:client", "claude"),
            ("pinwarden:registry", "https://registry.example/"),
            ("pinwarden:resolver", "npm 11"),
        }

    def test_every_package_of_a_closure_is_listed_once_and_the_server_depends_on_it(self, world: World) -> None:
        document = bill(world)
        libraries = {row["purl"]: row for row in document["components"] if row["type"] == "library"}
        assert list(libraries) == ["pkg:npm/builds@1.0.0", "pkg:npm/maybe@2.0.0", "pkg:pypi/ticks@2.0"]
        assert libraries["pkg:npm/maybe@2.0.0"]["scope"] == "optional"
        assert properties(libraries["pkg:npm/builds@1.0.0"]) == {("pinwarden:install-scripts", "not run")}
        needs = {row["ref"]: row["dependsOn"] for row in document["dependencies"]}
        assert needs.pop("lock") == sorted(
            [
                *(f"server:{name}:claude" for name in SERVERS),
                "server:remote:claude:address",
            ]
        )
        assert needs == {
            "server:notes:claude": ["pkg:npm/builds@1.0.0", "pkg:npm/maybe@2.0.0"],
            "server:clock:claude": ["pkg:pypi/ticks@2.0"],
        }

    def test_unknown_dependencies_are_reported_and_not_invented(self, world: World) -> None:
        complete, unknown = bill(world)["compositions"]
        assert complete == {
            "aggregate": "complete",
            "dependencies": ["lock", "server:clock:claude", "server:notes:claude"],
        }
        assert unknown["aggregate"] == "unknown"
        assert {"pkg:npm/builds@1.0.0", "server:local:claude"} <= set(unknown["dependencies"])

    def test_each_file_of_a_package_with_several_has_its_hash_beside_its_address(self, world: World) -> None:
        ticks = named(bill(world)["components"], "ticks")
        assert "hashes" not in ticks
        assert [(row["url"], row["hashes"][0]["content"]) for row in ticks["externalReferences"]] == [
            (f"https://index.example/{tag}.whl", SHA(tag.encode()).hex)
            for tag in ("cp311-cp311-linux_x86_64", "cp311-cp311-win_amd64")
        ]

    def test_an_image_is_a_container_by_its_digest(self, world: World) -> None:
        image = named(bill(world)["components"], "image")
        assert (image["type"], image["hashes"]) == ("container", [{"alg": "SHA-256", "content": SHA(b"index").hex}])
        assert image["purl"].startswith(
            f"pkg:oci/tool@sha256%3A{SHA(b'index').hex}?repository_url=ghcr.example/acme/tool"
        )
        assert ("pinwarden:image:linux/amd64", str(SHA(b"amd64"))) in properties(image)

    def test_an_address_is_a_service_and_a_bridge_to_one_is_both(self, world: World) -> None:
        document = bill(world)
        assert {row["name"]: row["endpoints"] for row in document["services"]} == {
            "docs": ["https://mcp.example.com/docs"],
            "remote": ["https://mcp.example.com/far"],
        }
        names = [row["name"] for row in document["components"]]
        assert "docs" not in names
        assert named(document["components"], "remote")["purl"] == "pkg:npm/mcp-remote@0.1.0"

    def test_the_same_name_with_other_bytes_is_a_separate_component(self, world: World) -> None:
        same = npm(("mcp-remote", "0.1.0"), ("builds", "1.0.0"))
        builds = same.packages[1]
        evil = replace(builds, files=(replace(builds.files[0], digest=SHA(b"evil")),))
        world.pin("remote", closure=replace(same, packages=(same.packages[0], evil)))
        rows = [row for row in bill(world)["components"] if row["name"] == "builds"]
        assert len({row["bom-ref"] for row in rows}) == len(rows) == 2
        assert {row["hashes"][0]["content"] for row in rows} == {SHA(b"builds@1.0.0").hex, SHA(b"evil").hex}


class TestSpdx:
    def test_the_official_library_reads_it_and_finds_nothing_wrong(self, world: World) -> None:
        from spdx_tools.spdx.parser.jsonlikedict.json_like_dict_parser import JsonLikeDictParser
        from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

        document = JsonLikeDictParser().parse(bill(world, "spdx"))  # type: ignore[no-untyped-call]
        assert validate_full_spdx_document(document) == []
        assert len(document.packages) == 6 + 3 + 2  # servers, packages, and the files of the one that has several

    def test_servers_are_described_and_depend_on_their_packages(self, world: World) -> None:
        document = bill(world, "spdx")
        names = {row["SPDXID"]: row.get("packageFileName", row["name"]) for row in document["packages"]}
        rows = {
            (names.get(row["spdxElementId"]), row["relationshipType"], names.get(row["relatedSpdxElement"]))
            for row in document["relationships"]
        }
        assert (None, "DESCRIBES", "docs") in rows
        assert ("notes-1.2.3.tgz", "DEPENDS_ON", "builds-1.0.0.tgz") in rows
        assert ("acme_clock-1.0-py3-none-any.whl", "DEPENDS_ON", "ticks") in rows
        assert ("ticks-2.0-cp311-cp311-win_amd64.whl", "VARIANT_OF", "ticks") in rows
        assert ("local", "DEPENDS_ON", None) in rows  # NOASSERTION

    def test_a_package_has_its_url_checksum_and_origin(self, world: World) -> None:
        builds = named(bill(world, "spdx")["packages"], "builds")
        assert builds["checksums"] == [{"algorithm": "SHA256", "checksumValue": SHA(b"builds@1.0.0").hex}]
        assert builds["downloadLocation"] == "https://registry.example/builds.tgz"
        assert builds["externalRefs"] == [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": "pkg:npm/builds@1.0.0",
            }
        ]


@pytest.mark.parametrize("kind", ["cyclonedx", "spdx"])
class TestBoth:
    def test_the_same_lock_gives_the_same_bytes_and_another_lock_another_number(self, world: World, kind: str) -> None:
        first = world.run("sbom", "--kind", kind)
        assert world.run("sbom", "--kind", kind).out == first.out
        member = "serialNumber" if kind == "cyclonedx" else "documentNamespace"
        before = json.loads(first.out)[member]
        world.pin("clock", registry="https://elsewhere.example/")
        assert bill(world, kind)[member] != before

    def test_no_credential_in_an_address_gets_into_a_bill(self, world: World, kind: str) -> None:
        url = "https://me:hunter2@registry.example/{name}.tgz?token=hunter2#hunter2"
        world.pin("notes", closure=npm(("@acme/notes", "1.2.3"), ("builds", "1.0.0"), url=url))
        text = world.run("sbom", "--kind", kind).out
        assert "hunter2" not in text
        assert "https://registry.example/builds.tgz" in text

    @pytest.mark.parametrize("url", ["javascript:alert(1)", "https://a b/c", "http://[::1", "", "https://é/\u202e"])
    def test_an_invalid_address_is_left_out(self, world: World, kind: str, url: str) -> None:
        world.pin("notes", closure=npm(("@acme/notes", "1.2.3"), ("builds", "1.0.0"), url=url))
        row = named(bill(world, kind)["components" if kind == "cyclonedx" else "packages"], "builds")
        assert row.get("downloadLocation", "NOASSERTION") == "NOASSERTION"
        assert "externalReferences" not in row

    def test_a_tampered_lock_has_no_bill_of_materials(self, world: World, kind: str) -> None:
        world.lock.write_text(world.lock.read_text().replace("@acme/notes", "@acme/evil"))
        code, report = world.run_json("sbom", "--kind", kind)
        assert (code, report["error"]["code"]) == (1, "LOCK_TAMPERED")

    def test_a_bill_is_written_to_a_new_file_and_missing_parts_are_reported(self, world: World, kind: str) -> None:
        outcome = world.run("sbom", "--kind", kind, "-o", "bill.json")
        assert outcome.code == 0
        assert "6 servers, 3 packages" in outcome.out
        assert "its dependencies are not locked" in outcome.out
        assert json.loads((world.root / "bill.json").read_text()) == bill(world, kind)
        again = world.run("sbom", "--kind", kind, "-o", "bill.json")
        assert (again.code, "[FILE_EXISTS]" in again.err) == (1, True)


def record(name: str, *, ecosystem: str = "npm", identifier: str = "GHSA-1", **members: Any) -> dict[str, Any]:
    ranges = [{"type": "SEMVER", "events": [{"introduced": "0"}, {"fixed": "9.0.0"}]}]
    affected = {"package": {"ecosystem": ecosystem, "name": name}, "ranges": ranges}
    return {"id": identifier, "modified": NOW, "summary": "Reads everything.", "affected": [affected], **members}


class TestAdvisories:
    def test_a_vulnerable_server_and_a_vulnerable_dependency_are_found(self, world: World) -> None:
        world.export("osv", record("@acme/notes"), record("builds", identifier="GHSA-2", aliases=["CVE-2"]))
        code, report = world.run_json("advisories", "--osv", "osv")
        assert code == 1
        assert report["findings"] == [
            {
                "ecosystem": "npm",
                "package": name,
                "version": version,
                "id": identifier,
                "aliases": aliases,
                "summary": "Reads everything.",
                "severity": "",
                "fixed": ["9.0.0"],
                "certain": True,
                "servers": ["notes"],
            }
            for name, version, identifier, aliases in (
                ("@acme/notes", "1.2.3", "GHSA-1", []),
                ("builds", "1.0.0", "GHSA-2", ["CVE-2"]),
            )
        ]
        assert set(report["not_looked_up"]) == {"image", "remote", "local"}

    def test_versions_that_cannot_be_compared_are_reported(self, world: World) -> None:
        only_commits = [{"type": "GIT", "repo": "https://x.example", "events": [{"introduced": "0"}]}]
        affected = {"package": {"ecosystem": "PyPI", "name": "Ticks"}, "ranges": only_commits}
        world.export("osv", record("x", affected=[affected]))
        outcome = world.run("advisories", "--osv", "osv")
        assert outcome.code == 1
        assert "cannot be compared with 2.0" in outcome.out

    def test_an_export_that_is_about_other_packages_is_clean(self, world: World) -> None:
        world.export("osv", record("builds", ecosystem="PyPI"), record("ticks", identifier="GHSA-2"))
        code, report = world.run_json("advisories", "--osv", "osv")
        assert (code, report["findings"], report["packages"]) == (0, [], 6)

    def test_a_withdrawn_record_does_not_count(self, world: World) -> None:
        world.export("osv", record("builds", withdrawn=NOW))
        assert world.run("advisories", "--osv", "osv").code == 0

    def test_an_export_may_be_a_zip_file(self, world: World) -> None:
        with zipfile.ZipFile(world.root / "all.zip", "w") as archive:
            archive.writestr("GHSA-1.json", json.dumps(record("builds")))
        assert world.run("advisories", "--osv", "all.zip").code == 1

    @pytest.mark.parametrize("what", ["missing", "empty", "damaged"])
    def test_an_unreadable_export_is_never_clean(self, world: World, what: str) -> None:
        if what != "missing":
            world.export("osv", *([record("other")] if what == "damaged" else []))
        if what == "damaged":
            (world.root / "osv" / "zzz.json").write_text('{"id": "GHSA-9"')
        outcome = world.run("advisories", "--osv", "osv")
        assert (outcome.code, outcome.out) == (3, "")

    def test_a_lock_that_was_tampered_with_is_refused(self, world: World) -> None:
        world.export("osv", record("other"))
        world.lock.write_text(world.lock.read_text().replace("@acme/notes", "@acme/evil"))
        code, report = world.run_json("advisories", "--osv", "osv")
        assert (code, report["error"]["code"]) == (1, "LOCK_TAMPERED")

    def test_sarif_names_the_rule_and_the_package(self, world: World) -> None:
        world.export("osv", record("builds"))
        outcome = world.run("advisories", "--osv", "osv", "--format", "sarif")
        results = json.loads(outcome.out)["runs"][0]["results"]
        assert "vulnerable_package" in {row["ruleId"] for row in results}


class TestTheGate:
    def test_a_known_vulnerability_fails_the_gate(self, world: World) -> None:
        world.export("osv", record("builds"))
        code, report = world.run_json("ci", "--osv", "osv")
        assert code == 1
        assert [(row["code"], row["severity"]) for row in report["failures"]] == [("vulnerable_package", "critical")]
        assert report["checks"]["advisories"] == "failed"

    def test_an_export_about_other_packages_is_clean_and_without_an_export_the_check_is_skipped(
        self, world: World
    ) -> None:
        world.export("osv", record("other"))
        code, report = world.run_json("ci", "--osv", "osv")
        assert (code, report["checks"]["advisories"]) == (0, "ok")
        assert world.run_json("ci")[1]["checks"]["advisories"] == "skipped"

    def test_an_export_that_is_not_there_is_never_clean(self, world: World) -> None:
        assert world.run("ci", "--osv", "none").code == 3

    def test_packages_of_a_lock_that_was_tampered_with_are_not_called_ok(self, world: World) -> None:
        world.export("osv", record("builds"))
        world.lock.write_text(world.lock.read_text().replace("@acme/notes", "@acme/evil"))
        code, report = world.run_json("ci", "--osv", "osv")
        checks = report["checks"]
        assert (code, checks["integrity"], checks["advisories"], checks["scripts"]) == (
            1,
            "failed",
            "skipped",
            "skipped",
        )

    def test_a_wrong_clock_in_the_lock_does_not_skip_the_check(self, world: World) -> None:
        """Attack: rows about times are information only, and must not count as tampering."""
        world.export("osv", record("builds"))
        lock, _ = lock_store.read_with_files(world.lock)
        assert lock is not None
        stale = replace(lock, updated_at="2020-01-01T00:00:00.000Z", generated_at="2020-01-01T00:00:00.000Z")
        world.lock.write_bytes(to_bytes(seal_lock(stale)))
        code, report = world.run_json("ci", "--osv", "osv")
        assert (code, report["checks"]["advisories"]) == (1, "failed")
