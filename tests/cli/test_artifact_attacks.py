"""Attacks on the bytes of locked servers, each through the command line and against real registries on loopback.

verdaccio is the npm registry, pypiserver the Python index (it computes its hashes from whatever lies on disk, so it
agrees with every lie), Debian's docker-registry the one for images. Each test has packages of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinwarden.artifacts.resolvers import NpmRequirement, resolve_npm
from pinwarden.project.client_install import replace_launch
from pinwarden.system.net.connections import ServiceEndpoint
from tests.cli.artifact_world import User, npm_library, npm_server, python_server
from tests.servers.npm_registry import Verdaccio, sri, verdaccio
from tests.support import images
from tests.support.registries import DockerRegistry, Reply, docker_registry, needs_registry, scripted
from tests.support.wheels import package_index, wheel_name


@pytest.fixture(scope="session")
def npm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verdaccio]:
    with verdaccio(tmp_path_factory.mktemp("verdaccio")) as running:
        yield running


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of files that the Python index serves."""
    return tmp_path_factory.mktemp("wheels")


@pytest.fixture(scope="session")
def index(wheels: Path) -> Iterator[str]:
    with package_index(wheels) as url:
        yield url


@pytest.fixture(scope="session")
def oci(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRegistry]:
    with docker_registry(tmp_path_factory.mktemp("docker-registry")) as running:
        yield running


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(folder=tmp_path)


@pytest.fixture
def npm_user(user: User, npm: Verdaccio) -> User:
    """A user whose npm is set to the registry, in the file of settings of their own."""
    (user.home / ".npmrc").write_text(f"registry={npm.url}\n")
    return user


@pytest.fixture
def pip_user(user: User, index: str) -> User:
    user.variables["UV_DEFAULT_INDEX"] = index
    return user


def publish_once(npm: Verdaccio, manifest: dict[str, Any], data: bytes) -> None:
    """For tests with several cases of one package."""
    if not npm.tarball_path(manifest).exists():
        npm.publish(manifest, data)


def tamper(npm: Verdaccio, manifest: dict[str, Any], data: bytes) -> None:
    """Exchange a tarball together with all that the registry says of it."""
    npm.tarball_path(manifest).write_bytes(data)
    path = npm.packument_path(manifest)
    document = json.loads(path.read_bytes())
    sums = {"integrity": sri(data), "shasum": hashlib.sha1(data, usedforsecurity=False).hexdigest()}
    document["versions"][manifest["version"]]["dist"] |= sums
    path.write_text(json.dumps(document))


def started(user: User, server: str = "notes") -> str:
    """What a locked server says when it is started."""
    outcome = user.run("run", server, "--without-gateway")
    assert outcome.code == 0, outcome
    return outcome.out.strip()


def codes(report: Any) -> list[str]:
    return [row["code"] for row in report["findings"]]


# Row 2: a release that does something else, with the tools that it always had (postmark-mcp 1.0.16)


def offer(user: User, package: str, *versions: str) -> None:
    """Name the releases of the server in a registry that is a file."""
    (user.root / ".toolpin").mkdir(exist_ok=True)
    sources = {
        "registries": [{"id": "local", "url": "file://servers.json"}],
        "sources": {"official": {"enabled": False}},
    }
    (user.root / ".toolpin" / "registries.json").write_text(json.dumps(sources))
    servers = [
        {
            "name": "io.github.acme/postmark",
            "description": "Sends mail.",
            "version": version,
            "packages": [
                {
                    "registryType": "npm",
                    "identifier": package,
                    "version": version,
                    "transport": {"type": "stdio"},
                }
            ],
        }
        for version in versions
    ]
    (user.root / "servers.json").write_text(json.dumps(servers))


def test_attack_postmark_a_release_by_another_publisher_is_reported_and_the_approved_bytes_stay(
    npm: Verdaccio, npm_user: User
) -> None:
    server = "io.github.acme/postmark"
    manifest, data = npm_server("postmark-like", "1.0.15", says="sends mail")
    npm.publish({**manifest, "_npmUser": {"name": "alice"}}, data)
    offer(npm_user, "postmark-like", "1.0.15")
    assert npm_user.run("add", server, "--by", "me").code == 0
    npm_user.prove()
    locked = npm_user.lock_bytes()

    manifest, data = npm_server("postmark-like", "1.0.16", says="sends mail to mallory, too")
    npm.publish({**manifest, "_npmUser": {"name": "mallory"}}, data)
    offer(npm_user, "postmark-like", "1.0.15", "1.0.16")

    code, report = npm_user.ask("update")
    assert (code, report["written"]) == (1, False)
    assert report["updates"] == [{"name": server, "client": "claude", "from": "1.0.15", "to": "1.0.16"}]
    assert {"newer_release", "publisher_changed"} <= {row["code"] for row in report["changes"]}
    assert npm_user.lock_bytes() == locked
    assert npm_user.gate() == (0, {})
    assert started(npm_user, server) == "sends mail"

    # Who agrees to the release has not agreed to its bytes yet: neither the new nor the old ones are started.
    assert npm_user.record(server)["publisher"] == "alice"
    assert npm_user.run("update", "--yes", "--by", "me").code == 0
    assert npm_user.ask("ci")[0] == 0  # the client's configuration went along
    assert "postmark-like@1.0.16" in (npm_user.root / ".mcp.json").read_text()
    refused = npm_user.run("run", server)
    assert (refused.code, refused.out) == (1, "")
    assert "[BYTES_NOT_LOCKED]" in refused.err


def test_attack_a_newer_release_with_wrong_bytes_is_not_written_even_with_yes(npm: Verdaccio, npm_user: User) -> None:
    server = "io.github.acme/postmark"
    npm.publish(*npm_server("half-broken", "1.0.0", says="approved"))
    offer(npm_user, "half-broken", "1.0.0")
    assert npm_user.run("add", server, "--by", "me").code == 0
    npm_user.prove()
    locked = npm_user.lock_bytes()
    manifest, data = npm_server("half-broken", "1.0.1", says="new")
    npm.publish(manifest, data)
    npm.tarball_path(manifest).write_bytes(npm_server("half-broken", "1.0.1", says="evil")[1])
    offer(npm_user, "half-broken", "1.0.0", "1.0.1")

    code, report = npm_user.ask("update", "--yes", "--by", "me")
    assert (code, report["written"]) == (1, False)
    assert "npm_integrity_mismatch" in {row["code"] for row in report["changes"]}
    assert npm_user.lock_bytes() == locked


def test_attack_locking_again_does_not_pin_different_bytes(npm: Verdaccio, npm_user: User) -> None:
    """Accepting a harmless change of the configuration must not drop the pins."""
    manifest, data = npm_server("relocked", says="approved")
    npm.publish(manifest, data)
    npm_user.locked(notes="npx -y relocked@1.0.0")
    artifacts = npm_user.record("notes")["artifacts"]
    tamper(npm, manifest, npm_server("relocked", says="evil")[1])

    npm_user.configure(notes="npx -y relocked@1.0.0 --verbose")
    npm_user.lock()
    assert npm_user.record("notes")["artifacts"] == artifacts
    code, report = npm_user.ask("prove")
    assert (code, codes(report)) == (1, ["bytes_changed"])
    assert started(npm_user) == "approved"


# Row 8: a fork under another name


def test_attack_a_fork_under_a_near_name_is_a_finding_and_cannot_touch_the_pin_of_the_original(
    npm: Verdaccio, npm_user: User
) -> None:
    npm.publish(*npm_server("filesystem-notes", says="the original"))
    npm.publish(*npm_server("filesystern-notes", says="the fork"))
    npm_user.locked(notes="npx -y filesystem-notes@1.0.0")
    original = npm_user.record("notes")

    npm_user.configure(notes="npx -y filesystem-notes@1.0.0", helper="npx -y filesystern-notes@1.0.0")
    code, failures = npm_user.gate()
    assert (code, set(failures)) == (1, {"look_alike_entry"})
    assert "filesystem-notes" in failures["look_alike_entry"]["message"]

    assert npm_user.run("init", "--accept", "helper", "--by", "me").code == 0
    npm_user.prove("helper")
    assert npm_user.record("notes") == original
    assert npm_user.record("helper")["artifacts"] != original["artifacts"]
    assert (started(npm_user), started(npm_user, "helper")) == ("the original", "the fork")


# Row 9: the same version, other bytes


def test_attack_a_tarball_that_was_changed_on_the_registry_s_disk(npm: Verdaccio, npm_user: User) -> None:
    manifest, data = npm_server("swapped", says="approved")
    npm.publish(manifest, data)
    npm_user.locked(notes="npx -y swapped@1.0.0")
    locked = npm_user.lock_bytes()
    npm.tarball_path(manifest).write_bytes(npm_server("swapped", says="evil")[1])

    code, failures = npm_user.gate()
    assert code == 1
    assert set(failures) == {"bytes_changed", "npm_integrity_mismatch", "npm_shasum_mismatch"}
    assert {row["severity"] for row in failures.values()} == {"critical"}
    code, report = npm_user.ask("prove")
    assert (code, report["servers"]) == (1, [])
    assert npm_user.lock_bytes() == locked
    assert started(npm_user) == "approved"  # from the store: the registry is not asked
    assert_fetch_refuses(npm_user)


def assert_fetch_refuses(user: User) -> None:
    """On a machine that has nothing yet, nothing is built out of other bytes."""
    code, report = user.without_store().ask("fetch", "--frozen")
    assert (code, report["servers"], codes(report)) == (1, [], ["artifact_mismatch"])
    refused = user.run("run", "notes")
    assert (refused.code, refused.out) == (3, "")
    assert "[ARTIFACT_MISSING]" in refused.err


def test_attack_a_tarball_and_its_registry_metadata_changed_together(npm: Verdaccio, npm_user: User) -> None:
    """A first install accepts it happily. Only who knows the bytes from before can tell."""
    manifest, data = npm_server("lying", says="approved")
    npm.publish(manifest, data)
    npm_user.locked(notes="npx -y lying@1.0.0")
    tamper(npm, manifest, npm_server("lying", says="evil")[1])

    code, failures = npm_user.gate()
    assert (code, set(failures)) == (1, {"bytes_changed"})
    code, report = npm_user.ask("update", "--yes", "--by", "me")
    assert (code, report["written"], report["renewals"]) == (1, False, [])
    assert started(npm_user) == "approved"
    assert_fetch_refuses(npm_user)


def test_attack_a_wheel_and_the_index_changed_together(wheels: Path, pip_user: User) -> None:
    file = wheels / wheel_name("swapped-notes", "1.0")
    file.write_bytes(python_server("swapped-notes", says="approved"))
    pip_user.locked(notes="uvx swapped-notes@1.0")
    file.write_bytes(python_server("swapped-notes", says="evil"))

    code, failures = pip_user.gate()
    assert (code, set(failures)) == (1, {"bytes_changed"})
    assert started(pip_user) == "approved"
    assert_fetch_refuses(pip_user)


def test_attack_a_wheel_added_to_an_old_release_is_reported_and_not_used(wheels: Path, pip_user: User) -> None:
    """Installers prefer the more specific wheel, so the code changes while version and old file stay."""
    (wheels / wheel_name("old-notes", "1.0")).write_bytes(python_server("old-notes", says="approved"))
    pip_user.locked(notes="uvx old-notes@1.0")
    tag = f"py{sys.version_info[0]}{sys.version_info[1]}-none-any"  # what every installer prefers to py3
    (wheels / wheel_name("old-notes", "1.0", tag)).write_bytes(python_server("old-notes", says="evil", tag=tag))

    code, failures = pip_user.gate()
    assert (code, set(failures)) == (1, {"file_added"})
    assert failures["file_added"]["severity"] == "critical"
    code, report = pip_user.ask("prove")
    assert (code, codes(report)) == (1, ["file_added"])
    assert pip_user.without_store().run("fetch", "--frozen").code == 0
    assert started(pip_user) == "approved"


# Row 10: a tag that moved


@needs_registry
def test_attack_a_moved_tag_is_reported_with_both_digests_and_the_locked_one_is_run(
    oci: DockerRegistry, user: User
) -> None:
    good, evil = images.image("good"), images.image("evil")
    images.push(oci, "acme/moved", "v1", good)
    configure_image(user, oci, "acme/moved:v1")

    images.push(oci, "acme/moved", "v1", evil)
    code, failures = image_gate(user)
    assert (code, set(failures)) == (1, {"tag_moved"})
    assert (failures["tag_moved"]["before"], failures["tag_moved"]["after"]) == (str(good.digest), str(evil.digest))
    assert shown_image(user) == f"{oci.host}/acme/moved@{good.digest}"

    locked = user.lock_bytes()
    code, report = user.ask("update", "--allow-private")
    assert (code, report["written"], [row["code"] for row in report["changes"]]) == (1, False, ["tag_moved"])
    assert user.lock_bytes() == locked
    assert user.run("update", "--allow-private", "--yes", "--by", "me").code == 0
    assert shown_image(user) == f"{oci.host}/acme/moved@{evil.digest}"


def configure_image(user: User, oci: DockerRegistry, reference: str) -> None:
    """Configure, lock and pin an image."""
    user.configure(notes=f"docker run -i --rm {oci.host}/{reference}")
    user.lock()
    assert user.run("prove", "--allow-private").code == 0


def image_gate(user: User) -> tuple[int, dict[str, Any]]:
    code, report = user.ask("ci", "--bytes", "--allow-private")
    return code, {row["code"]: row for row in report["failures"]}


def shown_image(user: User) -> str:
    outcome = user.run("run", "notes", "--show")
    assert outcome.code == 0, outcome
    return outcome.out.split()[-1]


@needs_registry
def test_attack_an_index_with_another_image_for_one_platform_is_a_moved_tag(oci: DockerRegistry, user: User) -> None:
    amd, arm = images.image("amd"), images.image("arm", platform="linux/arm64")
    before = {"linux/amd64": amd, "linux/arm64": arm}
    old = images.index(before)
    images.push_index(oci, "acme/multi", "v1", before, old)
    configure_image(user, oci, "acme/multi:v1")
    assert user.record("notes")["image"] == {
        "index": str(old.digest),
        "platforms": {"linux/amd64": str(amd.digest), "linux/arm64": str(arm.digest)},
    }

    after = {"linux/amd64": amd, "linux/arm64": images.image("evil", platform="linux/arm64")}
    new = images.index(after)
    images.push_index(oci, "acme/multi", "v1", after, new)
    code, failures = image_gate(user)
    assert (code, set(failures)) == (1, {"tag_moved"})
    assert (failures["tag_moved"]["before"], failures["tag_moved"]["after"]) == (str(old.digest), str(new.digest))
    assert shown_image(user) == f"{oci.host}/acme/multi@{old.digest}"


@needs_registry
def test_attack_a_manifest_that_does_not_match_its_digest_is_refused(oci: DockerRegistry, user: User) -> None:
    """The index names its manifests by digest: the only way to exchange one is to serve other bytes under it."""
    built = {"linux/amd64": images.image("one"), "linux/arm64": images.image("two", platform="linux/arm64")}
    images.push_index(oci, "acme/behind", "v1", built, images.index(built))
    configure_image(user, oci, "acme/behind:v1")
    locked = user.lock_bytes()
    victim = str(built["linux/arm64"].digest)
    oci.blob_file(victim).write_bytes(images.image("evil", platform="linux/arm64").manifest.data)

    code, failures = image_gate(user)
    assert code == 1
    assert {"manifest_changed", "oci_digest_mismatch"} <= set(failures)
    assert {failures[code]["severity"] for code in ("manifest_changed", "oci_digest_mismatch")} == {"critical"}
    assert victim in failures["oci_digest_mismatch"]["message"]
    code, report = user.ask("prove", "--allow-private")
    assert (code, report["servers"]) == (1, [])
    assert user.lock_bytes() == locked


@needs_registry
def test_attack_an_image_that_does_not_match_its_digest_is_never_pinned(oci: DockerRegistry, user: User) -> None:
    """Tampered with before it was locked: the registry still claims the old digest in its header."""
    built = images.image("honest")
    images.push(oci, "acme/tampered", "v1", built)
    oci.blob_file(str(built.digest)).write_bytes(built.manifest.data.replace(b"}", b"} ", 1))
    user.configure(notes=f"docker run -i --rm {oci.host}/acme/tampered:v1")
    user.lock()
    locked = user.lock_bytes()

    code, report = user.ask("prove", "--allow-private")
    assert (code, report["servers"]) == (1, [])
    assert "oci_digest_mismatch" in codes(report)
    assert user.lock_bytes() == locked
    refused = user.run("run", "notes", "--show")
    assert (refused.code, refused.out) == (1, "")


# Row 11: another registry


@pytest.mark.parametrize("way", ["project .npmrc", "scope in project .npmrc", "NPM_CONFIG_REGISTRY"])
def test_attack_npm_is_redirected_to_another_registry_after_locking(npm: Verdaccio, npm_user: User, way: str) -> None:
    name = "@acme/substituted" if way.startswith("scope") else "substituted"
    publish_once(npm, *npm_server(name, says="approved"))
    npm_user.locked(notes=f"npx -y {name}@1.0.0")
    locked = npm_user.lock_bytes()

    with scripted() as evil:
        url = f"http://{evil.host}/"
        if way == "NPM_CONFIG_REGISTRY":
            npm_user.variables["NPM_CONFIG_REGISTRY"] = url
        else:
            key = "@acme:registry" if way.startswith("scope") else "registry"
            (npm_user.root / ".npmrc").write_text(f"{key}={url}\n")
        code, failures = npm_user.gate()
        assert (code, set(failures)) == (1, {"registry_changed"})
        changed = failures["registry_changed"]
        assert (changed["severity"], changed["before"], changed["after"]) == ("critical", npm.url, url)
        code, report = npm_user.ask("prove")
        assert (code, codes(report)) == (1, ["registry_changed"])
        code, report = npm_user.ask("update", "--yes", "--by", "me")
        assert (code, report["written"]) == (1, False)
        assert evil.asked == []  # not even to look
    assert npm_user.lock_bytes() == locked
    assert started(npm_user) == "approved"


def test_dependencies_without_a_scope_do_not_come_from_the_registry_of_the_scope(
    npm: Verdaccio, npm_user: User
) -> None:
    npm.publish(*npm_library("unscoped-below", says="below"))
    npm.publish(*npm_server("@scoped/above", says="above", needs={"unscoped-below": "1.0.0"}))
    scope = npm.url.replace("127.0.0.1", "localhost")  # the same server under another name
    (npm_user.home / ".npmrc").write_text(f"registry={npm.url}\n@scoped:registry={scope}\n")
    npm_user.locked(notes="npx -y @scoped/above@1.0.0")
    closure = json.loads((npm_user.root / npm_user.record("notes")["closure"]["file"]["path"]).read_text())
    hosts = {row["name"]: row["files"][0]["url"].partition(row["name"])[0] for row in closure["packages"]}
    assert (closure["registry"], set(hosts)) == (scope, {"@scoped/above", "unscoped-below"})
    assert hosts["unscoped-below"] == npm.url


@pytest.mark.parametrize("variable", ["UV_DEFAULT_INDEX", "PIP_INDEX_URL"])
def test_attack_pip_is_redirected_to_another_index_after_locking(
    wheels: Path, index: str, user: User, variable: str
) -> None:
    (wheels / wheel_name("led-notes", "1.0")).write_bytes(python_server("led-notes", says="approved"))
    user.variables[variable] = index
    user.locked(notes="uvx led-notes@1.0")

    with scripted() as evil:
        user.variables[variable] = f"http://{evil.host}/simple/"
        code, failures = user.gate()
        assert (code, set(failures)) == (1, {"registry_changed"})
        assert failures["registry_changed"]["severity"] == "critical"
        code, report = user.ask("prove")
        assert (code, codes(report)) == (1, ["registry_changed"])
        assert evil.asked == []
    assert started(user) == "approved"


def test_attack_an_extra_index_with_the_same_name_is_never_contacted(wheels: Path, pip_user: User) -> None:
    """Dependency confusion: an installer would take the higher or better file of any index."""
    (wheels / wheel_name("inside-notes", "1.0")).write_bytes(python_server("inside-notes", says="ours"))
    with scripted() as evil:
        extra = f"http://{evil.host}/simple/"
        pip_user.variables |= {"UV_INDEX": extra, "UV_EXTRA_INDEX_URL": extra, "PIP_EXTRA_INDEX_URL": extra}
        pip_user.locked(notes="uvx inside-notes@1.0")
        assert pip_user.gate() == (0, {})
        assert pip_user.run("update").code == 0
        assert pip_user.without_store().run("fetch", "--frozen").code == 0
        assert evil.asked == []
    assert started(pip_user) == "ours"


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "npx", "args": ["-y", "--registry={url}", "confused@1.0.0"]},
        {"command": "npx", "args": ["-y", "confused@1.0.0"], "env": {"npm_config_registry": "{url}"}},
    ],
    ids=["argument", "variable"],
)
def test_attack_a_package_from_another_registry_is_not_verified_with_the_default_registry(
    npm: Verdaccio, npm_user: User, entry: dict[str, Any]
) -> None:
    """Dependency confusion the other way: what the client starts is not what our registry has under that name."""
    publish_once(npm, *npm_server("confused", says="somebody else's"))
    text = json.dumps({"mcpServers": {"notes": entry}}).replace("{url}", "https://npm.example.com/")
    (npm_user.root / ".mcp.json").write_text(text)
    assert npm_user.run("init", "--accept", "notes", "--by", "me").code == 0
    code, report = npm_user.ask("prove")
    assert (code, report["servers"], codes(report)) == (1, [], ["registry_in_command"])


# Row 12: a dependency that floats


def test_attack_a_newer_dependency_is_not_used_until_it_is_confirmed(npm: Verdaccio, npm_user: User) -> None:
    npm.publish(*npm_library("floating", "1.0.0", says="floating 1.0.0"))
    npm.publish(*npm_server("floats", says="floats", needs={"floating": "^1.0.0"}))
    npm_user.locked(notes="npx -y floats@1.0.0")
    locked = npm_user.lock_bytes()

    manifest, data = npm_library("floating", "1.0.1", says="floating 1.0.1", scripts={"postinstall": "node index.js"})
    npm.publish({**manifest, "_npmUser": {"name": "mallory"}}, data)
    assert npm_user.gate() == (0, {})
    assert started(npm_user) == "floats; floating 1.0.0"

    code, report = npm_user.ask("update")
    assert (code, report["written"], report["renewals"]) == (1, False, ["notes"])
    (change,) = report["changes"]
    assert change["code"] == "dependency_scripts"
    assert "by mallory" in change["message"]
    assert "published 20" in change["message"]
    assert npm_user.lock_bytes() == locked
    code, report = npm_user.without_store().ask("fetch", "--frozen")
    assert (code, report["servers"][0]["scripts"]) == (0, [])
    assert started(npm_user) == "floats; floating 1.0.0"

    assert npm_user.run("update", "--yes", "--by", "me").code == 0
    code, report = npm_user.ask("fetch", "--frozen")
    assert (code, report["servers"][0]["scripts"]) == (0, ["floating"])
    assert started(npm_user) == "floats; floating 1.0.1"


def test_a_newer_dependency_is_reported_with_publisher_and_date(npm: Verdaccio, npm_user: User) -> None:
    npm.publish(*npm_library("gentle", "1.0.0", says="gentle 1.0.0"))
    npm.publish(*npm_server("told", says="told", needs={"gentle": "^1.0.0"}))
    npm_user.locked(notes="npx -y told@1.0.0")
    manifest, data = npm_library("gentle", "1.0.1", says="gentle 1.0.1")
    npm.publish({**manifest, "_npmUser": {"name": "alice"}}, data)
    code, report = npm_user.ask("update")
    assert code == 1
    (change,) = report["changes"]
    assert change["code"] == "dependency_version"
    assert change["message"].startswith("gentle changed from 1.0.0 to 1.0.1, published 20")
    assert change["message"].endswith(" by alice")


def test_attack_a_dependency_with_other_bytes_under_its_version_is_never_offered(
    npm: Verdaccio, npm_user: User
) -> None:
    manifest, data = npm_library("below", says="below")
    npm.publish(manifest, data)
    npm.publish(*npm_server("above", says="above", needs={"below": "^1.0.0"}))
    npm_user.locked(notes="npx -y above@1.0.0")
    locked = npm_user.lock_bytes()
    tamper(npm, manifest, npm_library("below", says="evil")[1])

    code, report = npm_user.ask("update", "--yes", "--by", "me")
    assert (code, report["written"]) == (1, False)
    assert [row["code"] for row in report["changes"]] == ["dependency_bytes"]
    assert npm_user.lock_bytes() == locked
    assert started(npm_user) == "above; below"
    assert_fetch_refuses(npm_user)


def test_attack_a_dependency_that_does_not_match_its_registry_hash_is_never_pinned(
    npm: Verdaccio, npm_user: User
) -> None:
    manifest, data = npm_library("false-below", says="below")
    npm.publish(manifest, data)
    npm.publish(*npm_server("false-above", says="above", needs={"false-below": "^1.0.0"}))
    npm.tarball_path(manifest).write_bytes(npm_library("false-below", says="evil")[1])
    npm_user.configure(notes="npx -y false-above@1.0.0")
    npm_user.lock()
    locked = npm_user.lock_bytes()
    code, report = npm_user.ask("prove")
    assert (code, report["servers"], codes(report)) == (1, [], ["artifact_mismatch"])
    assert npm_user.lock_bytes() == locked


def test_attack_settings_beside_the_folder_in_which_npm_resolves_are_not_followed(
    user: User, npm: Verdaccio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"  # as /tmp, where others may write as well
    shared.mkdir()
    (shared / "package.json").write_text(json.dumps({"name": "evil", "workspaces": ["pinwarden-resolve-*"]}))
    (shared / ".npmrc").write_text("proxy=http://127.0.0.1:9/\nfetch-retries=0\n")
    npm.publish(*npm_server("shared-notes", says="hello"))
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    lock, _ = resolve_npm(
        NpmRequirement(name="shared-notes", version="1.0.0", required_scopes=frozenset({""})),
        {"": ServiceEndpoint(url=npm.url, configured_by="user")},
        {"PATH": os.environ["PATH"], "HOME": str(user.home)},
        allow_plain_http=True,
    )
    assert "node_modules/shared-notes" in json.loads(lock)["packages"]
    assert sorted(path.name for path in shared.iterdir()) == [".npmrc", "package.json"]


def test_attack_a_version_that_floats_fails_a_frozen_fetch_and_what_has_no_bytes_does_not(user: User) -> None:
    user.configure(local="python3 server.py")
    user.lock()
    assert user.run("fetch", "--frozen").code == 0
    user.configure(local="python3 server.py", notes="npx -y floating-notes")
    user.lock()
    code, report = user.ask("prove")
    assert (code, codes(report)) == (1, ["nothing_to_run", "version_floats"])
    code, report = user.ask("fetch", "--frozen")
    assert (code, codes(report)) == (1, ["nothing_to_run", "bytes_not_locked"])


# Scripts that run on installation


def test_attack_scripts_on_installation_never_run_and_are_reported(
    npm: Verdaccio, npm_user: User, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    scripts = dict.fromkeys(("preinstall", "install", "postinstall", "prepare"), f"touch {mark}")
    npm.publish(*npm_library("scripted-below", says="below", scripts=scripts))
    npm.publish(*npm_server("scripted", says="above", needs={"scripted-below": "1.0.0"}, scripts=scripts))
    npm_user.configure(notes="npx -y scripted@1.0.0")
    npm_user.lock()
    report = npm_user.prove()
    assert report["servers"][0]["scripts"] == ["scripted", "scripted-below"]
    assert codes(report) == ["install_scripts", "install_script_left_out", "install_script_left_out"]
    assert npm_user.without_store().run("fetch", "--frozen").code == 0
    assert started(npm_user) == "above; below"
    assert npm_user.run("update").code == 0
    assert not mark.exists()


# Manifest confusion


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hidden-script", {"scripts": {}}),
        ("hidden-dependency", {"dependencies": {}}),
        ("hidden-program", {"bin": {"hidden-program": "other.js"}}),
    ],
)
def test_attack_a_registry_s_document_that_hides_what_is_in_the_tarball_is_refused(
    npm: Verdaccio, npm_user: User, name: str, expected: dict[str, Any]
) -> None:
    """A registry takes both from the publisher and compares nothing."""
    npm.publish(*npm_library(f"{name}-needs", says="below"))
    manifest, data = npm_server(
        name, says="above", needs={f"{name}-needs": "1.0.0"}, scripts={"postinstall": "node index.js"}
    )
    npm.publish({**manifest, **expected}, data)
    npm_user.configure(notes=f"npx -y {name}@1.0.0")
    npm_user.lock()
    locked = npm_user.lock_bytes()
    code, report = npm_user.ask("prove")
    assert (code, report["servers"]) == (1, [])
    assert "npm_manifest_mismatch" in codes(report)
    assert npm_user.lock_bytes() == locked


# Who published it, and what the client starts after an update


def test_attack_a_registry_that_rewrites_who_published_the_locked_release_does_not_hide_the_new_publisher(
    npm: Verdaccio, npm_user: User
) -> None:
    server = "io.github.acme/postmark"
    for version, publisher in (("1.0.0", "alice"), ("1.0.1", "mallory")):
        manifest, data = npm_server("rewritten-publisher", version, says=version)
        npm.publish({**manifest, "_npmUser": {"name": publisher}}, data)
        if version == "1.0.0":
            offer(npm_user, "rewritten-publisher", version)
            assert npm_user.run("add", server, "--by", "me").code == 0
            npm_user.prove()
    path = npm.packument_path(manifest)
    document = json.loads(path.read_bytes())
    document["versions"]["1.0.0"]["_npmUser"] = {"name": "mallory"}
    path.write_text(json.dumps(document))
    offer(npm_user, "rewritten-publisher", "1.0.0", "1.0.1")
    _, report = npm_user.ask("update")
    assert "publisher_changed" in {row["code"] for row in report["changes"]}
    code, failures = npm_user.gate()
    assert (code, set(failures)) == (1, {"publisher_changed"})
    changed = failures["publisher_changed"]
    assert (changed["before"], changed["after"]) == ("alice", "mallory")


def test_a_confirmed_update_reaches_the_client_and_stays_enforced(npm: Verdaccio, npm_user: User) -> None:
    server = "io.github.acme/postmark"
    for version in ("1.0.0", "1.0.1", "1.0.2"):
        npm.publish(*npm_server("followed", version, says=version))
    offer(npm_user, "followed", "1.0.0")
    assert npm_user.run("add", server, "--enforce", "--by", "me").code == 0
    config = npm_user.root / ".mcp.json"
    offer(npm_user, "followed", "1.0.0", "1.0.1")
    assert npm_user.run("update", "--yes", "--by", "me").code == 0
    entry = json.loads(config.read_text())["mcpServers"][server]
    assert (entry["command"], entry["args"][0]) == ("pinwarden", "run")
    assert (npm_user.ask("ci")[0], npm_user.run("fetch").code, started(npm_user, server)) == (0, 0, "1.0.1")

    # A configuration that the user changed is not overwritten.
    document = json.loads(config.read_text())
    document["mcpServers"][server]["args"] = ["run", "something-else"]
    config.write_text(json.dumps(document))
    before = config.read_bytes()
    offer(npm_user, "followed", "1.0.0", "1.0.2")
    code, report = npm_user.ask("update", "--yes", "--by", "me")
    assert (code, [row["name"] for row in report["configs"]]) == (1, [server])
    assert config.read_bytes() == before


def test_a_variable_that_is_added_and_accepted_leaves_bytes_and_command_locked(npm: Verdaccio, npm_user: User) -> None:
    server = "io.github.acme/postmark"
    npm.publish(*npm_server("kept", "1.0.0", says="kept"))
    offer(npm_user, "kept", "1.0.0")
    assert npm_user.run("add", server, "--enforce", "--by", "me").code == 0
    config = npm_user.root / ".mcp.json"
    document = json.loads(config.read_text())
    document["mcpServers"][server]["env"] = {"LEVEL": "${LEVEL}"}
    config.write_text(json.dumps(document))
    assert npm_user.run("init", "--accept", server, "--by", "me").code == 0
    assert (npm_user.ask("ci")[0], npm_user.run("fetch").code, started(npm_user, server)) == (0, 0, "kept")


def test_the_users_values_and_switches_survive_an_update() -> None:
    mine = {"command": "npx", "args": ["a@1"], "env": {"KEY": "s3cret", "OLD": "x"}, "disabled": True}
    approved = {"command": "npx", "args": ["a@2"], "env": {"KEY": "${KEY}", "NEW": "${NEW}"}}
    assert replace_launch(mine, approved) == {
        "command": "npx",
        "args": ["a@2"],
        "env": {"KEY": "s3cret", "NEW": "${NEW}"},
        "disabled": True,
    }
    address = {"type": "http", "url": "https://mcp.example.com/"}
    assert replace_launch(mine, address) == {**address, "env": mine["env"], "disabled": True}


# Newer releases of what a configuration names


def mcp_json(user: User) -> Any:
    return json.loads((user.root / ".mcp.json").read_text())["mcpServers"]


def test_a_newer_release_of_a_configured_npm_server_is_shown_and_locked_only_with_yes(
    npm: Verdaccio, npm_user: User
) -> None:
    npm.publish(*npm_server("configured-news", "1.0.0", says="old"))
    manifest, data = npm_server("configured-news", "1.2.0", says="new")
    npm.publish({**manifest, "_npmUser": {"name": "alice"}}, data)
    notes = {
        "command": "npx",
        "args": ["-y", "configured-news@1.0.0", "--limit", "1.0.0"],
        "env": {"API_KEY": "mine"},
        "note": "my own words",
    }
    floats = {"command": "npx", "args": ["-y", "floating-news"]}
    local = {"command": "python3", "args": ["server.py"]}
    text = json.dumps({"mcpServers": {"notes": notes, "floats": floats, "local": local}})
    (npm_user.root / ".mcp.json").write_text(text)
    npm_user.lock()
    locked = npm_user.lock_bytes()

    code, report = npm_user.ask("update")
    assert (code, report["written"], report["unchecked"]) == (1, False, [])
    (output,) = report["updates"]
    assert output.pop("published_at").startswith("20")
    assert output == {
        "name": "notes",
        "client": "claude",
        "from": "1.0.0",
        "to": "1.2.0",
        "package": "configured-news",
        "publisher": "alice",
    }
    changes = {row["code"]: row for row in report["changes"]}
    assert set(changes) == {"newer_release", "selectedTarget_changes", "config_changes", "version_floats"}
    assert changes["newer_release"]["message"].startswith("1.0.0 is locked for claude, 1.2.0 is the latest, published")
    assert changes["newer_release"]["message"].endswith(" by alice")
    assert (changes["version_floats"]["name"], "floating-news@1.2.3" in changes["version_floats"]["message"]) == (
        "floats",
        True,
    )
    assert npm_user.ask("outdated")[1]["entries"] == [
        {
            "name": "notes",
            "client": "claude",
            "locked": "1.0.0",
            "latest": "1.2.0",
            "outdated": True,
            "problem": None,
        }
    ]
    assert npm_user.lock_bytes() == locked
    assert (npm_user.root / ".mcp.json").read_text() == text

    code, report = npm_user.ask("update", "--yes", "--by", "me")
    assert (code, report["written"]) == (0, True), report
    # Only the one word that says which release is started is another one.
    notes["args"] = ["-y", "configured-news@1.2.0", "--limit", "1.0.0"]
    assert mcp_json(npm_user) == {"notes": notes, "floats": floats, "local": local}
    assert npm_user.ask("ci")[0] == 0
    offline = npm_user.run("prove", "notes", "--offline")
    host = npm.url.split("/")[2]
    assert (offline.code, f"could not be downloaded ({host} not reached)" in offline.out) == (3, True)
    assert "mine" not in npm_user.lock_bytes()["mcp-lock.json"].decode()
    assert npm_user.ask("update")[1]["updates"] == []


def test_an_enforced_server_stays_enforced_after_an_update(npm: Verdaccio, npm_user: User) -> None:
    npm.publish(*npm_server("enforced-news", "1.0.0", says="old"))
    npm_user.locked(notes="npx -y enforced-news@1.0.0")
    assert npm_user.run("enforce", "--yes").code == 0
    before = mcp_json(npm_user)
    manifest, data = npm_server("enforced-news", "1.0.1", says="new")
    npm.publish({**manifest, "_npmUser": {"name": "mallory"}}, data)

    code, report = npm_user.ask("update")
    assert (code, report["written"]) == (1, False)
    assert "publisher_changed" in {row["code"] for row in report["changes"]}
    assert started(npm_user) == "old"
    code, report = npm_user.ask("update", "--yes", "--by", "me")
    assert (code, report.get("configs"), report["written"]) == (0, None, True), report
    assert mcp_json(npm_user) == before
    assert (npm_user.ask("ci")[0], npm_user.run("fetch").code, started(npm_user)) == (0, 0, "new")


def test_attack_a_configured_release_with_wrong_bytes_is_not_written_even_with_yes(
    npm: Verdaccio, npm_user: User
) -> None:
    npm.publish(*npm_server("lying-news", "1.0.0", says="approved"))
    npm_user.locked(notes="npx -y lying-news@1.0.0")
    locked, config = npm_user.lock_bytes(), mcp_json(npm_user)
    manifest, data = npm_server("lying-news", "1.0.1", says="new")
    npm.publish(manifest, data)
    npm.tarball_path(manifest).write_bytes(npm_server("lying-news", "1.0.1", says="evil")[1])
    code, report = npm_user.ask("update", "--yes", "--by", "me")
    assert (code, report["written"]) == (1, False)
    assert "npm_integrity_mismatch" in {row["code"] for row in report["changes"]}
    assert (npm_user.lock_bytes(), mcp_json(npm_user)) == (locked, config)


def test_attack_a_latest_version_that_is_a_path_is_not_requested(npm: Verdaccio, npm_user: User) -> None:
    manifest, data = npm_server("path-news", "1.0.0", says="approved")
    npm.publish(manifest, data)
    npm_user.configure(notes="npx -y path-news@1.0.0")
    npm_user.lock()
    locked = npm_user.lock_bytes()
    document = json.loads(npm.packument_path(manifest).read_bytes())
    document["dist-tags"]["latest"] = "9.0.0/../../evil"
    document["versions"]["9.0.0/../../evil"] = document["versions"]["1.0.0"] | {"version": "9.0.0/../../evil"}
    with scripted() as liar:
        liar.answer = lambda _: Reply(body=json.dumps(document).encode(), headers={"content-type": "application/json"})
        (npm_user.home / ".npmrc").write_text(f"registry=http://{liar.host}/\n")
        code, report = npm_user.ask("update", "--yes", "--by", "me")
        assert [request.path for request in liar.asked] == ["/path-news"]
    assert (code, report["written"], report["updates"]) == (3, False, [])
    assert [row["name"] for row in report["unchecked"]] == ["notes"]
    assert npm_user.lock_bytes() == locked


def test_the_lock_is_not_updated_if_the_clients_file_cannot_be_edited(npm: Verdaccio, npm_user: User) -> None:
    npm.publish(*npm_server("agents-news", "1.0.0", says="old"))
    agent = npm_user.root / ".claude" / "agents" / "helper.md"
    agent.parent.mkdir(parents=True)
    text = "---\nname: helper\nmcpServers:\n- notes: {command: npx, args: [-y, agents-news@1.0.0]}\n---\nHelp.\n"
    agent.write_text(text)
    npm_user.lock()
    npm_user.prove()
    locked = npm_user.lock_bytes()
    npm.publish(*npm_server("agents-news", "1.0.1", says="new"))
    left = ".claude/agents/helper.md describes an agent in Markdown; edit it by hand"
    enforced = npm_user.run("enforce", "--yes")
    assert (enforced.code, left in enforced.out) == (1, True), enforced
    code, report = npm_user.ask("update", "--yes", "--by", "me")
    assert (code, report["written"]) == (1, False)
    assert report["configs"] == [{"name": "notes", "message": f"claude: {left}; nothing was changed"}]
    assert (npm_user.lock_bytes(), agent.read_text(), npm_user.ask("ci")[0]) == (locked, text, 0)


def test_a_package_missing_from_its_registry_is_not_reported_as_latest(user: User) -> None:
    with scripted() as empty:
        (user.home / ".npmrc").write_text(f"registry=http://{empty.host}/\n")
        user.configure(notes="npx -y taken-away@1.0.0")
        user.lock()
        why = "its registry lists no release of taken-away"
        code, report = user.ask("outdated")
        assert (code, [entry["problem"] for entry in report["entries"]]) == (3, [why])
        code, report = user.ask("update")
        assert (code, report["unchecked"]) == (3, [{"name": "notes", "message": why}])


def test_unreachable_registries_are_reported_per_server_and_the_lock_stays(user: User) -> None:
    with scripted() as gone:
        unreachable = gone.host
    (user.home / ".npmrc").write_text(f"registry=http://{unreachable}/\n")
    user.variables["UV_DEFAULT_INDEX"] = f"http://{unreachable}/simple/"
    user.configure(one="npx -y one@1.0.0", two="uvx two@1.0", three=f"docker run -i --rm {unreachable}/three:1.0")
    user.lock()
    locked = user.lock_bytes()
    for more in (("--allow-private",), ("--offline", "--yes", "--by", "me")):
        code, report = user.ask("update", *more)
        assert (code, sorted(row["name"] for row in report["unchecked"])) == (3, ["one", "three", "two"])
        assert (report["updates"], report["written"]) == ([], False)
    assert user.ask("outdated", "--offline")[0] == 3
    assert user.lock_bytes() == locked

    proved = user.run("prove", "--allow-private")
    assert proved.code == 3
    output = (
        f"the bytes of 3 servers could not be downloaded ({unreachable} not reached), "
        "and their lock entries are unchanged"
    )
    assert output in proved.out.splitlines()
    assert user.lock_bytes() == locked


def test_a_newer_release_of_a_configured_python_server_is_shown_and_written(wheels: Path, pip_user: User) -> None:
    for version in ("1.0", "1.10", "2.0rc1"):
        (wheels / wheel_name("configured-py", version)).write_bytes(
            python_server("configured-py", version, says=version)
        )
    pip_user.locked(notes="uvx --from configured-py==1.0 configured-py")
    code, report = pip_user.ask("update")
    assert (code, [(row["from"], row["to"]) for row in report["updates"]]) == (1, [("1.0", "1.10")])
    assert pip_user.run("update", "--yes", "--by", "me").code == 0
    assert mcp_json(pip_user)["notes"]["args"] == ["--from", "configured-py==1.10", "configured-py"]
    assert pip_user.ask("ci")[0] == 0
    refused = pip_user.run("run", "notes")
    assert (refused.code, "[BYTES_NOT_LOCKED]" in refused.err) == (1, True)


@needs_registry
def test_a_newer_tag_of_a_configured_image_is_shown_and_written_with_its_digest(
    oci: DockerRegistry, user: User
) -> None:
    old, new = images.image("tag old"), images.image("tag new")
    for tag, built in (("1.9", old), ("1.10", new), ("2", new), ("1.11-alpine", new), ("latest", new)):
        images.push(oci, "acme/news", tag, built)
    name = f"{oci.host}/acme/news"
    user.configure(
        tagged=f"docker run -i --rm {name}:1.9",
        pinned=f"docker run -i --rm {name}:1.9@{old.digest}",
        any=f"docker run {name}",
    )
    user.lock()
    code, report = user.ask("update", "--allow-private", "--yes", "--by", "me")
    assert (code, report["written"]) == (0, True), report
    assert {row["name"]: (row["from"], row["to"]) for row in report["updates"]} == dict.fromkeys(
        ("tagged", "pinned"), ("1.9", "1.10")
    )
    assert [row["name"] for row in report["changes"] if row["code"] == "version_floats"] == ["any"]
    assert mcp_json(user)["tagged"]["args"][-1] == f"{name}:1.10"
    assert mcp_json(user)["pinned"]["args"][-1] == f"{name}:1.10@{new.digest}"
    assert user.ask("ci")[0] == 0


def test_a_configuration_that_differs_from_the_approved_one_is_not_overwritten(npm: Verdaccio, npm_user: User) -> None:
    for version in ("1.0.0", "1.0.1"):
        npm.publish(*npm_server("touched-news", version, says=version))
    npm_user.configure(notes="npx -y touched-news@1.0.0")
    npm_user.lock()
    locked = npm_user.lock_bytes()
    npm_user.configure(notes="npx -y touched-news@1.0.0 --other")
    config = mcp_json(npm_user)
    code, report = npm_user.ask("update", "--yes", "--by", "me")
    assert (code, report["written"], [row["name"] for row in report["configs"]]) == (1, False, ["notes"])
    assert (npm_user.lock_bytes(), mcp_json(npm_user)) == (locked, config)


def test_an_update_edits_the_file_that_configures_the_server(npm: Verdaccio, npm_user: User) -> None:
    """Claude Code keeps servers of single projects in the user's own file; a copy at its top would be for all."""
    for version in ("1.0.0", "1.0.1"):
        npm.publish(*npm_server("placed-news", version, says=version))
    entry = {"type": "stdio", "command": "npx", "args": ["-y", "placed-news@1.0.0"]}
    document = {"projects": {str(folder): {"mcpServers": {"notes": entry}} for folder in ("/other", npm_user.root)}}
    (npm_user.home / ".claude.json").write_text(json.dumps(document))
    npm_user.lock()

    def kept() -> Any:
        return json.loads((npm_user.home / ".claude.json").read_text())

    assert npm_user.ask("update", "--yes", "--by", "me")[0] == 0
    document["projects"][str(npm_user.root)] = {"mcpServers": {"notes": {**entry, "args": ["-y", "placed-news@1.0.1"]}}}
    assert kept() == document
    assert npm_user.ask("ci")[0] == 0
    npm_user.prove()
    assert npm_user.run("enforce", "--yes").code == 0
    configuration = kept()
    started_by = configuration["projects"][str(npm_user.root)]["mcpServers"]["notes"]
    assert (Path(started_by["command"]).name, started_by["args"][:2]) == ("pinwarden", ["run", "notes"])
    assert (configuration["projects"]["/other"], set(configuration)) == (document["projects"]["/other"], {"projects"})
