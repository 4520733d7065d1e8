"""uv as a resolver: one index, no settings, nothing built, and no credential where others can read it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import socket
import stat
import sys
from base64 import b64encode
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from packaging.markers import default_environment
from packaging.tags import sys_tags

from pinwarden.artifacts.endpoints.pypi import find_indexes
from pinwarden.artifacts.pylock import PylockDistribution, PylockPackage, parse_pylock
from pinwarden.artifacts.python_package import choose_best_wheel, is_marker_satisfied
from pinwarden.artifacts.resolvers import find_uv, read_uv_version, resolve_python
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.system.net.connections import Origin, ServiceEndpoint, SettingsSources
from tests.servers.plain_http import Asked, Said, files, plain_server
from tests.support.needs import missing
from tests.support.wheels import make_wheel, package_index, wheel_name

SECRET = "hunter2-hunter2"
BASIC = "Basic " + b64encode(f"me:{SECRET}".encode()).decode()


def variables() -> dict[str, str]:
    """The environment without anything that names an index."""
    kept = ("PATH", "HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")
    return {name: os.environ[name] for name in kept if name in os.environ}


def uv() -> Path:
    try:
        return find_uv(variables())
    except PinwardenError:
        missing("uv", "pip install uv")


def run(url: str, name: str = "acme-notes", version: str = "1.0", **more: Any) -> bytes:
    index = ServiceEndpoint(url=url, configured_by="environment", authorization=more.pop("authorization", None))
    return resolve_python(name, version, index, **{"uv": uv(), "variables": variables(), "timeout": 240.0, **more})


def test_uv_resolves_a_package_with_its_dependencies(tmp_path: Path) -> None:
    notes = make_wheel("acme-notes", "1.0", headers=("Requires-Dist: acme-base>=2",))
    base = make_wheel("acme-base", "2.5")
    (tmp_path / wheel_name("acme-notes", "1.0")).write_bytes(notes)
    (tmp_path / wheel_name("acme-base", "2.5")).write_bytes(base)
    with package_index(tmp_path) as url:
        lock = parse_pylock(run(url))
    place = url.removesuffix("simple/") + "packages/"

    def package(name: str, version: str, data: bytes) -> PylockPackage:
        file = wheel_name(name, version)
        wheel = PylockDistribution(name=file, url=place + file, sha256=Digest.of_bytes(data))
        return PylockPackage(name=name, version=version, wheels=(wheel,))

    assert lock.packages == (package("acme-base", "2.5", base), package("acme-notes", "1.0", notes))


def test_the_credential_reaches_the_index_and_no_other_setting_counts(tmp_path: Path) -> None:
    name = wheel_name("acme-notes", "1.0")
    data = make_wheel("acme-notes", "1.0")
    link = f'<a href="/files/{name}#sha256={Digest.of_bytes(data).hex}" data-core-metadata="true">{name}</a>'
    known = files(
        {
            "/simple/acme-notes/": Said(body=link.encode(), headers={"content-type": "text/html"}),
            f"/files/{name}.metadata": b"Metadata-Version: 2.1\nName: acme-notes\nVersion: 1.0\n",
        }
    )

    def answer(asked: Asked) -> Said:
        if asked.headers.get("authorization") != BASIC:
            return Said(status=401, headers={"www-authenticate": "Basic"})
        return known(asked)

    (tmp_path / ".config" / "uv").mkdir(parents=True)
    (tmp_path / ".config" / "uv" / "uv.toml").write_text('index-url = "https://evil.invalid/simple"\n')
    hostile = {**variables(), "HOME": str(tmp_path), "UV_INDEX": "https://evil.invalid/simple", "UV_NO_BUILD": "0"}
    with plain_server(answer) as server:
        lock = parse_pylock(run(f"{server.url}simple/", authorization=BASIC, variables=hostile))
    assert [package.name for package in lock.packages] == ["acme-notes"]


def test_attack_a_package_that_has_only_source_is_not_built(tmp_path: Path) -> None:
    """Building runs the package's own code; here it would leave a file behind."""
    (tmp_path / "acme_notes-1.0.tar.gz").write_bytes(b"whatever is in here is never opened")
    with package_index(tmp_path) as url, pytest.raises(PinwardenError) as caught:
        run(url)
    assert caught.value.code == "RESOLVER_FAILED"


def test_the_credential_is_neither_on_the_command_line_nor_in_the_error(tmp_path: Path) -> None:
    """Another program stands in for uv: it tells how it was called and fails with the password on its lips."""
    spy = tmp_path / "uv"
    spy.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys\n"
        f"open({str(tmp_path / 'seen.json')!r}, 'w').write(json.dumps([sys.argv, dict(os.environ), os.listdir()]))\n"
        f"sys.exit('wrong password {SECRET} or {BASIC}')\n"
    )
    spy.chmod(spy.stat().st_mode | stat.S_IXUSR)
    given = {**variables(), "UV_PUBLISH_TOKEN": "keep-me", "AWS_SECRET_ACCESS_KEY": "keep-me", "PIP_INDEX_URL": "x"}
    with pytest.raises(PinwardenError) as caught:
        run("https://localhost/simple/", authorization=BASIC, uv=spy, variables=given)
    arguments, environment, folder = json.loads((tmp_path / "seen.json").read_text())
    assert SECRET not in " ".join(arguments)
    assert "localhost" not in " ".join(arguments)
    assert environment["UV_INDEX_PINWARDEN_PASSWORD"] == SECRET
    assert not {"UV_PUBLISH_TOKEN", "AWS_SECRET_ACCESS_KEY", "PIP_INDEX_URL"} & set(environment)
    assert folder == ["requirements.in"]
    assert caught.value.code == "RESOLVER_FAILED"
    assert caught.value.data == {"stderr": "wrong password *** or ***\n"}


def test_a_resolver_that_never_ends_is_ended(tmp_path: Path) -> None:
    sleeper = tmp_path / "uv"
    sleeper.write_text(f"#!{sys.executable}\nimport signal\nsignal.pause()\n")
    sleeper.chmod(0o755)
    with pytest.raises(PinwardenError) as caught:
        run("https://localhost/simple/", uv=sleeper, timeout=0.5)
    assert caught.value.code == "RESOLVER_FAILED"


@pytest.mark.parametrize(
    ("url", "configured_by", "code"),
    [
        ("https://127.0.0.1:9/simple/", "project", "ADDRESS_REFUSED"),
        ("http://192.0.2.1/simple/", "environment", "ADDRESS_REFUSED"),
        ("https://nowhere.invalid/simple/", "environment", "FETCH_FAILED"),
    ],
)
def test_attack_uv_is_not_sent_where_our_own_client_would_not_go(url: str, configured_by: Origin, code: str) -> None:
    """A repository that names an index inside the user's network, and an index over plain HTTP."""
    with pytest.raises(PinwardenError) as caught:
        resolve_python(
            "notes", "1.0", ServiceEndpoint(url=url, configured_by=configured_by), uv=Path("/nowhere/uv"), variables={}
        )
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("name", "version", "python"),
    [
        ("--index-url=https://evil.example", "1.0", None),
        ("notes @ https://evil.example/x.whl #", "1.0", None),
        ("notes", "1.0\n--index-url https://evil.example", None),
        ("notes", ">=1", None),
        ("notes", "1.0", "3.11 --no-index"),
    ],
)
def test_attack_a_name_or_version_cannot_smuggle_an_option(name: str, version: str, python: str | None) -> None:
    with pytest.raises(PinwardenError) as caught:
        run("https://main.example/simple/", name, version, uv=Path("/nowhere/uv"), python_version=python)
    assert caught.value.code == "PACKAGE_INVALID"


def test_uv_is_found_on_the_search_path_or_beside_us(tmp_path: Path) -> None:
    program = tmp_path / "uv"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_uv({"PATH": str(tmp_path)}) == program
    if find_spec("uv") is not None:
        assert find_uv({"PATH": ""}).is_file()
        assert read_uv_version(find_uv({}), variables()).startswith("uv ")


def test_without_uv_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uv", None)
    with pytest.raises(PinwardenError) as caught:
        find_uv({"PATH": ""})
    assert (caught.value.code, caught.value.exit_code) == ("RESOLVER_MISSING", 3)
    assert "install uv" in caught.value.hint


def test_a_real_server_resolves_to_wheels_for_this_machine(tmp_path: Path) -> None:
    index = find_indexes(SettingsSources(home=tmp_path, project=None), system=tmp_path).main
    place = urlsplit(index.url)
    try:
        socket.create_connection((place.hostname or "", place.port or 443), timeout=60).close()
    except OSError:
        pytest.skip("the default index is not reachable; run: connect this machine to the package registries")
    version = importlib.metadata.version("mcp-server-time")
    lock = parse_pylock(resolve_python("mcp-server-time", version, index, uv=uv(), variables=variables()))
    environment = {name: str(value) for name, value in default_environment().items()}
    names = {each.name: each.version for each in lock.packages if is_marker_satisfied(each.marker, environment)}
    assert names["mcp-server-time"] == version
    assert {"mcp", "pydantic"} <= set(names)
    for package in lock.packages:
        if package.name in names:
            assert choose_best_wheel([wheel.name for wheel in package.wheels], list(sys_tags())) is not None
