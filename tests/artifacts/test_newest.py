"""Which release is the newest, and how a command names another one."""

from __future__ import annotations

from typing import Any

import pytest

from pinwarden.artifacts.newest_release import (
    choose_npm_release,
    choose_python_release,
    choose_tag,
    is_newer_tag,
    is_release_tag,
)
from pinwarden.artifacts.npm_package import parse_name
from pinwarden.artifacts.pypi_index import ReleaseFile
from pinwarden.clients.package_arguments import PackageArgument, find_package_argument, replace_package_argument
from pinwarden.core.errors import PinwardenError
from pinwarden.system.target import StdioTarget

TAGS = ["1.9", "1.10", "1.11-alpine", "2", "v3.0", "latest", "sha-9999999", "pr-12"]


@pytest.mark.parametrize(
    ("locked", "newest"),
    [("1.9", "1.10"), ("1.10-alpine", "1.11-alpine"), ("1", "2"), ("v2.0", "v3.0"), ("4.0.0", None), ("latest", None)],
)
def test_only_tags_that_are_built_alike_are_compared(locked: str, newest: str | None) -> None:
    assert choose_tag(TAGS, locked) == newest


def test_a_commit_tag_is_not_a_release() -> None:
    assert [tag for tag in TAGS if is_release_tag(tag)] == ["1.9", "1.10", "1.11-alpine", "2", "v3.0"]
    assert (is_newer_tag("1.10", "1.9"), is_newer_tag("1.9", "1.9"), is_newer_tag("1.8", "1.9")) == (True, False, False)


def test_previews_and_yanked_releases_are_not_the_newest_of_a_python_package() -> None:
    files = [
        ReleaseFile(name=f"{name}", url="https://files.example/x", yanked=yanked)
        for name, yanked in (
            ("acme_notes-1.2-py3-none-any.whl", None),
            ("acme-notes-1.10.tar.gz", None),
            ("acme_notes-2.0rc1-py3-none-any.whl", None),
            ("acme_notes-9.0-py3-none-any.whl", "broken"),
            ("other-10.0.tar.gz", None),
        )
    ]
    final, preview = (
        choose_python_release(files, "Acme.Notes", "1.2"),
        choose_python_release(files, "acme-notes", "2.0b1"),
    )
    assert (final and final.version, preview and preview.version) == ("1.10", "2.0rc1")
    assert choose_python_release(files[3:], "acme-notes", "1.2") is None


@pytest.mark.parametrize("latest", ["9.0.0", "../evil", 7])
def test_attack_a_tag_latest_without_a_release_is_an_error(latest: Any) -> None:
    document = {"name": "notes", "dist-tags": {"latest": latest}, "versions": {}}
    with pytest.raises(PinwardenError) as refused:
        choose_npm_release(document, parse_name("notes"))
    assert refused.value.code in ("FETCH_FAILED", "PACKAGE_INVALID")


@pytest.mark.parametrize(
    ("command", "version", "word"),
    [
        ("npx -y notes@1.0.0 --limit 1.0.0", "1.1.0", ("notes@1.0.0", "notes@1.1.0")),
        (
            "npx --package=@acme/notes@1.0.0 notes",
            "1.1.0",
            ("--package=@acme/notes@1.0.0", "--package=@acme/notes@1.1.0"),
        ),
        ("cmd /c npx notes@v1.0.0", "1.1.0", ("notes@v1.0.0", "notes@1.1.0")),
        ("uvx --from notes[cli]==1.0 notes", "1.1", ("notes[cli]==1.0", "notes[cli]==1.1")),
        ("uvx notes@1.0", "1.1", ("notes@1.0", "notes@1.1")),
        ("docker run -i ghcr.io/acme/notes:1.0 1.0", "1.1", ("ghcr.io/acme/notes:1.0", "ghcr.io/acme/notes:1.1")),
        ("npx mcp-remote@1.0.0 https://example.com/mcp", "1.1.0", ("mcp-remote@1.0.0", "mcp-remote@1.1.0")),
        ("python3 server.py 1.0", "1.1", None),
    ],
)
def test_only_the_word_that_names_the_release_is_replaced(
    command: str, version: str, word: tuple[str, str] | None
) -> None:
    found = find_package_argument(StdioTarget(command=tuple(command.split())), version, None)
    assert (None if found is None else (found.old, found.new)) == word


def test_an_argument_is_replaced_only_where_the_command_has_it() -> None:
    first = PackageArgument(index=1, old="a@1", new="a@2")
    assert replace_package_argument({"command": "npx", "args": ["a@1", "a@1"]}, first) == {
        "command": "npx",
        "args": ["a@2", "a@1"],
    }
    assert replace_package_argument({"command": "npx a@1"}, first) is None
    assert replace_package_argument({"command": "npx", "args": ["b@1"]}, first) is None
    line = PackageArgument(index=0, old="npx a@1", new="npx a@2")
    assert replace_package_argument({"command": "npx a@1"}, line) == {"command": "npx a@2"}
    assert replace_package_argument({"command": ["npx", "a@1"], "env": {"A": "a@1"}}, first) == {
        "command": ["npx", "a@2"],
        "env": {"A": "a@1"},
    }
    assert replace_package_argument({"command": {"path": "npx", "args": ["a@1"]}}, first) == {
        "command": {"path": "npx", "args": ["a@2"]}
    }
