"""Crates, against a small registry that speaks the documented sparse protocol."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pinwarden.artifacts import cargo
from pinwarden.artifacts.artifact import FetchedArtifact, PackageRef, ReleaseFacts
from pinwarden.artifacts.cargo_package import build_index_path
from pinwarden.artifacts.endpoints.cargo import find_registry, get_default_index
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.system.net.connections import ServiceEndpoint, SettingsSources
from pinwarden.system.net.fetch import Fetcher, FetchLimits, FetchRules
from tests.servers.npm_registry import tarball
from tests.servers.plain_http import Asked, Said, plain_server

NOW = "2026-11-16T00:00:00Z"
MANIFEST = '[package]\nname = "{name}"\nversion = "{version}"\nrepository = "https://git.example/r"\n'


def crate(name: str = "server", version: str = "1.2.3", files: dict[str, bytes] | None = None) -> bytes:
    content = {"Cargo.toml": MANIFEST.format(name=name, version=version).encode(), **(files or {})}
    return tarball({f"{name}-{version}/{path}": data for path, data in content.items()})


@dataclass
class Registry:
    """A registry that says what a test makes it say."""

    data: bytes = field(default_factory=crate)
    line: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Said] = field(default_factory=dict)

    def answer(self, asked: Asked) -> Said:
        host = asked.headers["host"]
        row = {"name": "server", "vers": "1.2.3", "deps": [], "cksum": Digest.of_bytes(self.data).hex, "yanked": False}
        older = {"name": "server", "vers": "1.2.2", "deps": [], "cksum": "0" * 64, "yanked": True}
        lines = [json.dumps(each) for each in (older, {**row, **self.line})]
        known = {
            "/config.json": Said(body=json.dumps({"dl": f"http://{host}/dl", **self.config}).encode()),
            "/se/rv/server": Said(body="\n".join(lines).encode()),
            "/dl/server/1.2.3/download": Said(body=self.data),
            **self.extra,
        }
        return known.get(asked.path, Said(status=404))

    def fetch(self, name: str = "server", version: str = "1.2.3", save_folder: Path | None = None) -> FetchedArtifact:
        with plain_server(self.answer) as server:
            client = Fetcher(FetchRules(limits=FetchLimits(attempts=1)), {})
            try:
                wanted = PackageRef(ecosystem="cargo", name=name, version=version)
                return cargo.fetch_artifact(
                    wanted,
                    client,
                    ServiceEndpoint(url=server.url, configured_by="user"),
                    now=NOW,
                    save_folder=save_folder,
                )
            finally:
                client.close()

    def failure(self, name: str = "server", version: str = "1.2.3") -> tuple[str, object]:
        with pytest.raises(PinwardenError) as caught:
            self.fetch(name, version)
        return caught.value.code, caught.value.data.get("reason")


class TestFacts:
    def test_an_honest_crate_has_the_checksum_of_the_index(self, tmp_path: Path) -> None:
        registry = Registry(line={"pubtime": "2026-01-02T03:04:05Z"})
        artifact = registry.fetch(save_folder=tmp_path)
        (file,) = artifact.files
        assert (file.name, file.size) == ("server-1.2.3.crate", len(registry.data))
        assert file.digests == file.claims == (Digest.of_bytes(registry.data),)
        assert (artifact.problems, artifact.install_scripts, artifact.missing) == ((), (), None)
        assert artifact.facts == ReleaseFacts(published_at="2026-01-02T03:04:05Z", repository="https://git.example/r")
        assert (tmp_path / file.sha256.hex).read_bytes() == registry.data

    def test_attack_bytes_that_differ_from_the_index_are_detected(self) -> None:
        (file,) = Registry(line={"cksum": "1" * 64}).fetch().files
        assert file.claims == (Digest.parse("sha256:" + "1" * 64),)
        assert file.digests != file.claims

    def test_a_yanked_version_is_reported_as_yanked(self) -> None:
        assert Registry(line={"yanked": True}).fetch().facts.yanked == "yanked"

    def test_a_crate_or_version_that_is_not_there_is_missing(self) -> None:
        assert Registry().fetch("other").missing == "package"
        assert Registry().fetch(version="9.0.0").missing == "version"

    def test_a_program_that_is_run_before_building_is_an_install_script(self) -> None:
        assert Registry(data=crate(files={"build.rs": b"fn main() {}"})).fetch().install_scripts == ("build.rs",)
        toml = MANIFEST.format(name="server", version="1.2.3")
        for build, scripts in (('"other.rs"', ("build.rs",)), ("false", ())):
            data = crate(files={"Cargo.toml": f"{toml}build = {build}\n".encode(), "build.rs": b""})
            assert Registry(data=data).fetch().install_scripts == scripts

    def test_attack_a_crate_inside_another_name_is_a_problem(self) -> None:
        for data in (crate("other"), crate(version="1.2.2")):
            assert [each.code for each in Registry(data=data).fetch().problems] == [cargo.MANIFEST_MISMATCH]

    @pytest.mark.parametrize("data", [b"no", tarball({"server-1.2.3/x": b""}), crate(files={"Cargo.toml": b"["})])
    def test_attack_a_crate_that_cannot_be_read_is_a_problem(self, data: bytes) -> None:
        assert [each.code for each in Registry(data=data).fetch().problems] == [cargo.ARCHIVE_UNSAFE]

    def test_download_urls_follow_the_markers_in_the_configuration(self) -> None:
        registry = Registry()
        digest = Digest.of_bytes(registry.data).hex
        registry.extra = {f"/c/se/rv/server-1.2.3-{digest}.crate": Said(body=registry.data)}

        def answer(asked: Asked) -> Said:
            registry.config["dl"] = (
                f"http://{asked.headers['host']}/c/{{lowerprefix}}/{{crate}}-{{version}}-{{sha256-checksum}}.crate"
            )
            return registry.answer(asked)

        with plain_server(answer) as server:
            client = Fetcher(FetchRules(), {})
            wanted = PackageRef(ecosystem="cargo", name="server", version="1.2.3")
            artifact = cargo.fetch_artifact(
                wanted, client, ServiceEndpoint(url=server.url, configured_by="user"), now=NOW
            )
            client.close()
        assert artifact.files[0].sha256.hex == digest

    @pytest.mark.parametrize(
        ("registry", "expected"),
        [
            (Registry(line={"name": "other"}), ("FETCH_FAILED", "protocol")),
            (Registry(line={"vers": "1.2.2"}), ("FETCH_FAILED", "protocol")),
            (Registry(line={"cksum": "xyz"}), ("FETCH_FAILED", "protocol")),
            (Registry(line={"cksum": None}), ("FETCH_FAILED", "protocol")),
            (Registry(extra={"/se/rv/server": Said(body=b"<html>")}), ("FETCH_FAILED", "protocol")),
            (Registry(extra={"/config.json": Said(status=404)}), ("FETCH_FAILED", "protocol")),
            (Registry(extra={"/config.json": Said(body=b"{}")}), ("FETCH_FAILED", "protocol")),
            (Registry(config={"dl": "file:///etc"}), ("FETCH_FAILED", "protocol")),
            (Registry(config={"dl": "http://elsewhere.example/"}), ("ADDRESS_REFUSED", "plain-http")),
            (Registry(config={"dl": "https://10.0.0.1/"}), ("ADDRESS_REFUSED", "private")),
            (Registry(extra={"/dl/server/1.2.3/download": Said(status=404)}), ("FETCH_FAILED", "status")),
        ],
    )
    def test_attack_a_registry_with_an_inconsistent_response_is_refused(
        self, registry: Registry, expected: tuple[str, str]
    ) -> None:
        version = "1.2.2" if registry.line.get("vers") == "1.2.2" else "1.2.3"
        assert registry.failure(version=version) == expected

    @pytest.mark.parametrize(
        ("name", "version"),
        [("../x", "1.0.0"), ("", "1.0.0"), ("a/b", "1.0.0"), ("1a", "1.0.0"), ("a", "1"), ("a", "^1.0.0")],
    )
    def test_attack_a_name_that_is_a_path_is_never_requested(self, name: str, version: str) -> None:
        assert Registry().failure(name, version) == ("PACKAGE_INVALID", None)

    def test_index_paths_follow_the_documentation(self) -> None:
        paths = [build_index_path(name) for name in ("a", "ab", "abc", "Cargo")]
        assert paths == ["1/a", "2/ab", "3/a/abc", "ca/rg/cargo"]


class TestSettings:
    @staticmethod
    def endpoint(root: Path, registry: str | None = None, **variables: str) -> ServiceEndpoint:
        settings = SettingsSources(home=root / "home", project=root / "project", variables=variables)
        return find_registry(settings, registry=registry)

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        for folder in ("home", "project"):
            (tmp_path / folder / ".cargo").mkdir(parents=True)
        return tmp_path

    @staticmethod
    def write(root: Path, **files: str) -> None:
        for place, text in files.items():
            (root / place / ".cargo" / "config.toml").write_text(text)

    def test_without_settings_it_is_the_default(self, root: Path) -> None:
        found = self.endpoint(root)
        assert (found.url, found.configured_by, found.authorization) == (get_default_index(), "default", None)
        assert found.url.startswith("https://index.")

    def test_a_replaced_source_is_followed_to_its_end(self, root: Path) -> None:
        self.write(
            root,
            home='[source.crates-io]\nreplace-with = "a"\n[source.a]\nreplace-with = "b"\nregistry = "sparse+https://a/"\n'
            '[source.b]\nregistry = "sparse+https://b.example/index"\n',
        )
        found = self.endpoint(root, CARGO_REGISTRY_TOKEN="secret")
        assert (found.url, found.configured_by, found.authorization) == ("https://b.example/index/", "user", None)

    def test_a_named_registry_has_its_own_token(self, root: Path) -> None:
        self.write(
            root, home='[registries.corp]\nindex = "sparse+https://corp.example/i/"\n[http]\ncainfo = "ca.pem"\n'
        )
        (root / "home" / ".cargo" / "credentials.toml").write_text('[registries.corp]\ntoken = "secret"\n')
        found = self.endpoint(root, "corp")
        assert (found.url, found.authorization) == ("https://corp.example/i/", "secret")
        assert found.ca_file == root / "home" / "ca.pem"
        assert "secret" not in repr(found)
        assert self.endpoint(root, "corp", CARGO_REGISTRIES_CORP_TOKEN="other").authorization == "other"
        assert self.endpoint(root, CARGO_REGISTRY_DEFAULT="corp").url == "https://corp.example/i/"

    def test_attack_a_repository_that_gives_a_known_name_to_its_own_host_gets_no_token(self, root: Path) -> None:
        self.write(
            root,
            home='[registries.corp]\nindex = "sparse+https://corp.example/i/"\n',
            project='[registries.corp]\nindex = "sparse+https://evil.example/"\n[http]\ncainfo = "evil.pem"\n',
        )
        (root / "home" / ".cargo" / "credentials.toml").write_text('[registries.corp]\ntoken = "secret"\n')
        found = self.endpoint(root, "corp")
        assert (found.url, found.configured_by) == ("https://evil.example/", "project")
        assert (found.authorization, found.ca_file, found.private_allowed) == (None, None, False)

    def test_the_environment_wins(self, root: Path) -> None:
        self.write(root, project='[registries.my-corp]\nindex = "sparse+https://p.example/"\n')
        found = self.endpoint(root, "my-corp", CARGO_REGISTRIES_MY_CORP_INDEX="sparse+https://e.example/")
        assert (found.url, found.configured_by) == ("https://e.example/", "environment")

    @pytest.mark.parametrize(
        "text",
        [
            '[source.crates-io]\nreplace-with = "a"\n[source.a]\nregistry = "https://git.example/index"\n',
            '[source.crates-io]\nreplace-with = "a"\n[source.a]\ndirectory = "vendor"\n',
            '[source.crates-io]\nreplace-with = "a"\n[source.a]\nregistry = "sparse+https://a/"\nreplace-with = "a"\n',
            '[source.crates-io]\nreplace-with = "a"\n[source.a]\nregistry = "sparse+https://u:secret@a/"\n',
            "[source",
            'registry.default = "unknown"\n',
        ],
    )
    def test_a_registry_that_is_not_read_here_is_an_error_and_never_the_default(self, root: Path, text: str) -> None:
        self.write(root, home=text)
        with pytest.raises(PinwardenError) as caught:
            self.endpoint(root)
        assert caught.value.code == "CONFIG_INVALID"
        assert "secret" not in caught.value.message
