"""Bundle files taken apart, manifests of bundles, and what is filled into their start commands."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwarden.artifacts.mcpb_manifest import (
    MAX_SIGNATURE,
    BundleManifest,
    FilledStartCommand,
    McpbParts,
    SettingValues,
    fill_start_command,
    parse_manifest,
    split_signature,
)
from pinwarden.core.errors import PinwardenError
from tests.support.bundles import FOOTER, HEADER, block, manifest


def parts_of(data: bytes) -> McpbParts:
    return split_signature(len(data), lambda offset, size: data[offset : offset + size])


def read(**members: Any) -> BundleManifest:
    return parse_manifest(json.dumps(manifest(**members)).encode())


def server(kind: str = "node", entry: object = "server/index.js", **config: Any) -> dict[str, Any]:
    return {"type": kind, "entry_point": entry, "mcp_config": {"command": "node", **config}}


def refused(**members: Any) -> object:
    with pytest.raises(PinwardenError) as caught:
        read(**members)
    assert caught.value.code == "BUNDLE_INVALID"
    return caught.value.data.get("member")


class TestSplit:
    @given(st.binary(max_size=200), st.binary(max_size=200))
    def test_what_was_appended_is_what_comes_off(self, content: bytes, signature: bytes) -> None:
        if not any(mark in content + signature for mark in (HEADER, FOOTER, b"PK\x05\x06")):
            assert parts_of(content) == McpbParts(content_size=len(content), signature=None)
            assert parts_of(content + block(signature)) == McpbParts(content_size=len(content), signature=signature)

    def test_a_large_file_is_read_at_its_end_only(self) -> None:
        asked: list[tuple[int, int]] = []
        tail = block(b"signature")
        size = 200 * 1024 * 1024

        def at(offset: int, count: int) -> bytes:
            asked.append((offset, count))
            return (bytes(count) + tail)[-count:]

        assert split_signature(size, at) == McpbParts(content_size=size - len(tail), signature=b"signature")
        assert sum(count for _, count in asked) < 2 * MAX_SIGNATURE

    def test_attack_a_signature_larger_than_any_is_refused(self) -> None:
        with pytest.raises(PinwardenError) as caught:
            parts_of(block(bytes(MAX_SIGNATURE + 1)))
        assert caught.value.code == "BUNDLE_INVALID"

    def test_attack_a_file_that_shrinks_while_it_is_read_is_refused(self) -> None:
        with pytest.raises(PinwardenError) as caught:
            split_signature(100, lambda *_: b"")
        assert caught.value.code == "BUNDLE_INVALID"

    @given(st.lists(st.sampled_from([HEADER, FOOTER, b"\x0c\0\0\0", b"\0\0\0\0", b"PK\x05\x06", b"x"]), max_size=12))
    def test_attack_signature_marks_in_any_order_have_one_interpretation_or_are_refused(
        self, pieces: list[bytes]
    ) -> None:
        data = b"".join(pieces)
        try:
            found = parts_of(data)
        except PinwardenError as err:
            assert err.code == "BUNDLE_INVALID"
            return
        if found.signature is None:
            assert (found.content_size, data.endswith(FOOTER)) == (len(data), False)
        else:
            assert data == data[: found.content_size] + block(found.signature)
            assert data.rindex(HEADER) == found.content_size


class TestManifest:
    def test_a_manifest_is_parsed_and_unknown_members_are_kept(self) -> None:
        found = read(
            manifest_version="0.4",
            tools=[{"name": "note", "description": "Writes"}],
            prompts=[{"name": "ask", "arguments": ["topic"], "text": "About ${arguments.topic}"}],
            user_config={"key": {"type": "string", "title": "Key", "description": "", "sensitive": True}},
            compatibility={"platforms": ["linux"], "other_client": ">=1"},
            repository={"type": "git", "url": "https://git.example/notes"},
            _meta={"x": {}},
        )
        assert (found.name, found.version, found.author, found.kind) == ("acme-notes", "1.0.0", "Acme", "node")
        assert (found.entry_point, found.platforms) == ("server/index.js", ("linux",))
        assert [(each.name, each.description) for each in found.tools] == [("note", "Writes")]
        assert found.prompts[0].arguments == ("topic",)
        assert (found.settings["key"].sensitive, found.settings["key"].required) == (True, False)
        assert found.repository == "https://git.example/notes"
        assert found.document["_meta"] == {"x": {}}

    def test_the_old_name_of_the_version_counts(self) -> None:
        found = parse_manifest(json.dumps({**manifest(), "manifest_version": None, "dxt_version": "0.1"}).encode())
        assert found.manifest_version == "0.1"

    @pytest.mark.parametrize("version", ["0.5", "1.0", 0.3, None, ""])
    def test_other_versions_are_not_guessed_at(self, version: object) -> None:
        assert refused(manifest_version=version) == "manifest_version"

    def test_attack_two_versions_for_two_readers(self) -> None:
        assert refused(dxt_version="0.1") == "manifest_version"

    def test_attack_a_member_twice(self) -> None:
        text = json.dumps(manifest()).replace('"name": "acme-notes"', '"name": "acme-notes", "name": "evil"')
        with pytest.raises(PinwardenError) as caught:
            parse_manifest(text.encode())
        assert caught.value.code == "BUNDLE_INVALID"

    @pytest.mark.parametrize(
        "entry",
        [
            "../x",
            "/x",
            "a/../../x",
            "a/..",
            "C:/x",
            "C:x",
            "a\\b",
            "a\0b",
            "a\nb",
            "",
            ".",
            "./",
            "a//b",
            7,
            None,
            ["a"],
        ],
    )
    def test_attack_an_entry_point_outside(self, entry: object) -> None:
        assert refused(server=server(entry=entry)) == "server.entry_point"

    @pytest.mark.parametrize(
        ("config", "member"),
        [
            ({"command": ""}, "server.mcp_config.command"),
            ({"command": "a\0b"}, "server.mcp_config.command"),
            ({"args": "x"}, "server.mcp_config.args"),
            ({"args": [1]}, "server.mcp_config.args"),
            ({"args": ["a\0"]}, "server.mcp_config.args"),
            ({"env": []}, "server.mcp_config.env"),
            ({"env": {"A=B": ""}}, "server.mcp_config.env"),
            ({"env": {"": ""}}, "server.mcp_config.env"),
            ({"env": {"A": 1}}, "server.mcp_config.env.A"),
            ({"platform_overrides": {"linux": []}}, "server.mcp_config.platform_overrides.linux"),
            ({"platform_overrides": {"linux": {"args": "x"}}}, "server.mcp_config.platform_overrides.linux.args"),
        ],
    )
    def test_attack_hostile_start_commands(self, config: dict[str, Any], member: str) -> None:
        assert refused(server=server(**config)) == member

    def test_uv_is_of_version_0_4(self) -> None:
        assert refused(server=server("uv")) == "server.type"
        assert read(manifest_version="0.4", server={"type": "uv", "entry_point": "main.py"}).start is None
        assert refused(server={"type": "node", "entry_point": "main.js"}) == "server.mcp_config"

    @pytest.mark.parametrize(
        "members",
        [
            {"name": ""},
            {"version": None},
            {"author": "me"},
            {"server": None},
            {"tools": {}},
            {"tools": [{}]},
            {"user_config": {"a b": {}}},
            {"user_config": {"a": {"type": "password", "title": "", "description": ""}}},
            {"user_config": {"a": {"type": "string", "title": "", "description": "", "sensitive": "no"}}},
            {"compatibility": {"platforms": "linux"}},
        ],
    )
    def test_members_of_the_wrong_kind_are_refused(self, members: dict[str, Any]) -> None:
        refused(**members)

    def test_a_platform_has_its_own_parts_and_the_rest_of_the_others(self) -> None:
        found = read(
            server=server(
                args=["a"], env={"A": "1"}, platform_overrides={"win32": {"command": "node.exe"}, "linux": {"args": []}}
            )
        )
        assert (found.get_start("win32").command, found.get_start("win32").args) == ("node.exe", ("a",))
        assert (found.get_start("linux").command, found.get_start("linux").args) == ("node", ())
        assert found.get_start("darwin") == found.start


def setting(kind: str = "string", **more: Any) -> dict[str, Any]:
    return {"type": kind, "title": "T", "description": "", **more}


class TestFilling:
    def filled(self, config: dict[str, Any], settings: dict[str, Any], given: SettingValues) -> FilledStartCommand:
        found = read(server=server(**config), user_config=settings)
        return fill_start_command(
            found.get_start("linux"), found, given, {"__dirname": "/bundle", "HOME": "/home/me", "/": "/"}
        )

    def failure(self, config: dict[str, Any], settings: dict[str, Any], given: SettingValues) -> tuple[str, object]:
        with pytest.raises(PinwardenError) as caught:
            self.filled(config, settings, given)
        return caught.value.code, caught.value.data["variable"]

    def test_placeholders_become_values(self) -> None:
        config = {"args": ["${__dirname}${/}a", "${user_config.n}", "${user_config.yes}"], "env": {"H": "${HOME}/x"}}
        settings = {"n": setting("number", default=10), "yes": setting("boolean", default=True)}
        found = self.filled(config, settings, {})
        assert found == FilledStartCommand(command="node", args=("/bundle/a", "10", "true"), env={"H": "/home/me/x"})

    def test_an_optional_setting_without_value_is_left_out(self) -> None:
        config = {"args": ["a", "${user_config.key}"], "env": {"KEY": "${user_config.key}", "B": "b"}}
        found = self.filled(config, {"key": setting()}, {})
        assert (found.args, found.env) == (("a",), {"B": "b"})
        assert self.failure({"args": ["--k=${user_config.key}"]}, {"key": setting()}, {}) == ("VARIABLE_MISSING", "key")

    def test_attack_a_value_is_not_read_as_a_placeholder_again(self) -> None:
        config = {"args": ["${user_config.a}", "${user_config.b}"]}
        settings = {"a": setting(), "b": setting(sensitive=True)}
        found = self.filled(config, settings, {"a": "${user_config.b}", "b": "s3cret"})
        assert found.args == ("${user_config.b}", "s3cret")
        assert "s3cret" not in repr(found)

    def test_several_values_become_several_arguments_and_nothing_else(self) -> None:
        many = {"dirs": setting("directory", multiple=True)}
        assert self.filled({"args": ["${user_config.dirs}"]}, many, {"dirs": ("/a", "/b")}).args == ("/a", "/b")
        assert self.failure({"args": ["x${user_config.dirs}"]}, many, {"dirs": ("/a",)})[0] == "VARIABLE_MISSING"
        one = {"dirs": setting("directory")}
        assert self.failure({"args": []}, one, {"dirs": ("/a", "/b")}) == ("VARIABLE_MISSING", "dirs")

    @pytest.mark.parametrize(
        ("row", "value"),
        [
            (setting("boolean"), "yes"),
            (setting("number"), "many"),
            (setting("number"), "nan"),
            (setting("number", min=1, max=5), "6"),
            (setting("number", min=1, max=5), "0"),
            (setting(), "a\0b"),
            (setting(required=True), ""),
        ],
    )
    def test_values_that_do_not_fit_are_refused(self, row: dict[str, Any], value: str) -> None:
        assert self.failure({"args": []}, {"it": row}, {"it": value}) == ("VARIABLE_MISSING", "it")

    def test_unknown_placeholders_are_refused(self) -> None:
        assert self.failure({"args": ["${SECRET}"]}, {}, {}) == ("VARIABLE_MISSING", "SECRET")
        assert self.failure({"args": []}, {}, {"other": "x"}) == ("VARIABLE_MISSING", "other")
