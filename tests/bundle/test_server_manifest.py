"""Manifests of source-mode servers, content hashes, and names that mean the same everywhere."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

import pytest

from pinwarden.artifacts.archives.rules import PathSet, check_portable
from pinwarden.artifacts.artifact import check_content_hash, parse_content_hash
from pinwarden.bundle.server_manifest import ServerManifest, parse_server_manifest
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError

JIRA: dict[str, Any] = {"name": "jira", "version": "1.0.0", "runtime": "bun", "entry": "src/index.ts"}


def read(**members: Any) -> ServerManifest:
    return parse_server_manifest(json.dumps({**JIRA, **members}).encode())


class TestServerManifest:
    def test_unknown_members_of_a_manifest_are_kept(self) -> None:
        manifest = read(
            name="@acme/deploy", description="Deploys", author="Acme", license="MIT", entry="./src/index.ts"
        )
        assert (manifest.name, manifest.version, manifest.runtime, manifest.entry) == (
            "@acme/deploy",
            "1.0.0",
            "bun",
            "src/index.ts",
        )
        assert (manifest.description, manifest.author, manifest.document["license"]) == ("Deploys", "Acme", "MIT")
        assert (read().description, read().author) == (None, None)

    @pytest.mark.parametrize(
        ("member", "value"),
        [
            ("name", ""),
            ("name", "../x"),
            ("name", "@acme"),
            ("name", "a/b"),
            ("name", "A"),
            ("name", "a" * 300),
            ("name", None),
            ("version", "1.0"),
            ("version", "^1.0.0"),
            ("version", "01.0.0"),
            ("version", "1.0.0-01"),
            ("version", "latest"),
            ("runtime", "sh"),
            ("runtime", ["bun"]),
            ("entry", "../x"),
            ("entry", "/x"),
            ("entry", "a\\b"),
            ("entry", "a\u0000"),
            ("entry", "nul"),
            ("entry", ""),
            ("description", 1),
            ("author", {"name": "x"}),
        ],
    )
    def test_attack_members_of_the_wrong_type_are_refused(self, member: str, value: object) -> None:
        with pytest.raises(PinwardenError) as caught:
            read(**{member: value})
        assert (caught.value.code, caught.value.data["member"]) == ("SERVER_ENTRY_INVALID", member)

    @pytest.mark.parametrize("text", [b"", b"[]", b'{"name": "a", "name": "b"}', b"\xff", b"name: jira"])
    def test_attack_ambiguous_json_is_refused(self, text: bytes) -> None:
        with pytest.raises(PinwardenError) as caught:
            parse_server_manifest(text)
        assert caught.value.code == "SERVER_ENTRY_INVALID"


class TestContentHash:
    def test_a_content_hash_has_one_spelling(self) -> None:
        digest = Digest.of_bytes(b"x")
        assert parse_content_hash(str(digest)) == digest
        for text in (str(digest).upper(), digest.sri, digest.hex, f"{digest}0", f" {digest}", f"{digest}\n", ""):
            with pytest.raises(PinwardenError) as caught:
                parse_content_hash(text)
            assert caught.value.code == "DIGEST_INVALID"

    def test_any_difference_in_the_content_hash_is_refused(self) -> None:
        actual, wanted = Digest.of_bytes(b"x"), Digest.of_bytes(b"y")
        check_content_hash(actual, actual, "a.tar")
        with pytest.raises(PinwardenError) as caught:
            check_content_hash(actual, wanted, "a.tar")
        assert (caught.value.code, caught.value.exit_code) == ("ARTIFACT_MISMATCH", 1)
        assert caught.value.data == {"found": str(actual), "wanted": str(wanted)}


class TestPaths:
    @pytest.mark.parametrize(
        ("first", "second"),
        [
            ("a", "a"),
            ("readme", "README"),
            ("Lib/a", "lib/b"),
            ("a", "a/b"),
            ("a/b", "a"),
            ("A/b", "a"),
            (unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")),
            ("straße", "STRASSE"),
            ("ſ", "S"),
        ],
    )
    def test_attack_two_names_of_one_file_are_refused(self, first: str, second: str) -> None:
        paths = PathSet()
        paths.add(first)
        with pytest.raises(PinwardenError, match=re.escape("the archive has")) as caught:
            paths.add(second)
        assert caught.value.code == "ARCHIVE_UNSAFE"

    def test_different_names_are_accepted(self) -> None:
        paths = PathSet()
        for path in ("a", "b/a", "b/b/a", "ab", "b/ab"):
            paths.add(path)

    @pytest.mark.parametrize(
        "path",
        ["", "a//b", ".", "a/..", "a/./b", "con", "NUL.txt", "a/COM1", "a:b", "a?b", "a ", "a.", "a\tb", "x" * 256],
    )
    def test_attack_unportable_names_are_refused(self, path: str) -> None:
        with pytest.raises(PinwardenError) as caught:
            check_portable(path)
        assert caught.value.code == "ARCHIVE_UNSAFE"

    @pytest.mark.parametrize("path", ["a", ".gitignore", "a/b.c", "ünï/cødé", "console", "a..b", "@scope/x"])
    def test_ordinary_names_pass(self, path: str) -> None:
        assert check_portable(path) == path
