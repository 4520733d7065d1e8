"""The index that pip's and uv's settings name, in the order in which they count."""

from __future__ import annotations

import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from packageurl.contrib.purl2url import get_repo_url

from pinwarden.artifacts.endpoints.pypi import (
    PackageIndexes,
    PythonInstaller,
    find_indexes,
    get_index_parent,
    get_json_api_url,
)
from pinwarden.core.errors import PinwardenError
from pinwarden.system.net.connections import ServiceEndpoint, SettingsSources

SECRET = "hunter2-hunter2"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    return made


def look(home: Path, project: Path | None = None, /, **variables: str) -> PackageIndexes:
    settings = SettingsSources(home=home, project=project, variables=variables)
    return find_indexes(settings, system=home.parent / "system")


def look_as(client: PythonInstaller, home: Path, variables: Mapping[str, str]) -> ServiceEndpoint:
    settings = SettingsSources(home=home, project=None, variables=variables)
    return find_indexes(settings, installer=client, system=home.parent / "system").main


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def basic(pair: str) -> str:
    return "Basic " + b64encode(pair.encode()).decode()


def test_without_settings_the_default_comes_from_the_table_of_package_addresses(home: Path) -> None:
    found = look(home)
    default = urlsplit(str(get_repo_url("pkg:pypi/anything")))  # type: ignore[no-untyped-call]
    expected = ServiceEndpoint(
        url=f"{default.scheme}://{default.netloc}/simple/", configured_by="default", source="the default of pip and uv"
    )
    assert found == PackageIndexes(main=expected)
    assert get_json_api_url(found.main) == f"{default.scheme}://{default.netloc}/pypi/"


def test_the_setting_with_the_highest_precedence_wins(home: Path) -> None:
    """Each layer is added under the one before, from the weakest to the strongest."""
    project, venv = home.parent / "project", home.parent / "venv"
    system = home.parent / "system"

    def main(**variables: str) -> tuple[str, str]:
        found = look(home, project, VIRTUAL_ENV=str(venv), **variables).main
        return found.url, found.configured_by

    pip = "[global]\nindex-url = https://{}.example/simple\n"
    write(system / "etc" / "pip.conf", pip.format("system"))
    assert main() == ("https://system.example/simple/", "system")
    write(home / ".pip" / "pip.conf", pip.format("legacy"))
    assert main() == ("https://legacy.example/simple/", "user")
    write(home / ".config" / "pip" / "pip.conf", pip.format("user"))
    assert main() == ("https://user.example/simple/", "user")
    write(venv / "pip.conf", pip.format("site"))
    assert main() == ("https://site.example/simple/", "user")
    own = write(home.parent / "own.conf", pip.format("own"))
    assert main(PIP_CONFIG_FILE=str(own)) == ("https://own.example/simple/", "user")
    pip_said = {"PIP_CONFIG_FILE": str(own), "PIP_INDEX_URL": "https://variable.example/simple/"}
    assert main(**pip_said) == ("https://variable.example/simple/", "environment")
    write(system / "etc" / "uv" / "uv.toml", 'index-url = "https://uv-system.example/simple"\n')
    assert main(**pip_said) == ("https://uv-system.example/simple/", "system")
    write(home / ".config" / "uv" / "uv.toml", '[[index]]\nurl = "https://uv-user.example/simple"\ndefault = true\n')
    assert main(**pip_said) == ("https://uv-user.example/simple/", "user")
    write(project / "pyproject.toml", '[tool.uv]\nindex-url = "https://uv-project.example/simple"\n')
    assert main(**pip_said) == ("https://uv-project.example/simple/", "project")
    write(project / "uv.toml", 'index-url = "https://uv-own.example/simple"\n')
    assert main(**pip_said) == ("https://uv-own.example/simple/", "project")
    uv_said = {**pip_said, "UV_INDEX_URL": "https://old.example/simple"}
    assert main(**uv_said) == ("https://old.example/simple/", "environment")
    assert main(**uv_said, UV_DEFAULT_INDEX="https://new.example/simple") == (
        "https://new.example/simple/",
        "environment",
    )


def test_pip_reads_the_same_file_as_we_do(home: Path) -> None:
    """pip itself is the judge over which of several files counts."""
    for place, name in ((home / ".pip", "legacy"), (home / ".config" / "pip", "user")):
        write(place / "pip.conf", f"[global]\nindex_url = https://{name}.example/simple/\n")
    write(home / ".config" / "pip" / "pip.conf", "[install]\nindex-url = https://install.example/simple/\n")
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
    command = [sys.executable, "-m", "pip", "config", "get", "install.index-url"]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    assert look_as("pip", home, {}).url == said == "https://install.example/simple/"


def test_the_settings_of_one_client_can_be_read_alone(home: Path) -> None:
    variables = {"UV_DEFAULT_INDEX": "https://uv.example/simple", "PIP_INDEX_URL": "https://pip.example/simple"}
    clients: tuple[PythonInstaller, ...] = ("uv", "pip", "any")
    assert [look_as(client, home, variables).url for client in clients] == [
        "https://uv.example/simple/",
        "https://pip.example/simple/",
        "https://uv.example/simple/",
    ]


def test_attack_extra_indexes_are_separate_from_the_main_one(home: Path) -> None:
    """Dependency confusion: a name that only the company has can come from any of them."""
    write(
        home / ".config" / "pip" / "pip.conf",
        "[global]\nextra-index-url =\n  https://a.example/s\n  https://b.example/s\n",
    )
    found = look(
        home, PIP_INDEX_URL="https://main.example/simple", UV_INDEX="corp=https://c.example/s https://a.example/s/"
    )
    assert found.main.url == "https://main.example/simple/"
    assert [each.url for each in found.extra] == [
        "https://c.example/s/",
        "https://a.example/s/",
        "https://b.example/s/",
    ]


def test_folders_and_links_are_noted_and_not_used(home: Path) -> None:
    write(home / ".config" / "pip" / "pip.conf", "[global]\nindex-url = file:///srv/simple\nfind-links = /srv/wheels\n")
    found = look(home)
    source = home / ".config" / "pip" / "pip.conf"
    assert found.main.configured_by == "default"
    assert found.notes == (
        f"{source} names an index that is not an http(s) URL; the index is ignored",
        f"{source} sets find-links; Pinwarden ignores this setting",
    )


def test_the_null_device_turns_pip_files_off(home: Path) -> None:
    write(home / ".config" / "pip" / "pip.conf", "[global]\nindex-url = https://user.example/simple\n")
    assert look(home, PIP_CONFIG_FILE=os.devnull).main.configured_by == "default"


@pytest.mark.parametrize("variable", ["PIP_CONFIG_FILE", "UV_CONFIG_FILE"])
def test_missing_settings_files_from_the_environment_are_an_error(home: Path, variable: str) -> None:
    with pytest.raises(PinwardenError) as caught:
        look_as("any", home, {variable: str(home / "nothing")})
    assert caught.value.code == "FILE_UNREADABLE"


def test_certificates_come_from_the_settings(home: Path) -> None:
    write(home / ".config" / "pip" / "pip.conf", "[global]\ncert = /srv/pip.pem\n")
    assert look(home).main.ca_file == Path("/srv/pip.pem")
    assert look(home, PIP_CERT="/srv/variable.pem").main.ca_file == Path("/srv/variable.pem")
    assert look_as("uv", home, {"SSL_CERT_FILE": "/srv/ssl.pem"}).ca_file == Path("/srv/ssl.pem")


# Credentials


def test_a_credential_in_the_address_moves_out_of_it(home: Path) -> None:
    found = look(home, PIP_INDEX_URL=f"https://us%40er:{SECRET}@main.example/simple")
    assert found.main.url == "https://main.example/simple/"
    assert found.main.authorization == basic(f"us@er:{SECRET}")
    assert SECRET not in repr(found)


def test_netrc_gives_the_credential_of_its_host_only(home: Path) -> None:
    write(home / ".netrc", f"machine main.example login me password {SECRET}\ndefault login any password thing\n")
    (home / ".netrc").chmod(0o600)
    found = look(home, PIP_INDEX_URL="https://main.example/simple", PIP_EXTRA_INDEX_URL="https://other.example/simple")
    assert found.main.authorization == basic(f"me:{SECRET}")
    assert found.extra[0].authorization is None


def test_uv_finds_a_credential_by_the_name_of_the_index(home: Path) -> None:
    found = look(
        home,
        UV_DEFAULT_INDEX="my-corp=https://main.example/simple",
        UV_INDEX_MY_CORP_USERNAME="me",
        UV_INDEX_MY_CORP_PASSWORD=SECRET,
    )
    assert found.main.authorization == basic(f"me:{SECRET}")


def test_attack_a_repository_that_names_an_index_does_not_get_the_password_of_that_name(home: Path) -> None:
    text = '[[tool.uv.index]]\nname = "corp"\nurl = "https://evil.example/simple"\ndefault = true\n'
    source = write(home.parent / "project" / "pyproject.toml", text)
    found = look(home, source.parent, UV_INDEX_CORP_USERNAME="me", UV_INDEX_CORP_PASSWORD=SECRET)
    assert (found.main.url, found.main.configured_by) == ("https://evil.example/simple/", "project")
    assert (found.main.authorization, found.main.private_allowed) == (None, False)
    assert found.notes == (f"UV_INDEX_CORP_PASSWORD is not sent to the index 'corp', because {source} names it",)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (".config/pip/pip.conf", f"[global]\nindex-url = https://me:{SECRET}@[broken/simple\n"),
        (".config/pip/pip.conf", f"[global]\nindex-url = https://me:{SECRET}@host/simple?x=1\n"),
        (".config/pip/pip.conf", f"index-url = https://me:{SECRET}@host/simple\n"),
        (".config/uv/uv.toml", f'index-url = "https://me:{SECRET}@host/simple\n'),
        (".config/uv/uv.toml", "[[index]]\nname = 'x'\n"),
    ],
)
def test_unreadable_settings_are_an_error_without_secrets(home: Path, path: str, text: str) -> None:
    write(home / path, text)
    with pytest.raises(PinwardenError) as caught:
        look(home)
    assert caught.value.code == "CONFIG_INVALID"
    assert SECRET not in f"{caught.value.message} {caught.value.data}"


# Where an index has its files


@pytest.mark.parametrize(
    ("url", "above", "json"),
    [
        ("https://h.example/simple/", "https://h.example/", "https://h.example/pypi/"),
        (
            "https://h.example/repository/py/simple/",
            "https://h.example/repository/py/",
            "https://h.example/repository/py/pypi/",
        ),
        ("https://h.example/root/dev/+simple/", "https://h.example/root/dev/", None),
        ("https://h.example/", "https://h.example/", None),
    ],
)
def test_files_and_other_apis_are_below_the_parent_url(url: str, above: str, json: str | None) -> None:
    index = ServiceEndpoint(url=url, configured_by="user")
    assert (get_index_parent(index).url, get_json_api_url(index)) == (above, json)


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("https://main.example/simple/", True),
        ("http://main.example/simple/", False),
        ("https://main.example:8443/simple/", False),
    ],
)
def test_attack_a_stored_password_is_not_sent_over_plain_http_or_to_another_port_that_a_repository_names(
    home: Path, url: str, sent: bool
) -> None:
    write(home / ".netrc", f"machine main.example login me password {SECRET}\n").chmod(0o600)
    project = write(home.parent / "project" / "uv.toml", f'index-url = "{url}"\n').parent
    assert look(home, project).main.authorization == (basic(f"me:{SECRET}") if sent else None)
    assert look(home, UV_DEFAULT_INDEX=url).main.authorization == basic(f"me:{SECRET}")
