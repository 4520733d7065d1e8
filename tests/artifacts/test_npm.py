"""npm packages: against a real registry, and against small ones that lie in every way that a registry can."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pinwarden.artifacts import npm
from pinwarden.artifacts.archives.package_tarball import read_package_json
from pinwarden.artifacts.archives.rules import ArchiveLimits
from pinwarden.artifacts.artifact import (
    ArtifactAttestation,
    ArtifactProblem,
    FetchedArtifact,
    PackageRef,
    RegistrySignature,
    ReleaseFacts,
)
from pinwarden.artifacts.endpoints.npm import find_registry, get_default_registry
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.system.net.connections import ServiceEndpoint, SettingsSources
from pinwarden.system.net.fetch import Fetcher, FetchLimits, FetchRules
from tests.servers.npm_registry import Verdaccio, package, sri, tarball, verdaccio, version_document
from tests.servers.plain_http import Asked, PlainServer, Said, plain_server
from tests.support.needs import missing, needs

NOW = "2026-11-16T00:00:00Z"
# fmt: off
HOSTILE_NAMES = [
    "", ".", "..", "../x", "-/../x", "a/b", "a%2fb", "%2e%2e", "-/ping?", "a#b", "a@1", "a\\b", "a b", "a\n", "é",
    ".a", "_a", "@a", "@a/", "@/a", "@a/../b", "@a/b/c", "@a/.b", "node_modules", "x" * 215,
]
# fmt: on


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verdaccio]:
    with verdaccio(tmp_path_factory.mktemp("verdaccio")) as running:
        yield running


def fetch(url: str, name: str, version: str = "1.0.0", **members: Any) -> FetchedArtifact:
    """Fetch a package from a registry in the user's settings."""
    save_folder = members.pop("save_folder", None)
    endpoint = ServiceEndpoint(url=url, configured_by="user", **members)
    client = Fetcher(FetchRules(limits=FetchLimits(attempts=1)), {})
    try:
        wanted = PackageRef(ecosystem="npm", name=name, version=version)
        return npm.fetch_artifact(wanted, client, endpoint, now=NOW, save_folder=save_folder)
    finally:
        client.close()


def failure(url: str, name: str, version: str = "1.0.0", **members: Any) -> tuple[str, object]:
    with pytest.raises(PinwardenError) as caught:
        fetch(url, name, version, **members)
    return caught.value.code, caught.value.data.get("reason")


def npm_lock(folder: Path, url: str) -> None:
    """Let npm resolve the package.json of a folder, without any user settings."""
    program = shutil.which("npm")
    assert program is not None
    subprocess.run(
        [program, "install", "--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund", f"--registry={url}"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "npm_config_cache": str(folder / "cache")},
        capture_output=True,
        check=True,
        timeout=240,
    )


class TestARealRegistry:
    def test_an_honest_package_has_the_integrity_that_the_registry_claims(
        self, registry: Verdaccio, tmp_path: Path
    ) -> None:
        manifest, data = package(
            "honest", bin={"honest": "./index.js"}, repository={"type": "git", "url": "git+https://git.example/h.git"}
        )
        registry.publish(manifest, data)
        artifact = fetch(registry.url, "honest", save_folder=tmp_path)
        (file,) = artifact.files
        assert (file.name, file.size) == ("honest-1.0.0.tgz", len(data))
        assert file.digests == (Digest.of_bytes(data), Digest.of_bytes(data, "sha512"))
        assert file.claims == (Digest.parse(sri(data)),)
        assert file.host is None
        assert (artifact.missing, artifact.problems, artifact.install_scripts) == (None, (), ())
        assert artifact.facts.published_at is not None
        assert artifact.facts == ReleaseFacts(
            published_at=artifact.facts.published_at, repository="git+https://git.example/h.git"
        )
        assert artifact.registry == registry.url
        assert [path.name for path in tmp_path.iterdir()] == [file.sha256.hex]
        assert (tmp_path / file.sha256.hex).read_bytes() == data

    def test_a_package_with_a_scope_is_found(self, registry: Verdaccio) -> None:
        manifest, data = package("@team/tool", "2.0.0-rc.1")
        registry.publish(manifest, data)
        artifact = fetch(registry.url, "@team/tool", "2.0.0-rc.1")
        assert (artifact.files[0].name, artifact.files[0].sha256) == ("tool-2.0.0-rc.1.tgz", Digest.of_bytes(data))
        assert artifact.problems == ()

    def test_attack_a_tarball_changed_on_the_registrys_disk_does_not_match_its_digest(
        self, registry: Verdaccio
    ) -> None:
        manifest, data = package("tampered")
        registry.publish(manifest, data)
        evil = package("tampered", description="evil")[1]
        registry.tarball_path(manifest).write_bytes(evil)
        artifact = fetch(registry.url, "tampered")
        (file,) = artifact.files
        assert file.claims == (Digest.of_bytes(data, "sha512"),)
        assert file.digest("sha512") == Digest.of_bytes(evil, "sha512")
        assert [problem.code for problem in artifact.problems] == [npm.SHASUM_MISMATCH]

    def test_attack_tarball_and_document_changed_together_agree_and_are_not_what_was_locked(
        self, registry: Verdaccio
    ) -> None:
        """The registry, or an attacker in control of it, is consistent. Only an earlier pin reveals the change."""
        manifest, data = package("republished")
        registry.publish(manifest, data)
        locked = fetch(registry.url, "republished").files[0]
        evil = package("republished", description="evil")[1]
        registry.tarball_path(manifest).write_bytes(evil)
        path = registry.packument_path(manifest)
        document = json.loads(path.read_bytes())
        document["versions"]["1.0.0"]["dist"].update(integrity=sri(evil), shasum=hashlib.sha1(evil).hexdigest())
        document["versions"]["1.0.0"]["description"] = "evil"
        path.write_text(json.dumps(document))
        artifact = fetch(registry.url, "republished")
        (file,) = artifact.files
        assert (artifact.problems, file.claims) == ((), (file.digest("sha512"),))
        assert file.sha256 != locked.sha256

    @needs("npm", install="tools/system-packages.sh npm")
    def test_npm_itself_locks_the_same_integrity(self, registry: Verdaccio, tmp_path: Path) -> None:
        registry.publish(*package("@team/locked", bin="cli.js", dependencies={}))
        (tmp_path / "package.json").write_text(json.dumps({"dependencies": {"@team/locked": "1.0.0"}}))
        npm_lock(tmp_path, registry.url)
        (row,) = (
            row for path, row in json.loads((tmp_path / "package-lock.json").read_bytes())["packages"].items() if path
        )
        artifact = fetch(registry.url, "@team/locked")
        assert (artifact.files[0].digest("sha512").sri, artifact.problems) == (row["integrity"], ())

    def test_a_version_or_package_that_is_not_there_is_missing(self, registry: Verdaccio) -> None:
        registry.publish(*package("present"))
        assert fetch(registry.url, "present", "9.9.9").missing == "version"
        assert fetch(registry.url, "absent").missing == "package"
        assert fetch(registry.url, "@team/absent").missing == "package"

    def test_a_package_behind_a_login_needs_the_token_of_the_users_settings(
        self, registry: Verdaccio, tmp_path: Path
    ) -> None:
        manifest, data = package("@locked/tool")
        registry.publish(manifest, data)
        place = registry.url.removeprefix("http:")
        (tmp_path / ".npmrc").write_text(f"@locked:registry={registry.url}\n{place}:_authToken=${{TOKEN}}\n")
        settings = SettingsSources(home=tmp_path, project=None, variables={"TOKEN": registry.token})
        endpoint = find_registry("@locked/tool", settings).endpoint
        wanted = PackageRef(ecosystem="npm", name="@locked/tool", version="1.0.0")
        client = Fetcher(FetchRules(limits=FetchLimits(attempts=1)), {})
        artifact = npm.fetch_artifact(wanted, client, endpoint, now=NOW)
        with pytest.raises(PinwardenError) as caught:
            npm.fetch_artifact(wanted, client, replace(endpoint, authorization=None), now=NOW)
        client.close()
        assert artifact.files[0].sha256 == Digest.of_bytes(data)
        assert registry.token not in repr((endpoint, artifact))
        assert (caught.value.code, caught.value.data["reason"]) == ("FETCH_FAILED", "unauthorized")

    @pytest.mark.parametrize(
        "name",
        HOSTILE_NAMES,
    )
    def test_attack_a_name_that_is_a_path_is_never_requested(self, name: str) -> None:
        with plain_server(lambda _: Said(body=b"{}")) as server:
            assert failure(server.url, name) == ("PACKAGE_INVALID", None)
        assert server.asked == []

    @pytest.mark.parametrize("version", ["", "latest", "^1.0.0", "1", "1.0", "1.0.0/..", "v1.0.0", "01.0.0", "1.0.0\n"])
    def test_attack_a_version_that_is_not_exact_is_never_requested(self, version: str) -> None:
        with plain_server(lambda _: Said(body=b"{}")) as server:
            assert failure(server.url, "a", version) == ("PACKAGE_INVALID", None)
        assert server.asked == []

    def test_attack_a_name_in_other_capitals_is_another_package(self, registry: Verdaccio) -> None:
        registry.publish(*package("lowercase"))
        assert fetch(registry.url, "LowerCase").missing == "package"


@dataclass
class Lies:
    """A registry that says what a test makes it say."""

    name: str = "tool"
    manifest: dict[str, Any] = field(default_factory=dict)
    """Members of the document that the tarball's package.json does not have."""
    packed: dict[str, Any] = field(default_factory=dict)
    """Members of the tarball's package.json that the document does not have."""
    both: dict[str, Any] = field(default_factory=dict)
    dist: dict[str, Any] = field(default_factory=dict)
    document: dict[str, Any] = field(default_factory=dict)
    data: bytes | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    """Other documents by path."""

    @property
    def tarball(self) -> bytes:
        return self.data or package(self.name, **{**self.both, **self.packed})[1]

    def answer(self, asked: Asked) -> Said:
        if asked.path in self.extra:
            body = self.extra[asked.path]
            return body if isinstance(body, Said) else Said(body=json.dumps(body).encode())
        if asked.path.endswith(".tgz"):
            return Said(body=self.tarball)
        if asked.path != f"/{self.name.replace('/', '%2F')}":
            return Said(status=404)
        manifest = package(self.name, **{**self.both, **self.manifest})[0]
        url = f"http://{asked.headers['host']}/tarballs/tool.tgz"
        version = version_document(manifest, self.tarball, url, **self.dist)
        document = {"name": self.name, "versions": {"1.0.0": version}, "time": {"1.0.0": "2026-01-02T03:04:05.000Z"}}
        return Said(body=json.dumps({**document, **self.document}).encode())

    def fetch(self, **members: Any) -> FetchedArtifact:
        with plain_server(self.answer) as server:
            return fetch(server.url, self.name, **members)

    def failure(self) -> tuple[str, object]:
        with plain_server(self.answer) as server:
            return failure(server.url, self.name)


class TestDocuments:
    def test_everything_the_registry_states_is_recorded_as_a_claim(self) -> None:
        lies = Lies(
            both={"scripts": {"postinstall": "node steal.js", "test": "x"}, "repository": "github:a/b"},
            manifest={"_npmUser": {"name": "mallory"}, "deprecated": "use another", "hasInstallScript": True},
        )
        artifact = lies.fetch()
        assert artifact.facts == ReleaseFacts(
            published_at="2026-01-02T03:04:05.000Z", publisher="mallory", repository="github:a/b", yanked="use another"
        )
        assert artifact.files[0].uploaded_at == artifact.facts.published_at
        assert (artifact.install_scripts, artifact.problems) == (("postinstall",), ())

    def test_every_algorithm_of_an_integrity_string_is_claimed_and_hashed(self) -> None:
        data = package("tool")[1]
        both = f"{sri(data, 'sha384')} {sri(data, 'sha512')}?opt md5-x {sri(data, 'sha1')}"
        (file,) = Lies(dist={"integrity": both}).fetch().files
        assert set(file.claims) == {Digest.of_bytes(data, "sha384"), Digest.of_bytes(data, "sha512")}
        assert set(file.digests) == {Digest.of_bytes(data, each) for each in ("sha256", "sha384", "sha512")}

    def test_attack_a_false_shasum_is_a_problem(self) -> None:
        assert [each.code for each in Lies(dist={"shasum": "0" * 40}).fetch().problems] == [npm.SHASUM_MISMATCH]

    def test_an_old_package_without_integrity_has_no_claims_that_prove_anything(self) -> None:
        artifact = Lies(dist={"integrity": None}).fetch()
        assert (artifact.files[0].claims, artifact.problems) == ((), ())

    @pytest.mark.parametrize(
        "lies",
        [
            Lies(document={"name": "other"}),
            Lies(document={"name": "Tool"}),
            Lies(manifest={"name": "other"}),
            Lies(manifest={"version": "1.0.1"}),
            Lies(document={"versions": ["1.0.0"]}),
            Lies(document={"versions": {"1.0.0": None}}),
            Lies(dist={"tarball": 7}),
            Lies(dist={"tarball": "file:///etc/passwd"}),
            Lies(dist={"tarball": "https://u:p@h/x.tgz"}),
            Lies(dist={"integrity": 7}),
            Lies(dist={"signatures": {}}),
            Lies(extra={"/tool": Said(body=b'{"name":"tool","name":"tool"}')}),
            Lies(extra={"/tool": Said(body=b"<html>")}),
            Lies(extra={"/tool": ["tool"]}),
        ],
    )
    def test_attack_a_document_about_something_else_is_refused(self, lies: Lies) -> None:
        assert lies.failure() == ("FETCH_FAILED", "protocol")

    @pytest.mark.parametrize("integrity", ["sha512-xx", "none", "sha512-" + "A" * 88])
    def test_an_integrity_string_without_a_digest_is_refused(self, integrity: str) -> None:
        assert Lies(dist={"integrity": integrity}).failure()[0] == "DIGEST_INVALID"

    def test_an_unpublished_package_has_no_versions(self) -> None:
        assert Lies(document={"versions": {}, "time": {"unpublished": {"name": "x"}}}).fetch().missing == "version"

    def test_a_document_without_versions_member_has_none(self) -> None:
        lies = Lies(extra={"/tool": {"name": "tool", "time": {"unpublished": {}}}})
        assert lies.fetch().missing == "version"


class TestTarballAddresses:
    def test_attack_a_tarball_elsewhere_without_encryption_is_refused(self) -> None:
        with plain_server(lambda _: Said(body=b"evil")) as other:
            lies = Lies(dist={"tarball": f"{other.url}tool.tgz"})
            assert lies.failure() == ("ADDRESS_REFUSED", "plain-http")
        assert other.asked == []

    def test_attack_a_tarball_in_the_private_network_is_refused(self) -> None:
        lies = Lies(dist={"tarball": "https://192.168.1.1/tool.tgz"})
        assert lies.failure() == ("ADDRESS_REFUSED", "private")

    def test_a_mirror_serves_the_tarballs_of_the_default_registry_as_npm_has_it(self) -> None:
        lies = Lies(dist={"tarball": f"{get_default_registry()}tool/-/tool-1.0.0.tgz"})
        with plain_server(lies.answer) as server:
            artifact = fetch(server.url, "tool")
        assert server.paths == ["/tool", "/tool/-/tool-1.0.0.tgz"]
        assert (artifact.files[0].sha256, artifact.files[0].host) == (Digest.of_bytes(lies.tarball), None)

    def test_another_download_host_than_the_registrys_is_reported(self, tmp_path: Path) -> None:
        from tests.servers.authority import Authority

        authority = Authority(tmp_path)
        data = package("tool")[1]
        with plain_server(lambda _: Said(body=data), tls=authority.server("127.0.0.1"), host="127.0.0.1") as store:
            lies = Lies(dist={"tarball": f"{store.url}tool.tgz"})
            with plain_server(lies.answer) as server:
                artifact = fetch(server.url, "tool", ca_file=authority.file, authorization="Bearer secret")
        assert artifact.files[0].host == f"127.0.0.1:{store.port}"
        assert store.sent("authorization") == [None]

    def test_a_tarball_that_is_not_there_is_a_failure_and_nothing_is_kept(self, tmp_path: Path) -> None:
        with plain_server(Lies(extra={"/tarballs/tool.tgz": Said(status=404)}).answer) as server:
            assert failure(server.url, "tool", save_folder=tmp_path) == ("FETCH_FAILED", "status")
        assert list(tmp_path.iterdir()) == []


def mismatch(*what: str) -> tuple[ArtifactProblem, ...]:
    message = f"the packument and the tarball's package.json differ in: {', '.join(what)}"
    return (ArtifactProblem(code=npm.MANIFEST_MISMATCH, message=message),)


class TestManifestConfusion:
    @pytest.mark.parametrize(
        ("lies", "what"),
        [
            (Lies(packed={"dependencies": {"evil": "1.0.0"}}), ("dependencies",)),
            (Lies(manifest={"dependencies": {"good": "1.0.0"}}), ("dependencies",)),
            (Lies(packed={"optionalDependencies": {"evil": "1.0.0"}}), ("dependencies",)),
            (Lies(packed={"scripts": {"preinstall": "sh evil.sh"}}), ("scripts",)),
            (Lies(packed={"bin": {"ls": "evil.js"}}), ("bin",)),
            (Lies(packed={"name": "other"}), ("name",)),
            (Lies(packed={"version": "0.9.0"}), ("version",)),
            (Lies(packed={"name": "o", "bin": "x.js", "scripts": {"install": "x"}}), ("name", "scripts", "bin")),
        ],
    )
    def test_attack_a_tarball_that_runs_something_else_than_the_document_shows(
        self, lies: Lies, what: tuple[str, ...]
    ) -> None:
        assert lies.fetch().problems == mismatch(*what)

    @pytest.mark.parametrize(
        "lies",
        [
            Lies(packed={"bin": "./cli.js"}, manifest={"bin": {"tool": "cli.js"}}),
            Lies(packed={"version": "v1.0.0"}),
            Lies(packed={"version": "1.0.0+build.7"}),
            Lies(packed={"dependencies": {"a": ""}}, manifest={"dependencies": {"a": "*"}}),
            Lies(
                packed={"optionalDependencies": {"a": "1"}},
                manifest={"optionalDependencies": {"a": "1"}, "dependencies": {"a": "1"}},
            ),
            Lies(packed={"scripts": {"test": "jest"}}, manifest={"scripts": {"start": "node server.js"}}),
            Lies(packed={"directories": {"bin": "bin"}}, manifest={"bin": {"a": "bin/a"}}),
            Lies(name="@s/tool", packed={"bin": "cli.js"}, manifest={"bin": {"tool": "cli.js"}}),
        ],
    )
    def test_changes_that_npm_makes_on_publishing_are_not_differences(self, lies: Lies) -> None:
        assert lies.fetch().problems == ()

    @pytest.mark.parametrize("written", [{}, {"gypfile": True, "scripts": {"install": "node-gyp rebuild"}}])
    def test_a_package_that_is_compiled_on_installation_has_an_install_script(self, written: dict[str, Any]) -> None:
        manifest = {"name": "tool", "version": "1.0.0", "main": "index.js"}
        data = tarball({"package/package.json": json.dumps(manifest).encode(), "package/binding.gyp": b"{}"})
        artifact = Lies(data=data, manifest=written).fetch()
        assert (artifact.install_scripts, artifact.problems) == (("install",), ())

    def test_attack_a_member_that_is_there_twice_counts_as_npm_reads_it(self) -> None:
        manifest = b'{"name": "tool", "version": "1.0.0", "scripts": {}, "scripts": {"postinstall": "evil"}}'
        artifact = Lies(data=tarball({"package/package.json": manifest})).fetch()
        assert (artifact.install_scripts, artifact.problems) == (("postinstall",), mismatch("scripts"))

    def test_an_install_script_that_only_the_registry_announces_counts(self) -> None:
        assert Lies(manifest={"hasInstallScript": True}).fetch().install_scripts == ("install",)

    def test_attack_a_script_that_only_the_tarball_has_is_reported(self) -> None:
        assert Lies(packed={"scripts": {"postinstall": "x"}}).fetch().install_scripts == ("postinstall",)


MANIFEST = json.dumps({"name": "tool", "version": "1.0.0"}).encode()


def link(kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    made = tarfile.TarInfo()
    made.type, made.linkname = kind, "/etc/passwd"
    return made


def hidden_behind_the_end_mark() -> bytes:
    """A second package.json after a block of zeros, where one reader stops and another goes on."""
    import gzip

    first, second = (
        gzip.decompress(tarball({"package/package.json": data})) for data in (MANIFEST, b'{"name":"evil"}')
    )
    return gzip.compress(first[:1024] + bytes(512) + second, mtime=0)


class TestTarballs:
    @pytest.mark.parametrize(
        "data",
        [
            b"not an archive",
            tarball({"package/index.js": b""}),
            tarball({"package/package.json": b"{"}),
            tarball([("package/package.json", MANIFEST), ("package/package.json", b'{"name":"evil"}')]),
            tarball([("package/package.json", MANIFEST), ("other/package.json", b"{}")]),
            tarball([("package/package.json", MANIFEST), ("package/./Package.JSON", b"{}")]),
            tarball([("package/package.json", MANIFEST), ("package/../../evil", b"")]),
            tarball([("package/package.json", MANIFEST), ("/etc/evil", b"")]),
            tarball({"package/package.json": link()}),
            tarball({"package/package.json": link(tarfile.LNKTYPE)}),
            tarball({"package/package.json": MANIFEST})[:-20],
            hidden_behind_the_end_mark(),
        ],
        ids=[
            "no archive",
            "no manifest",
            "broken manifest",
            "manifest twice",
            "manifest in two folders",
            "manifest in other capitals",
            "step back",
            "absolute path",
            "symbolic link",
            "hard link",
            "cut off",
            "behind the end mark",
        ],
    )
    def test_attack_a_tarball_that_readers_could_see_differently_is_a_problem(self, data: bytes) -> None:
        artifact = Lies(data=data).fetch()
        assert [problem.code for problem in artifact.problems] == [npm.ARCHIVE_UNSAFE]
        assert artifact.files[0].sha256 == Digest.of_bytes(data)

    def test_links_are_left_out_as_npm_does(self) -> None:
        data = tarball([("package/link", link()), ("package/package.json", b"\xef\xbb\xbf" + MANIFEST)])
        assert read_package_json(io.BytesIO(data)).document == {"name": "tool", "version": "1.0.0"}

    @pytest.mark.parametrize(
        ("data", "limits"),
        [
            (tarball({"package/zeros": bytes(3_000_000)}), ArchiveLimits(total_bytes=1_000_000)),
            (tarball({f"package/{n}": b"" for n in range(50)}), ArchiveLimits(members=10)),
            (tarball({"package/package.json": b" " * 5_000_000}), ArchiveLimits()),
            (tarball({"package/" + "x" * 5000: b""}), ArchiveLimits(header_bytes=1000)),
        ],
        ids=["bytes", "members", "manifest", "long name"],
    )
    def test_attack_a_tarball_that_is_enormous_inside_is_not_read_to_its_end(
        self, data: bytes, limits: ArchiveLimits
    ) -> None:
        with pytest.raises(PinwardenError) as caught:
            read_package_json(io.BytesIO(data), limits)
        assert caught.value.code == "ARCHIVE_UNSAFE"
        assert any(word in caught.value.message for word in ("more than", "too long"))


KEY = ec.generate_private_key(ec.SECP256R1())


def key_row(signer: ec.EllipticCurvePrivateKey = KEY, **members: Any) -> dict[str, Any]:
    public = signer.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    kind = "ecdsa-sha2-nistp256"
    row = {"expires": None, "keyid": "SHA256:k", "keytype": kind, "scheme": kind, "key": b64encode(public).decode()}
    return {**row, **members}


def signed(message: str, key_id: str = "SHA256:k") -> dict[str, str]:
    return {"keyid": key_id, "sig": b64encode(KEY.sign(message.encode(), ec.ECDSA(hashes.SHA256()))).decode()}


GOOD = f"tool@1.0.0:{sri(package('tool')[1])}"


class TestRegistrySignatures:
    @pytest.mark.parametrize(
        ("signature", "keys", "state"),
        [
            (signed(GOOD), [key_row()], "valid"),
            (signed(GOOD), [key_row(expires="2026-06-01T00:00:00.000Z")], "valid"),
            (signed(GOOD), [key_row(expires="2026-01-02T03:04:05.001Z")], "valid"),
            (signed(GOOD), [key_row(expires="2026-01-02T03:04:05.000Z")], "expired-key"),
            (signed(GOOD), [key_row(expires="2025-06-01T00:00:00.000Z")], "expired-key"),
            (signed(GOOD), [key_row(expires="whenever")], "expired-key"),
            (signed(GOOD), [key_row(ec.generate_private_key(ec.SECP256R1()))], "invalid"),
            (signed(GOOD), [key_row(key="!!")], "invalid"),
            (signed(GOOD), [key_row(scheme="none")], "invalid"),
            (signed(GOOD), [key_row(keyid="SHA256:other")], "unknown-key"),
            (signed(GOOD), [], "unknown-key"),
            (signed(GOOD), None, "unknown-key"),
            (signed(GOOD.replace("1.0.0", "1.0.1")), [key_row()], "invalid"),
            (signed(GOOD.replace("tool", "t00l")), [key_row()], "invalid"),
            ({"keyid": "SHA256:k", "sig": "!"}, [key_row()], "invalid"),
            ({"keyid": "SHA256:k"}, [key_row()], "invalid"),
        ],
    )
    def test_a_signature_is_checked_against_the_key_that_the_registry_had_then(
        self, signature: dict[str, str], keys: list[Any] | None, state: Any
    ) -> None:
        extra = {} if keys is None else {"/-/npm/v1/keys": {"keys": keys}}
        artifact = Lies(dist={"signatures": [signature]}, extra=extra).fetch()
        assert artifact.signatures == (RegistrySignature(key_id="SHA256:k", state=state),)

    def test_without_a_time_of_publication_an_expired_key_is_expired(self) -> None:
        keys = {"keys": [key_row(expires="2026-06-01T00:00:00.000Z")]}
        lies = Lies(dist={"signatures": [signed(GOOD)]}, extra={"/-/npm/v1/keys": keys}, document={"time": {}})
        assert [each.state for each in lies.fetch().signatures] == ["expired-key"]

    def test_attack_a_signature_over_other_bytes_does_not_fit_a_changed_document(self) -> None:
        lies = Lies(
            both={"description": "evil"},
            dist={"signatures": [signed(GOOD)]},
            extra={"/-/npm/v1/keys": {"keys": [key_row()]}},
        )
        assert [each.state for each in lies.fetch().signatures] == ["invalid"]

    @pytest.mark.parametrize("body", [Said(status=500), Said(body=b"["), Said(body=b"{}")])
    def test_keys_that_cannot_be_read_are_a_failure_and_not_a_missing_key(self, body: Said) -> None:
        lies = Lies(dist={"signatures": [signed(GOOD)]}, extra={"/-/npm/v1/keys": body})
        assert lies.failure()[0] == "FETCH_FAILED"


ATTESTED = {"attestations": {"url": "https://elsewhere.example/steal", "provenance": {"predicateType": "p"}}}
SLSA = "https://slsa.dev/provenance/v1"


class TestAttestations:
    def test_bundles_are_stored_byte_for_byte_with_their_kind(self) -> None:
        bundle = b'{"mediaType" : "m", "n": 1.0}'
        body = b'{"attestations": [{"predicateType": "%s", "bundle": %s}]}' % (SLSA.encode(), bundle)
        lies = Lies(name="@s/tool", dist=ATTESTED, extra={"/-/npm/v1/attestations/@s%2Ftool@1.0.0": Said(body=body)})
        assert lies.fetch().attestations == (ArtifactAttestation(kind=SLSA, bundle=bundle),)

    def test_attack_only_the_registry_is_contacted_whatever_address_the_document_names(self) -> None:
        lies = Lies(dist=ATTESTED)
        with plain_server(lies.answer) as server:
            artifact = fetch(server.url, "tool")
        assert artifact.attestations == ()
        assert server.paths == ["/tool", "/tarballs/tool.tgz", "/-/npm/v1/attestations/tool@1.0.0"]

    @pytest.mark.parametrize(
        "body",
        [
            Said(status=503),
            Said(body=b"[]"),
            Said(body=b'{"attestations": [1]}'),
            Said(body=b'{"attestations": [{"predicateType": "p"}]}'),
            Said(body=b'{"attestations": [%s]}' % b",".join([b'{"predicateType": "p", "bundle": {}}'] * 21)),
        ],
    )
    def test_attestations_that_cannot_be_read_are_a_failure(self, body: Said) -> None:
        lies = Lies(dist=ATTESTED, extra={"/-/npm/v1/attestations/tool@1.0.0": body})
        assert lies.failure()[0] == "FETCH_FAILED"


class TestTheRegistryThatThisMachineReaches:
    def test_a_published_server_has_the_bytes_that_its_registry_claims(self) -> None:
        settings = SettingsSources(home=Path.home(), project=None, variables=os.environ)
        name = "@modelcontextprotocol/server-everything"
        endpoint = find_registry(name, settings).endpoint
        client = Fetcher(FetchRules(limits=FetchLimits(attempts=2, idle_seconds=20)), os.environ)
        try:
            wanted = PackageRef(ecosystem="npm", name=name, version="2026.8.31")
            artifact = npm.fetch_artifact(wanted, client, endpoint, now=NOW)
        except PinwardenError as err:
            if err.data.get("reason") not in ("connect", "timeout", "tls"):
                raise
            missing(f"a registry that answers ({err.data.get('reason')})", "nothing; connect to the network")
        finally:
            client.close()
        (file,) = artifact.files
        assert (artifact.missing, artifact.problems, artifact.install_scripts) == (None, (), ())
        assert file.claims == (file.digest("sha512"),)
        assert artifact.facts.repository is not None
        assert "modelcontextprotocol/servers" in artifact.facts.repository


def test_only_the_registry_is_contacted_for_a_package_without_signatures() -> None:
    def paths(server: PlainServer) -> list[str]:
        fetch(server.url, "tool")
        return server.paths

    with plain_server(Lies().answer) as server:
        assert paths(server) == ["/tool", "/tarballs/tool.tgz"]
