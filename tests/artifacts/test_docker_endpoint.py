"""Where an image reference leads, and which credential of docker or podman goes along."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from pinwarden import PinwardenError
from pinwarden.artifacts.endpoints.docker import HelperLimits, find_registry_endpoint
from pinwarden.artifacts.oci_reference import parse_reference
from pinwarden.artifacts.oci_registry import OciRegistry
from pinwarden.system.net.connections import Origin, ServiceEndpoint, SettingsSources
from pinwarden.system.net.fetch import Fetcher, FetchLimits, FetchRules
from tests.support.registries import scripted

SECRET = "s3cr3t:with colon"


def basic(user: str = "alice", secret: str = SECRET) -> str:
    return "Basic " + base64.b64encode(f"{user}:{secret}".encode()).decode()


def auth(user: str = "alice", secret: str = SECRET) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{secret}".encode()).decode()}


def write(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def settings(home: Path, **variables: str) -> SettingsSources:
    return SettingsSources(home=home, project=None, variables=variables)


def found(reference: str, where: SettingsSources, configured_by: Origin = "argument") -> ServiceEndpoint:
    return find_registry_endpoint(parse_reference(reference), where, configured_by=configured_by)


def refused(reference: str, where: SettingsSources) -> PinwardenError:
    with pytest.raises(PinwardenError) as caught:
        found(reference, where)
    assert SECRET not in str(caught.value) + repr(caught.value.data) + repr(caught.value.__cause__)
    return caught.value


def helper(home: Path, name: str, script: str) -> str:
    """A credential helper in the user's own folder; the search path that has it."""
    path = write(home / "bin" / f"docker-credential-{name}", f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return f"{home / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin"


@pytest.mark.parametrize(
    ("reference", "url"),
    [
        ("alpine", "https://registry-1.docker.io/v2/"),
        ("index.docker.io/a/b", "https://registry-1.docker.io/v2/"),
        ("ghcr.io/a/b", "https://ghcr.io/v2/"),
        ("registry.example.com:5000/a/b", "https://registry.example.com:5000/v2/"),
        ("10.0.0.1:5000/a/b", "https://10.0.0.1:5000/v2/"),
        ("localhost:5000/a", "http://localhost:5000/v2/"),
        ("127.0.0.1/a", "http://127.0.0.1/v2/"),
        ("[::1]:5000/a", "http://[::1]:5000/v2/"),
        ("localhost:443/a", "https://localhost:443/v2/"),
    ],
)
def test_a_reference_resolves_to_the_registry_that_docker_uses(reference: str, url: str, tmp_path: Path) -> None:
    endpoint = found(reference, settings(tmp_path), "default")
    expected = ServiceEndpoint(url=url, configured_by="default", source=f"the image {parse_reference(reference)}")
    assert endpoint == expected


@pytest.mark.parametrize(
    ("key", "reference"),
    [
        ("ghcr.io", "ghcr.io/a/b"),
        ("https://ghcr.io/v2/", "ghcr.io/a/b"),
        ("http://127.0.0.1:5000", "127.0.0.1:5000/a"),
        ("https://index.docker.io/v1/", "alpine"),
        ("docker.io", "docker.io/a/b"),
        ("registry-1.docker.io", "a/b"),
    ],
)
def test_a_stored_credential_is_found_under_every_key_that_docker_writes(
    key: str, reference: str, tmp_path: Path
) -> None:
    file = write(tmp_path / ".docker" / "config.json", {"auths": {"example.com": auth("other"), key: auth()}})
    endpoint = found(reference, settings(tmp_path), "project")
    assert (endpoint.authorization, endpoint.configured_by, endpoint.source) == (basic(), "user", str(file))
    assert SECRET not in repr(endpoint)
    assert basic() not in repr(endpoint)


def test_attack_a_credential_is_not_found_for_a_host_or_port_that_only_resembles_its_own(tmp_path: Path) -> None:
    write(tmp_path / ".docker" / "config.json", {"auths": {"ghcr.io": auth(), "https://ghcr.io/v1/": auth()}})
    for reference in ("ghcr.io:8443/a", "ghcr.io.evil.net/a", "evil-ghcr.io/a", "a/ghcr.io", "ghcr.io.localhost/a"):
        assert found(reference, settings(tmp_path)).authorization is None


def test_an_identity_token_goes_before_a_password_and_is_marked_as_one(tmp_path: Path) -> None:
    entry = {**auth("ignored"), "identitytoken": SECRET}
    write(tmp_path / ".docker" / "config.json", {"auths": {"ghcr.io": entry}})
    assert found("ghcr.io/a/b", settings(tmp_path)).authorization == basic("<token>")


def test_the_settings_of_docker_and_podman_follow_the_environment(tmp_path: Path) -> None:
    files = {
        "REGISTRY_AUTH_FILE": tmp_path / "1" / "any.json",
        "DOCKER_CONFIG": tmp_path / "2" / "config.json",
        "XDG_RUNTIME_DIR": tmp_path / "3" / "containers" / "auth.json",
        "XDG_CONFIG_HOME": tmp_path / "4" / "containers" / "auth.json",
    }
    variables = {name: str(tmp_path / str(number)) for number, name in enumerate(files, 1)}
    variables["REGISTRY_AUTH_FILE"] = str(files["REGISTRY_AUTH_FILE"])
    for user, file in files.items():
        write(file, {"auths": {"ghcr.io": auth(user)}})
    for user, file in files.items():  # the first that is left is the one that counts
        assert found("ghcr.io/a/b", settings(tmp_path, **variables)).authorization == basic(user)
        file.unlink()
    assert found("ghcr.io/a/b", settings(tmp_path, **variables)).authorization is None


def test_podmans_credential_for_a_part_of_a_registry_goes_before_that_for_all_of_it(tmp_path: Path) -> None:
    entries = {"ghcr.io": auth("all"), "ghcr.io/a": auth("part"), "ghcr.io/a/b/c": auth("deeper")}
    write(tmp_path / ".config" / "containers" / "auth.json", {"auths": entries})
    where = settings(tmp_path)
    assert found("ghcr.io/a/b:1", where).authorization == basic("part")
    assert found("ghcr.io/a/b/c", where).authorization == basic("deeper")
    assert found("ghcr.io/ab/c", where).authorization == basic("all")


def test_a_credential_helper_gets_the_host_on_its_standard_input(tmp_path: Path) -> None:
    script = 'test "$1" = get && read -r host; printf \'{"Username":"%s","Secret":"x"}\' "$host"'
    path = helper(tmp_path, "lab", script)
    write(tmp_path / ".docker" / "config.json", {"credHelpers": {"ghcr.io": "lab"}, "credsStore": "lab"})
    where = settings(tmp_path, PATH=path)
    assert found("ghcr.io/a/b", where).authorization == basic("ghcr.io", "x")
    assert found("alpine", where).authorization == basic("https://index.docker.io/v1/", "x")


def test_a_helper_that_knows_nothing_leaves_the_request_without_credential(tmp_path: Path) -> None:
    path = helper(tmp_path, "lab", "echo credentials not found in native keychain; exit 1")
    write(tmp_path / ".docker" / "config.json", {"credHelpers": {"ghcr.io": "lab"}, "auths": {"ghcr.io": auth()}})
    endpoint = found("ghcr.io/a/b", settings(tmp_path, PATH=path), "project")
    assert (endpoint.authorization, endpoint.configured_by) == (None, "user")


@pytest.mark.parametrize(
    "script",
    [f"echo '{SECRET}'; exit 1", f"echo '{SECRET}'", "yes", "echo '{\"Secret\": 1}'", "kill -9 $$"],
    ids=["fails", "no JSON", "endless", "no text", "dies"],
)
def test_a_helper_that_fails_is_an_error_where_it_was_named_for_the_registry(script: str, tmp_path: Path) -> None:
    path = helper(tmp_path, "lab", script)
    write(tmp_path / ".docker" / "config.json", {"credHelpers": {"ghcr.io": "lab"}})
    assert refused("ghcr.io/a/b", settings(tmp_path, PATH=path)).code in ("FETCH_FAILED", "CONFIG_INVALID")
    # The store for all registries is asked about each of them; docker goes on without it.
    write(tmp_path / ".docker" / "config.json", {"credsStore": "lab", "auths": {"ghcr.io": auth()}})
    assert found("ghcr.io/a/b", settings(tmp_path, PATH=path)).authorization == basic()


def test_a_helper_that_hangs_is_ended_in_time(tmp_path: Path) -> None:
    path = helper(tmp_path, "lab", "sleep 60 & sleep 60")
    write(tmp_path / ".docker" / "config.json", {"credHelpers": {"ghcr.io": "lab"}})
    started = time.monotonic()
    with pytest.raises(PinwardenError) as caught:
        find_registry_endpoint(
            parse_reference("ghcr.io/a/b"),
            settings(tmp_path, PATH=path),
            configured_by="argument",
            limits=HelperLimits(seconds=0.2),
        )
    assert (caught.value.code, caught.value.data) == ("FETCH_FAILED", {"reason": "unauthorized"})
    assert time.monotonic() - started < 50


@pytest.mark.parametrize("name", ["../evil", "a/b", "a b", "-x", "", "x" * 65, "a\nb", 1, None])
def test_attack_a_helper_name_that_is_a_path_is_never_run(name: object, tmp_path: Path) -> None:
    write(tmp_path / ".docker" / "config.json", {"credHelpers": {"ghcr.io": name}})
    assert refused("ghcr.io/a/b", settings(tmp_path, PATH="/usr/bin")).code == "CONFIG_INVALID"


def test_attack_a_helper_is_not_looked_for_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper(tmp_path, "lab", f"touch {tmp_path / 'ran'}")
    (tmp_path / "bin" / "docker-credential-lab").rename(tmp_path / "docker-credential-lab")
    write(tmp_path / ".docker" / "config.json", {"credHelpers": {"ghcr.io": "lab"}})
    monkeypatch.chdir(tmp_path)
    for path in ("", ".", f"/usr/bin{os.pathsep}"):
        assert refused("ghcr.io/a/b", settings(tmp_path, PATH=path)).code == "FETCH_FAILED"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        f'{{"auths": {{"ghcr.io": {{"auth": "{SECRET}"}}}}}}',
        '{"auths": {"ghcr.io": {"auth": "YQ=="}}}',
        '{"auths": {"ghcr.io": []}}',
        '{"auths": {}, "auths": {}}',
        '{"credHelpers": []}',
        f'{{"x": "{SECRET}"',
    ],
)
def test_a_damaged_file_is_an_error_that_quotes_nothing_of_it(text: str, tmp_path: Path) -> None:
    write(tmp_path / ".docker" / "config.json", text)
    assert refused("ghcr.io/a/b", settings(tmp_path)).code == "CONFIG_INVALID"


def test_certificates_for_a_registry_are_used_and_make_it_speak_https(tmp_path: Path) -> None:
    file = write(tmp_path / ".config" / "containers" / "certs.d" / "localhost:5000" / "ca.crt", "x")
    endpoint = found("localhost:5000/a", settings(tmp_path))
    assert (endpoint.url, endpoint.ca_file) == ("https://localhost:5000/v2/", file)
    assert found("localhost:5001/a", settings(tmp_path)).ca_file is None


def test_attack_an_image_that_a_repository_names_does_not_reach_a_local_service(tmp_path: Path) -> None:
    fetcher = Fetcher(FetchRules(limits=FetchLimits(attempts=1)))
    with scripted() as server:
        reference = parse_reference(f"{server.host}/a/b:v1")
        endpoint = find_registry_endpoint(reference, settings(tmp_path), configured_by="project")
        with pytest.raises(PinwardenError) as caught:
            OciRegistry(reference, fetcher, endpoint).fetch_document(reference.tag_or_digest)
        assert (caught.value.code, caught.value.data) == ("ADDRESS_REFUSED", {"reason": "private"})
        assert server.asked == []
        endpoint = find_registry_endpoint(reference, settings(tmp_path), configured_by="argument")
        assert OciRegistry(reference, fetcher, endpoint).fetch_document(reference.tag_or_digest) is None
    fetcher.close()
