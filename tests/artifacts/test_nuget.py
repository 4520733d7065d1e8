"""NuGet packages, against small sources that speak the documented protocols."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from base64 import b64encode
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pinwarden.artifacts import nuget
from pinwarden.artifacts.artifact import FetchedArtifact, PackageRef, ReleaseFacts
from pinwarden.artifacts.endpoints.nuget import NugetSources, find_sources, get_default_source
from pinwarden.artifacts.nuget_package import normalize_version
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.system.net.connections import ServiceEndpoint, SettingsSources
from pinwarden.system.net.fetch import Fetcher, FetchLimits, FetchRules
from tests.servers.plain_http import Asked, PlainServer, Said, plain_server

NOW = "2026-11-16T00:00:00Z"
NUSPEC = """<?xml version="1.0" encoding="utf-8"?>
<package xmlns="http://schemas.microsoft.com/packaging/2013/05/nuspec.xsd"><metadata>
<id>{name}</id><version>{version}</version><repository type="git" url="https://git.example/r" />
</metadata></package>"""
AUTHOR = b"...\x06\x0b\x2a\x86\x48\x86\xf7\x0d\x01\x09\x10\x06\x01..."
REPOSITORY = b"...\x06\x0b\x2a\x86\x48\x86\xf7\x0d\x01\x09\x10\x06\x02..."


def nupkg(name: str = "Acme.Server", version: str = "1.2.0", members: list[tuple[str, bytes]] | None = None) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        if name:
            archive.writestr(zipfile.ZipInfo(f"{name}.nuspec"), NUSPEC.format(name=name, version=version))
        for path, data in members or []:
            archive.writestr(zipfile.ZipInfo(path), data)
    return made.getvalue()


def twice(path: str) -> bytes:
    with pytest.warns(UserWarning, match="Duplicate name"):
        return nupkg(members=[(path, b"a"), (path, b"b")])


def fetch(server: PlainServer, name: str, version: str, save_folder: Path | None = None) -> FetchedArtifact:
    client = Fetcher(FetchRules(limits=FetchLimits(attempts=1)), {})
    endpoint = ServiceEndpoint(url=f"{server.url}v3/", configured_by="user")
    try:
        wanted = PackageRef(ecosystem="nuget", name=name, version=version)
        return nuget.fetch_artifact(wanted, client, endpoint, now=NOW, save_folder=save_folder)
    finally:
        client.close()


@dataclass
class Source:
    """A source that says what a test makes it say."""

    data: bytes = field(default_factory=nupkg)
    entry: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Said] = field(default_factory=dict)

    def answer(self, asked: Asked) -> Said:
        base = f"http://{asked.headers['host']}"
        resources = [
            {"@id": f"{base}/flat", "@type": "PackageBaseAddress/3.0.0"},
            {"@id": f"{base}/compressed/", "@type": "RegistrationsBaseUrl/3.6.0"},
            {"@id": f"{base}/reg/", "@type": ["RegistrationsBaseUrl"]},
        ]
        digest = b64encode(hashlib.sha512(self.data).digest()).decode()
        entry = {"packageHash": digest, "packageHashAlgorithm": "SHA512", "listed": True, **self.entry}
        leaf = {"catalogEntry": f"{base}/catalog/x.json", "published": "2026-01-02T03:04:05Z"}
        known: dict[str, Any] = {
            "/v3/index.json": {"version": "3.0.0", "resources": resources},
            "/flat/acme.server/index.json": {"versions": ["1.1.0", "1.2.0"]},
            "/flat/acme.server/1.2.0/acme.server.1.2.0.nupkg": Said(body=self.data),
            "/reg/acme.server/1.2.0.json": leaf,
            "/catalog/x.json": entry,
            **self.extra,
        }
        found = known.get(asked.path, Said(status=404))
        return found if isinstance(found, Said) else Said(body=json.dumps(found).encode())

    def fetch(
        self, name: str = "Acme.Server", version: str = "1.2", save_folder: Path | None = None
    ) -> FetchedArtifact:
        with plain_server(self.answer) as server:
            return fetch(server, name, version, save_folder)

    def failure(self, name: str = "Acme.Server", version: str = "1.2") -> tuple[str, object]:
        with pytest.raises(PinwardenError) as caught:
            self.fetch(name, version)
        return caught.value.code, caught.value.data.get("reason")


class TestFacts:
    def test_an_honest_package_has_the_hash_of_the_catalog(self, tmp_path: Path) -> None:
        source = Source()
        artifact = source.fetch(save_folder=tmp_path)
        (file,) = artifact.files
        assert (file.name, file.size) == ("acme.server.1.2.0.nupkg", len(source.data))
        assert file.digests == (Digest.of_bytes(source.data), Digest.of_bytes(source.data, "sha512"))
        assert file.claims == (Digest.of_bytes(source.data, "sha512"),)
        assert (artifact.problems, artifact.missing, artifact.attestations) == ((), None, ())
        assert artifact.facts == ReleaseFacts(published_at="2026-01-02T03:04:05Z", repository="https://git.example/r")
        assert (tmp_path / file.sha256.hex).read_bytes() == source.data

    def test_attack_bytes_that_differ_from_the_catalog_are_detected(self) -> None:
        (file,) = Source(entry={"packageHash": b64encode(bytes(64)).decode()}).fetch().files
        assert file.claims == (Digest(bytes(64), "sha512"),)
        assert file.digest("sha512") != file.claims[0]

    def test_a_source_without_a_catalog_makes_no_claim(self) -> None:
        artifact = Source(extra={"/reg/acme.server/1.2.0.json": Said(status=404)}).fetch()
        assert (artifact.files[0].claims, artifact.facts.published_at) == ((), None)

    def test_a_package_or_version_that_is_not_there_is_missing(self) -> None:
        assert Source().fetch("Other").missing == "package"
        assert Source().fetch(version="9.0.0").missing == "version"

    @pytest.mark.parametrize(
        ("entry", "yanked"),
        [
            ({"listed": False}, "unlisted"),
            ({"published": "1900-01-01T00:00:00Z"}, "unlisted"),
            ({"deprecation": {"message": "use B", "reasons": ["Legacy"]}}, "use B"),
            ({"deprecation": {"reasons": ["Legacy"]}}, "deprecated"),
        ],
    )
    def test_an_unlisted_version_counts_as_yanked(self, entry: dict[str, Any], yanked: str) -> None:
        assert Source(entry=entry).fetch().facts.yanked == yanked

    @pytest.mark.parametrize(
        ("signature", "kinds"),
        [
            (AUTHOR, ["nuget-author-signature"]),
            (REPOSITORY, ["nuget-repository-signature"]),
            (AUTHOR + REPOSITORY, ["nuget-author-signature", "nuget-repository-signature"]),
            (b"?", ["nuget-signature"]),
        ],
    )
    def test_the_kinds_of_signatures_are_reported(self, signature: bytes, kinds: list[str]) -> None:
        artifact = Source(data=nupkg(members=[(".signature.p7s", signature)])).fetch()
        assert [each.kind for each in artifact.attestations] == kinds
        assert {each.bundle for each in artifact.attestations} == {signature}

    def test_scripts_of_older_clients_are_install_scripts(self) -> None:
        data = nupkg(members=[("tools/Install.ps1", b"evil"), ("tools/other.ps1", b"")])
        assert Source(data=data).fetch().install_scripts == ("tools/install.ps1",)

    def test_attack_a_package_inside_another_name_is_a_problem(self) -> None:
        bomb = b"<!DOCTYPE x [<!ENTITY a 'b'>]><package/>"
        for data in (nupkg("Other"), nupkg(version="1.1.0"), nupkg("", members=[("a.nuspec", bomb)])):
            assert [each.code for each in Source(data=data).fetch().problems] == [nuget.MANIFEST_MISMATCH]

    def test_attack_a_package_that_readers_could_see_differently_is_a_problem(self) -> None:
        unsafe = [
            b"not a package",
            nupkg(""),
            nupkg(members=[("other.nuspec", b"")]),
            nupkg(members=[("../evil", b"")]),
            nupkg(members=[("a", b""), ("A", b"")]),
            twice("lib/a.dll"),
            nupkg()[:-30],
        ]
        for data in unsafe:
            assert [each.code for each in Source(data=data).fetch().problems] == [nuget.ARCHIVE_UNSAFE]

    @pytest.mark.parametrize(
        ("source", "expected"),
        [
            (Source(extra={"/v3/index.json": Said(body=b"[")}), ("FETCH_FAILED", "protocol")),
            (Source(extra={"/v3/index.json": Said(body=b"{}")}), ("FETCH_FAILED", "protocol")),
            (Source(extra={"/flat/acme.server/index.json": Said(body=b"{}")}), ("FETCH_FAILED", "protocol")),
            (Source(entry={"packageHash": "xyz"}), ("FETCH_FAILED", "protocol")),
            (Source(extra={"/catalog/x.json": Said(status=500)}), ("FETCH_FAILED", "status")),
            (
                Source(extra={"/reg/acme.server/1.2.0.json": Said(body=b'{"catalogEntry": "http://10.0.0.1/"}')}),
                ("ADDRESS_REFUSED", "plain-http"),
            ),
            (
                Source(extra={"/reg/acme.server/1.2.0.json": Said(body=b'{"catalogEntry": "file:///etc"}')}),
                ("FETCH_FAILED", "protocol"),
            ),
            (
                Source(extra={"/flat/acme.server/1.2.0/acme.server.1.2.0.nupkg": Said(status=404)}),
                ("FETCH_FAILED", "status"),
            ),
        ],
    )
    def test_attack_a_source_with_an_inconsistent_response_is_refused(
        self, source: Source, expected: tuple[str, str]
    ) -> None:
        assert source.failure() == expected

    @pytest.mark.parametrize(
        ("name", "version"),
        [("../x", "1.0.0"), ("", "1.0"), ("a/b", "1.0"), ("a..b", "1.0"), ("a", "1"), ("a", "[1.0]")],
    )
    def test_attack_a_name_that_is_a_path_is_never_requested(self, name: str, version: str) -> None:
        assert Source().failure(name, version) == ("PACKAGE_INVALID", None)

    def test_versions_are_written_as_addresses_have_them(self) -> None:
        texts = ["1.0", "1.02.3", "1.2.3.0", "1.2.3.4", "1.0.0-RC.1+build"]
        assert [normalize_version(text) for text in texts] == ["1.0.0", "1.2.3", "1.2.3", "1.2.3.4", "1.0.0-rc.1"]


ENTRY = """<?xml version="1.0"?><entry xmlns="http://www.w3.org/2005/Atom" xmlns:m="urn:m" xmlns:d="urn:d">
<m:properties><d:Id>Acme.Server</d:Id><d:PackageHash>{digest}</d:PackageHash>
<d:PackageHashAlgorithm>SHA512</d:PackageHashAlgorithm><d:Published>2026-01-02T03:04:05</d:Published></m:properties>
</entry>"""
FEED = b'<feed xmlns="http://www.w3.org/2005/Atom">%s</feed>'


class TestTheSecondProtocol:
    def fetch(self, name: str = "Acme.Server", entries: bytes = b"") -> tuple[FetchedArtifact, bytes]:
        data = nupkg()
        digest = b64encode(hashlib.sha512(data).digest()).decode()
        known = {
            "/v3/Packages(Id='Acme.Server',Version='1.2.0')": ENTRY.format(digest=digest).encode(),
            f"/v3/FindPackagesById()?id='{name}'": FEED % entries,
            "/v3/package/Acme.Server/1.2.0": data,
        }

        def answer(asked: Asked) -> Said:
            return Said(body=known[asked.path]) if asked.path in known else Said(status=404)

        with plain_server(answer) as server:
            return fetch(server, name, "1.2.0"), data

    def test_a_feed_without_a_service_index_is_read_too(self) -> None:
        artifact, data = self.fetch()
        assert artifact.files[0].claims == (Digest.of_bytes(data, "sha512"),)
        assert artifact.files[0].sha256 == Digest.of_bytes(data)
        assert (artifact.facts.published_at, artifact.facts.yanked) == ("2026-01-02T03:04:05", None)
        assert artifact.problems == ()

    def test_a_package_or_version_that_is_not_there_is_missing(self) -> None:
        assert self.fetch("Other")[0].missing == "package"
        assert self.fetch("Other", b"<entry/>")[0].missing == "version"


def config(body: str) -> str:
    return f'<?xml version="1.0" encoding="utf-8"?><configuration>{body}</configuration>'


def add(name: str, url: str, before: str = "") -> str:
    return f'<packageSources>{before}<add key="{name}" value="{url}" protocolVersion="3" /></packageSources>'


def login(name: str, password: str) -> str:
    return (
        f'<packageSourceCredentials><{name}><add key="Username" value="me" />'
        f'<add key="ClearTextPassword" value="{password}" /></{name}></packageSourceCredentials>'
    )


class TestSettings:
    @staticmethod
    def find(root: Path, *, user: str = "", project: str = "", **variables: str) -> NugetSources:
        for place, text in (("home/.nuget/NuGet/NuGet.Config", user), ("project/nuget.config", project)):
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            if text:
                (root / place).write_text(text)
        return find_sources(SettingsSources(home=root / "home", project=root / "project", variables=variables))

    def test_without_settings_it_is_the_default_of_the_table_of_package_addresses(self, tmp_path: Path) -> None:
        found = self.find(tmp_path)
        assert (found.main.url, found.main.configured_by, found.extra) == (get_default_source(), "default", ())
        assert found.main.url.startswith("https://")
        assert found.main.url.endswith("/")

    def test_the_users_source_has_the_users_credential(self, tmp_path: Path) -> None:
        text = config(add("my corp", "https://corp.example/v3/index.json") + login("my_x0020_corp", "%PW%"))
        found = self.find(tmp_path, user=text, PW="pw")
        assert (found.main.url, found.main.configured_by) == ("https://corp.example/v3/", "user")
        assert found.main.authorization == "Basic " + b64encode(b"me:pw").decode()
        assert found.main.authorization not in repr(found)

    def test_sources_of_both_files_are_used_nearest_first(self, tmp_path: Path) -> None:
        user, project = config(add("u", "https://u.example/v3/index.json")), add("p", "https://p.example/feed")
        found = self.find(tmp_path, user=user, project=config(project))
        assert [each.url for each in (found.main, *found.extra)] == ["https://p.example/feed/", "https://u.example/v3/"]
        cleared = config(add("p", "https://p.example/feed", before="<clear />"))
        assert self.find(tmp_path, project=cleared).extra == ()

    def test_attack_a_repository_that_gives_a_known_name_to_its_own_host_gets_no_credential(
        self, tmp_path: Path
    ) -> None:
        user = config(add("corp", "https://corp.example/v3/index.json") + login("corp", "secret"))
        found = self.find(tmp_path, user=user, project=config(add("corp", "https://evil.example/v3/index.json")))
        assert (found.main.url, found.main.configured_by) == ("https://evil.example/v3/", "project")
        assert (found.main.authorization, found.main.private_allowed) == (None, False)

    def test_attack_a_repository_does_not_get_a_variable(self, tmp_path: Path) -> None:
        text = config(add("e", "https://evil.example/%TOKEN%/index.json") + login("e", "%TOKEN%"))
        found = self.find(tmp_path, project=text, TOKEN="secret")
        assert "secret" not in found.main.url
        assert found.main.authorization is None

    def test_a_disabled_source_and_a_folder_are_not_used(self, tmp_path: Path) -> None:
        text = config(
            add("a", "https://a.example/")
            + add("b", "/srv/packages")
            + '<disabledPackageSources><add key="a" value="true" /></disabledPackageSources>'
        )
        with pytest.raises(PinwardenError) as caught:  # and the default is not asked instead
            self.find(tmp_path, user=text)
        assert caught.value.code == "CONFIG_INVALID"
        found = self.find(tmp_path, project=config(add("c", "https://c.example/")))
        assert (found.main.url, found.extra) == ("https://c.example/", ())
        assert ["not an http(s) URL" in note for note in found.notes] == [True]

    @pytest.mark.parametrize("text", ["<configuration>", "<!DOCTYPE a [<!ENTITY b 'c'>]><configuration/>", "\0"])
    def test_a_file_that_is_not_plain_xml_is_an_error(self, tmp_path: Path, text: str) -> None:
        with pytest.raises(PinwardenError) as caught:
            self.find(tmp_path, user=text)
        assert caught.value.code == "CONFIG_INVALID"
