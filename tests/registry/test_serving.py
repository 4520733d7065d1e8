"""A registry over HTTP, from the command line to the wire: embedded, and on PostgreSQL with an OCI registry."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from pinwarden.cli.commands import COMMANDS
from pinwarden.cli.main import main
from pinwarden.core.digest import blob_cid
from pinwarden.core.errors import PinwardenError
from pinwarden.core.keys import PublicKey
from pinwarden.core.signed_note import NoteKey
from pinwarden.lock import server_entry
from pinwarden.lock.mcp_registry import Registries, RegistrySource
from tests.docs.schemas import problems
from tests.registry.replica import Replica
from tests.registry.world import SERVER
from tests.support.needs import needs
from tests.support.postgres import Cluster
from tests.support.registries import docker_registry, needs_registry

needs_bwrap = needs("bwrap", install="apt-get install bubblewrap")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A served registry, with a namespace for a publisher whose key is in a file."""

    replica: Replica
    folder: Path
    operator: tuple[str, ...]
    """The options that name the registry to its operator."""

    @property
    def publisher(self) -> tuple[str, ...]:
        return ("--key", str(self.folder / "acme.key"), "--registry", self.replica.url)

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        return ask(Request(self.replica.url + path, headers=headers))


def ask(request: Request) -> tuple[int, dict[str, str], bytes]:
    try:
        with urlopen(request, timeout=60) as response:
            return response.status, {k.lower(): v for k, v in response.headers.items()}, response.read()
    except HTTPError as err:
        with err:
            return err.code, {k.lower(): v for k, v in err.headers.items()}, err.read()


def run(*arguments: str) -> int:
    """Run a command in this process: starting Python would take most of the time."""
    return main(arguments)


def answered(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    """What a command prints under --format json."""
    capsys.readouterr()
    assert run(*arguments, "--format", "json") == code, capsys.readouterr()
    report = json.loads(capsys.readouterr().out)
    name = next(name for name in COMMANDS if " ".join(arguments).startswith(f"{name} "))
    assert problems("error" if "error" in report else name.replace(" ", "-"), report) == []
    return report


@pytest.fixture(scope="module", params=["embedded", "postgresql and oci"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    operator = ["--data", str(folder / "registry")]
    with ExitStack() as stack:
        if request.param != "embedded":
            cluster: Cluster = request.getfixturevalue("cluster")
            blobs = stack.enter_context(docker_registry(folder))
            operator += ["--database", cluster.new_database(), "--blobs", f"oci://{blobs.host}/acme/archives"]
        replica = Replica("--probe", "auto", *operator)
        stack.callback(replica.kill)
        assert run("keygen", str(folder / "acme.key")) == 0
        assert run("registry", "namespace", "add", "acme", "--owner", str(folder / "acme.key.pub"), *operator) == 0
        yield Site(replica=replica, folder=folder, operator=tuple(operator))


@pytest.fixture
def token(site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    made = answered(capsys, "registry", "token", "add", "acme", "--label", "tests", *site.operator)["token"]
    monkeypatch.setenv("PINWARDEN_REGISTRY_TOKEN", made)
    return str(made)


def packed(folder: Path, version: str, server: bytes = SERVER) -> str:
    """The archive of a server's folder."""
    source = folder / f"source-{version}"
    source.mkdir()
    (source / "main.py").write_bytes(server)
    about = {"name": "acme.notes", "version": version, "runtime": "python", "entry": "main.py", "description": "Notes"}
    (source / "server.json").write_text(json.dumps(about))
    assert run("bundle", "pack", str(source), "-o", str(folder)) == 0
    return str(folder / f"acme.notes-{version}.car")


@needs_registry
@needs_bwrap
@pytest.mark.usefixtures("token")
def test_a_bundle_is_published_over_http_and_can_be_verified(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = packed(tmp_path, "1.0.0")
    key = str(site.folder / "acme.key")
    assert run("attest", archive, "--key", key, "--role", "maintainer", "--expires-in", "90d") == 0
    attestation = f"{archive}.maintainer.attestation.json"
    output = answered(capsys, "publish", archive, "--attestation", attestation, *site.publisher)
    published = output["published"]
    assert published["surface"]["api_surface"].startswith("sha256:")
    assert len(published["attestations"]) == 1
    status, headers, body = site.get(f"blobs/{published['archive']['cid']}")
    assert (status, body) == (200, Path(archive).read_bytes())
    assert headers["cache-control"] == "public, max-age=31536000, immutable"

    verified = answered(capsys, "log", "verify", site.replica.url, "--registry-key", site.replica.key_id)
    assert verified["size"] == 1
    state = ["--state", str(tmp_path / "log.json"), "--watch", "acme"]
    assert answered(capsys, "log", "monitor", site.replica.url, *state)["new"] == 1

    archive = packed(tmp_path, "1.1.0", SERVER.replace(b"Delete one note", b"Remove one note"))
    answered(capsys, "publish", archive, *site.publisher)
    watched = answered(capsys, "log", "monitor", site.replica.url, *state, code=1)
    assert [event["tool"] for event in watched["events"]] == ["acme.notes"]
    compared = json.loads(site.get("api/compare/acme.notes/1.0.0/1.1.0")[2])
    assert compared["api_surface"]["same"] is False
    assert [change["name"] for change in compared["drift"]["changes"]] == ["delete_note"]

    back = ("acme.notes", "1.0.0", "--allow-older", "--reason", "too soon", *site.publisher)
    assert answered(capsys, "registry", "point", *back)["changed"] is True
    assert answered(capsys, "registry", "point", *back)["changed"] is False
    assert answered(capsys, "registry", "yank", "acme.notes", "1.1.0", *site.publisher)["changed"] is True
    listed = json.loads(site.get("tools/acme.notes.json")[2])
    assert (listed["channels"], [row["yanked"] for row in listed["versions"]]) == (
        {"stable": "1.0.0"},
        [None, "yank"],
    )
    assert json.loads(site.get("api/search?q=notes")[2])["tools"][0]["latest"] == "1.0.0"

    found = answered(capsys, "search", "keep", "notes", "--registry", site.replica.url)
    assert [(tool["tool"], tool["latest"]) for tool in found["tools"]] == [("acme.notes", "1.0.0")]
    assert run("search", "NOTES", "--registry", site.replica.url) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["NAME        LATEST  DESCRIPTION", "acme.notes  1.0.0   Notes"]

    assert run("keygen", str(tmp_path / "helper")) == 0
    late = str(tmp_path / "late.json")
    auditor = ("--key", str(tmp_path / "helper"), "--role", "auditor", "--claim", "audit", "-o", late)
    assert run("attest", str(tmp_path / "acme.notes-1.0.0.car"), *auditor) == 0
    sent = answered(capsys, "registry", "attest", late, "--registry", site.replica.url)
    assert (sent["sent"], sent["new"]) == (1, 1)
    helper = PublicKey.from_pem((tmp_path / "helper.pub").read_bytes()).did
    keys = ("registry", "keys", "acme", "--add-publisher", helper, *site.publisher)
    assert answered(capsys, *keys)["changed"] is True
    named = answered(capsys, "registry", "namespace", "list", *site.operator)["namespaces"]
    assert named[0]["keys"][helper] == "publisher"

    exported = tmp_path / "export"
    refused = answered(capsys, "search", "notes", "--registry", str(tmp_path), code=1)
    assert refused["error"]["code"] == "SERVER_NOT_FOUND"
    answered(capsys, "registry", "export", str(exported), "--base-url", "https://r.example/", *site.operator)
    assert answered(capsys, "log", "verify", str(exported))["size"] == json.loads(site.get("health")[2])["log_size"]
    check_client_of_the_official_api(site)


def check_client_of_the_official_api(site: Site) -> None:
    """Our own client, which was written against the official registry, finds what was published."""
    source = RegistrySource(id="ours", url=site.replica.url.rstrip("/"), allow_http=True, allow_private=True)
    registries = Registries(sources=(source,))
    entry_value = registries.find("acme/notes")
    assert entry_value["server"]["version"] == "1.0.0"
    assert entry_value["_meta"]["io.modelcontextprotocol.registry/official"]["isLatest"] is True
    assert registries.find("acme/notes", "1.1.0")["_meta"]["io.modelcontextprotocol.registry/official"]["status"] == (
        "deleted"
    )
    entry = server_entry.parse_server_entry(entry_value)
    assert (entry.name, entry.packages[0].file_sha256) == (
        "acme/notes",
        entry_value["server"]["packages"][0]["fileSha256"],
    )
    with pytest.raises(PinwardenError) as caught:
        registries.find("acme/nothing")
    assert caught.value.code == "SERVER_NOT_FOUND"
    listed = json.loads(site.get("v0.1/servers?limit=1&version=latest")[2])
    assert [row["server"]["name"] for row in listed["servers"]] == ["acme/notes"]
    versions = json.loads(site.get("v0.1/servers/acme%2Fnotes/versions")[2])
    assert [row["server"]["version"] for row in versions["servers"]] == ["1.0.0", "1.1.0"]


@needs_registry
@pytest.mark.usefixtures("token")
def test_a_large_archive_is_sent_whole(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = packed(tmp_path, "5.0.0", SERVER + b"#" * 3_000_000)
    cid = answered(capsys, "publish", archive, *site.publisher)["published"]["archive"]["cid"]
    status, headers, body = site.get(f"blobs/{cid}")
    assert (status, body == Path(archive).read_bytes()) == (200, True)
    assert headers["cache-control"] == "public, max-age=31536000, immutable"
    assert headers["x-content-type-options"] == "nosniff"
    head = ask(Request(f"{site.replica.url}blobs/{cid}", method="HEAD"))
    assert (head[1]["content-length"], head[2]) == (str(len(body)), b"")


@needs_registry
def test_a_refusal_has_a_code_and_a_body_without_a_token_is_not_read(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = packed(tmp_path, "30.0.0")
    monkeypatch.setenv("PINWARDEN_REGISTRY_TOKEN", "pwt_wrong")
    assert answered(capsys, "publish", archive, *site.publisher, code=1)["error"]["code"] == "PUBLISHER_UNKNOWN"
    monkeypatch.delenv("PINWARDEN_REGISTRY_TOKEN")
    assert answered(capsys, "publish", archive, *site.publisher, code=2)["error"]["code"] == "VARIABLE_MISSING"
    status, headers, body = ask(Request(f"{site.replica.url}api/publish", data=b"x", method="POST"))
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert json.loads(body)["error"]["code"] == "PUBLISHER_UNKNOWN"


@needs_registry
def test_a_registry_with_another_key_than_the_known_one_gets_no_request(
    site: Site, tmp_path: Path, token: str, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = packed(tmp_path, "4.0.0")
    other = json.loads((tmp_path / f"{Path(archive).name}.descriptor.json").read_text())
    assert other["tool"]["version"] == "4.0.0"
    assert run("keygen", str(tmp_path / "other")) == 0
    did = NoteKey.parse(site.replica.checkpoint_key).key.did
    assert did == site.replica.key_id
    public = (tmp_path / "other.pub").read_text()
    refused = answered(capsys, "publish", archive, "--registry-key", public, *site.publisher, code=3)
    assert refused["error"]["code"] == "REGISTRY_KEY_MISMATCH"
    assert token not in json.dumps(refused)


@needs_registry
def test_an_archive_that_is_too_large_is_refused_before_it_is_sent(site: Site, token: str) -> None:
    url = f"{site.replica.url}api/blobs/bafkreiac7fzd2scyumwmoxw2jfzsl4f77htqzvtiqcf4krep7j7mkpxz7q"
    headers = {"authorization": f"Bearer {token}", "content-length": str(10**12)}
    status, _, body = ask(Request(url, data=b"", method="PUT", headers=headers))
    assert (status, json.loads(body)["error"]["code"]) == (413, "PUBLISH_LIMIT")
    wrong = Request(url, data=b"other bytes", method="PUT", headers={"authorization": f"Bearer {token}"})
    status, _, body = ask(wrong)
    assert (status, json.loads(body)["error"]["code"]) == (422, "ARTIFACT_MISMATCH")


@needs_registry
def test_a_damaged_archive_on_disk_is_a_server_error_and_is_repaired_by_uploading_again(site: Site, token: str) -> None:
    data = b"an archive that is damaged later"
    path, headers = f"blobs/{blob_cid(data)}", {"authorization": f"Bearer {token}"}
    upload = Request(f"{site.replica.url}api/{path}", data=data, method="PUT", headers=headers)
    assert ask(upload)[0] == 200
    for kept in site.folder.rglob("*"):
        if kept.is_file() and kept.stat().st_size == len(data) and kept.read_bytes() == data:
            kept.chmod(0o600)
            kept.write_bytes(data[::-1])
    status, _, body = site.get(path)
    assert status >= 500
    assert "archive" not in json.loads(body)["error"]["message"]
    if "--blobs" not in site.operator:  # an OCI registry keeps what it has under a digest
        assert ask(upload)[0] == 200
        assert site.get(path)[2] == data


@needs_registry
def test_attack_slow_unauthenticated_senders_do_not_delay_publishers(site: Site, token: str) -> None:
    """Cosignatures need no token; more of them than there are places for writers are begun and not finished."""
    address = urlsplit(site.replica.url)
    begun = b"POST /api/cosignatures HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nbegun"
    data = b"sent meanwhile"
    url, headers = f"{site.replica.url}api/blobs/{blob_cid(data)}", {"authorization": f"Bearer {token}"}
    request = Request(url, data=data, method="PUT", headers=headers)
    for _ in range(3):  # a machine may be so slow that the strangers' time is over all the same, but not each time
        with ExitStack() as stack:
            lines = [stack.enter_context(socket.create_connection((address.hostname, address.port))) for _ in range(6)]
            for line in lines:
                line.sendall(begun)
            assert ask(request)[0] == 200
            if not select.select(lines, [], [], 0)[0]:
                return  # it did not wait for their end
    pytest.fail("the publisher was answered only after the strangers")


@needs_registry
@pytest.mark.parametrize(
    "path",
    [
        "nothing",
        "pointers/acme.unknown/stable.json",
        "pointers/../registry.key",
        "blobs/..%2Fregistry.key",
        "blobs/bafkreiaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "log/tile/0/999",
        "log/tile/0/000.p/256",
        "log/tile/64/000",
        "v0.1/servers/acme%2Funknown/versions/latest",
        "api/compare/acme.notes/0.0.1/0.0.2",
    ],
)
def test_an_unknown_path_is_404(site: Site, path: str) -> None:
    assert site.get(path)[0] == 404


@needs_registry
def test_mutable_files_are_revalidated_with_an_etag(site: Site) -> None:
    status, headers, body = site.get("log/checkpoint")
    assert (status, headers["cache-control"], headers["x-content-type-options"]) == (200, "no-cache", "nosniff")
    assert site.get("log/checkpoint", **{"If-None-Match": headers["etag"]})[::2] == (304, b"")
    head = ask(Request(f"{site.replica.url}log/checkpoint", method="HEAD"))
    assert (head[0], head[2], head[1]["content-length"]) == (200, b"", str(len(body)))


@needs_registry
def test_the_operator_sees_tokens_and_requests_without_secrets(
    site: Site, token: str, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = answered(capsys, "registry", "token", "list", *site.operator)
    audited = answered(capsys, "registry", "audit", *site.operator)
    assert token not in json.dumps([listed, audited])
    revoked = answered(capsys, "registry", "token", "revoke", listed["tokens"][-1]["id"], *site.operator)
    assert revoked["tokens"][0]["revoked"] is True
    names = answered(capsys, "registry", "namespace", "list", *site.operator)["namespaces"]
    assert [row["namespace"] for row in names] == ["acme"]


def test_serve_without_its_dependencies_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "pinwarden.registry.http.server", raising=False)
    assert run("registry", "serve") == 2
    output = capsys.readouterr().err
    assert "the package uvicorn, which is not installed" in output
    assert 'pip install ".[registry]"' in output


@pytest.mark.parametrize(("level", "methods"), [("debug", ["GET", "POST"]), ("info", ["POST"])])
def test_requests_are_logged_as_json_lines_from_the_chosen_level_on(
    tmp_path: Path, level: str, methods: list[str]
) -> None:
    options = ["--data", str(tmp_path / "data"), "--port", "0", "--log-level", level, "--log-format", "json"]
    command = [sys.executable, "-m", "pinwarden", "registry", "serve", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert ask(Request(f"{address}no/such/file"))[0] == 404
            assert ask(Request(f"{address}v1/publish", data=b"{}", method="POST"))[0] in range(400, 500)
            process.terminate()
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    lines = [json.loads(line) for line in errors.splitlines()]
    assert [line["message"].split()[0] for line in lines if line["message"].startswith(("GET", "POST"))] == methods
    assert {line["level"] for line in lines} == {"debug" if method == "GET" else "info" for method in methods}
    assert all(line["time"].endswith("Z") for line in lines)


@needs_registry
@needs_bwrap
@pytest.mark.usefixtures("token")
def test_only_the_publisher_sees_what_a_server_wrote_before_its_probe_failed(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = packed(
        tmp_path, "4.0.4", b"import sys\nprint('\\x1b[31mno yaml', file=sys.stderr)\nraise SystemExit(3)\n"
    )
    report = answered(capsys, "publish", archive, "--channel", "broken", *site.publisher)
    assert report["published"]["surface"]["problem"].startswith("PROBE_FAILED")
    assert report["probe_output"] == ["<U+001B>[31mno yaml"]
    _, _, public = site.get("api/tools/acme.notes")
    _, _, page = site.get("bundles/acme.notes/4.0.4/")
    assert b"no yaml" not in public + page
    assert b"PROBE_FAILED" in page
    assert (
        run("publish", archive, "--channel", "broken", *site.publisher) == 0
    )  # published already, and not probed again
    assert "no yaml" not in capsys.readouterr().err
