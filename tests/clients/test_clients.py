"""Client configurations on disk: every file found, and edits that touch one server and nothing else."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pinwarden import PinwardenError
from pinwarden.clients import files as clients
from pinwarden.clients.config import ConfigFile
from pinwarden.clients.files import discover_configs, list_installation_paths
from pinwarden.clients.jsonc import parse_jsonc, put_value, remove_value
from pinwarden.clients.table import CLIENTS, SYSTEMS, System
from pinwarden.clients.toml_text import put_table, read_toml, remove_table
from pinwarden.clients.yaml_text import put_list_item, read_yaml, remove_list_item
from pinwarden.system.files import read_file
from tests.support.client_files import install_entry, remove_entry

ENTRY = {"command": "npx", "args": ["-y", "notes@1.0.0"], "env": {}}
HOSTILE = [
    'quote" : {"command": "evil"}, "x',
    "back\\slash",
    "line\nbreak\r\n[mcp_servers.evil]\ncommand = 'x'",
    "\u202eevil\u200b",
    "__proto__",
    "a.b.c",
    "a/b~c",
    "# comment",
    "- dash: x",
    "'''",
    "\U0001f600",
    "é",
    " ",
    "*/ // /*",
]


def fragment(name: str, root: str = "mcpServers", entry: Any = None) -> dict[str, Any]:
    return {root: {name: entry or ENTRY}}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


# ---- finding -------------------------------------------------------------------------------------------------------


class World:
    def __init__(self, folder: Path) -> None:
        self.project = folder / "project"
        self.home = folder / "home"
        self.root = folder / "root"
        for path in (self.project, self.home, self.root):
            path.mkdir()

    def discover_configs(self, system: System = "linux", env: dict[str, str] | None = None) -> list[ConfigFile]:
        return discover_configs(self.project, self.home, system, env or {}, root=self.root)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def under(*root: str) -> str:
    document: Any = {"x": {"command": "c"}}
    for member in reversed(root):
        document = {member: document}
    return json.dumps(document)


SERVERS = under("mcpServers")
LISTED = "mcpServers:\n- name: x\n  command: c\n"
LISTED_JSON = '{"mcpServers": [{"name": "x", "command": "c"}]}'
CONTAINER = ("customizations", "vscode", "mcp", "servers")
MAC = "Library/Application Support"
WINDOWS = "AppData/Roaming"
CLINE = "Code/User/globalStorage/saoudrizwan.claude-dev/settings"


class TestDiscover:
    @pytest.mark.parametrize(
        "row",
        [
            ("linux", "project/.mcp.json", SERVERS, "claude", "project"),
            ("linux", "home/.claude.json", SERVERS, "claude", "global"),
            ("linux", "root/etc/claude-code/managed-mcp.json", SERVERS, "claude", "global"),
            ("linux", "home/.config/Claude/claude_desktop_config.json", SERVERS, "claude-desktop", "global"),
            ("mac", f"home/{MAC}/Claude/claude_desktop_config.json", SERVERS, "claude-desktop", "global"),
            ("windows", f"home/{WINDOWS}/Claude/claude_desktop_config.json", SERVERS, "claude-desktop", "global"),
            ("linux", "project/.cursor/mcp.json", SERVERS, "cursor", "project"),
            ("linux", "home/.cursor/mcp.json", SERVERS, "cursor", "global"),
            ("linux", "project/.vscode/mcp.json", under("servers"), "vscode", "project"),
            ("linux", "project/.vscode/settings.json", under("mcp", "servers"), "vscode", "project"),
            ("linux", "home/.config/Code/User/mcp.json", under("servers"), "vscode", "global"),
            ("mac", f"home/{MAC}/Code/User/mcp.json", under("servers"), "vscode", "global"),
            ("windows", f"home/{WINDOWS}/Code/User/mcp.json", under("servers"), "vscode", "global"),
            ("linux", "project/.codex/config.toml", '[mcp_servers.x]\ncommand = "c"', "codex", "project"),
            ("linux", "home/.codex/config.toml", '[mcp_servers.x]\ncommand = "c"', "codex", "global"),
            ("linux", "project/opencode.jsonc", under("mcp") + " // y", "opencode", "project"),
            ("linux", "home/.config/opencode/opencode.json", under("mcp"), "opencode", "global"),
            ("linux", "home/.codeium/windsurf/mcp_config.json", SERVERS, "windsurf", "global"),
            ("linux", "home/.cline/mcp.json", SERVERS, "cline", "global"),
            ("linux", f"home/.config/{CLINE}/cline_mcp_settings.json", SERVERS, "cline", "global"),
            ("mac", f"home/{MAC}/{CLINE}/cline_mcp_settings.json", SERVERS, "cline", "global"),
            ("linux", "home/.continue/config.yaml", LISTED, "continue", "global"),
            ("linux", "project/.continue/mcpServers/notes.yaml", LISTED, "continue", "project"),
            ("linux", "project/.continue/mcpServers/notes.json", SERVERS, "continue", "project"),
            ("linux", "project/.gemini/settings.json", SERVERS, "gemini", "project"),
            ("linux", "home/.gemini/settings.json", SERVERS, "gemini", "global"),
            ("linux", "home/.config/zed/settings.json", under("context_servers"), "zed", "global"),
            ("windows", f"home/{WINDOWS}/Zed/settings.json", under("context_servers"), "zed", "global"),
            ("linux", "project/.roo/mcp.json", SERVERS, "roo", "project"),
            ("linux", "home/.config/toolpin/generic-mcp.json", SERVERS, "generic", "global"),
            ("linux", "project/.devcontainer/devcontainer.json", under(*CONTAINER), "vscode", "project"),
            ("linux", "project/.devcontainer.json", under(*CONTAINER) + " // comment", "vscode", "project"),
            ("linux", "project/.devcontainer/gpu/devcontainer.json", under(*CONTAINER), "vscode", "project"),
            ("linux", "project/team.code-workspace", under("settings", "mcp", "servers"), "vscode", "project"),
            ("linux", "project/.vscode/settings.json", under("mcp.servers"), "vscode", "project"),
            ("linux", "home/.config/Code/User/profiles/5552b383/mcp.json", under("servers"), "vscode", "global"),
            ("mac", f"home/{MAC}/Code/User/profiles/5552b383/mcp.json", under("servers"), "vscode", "global"),
            ("linux", "project/.kiro/settings/mcp.json", SERVERS, "kiro", "project"),
            ("linux", "home/.kiro/settings/mcp.json", SERVERS, "kiro", "global"),
            ("linux", "project/.kiro/agents/reviewer.json", SERVERS, "kiro", "project"),
            ("linux", "project/.amazonq/mcp.json", SERVERS, "amazon-q", "project"),
            ("linux", "project/.amazonq/default.json", SERVERS, "amazon-q", "project"),
            ("linux", "project/.amazonq/cli-agents/a.json", SERVERS, "amazon-q", "project"),
            ("linux", "home/.aws/amazonq/mcp.json", SERVERS, "amazon-q", "global"),
            ("linux", "home/.aws/amazonq/agents/default.json", SERVERS, "amazon-q", "global"),
            ("windows", "home/.aws/amazonq/cli-agents/a.json", SERVERS, "amazon-q", "global"),
            ("linux", "project/.junie/mcp/mcp.json", SERVERS, "junie", "project"),
            ("linux", "home/.junie/mcp/mcp.json", SERVERS, "junie", "global"),
            ("linux", "project/.gemini/extensions/ext/gemini-extension.json", SERVERS, "gemini", "project"),
            ("linux", "home/.gemini/extensions/ext/gemini-extension.json", SERVERS, "gemini", "global"),
            ("linux", "project/.continue/config.yaml", LISTED, "continue", "project"),
            ("linux", "project/.continue/config.yml", LISTED, "continue", "project"),
            ("linux", "project/.continue/config.json", LISTED_JSON, "continue", "project"),
            ("linux", "home/.continue/config.json", LISTED_JSON, "continue", "global"),
            ("linux", "home/.continue/mcpServers/notes.yml", LISTED, "continue", "global"),
            ("linux", "project/.continue/mcpServers/x.json", '{"command": "c"}', "continue", "project"),
            ("linux", "project/.github/mcp.json", SERVERS, "copilot-cli", "project"),
            ("linux", "home/.copilot/mcp-config.json", SERVERS, "copilot-cli", "global"),
        ],
        ids=lambda row: f"{row[0]}-{row[1]}",
    )
    def test_a_server_is_found_where_its_client_keeps_it(self, tmp_path: Path, world: World, row: Any) -> None:
        system, where, text, client, scope = row
        write(tmp_path / where, text)
        [file] = world.discover_configs(system)
        assert (file.client, file.scope, file.path, file.fault) == (client, scope, str(tmp_path / where), None)
        assert [server.name for server in file.servers] == ["x"]

    @pytest.mark.parametrize(
        "row",
        [
            ("APPDATA", "windows", "Claude/claude_desktop_config.json", "claude-desktop"),
            ("XDG_CONFIG_HOME", "linux", "opencode/opencode.json", "opencode"),
            ("CODEX_HOME", "linux", "config.toml", "codex"),
            ("CLAUDE_CONFIG_DIR", "linux", ".claude.json", "claude"),
            ("COPILOT_HOME", "linux", "mcp-config.json", "copilot-cli"),
            ("CONTINUE_GLOBAL_DIR", "linux", "config.yaml", "continue"),
        ],
    )
    def test_a_variable_moves_a_folder(self, tmp_path: Path, world: World, row: Any) -> None:
        variable, system, inside, client = row
        write(tmp_path / "moved" / inside, "")
        [file] = world.discover_configs(system, {variable: str(tmp_path / "moved")})
        assert file.client == client
        assert world.discover_configs(system, {variable: "moved"}) == []  # relative folders are ignored

    def test_nothing_is_found_on_an_empty_machine(self, world: World) -> None:
        for system in SYSTEMS:
            assert world.discover_configs(system) == []

    def test_a_file_of_two_clients_is_listed_once(self, world: World) -> None:
        write(world.project / ".mcp.json", SERVERS)
        assert [file.client for file in world.discover_configs()] == ["claude"]

    def test_settings_are_found_though_they_hold_no_servers(self, world: World) -> None:
        write(world.project / ".claude/settings.json", '{"enableAllProjectMcpServers": true}')
        [file] = world.discover_configs()
        assert (file.settings, file.servers, file.document) == (True, (), {"enableAllProjectMcpServers": True})

    def test_broken_unreadable_and_oversized_files_do_not_hide_the_others(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(clients, "MAX_CONFIG_BYTES", 100)
        write(world.project / ".mcp.json", '{"mcpServers": {')
        write(world.project / ".cursor/mcp.json", "{" + " " * 100 + "}")
        (world.project / ".roo/mcp.json").mkdir(parents=True)
        (world.project / ".gemini").mkdir()
        (world.project / ".gemini/settings.json").symlink_to(world.project / "nowhere")
        write(world.project / ".vscode/mcp.json", '{"servers": {"x": {"command": "c"}}}')
        faults = {file.client: file.fault for file in world.discover_configs()}
        assert faults == {
            "claude": "invalid",
            "cursor": "unreadable",
            "roo": "unreadable",
            "gemini": "unreadable",
            "vscode": None,
        }

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
    def test_a_named_pipe_does_not_make_discovery_hang(self, world: World) -> None:
        os.mkfifo(world.project / ".mcp.json")
        assert [file.fault for file in world.discover_configs()] == ["unreadable"]

    def test_a_link_is_read_and_reported(self, tmp_path: Path, world: World) -> None:
        write(tmp_path / "elsewhere.json", SERVERS)
        (world.project / ".mcp.json").symlink_to(tmp_path / "elsewhere.json")
        write(tmp_path / "folder/mcp.json", SERVERS)
        (world.project / ".cursor").symlink_to(tmp_path / "folder")
        assert [(file.client, file.link, len(file.servers)) for file in world.discover_configs()] == [
            ("claude", str(tmp_path / "elsewhere.json"), 1),
            ("cursor", str(tmp_path / "folder/mcp.json"), 1),
        ]

    def test_a_folder_that_cannot_be_listed_hides_no_configuration(self, world: World) -> None:
        (world.project / ".continue").mkdir()
        (world.project / ".continue/mcpServers").symlink_to("mcpServers")
        faults = {(file.client, file.fault) for file in world.discover_configs()}
        assert faults == {("continue", "unreadable")}

    def test_every_extension_of_gemini_is_found_and_one_without_a_manifest_is_none(self, world: World) -> None:
        for name in ("b", "a"):
            write(world.home / f".gemini/extensions/{name}/gemini-extension.json", SERVERS)
        (world.home / ".gemini/extensions/empty").mkdir()
        write(world.home / ".gemini/extensions/file.txt", "")
        folders = [Path(file.path).parent.name for file in world.discover_configs()]
        assert folders == ["a", "b"]

    def test_a_folder_of_extensions_that_cannot_be_listed_is_a_fault(self, world: World) -> None:
        (world.project / ".gemini").mkdir()
        (world.project / ".gemini/extensions").symlink_to("extensions")
        [file] = world.discover_configs()
        assert (file.client, file.fault) == ("gemini", "unreadable")

    def test_more_extensions_than_are_read_is_a_fault(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(clients, "MAX_FILES_PER_LOCATION", 1)
        for name in "ab":
            write(world.project / f".gemini/extensions/{name}/gemini-extension.json", "{}")
        assert [(Path(file.path).parent.name, file.fault) for file in world.discover_configs()] == [
            ("a", None),
            ("*", "unreadable"),
        ]

    @pytest.mark.parametrize(
        "where",
        [".DevContainer/DevContainer.json", "team.CODE-WORKSPACE", ".Gemini/Extensions/x/Gemini-Extension.json"],
    )
    def test_another_spelling_that_some_file_systems_take_for_the_same_is_found(self, world: World, where: str) -> None:
        write(world.project / where, "{}")
        assert [file.path for file in world.discover_configs()] == [str(world.project / where)]

    def test_more_files_than_are_read_is_a_fault(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(clients, "MAX_FILES_PER_LOCATION", 2)
        for name in "abc":
            write(world.project / f".continue/mcpServers/{name}.json", "{}")
        assert [(Path(file.path).name, file.fault) for file in world.discover_configs()] == [
            ("a.json", None),
            ("b.json", None),
            ("*.json", "unreadable"),
        ]

    def test_a_link_that_leads_to_itself_is_a_fault(self, world: World) -> None:
        (world.project / ".mcp.json").symlink_to(world.project / ".mcp.json")
        [file] = world.discover_configs()
        assert file.fault == "unreadable"
        assert file.link is not None


def test_the_installation_paths_are_toolpins(world: World) -> None:
    paths = list_installation_paths(world.project, world.home, "linux", {})
    assert paths["claude", "project"] == str(world.project / ".mcp.json")
    assert paths["vscode", "global"] == str(world.home / ".config/Code/User/mcp.json")
    assert paths["continue", "global"] == str(world.home / ".continue/config.yaml")
    assert ("claude", "global") not in paths
    assert ("zed", "project") not in paths


# ---- editing files -------------------------------------------------------------------------------------------------


class TestEditing:
    def test_a_new_file_is_created_with_its_folder(self, tmp_path: Path) -> None:
        path = tmp_path / ".cursor/mcp.json"
        assert install_entry(path, "cursor", "notes", fragment("notes")) == "created"
        assert json.loads(path.read_text()) == fragment("notes")

    def test_installing_what_is_there_changes_nothing(self, tmp_path: Path) -> None:
        path = write(tmp_path / "mcp.json", '{ "mcpServers" : {"notes":{"args":["-y","notes@1.0.0"],"command":"npx"}}}')
        before = (path.read_bytes(), path.stat().st_mtime_ns)
        assert install_entry(path, "cursor", "notes", fragment("notes")) == "unchanged"
        assert (path.read_bytes(), path.stat().st_mtime_ns) == before

    def test_the_mode_of_the_file_is_kept(self, tmp_path: Path) -> None:
        path = write(tmp_path / "mcp.json", "{}")
        path.chmod(0o600)
        install_entry(path, "cursor", "notes", fragment("notes"))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_removing_what_is_not_there_is_said_and_changes_nothing(self, tmp_path: Path) -> None:
        path = write(tmp_path / "mcp.json", SERVERS)
        assert remove_entry(path, "cursor", "notes") == "missing"
        assert remove_entry(tmp_path / "none.json", "cursor", "notes") == "missing"
        assert path.read_text() == SERVERS
        assert list(tmp_path.iterdir()) == [path]

    def test_opencode_gets_its_schema_and_keeps_its_own(self, tmp_path: Path) -> None:
        made = {"$schema": "https://opencode.ai/config.json", "mcp": {"notes": {"type": "local", "command": ["npx"]}}}
        path = write(tmp_path / "opencode.json", '{\n  "theme": "x"\n}\n')
        install_entry(path, "opencode", "notes", made)
        assert json.loads(path.read_text()) == {"theme": "x", **made}
        write(path, '{"$schema": "mine"}')
        install_entry(path, "opencode", "notes", made)
        assert json.loads(path.read_text()) == {"$schema": "mine", "mcp": made["mcp"]}

    @pytest.mark.parametrize(
        ("name", "client", "text"),
        [
            ("mcp.json", "cursor", '{"mcpServers": {'),
            ("mcp.json", "cursor", '{"mcpServers": {"a": {}, "a": {}}}'),
            ("mcp.json", "cursor", '{"mcpServers": []}'),
            ("mcp.json", "cursor", "[]"),
            ("config.toml", "codex", 'mcp_servers = { notes = { command = "x" } }\n'),
            ("config.toml", "codex", '[mcp_servers]\nnotes = { command = "x" }\n'),
            ("config.toml", "codex", "a ="),
            ("config.yaml", "continue", "mcpServers: [{name: a}]\n"),
            ("config.yaml", "continue", "{mcpServers: []}\n"),
            ("config.yaml", "continue", "mcpServers:\n  notes: {}\n"),
            ("config.yaml", "continue", "mcpServers:\n- name: notes\n  command: |\n    x\n"),
            ("config.yaml", "continue", "a: &x 1\nmcpServers:\n- &y\n  name: notes\nz: *y\n"),
            ("config.yaml", "continue", "a: 1\n---\nb: 2\n"),
        ],
    )
    def test_what_cannot_be_edited_safely_is_refused_and_left_as_it_is(
        self, tmp_path: Path, name: str, client: str, text: str
    ) -> None:
        path = write(tmp_path / name, text)
        root = "mcp_servers" if client == "codex" else "mcpServers"
        made: Any = fragment("notes", root)
        if client == "continue":
            made = {"name": "c", "mcpServers": [{"name": "notes", **ENTRY}]}
        with pytest.raises(PinwardenError) as caught:
            install_entry(path, client, "notes", made)
        assert caught.value.code in ("CONFIG_INVALID", "CONFIG_UNEDITABLE")
        assert caught.value.exit_code == 3
        assert path.read_bytes() == text.encode()
        assert list(tmp_path.iterdir()) == [path]

    def test_a_link_is_not_written_through(self, tmp_path: Path) -> None:
        target = write(tmp_path / "real.json", SERVERS)
        (tmp_path / "mcp.json").symlink_to(target)
        with pytest.raises(PinwardenError) as installing:
            install_entry(tmp_path / "mcp.json", "cursor", "notes", fragment("notes"))
        with pytest.raises(PinwardenError) as removing:
            remove_entry(tmp_path / "mcp.json", "cursor", "x")
        assert (installing.value.code, removing.value.code) == ("CONFIG_UNEDITABLE", "CONFIG_UNEDITABLE")
        assert target.read_text() == SERVERS
        assert (tmp_path / "mcp.json").is_symlink()

    @pytest.mark.parametrize(
        ("client", "folder", "file"),
        [
            ("cursor", ".cursor", ".cursor/mcp.json"),
            ("codex", ".codex", ".codex/config.toml"),
            ("windsurf", ".codeium", ".codeium/windsurf/mcp_config.json"),
            ("vscode", ".config/Code", ".config/Code/User/mcp.json"),
        ],
    )
    def test_a_linked_folder_is_not_written_through(self, tmp_path: Path, client: str, folder: str, file: str) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (tmp_path / folder).parent.mkdir(exist_ok=True)
        (tmp_path / folder).symlink_to(elsewhere)
        root = CLIENTS[client].root[0]
        with pytest.raises(PinwardenError) as installing:
            install_entry(tmp_path / file, client, "notes", fragment("notes", root))
        with pytest.raises(PinwardenError) as removing:
            remove_entry(tmp_path / file, client, "notes")
        assert (installing.value.code, removing.value.code) == ("CONFIG_UNEDITABLE", "CONFIG_UNEDITABLE")
        assert list(elsewhere.iterdir()) == []

    def test_a_file_that_changed_meanwhile_is_not_overwritten(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = write(tmp_path / "mcp.json", SERVERS)
        reads: list[bytes] = []

        def read_and_let_the_client_write(path: Path, limit: int) -> bytes:
            reads.append(read_file(path, limit))
            path.write_text("{}")
            return reads[-1]

        monkeypatch.setattr(clients, "read_file", read_and_let_the_client_write)
        with pytest.raises(PinwardenError, match="another program changed") as caught:
            install_entry(path, "cursor", "notes", fragment("notes"))
        assert caught.value.code == "CONFIG_CHANGED"
        assert path.read_text() == "{}"

    def test_a_fragment_of_another_server_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(PinwardenError) as caught:
            install_entry(tmp_path / "mcp.json", "cursor", "notes", fragment("other"))
        assert caught.value.code == "CONFIG_UNEDITABLE"
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("name", HOSTILE)
    @pytest.mark.parametrize(("client", "file"), [("cursor", "m.json"), ("codex", "c.toml"), ("continue", "c.yaml")])
    def test_a_hostile_name_stays_a_name(self, tmp_path: Path, name: str, client: str, file: str) -> None:
        texts = {
            "m.json": '{\n  // mine\n  "mcpServers": {"x": {"command": "c"}}\n}\n',
            "c.toml": '# mine\nmodel = "m"\n\n[mcp_servers.x]\ncommand = "c"\n',
            "c.yaml": "# mine\nname: n\nmcpServers:\n  - name: x\n    command: c\n",
        }
        path = write(tmp_path / file, texts[file])
        root = "mcp_servers" if client == "codex" else "mcpServers"
        made: Any = fragment(name, root)
        if client == "continue":
            made = {"mcpServers": [{"name": name, **ENTRY}]}
        assert install_entry(path, client, name, made) == "updated"
        assert "# mine" in path.read_text() or "// mine" in path.read_text()
        assert "\u202e" not in path.read_text()
        assert remove_entry(path, client, name) == "removed"
        assert path.read_text() == texts[file]


# ---- editing JSON with comments ------------------------------------------------------------------------------------

SPACE = st.sampled_from(
    ["", " ", "\n", "\t", "\n  ", "\r\n\t", " // LINE\n", "/* BLOCK , } */", '  /* BLOCK " */ // LINE\r\n  ']
)
LEAF = st.sampled_from(['""', '"a, }"', '"// no"', "1", "-0.5e3", "true", "null", '"\\"\\u0041"', "[]", "{}"])


@st.composite
def jsonc(draw: st.DrawFn, depth: int = 2) -> str:
    """A text with anything between its words that may stand there."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(LEAF)
    is_object = draw(st.booleans())
    count = draw(st.integers(0, 3))
    parts = []
    for number in range(count):
        value = draw(jsonc(depth=depth - 1))
        name = f'"m{number}"{draw(SPACE)}:{draw(SPACE)}' if is_object else ""
        parts.append(draw(SPACE) + name + value + draw(SPACE))
    inside = ",".join(parts) + ("," + draw(SPACE) if count and draw(st.booleans()) else "") or draw(SPACE)
    return ("{" + inside + "}") if is_object else ("[" + inside + "]")


@st.composite
def around(draw: st.DrawFn) -> tuple[str, str]:
    """What stands before and after the value of ``mcpServers/x`` in a file."""
    before = draw(SPACE) + "{" + draw(SPACE) + '"other": ' + draw(jsonc()) + "," + draw(SPACE) + '"mcpServers"'
    before += draw(SPACE) + ":" + draw(SPACE) + "{" + draw(SPACE)
    if draw(st.booleans()):
        before += '"first": ' + draw(jsonc()) + draw(SPACE) + "," + draw(SPACE)
    before += '"x"' + draw(SPACE) + ":" + draw(SPACE)
    after = draw(SPACE)
    if draw(st.booleans()):
        after += "," + draw(SPACE) + '"last": ' + draw(jsonc()) + draw(SPACE)
    if draw(st.booleans()):
        after += "," + draw(SPACE)
    after += "}" + draw(SPACE) + "," + draw(SPACE) + '"end": ' + draw(jsonc()) + draw(SPACE) + "}" + draw(SPACE)
    return before, after


@given(around(), LEAF, st.sampled_from([1, "v", [1, {"a": []}], {"command": "c"}]))
def test_replacing_a_value_keeps_every_byte_around_it(parts: tuple[str, str], old: str, new: Any) -> None:
    before, after = parts
    text = before + old + after
    edited = put_value(text, ("mcpServers", "x"), new)
    if json.dumps(json.loads(old)) == json.dumps(new):
        assert edited == text
    elif old != "{}" or type(new) is not dict:
        assert edited.startswith(before)
        assert edited.endswith(after)
        assert parse_jsonc(edited[len(before) : len(edited) - len(after)]).value == new


@given(around(), LEAF)
def test_adding_and_removing_a_server_keeps_all_words_and_comments(parts: tuple[str, str], old: str) -> None:
    text = parts[0] + old + parts[1]
    value = parse_jsonc(text).value
    edited = put_value(text, ("mcpServers", "new"), ENTRY)
    expected = {**value, "mcpServers": {**value["mcpServers"], "new": ENTRY}}
    assert parse_jsonc(edited).value == expected
    assert list(parse_jsonc(edited).value["mcpServers"]) == [*value["mcpServers"], "new"]
    assert edited.count("LINE") == text.count("LINE")
    assert edited.count("BLOCK") == text.count("BLOCK")
    again = remove_value(edited, ("mcpServers", "new"))
    assert parse_jsonc(again).value == value
    assert "".join(again.split()) == "".join(text.split())


@given(around(), LEAF)
def test_removing_a_server_keeps_all_comments_outside_it(parts: tuple[str, str], old: str) -> None:
    text = parts[0] + old + parts[1]
    edited = remove_value(text, ("mcpServers", "x"))
    servers = {name: item for name, item in parse_jsonc(text).value["mcpServers"].items() if name != "x"}
    assert parse_jsonc(edited).value == {**parse_jsonc(text).value, "mcpServers": servers}
    in_name = text[len(parts[0].rsplit('"x"', 1)[0]) : len(parts[0])]  # between the name and the value
    for mark in ("LINE", "BLOCK"):
        assert edited.count(mark) == text.count(mark) - in_name.count(mark)


@pytest.mark.parametrize(
    "text",
    [
        '{\n  "mcpServers": {\n    "x": {}\n  }\n}\n',
        '{\r\n\t"mcpServers": {\r\n\t\t"x": {} // c\r\n\t}\r\n}',
        '{\n    "mcpServers": {\n        // one\n        "x": {"a": 1}, // c\n    /* d */\n    },\n    "z": 1\n}\n',
        '{"mcpServers":{"x":{}}}',
        '\ufeff{ "mcpServers": { "x": {} } }',
    ],
)
def test_adding_and_removing_a_server_restores_the_file_exactly(text: str) -> None:
    edited = put_value(text, ("mcpServers", "new"), ENTRY)
    assert parse_jsonc(edited).value["mcpServers"]["new"] == ENTRY
    assert remove_value(edited, ("mcpServers", "new")) == text


def test_new_members_follow_the_files_own_layout() -> None:
    text = '{\r\n\t"mcpServers": {\r\n\t\t"x": {}, // keep\r\n\t\t// tail\r\n\t}\r\n}\r\n'
    assert put_value(text, ("mcpServers", "n"), {"command": "c", "args": ["a"]}) == (
        '{\r\n\t"mcpServers": {\r\n\t\t"x": {}, // keep\r\n\t\t// tail\r\n'
        '\t\t"n": {\r\n\t\t\t"command": "c",\r\n\t\t\t"args": [\r\n\t\t\t\t"a"\r\n\t\t\t]\r\n\t\t},\r\n\t}\r\n}\r\n'
    )


@pytest.mark.parametrize(
    ("old", "values", "new"),
    [
        ('["-y", "a@1"]', ["-y", "a@2"], '["-y", "a@2"]'),
        ('["-y","a@1"]', ["-y", "a@2"], '["-y","a@2"]'),
        ('["-y","a@1"]', ["run", "a", "--x"], '["run","a","--x"]'),
        ('[ "-y", "a@1" ]', ["run", "a", "--x"], '["run", "a", "--x"]'),
        ('[\n  "-y", // quiet\n  "a@1"\n]', ["-y", "a@2"], '[\n  "-y", // quiet\n  "a@2"\n]'),
        ('["a@1"]', [], "[]"),
        ("[]", ["a", "b"], '[\n  "a",\n  "b"\n]'),
    ],
)
def test_an_array_stays_laid_out_as_it_was(old: str, values: list[str], new: str) -> None:
    assert put_value(f'{{"args": {old}}}', ("args",), values) == f'{{"args": {new}}}'


def test_comments_inside_an_entry_survive_its_update() -> None:
    text = (
        '{\n  "mcpServers": {\n    "x": {\n      // why\n      "command": "npx", // pinned\n'
        '      "args": ["notes@1.0.0"], // release\n      "env": {"A": "1"}\n    }\n  }\n}\n'
    )
    assert put_value(text, ("mcpServers", "x"), {"command": "npx", "args": ["notes@2.0.0"]}) == (
        '{\n  "mcpServers": {\n    "x": {\n      // why\n      "command": "npx", // pinned\n'
        '      "args": ["notes@2.0.0"] // release\n    }\n  }\n}\n'
    )


# ---- editing TOML and YAML -----------------------------------------------------------------------------------------

TOML = (
    "# top\n"
    'model = "m" # c\n\n'
    "# about a\n"
    '[mcp_servers.a] # h\ncommand = "x"\nargs = [\n  "[mcp_servers.b]", # y\n]\n\n'
    '[mcp_servers.a.env]\nK = """\n[mcp_servers.c]\n"""\n\n'
    "# about the rest\n"
    "[[other]]\nn = 1\n[[other]]\nn = 2 # last\n"
)
YAML = (
    "# top\n"
    "name: n # c\n"
    "mcpServers:\n"
    "  # about a\n"
    "  - name: a # h\n    command: x\n    args: [1,\n      2]\n"
    "  # about b\n"
    "  - name: b\n    env:\n      K: 'it''s'\n\n"
    "# rest\n"
    "models:\n  - name: a\n    provider: p\n"
)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
class TestOtherFormats:
    def test_a_table_is_added_and_removed_without_a_trace(self, newline: str) -> None:
        text = TOML.replace("\n", newline)
        edited = put_table(text, ("mcp_servers", "new"), ENTRY)
        assert edited.startswith(text)
        assert read_toml(edited)["mcp_servers"]["new"] == {"command": "npx", "args": ["-y", "notes@1.0.0"]}
        assert remove_table(edited, ("mcp_servers", "new")) == text

    def test_replacing_a_table_keeps_everything_around_it(self, newline: str) -> None:
        edited = put_table(TOML.replace("\n", newline), ("mcp_servers", "a"), {"command": "y", "env": {"A": "1"}})
        expected = (
            TOML[: TOML.index("[mcp_servers.a]")] + '[mcp_servers.a]\ncommand = "y"\n[mcp_servers.a.env]\nA = "1"\n\n'
        )
        assert edited == (expected + TOML[TOML.index("# about the rest") :]).replace("\n", newline)

    def test_removing_a_table_keeps_the_comments_around_it(self, newline: str) -> None:
        edited = remove_table(TOML.replace("\n", newline), ("mcp_servers", "a"))
        assert tomllib.loads(edited) == {"model": "m", "other": [{"n": 1}, {"n": 2}]}
        assert [line for line in edited.split(newline) if line.startswith("#")] == [
            "# top",
            "# about a",
            "# about the rest",
        ]

    def test_an_element_is_added_and_removed_without_a_trace(self, newline: str) -> None:
        text = YAML.replace("\n", newline)
        edited = put_list_item(text, "mcpServers", "new", {"name": "new", **ENTRY})
        place = text.index(newline + newline + "# rest")
        assert edited.startswith(text[:place])
        assert edited.endswith(text[place:])
        assert read_yaml(edited)["mcpServers"][2] == {"name": "new", **ENTRY}
        assert remove_list_item(edited, "mcpServers", "new") == text

    def test_replacing_an_element_keeps_everything_around_it(self, newline: str) -> None:
        edited = put_list_item(YAML.replace("\n", newline), "mcpServers", "a", {"name": "a", "command": "z"})
        start, end = YAML.index("name: a # h"), YAML.index("\n  # about b")
        assert edited == (YAML[:start] + "name: a\n    command: z" + YAML[end:]).replace("\n", newline)

    def test_removing_every_element_leaves_an_empty_list_and_the_comments(self, newline: str) -> None:
        edited = YAML.replace("\n", newline)
        for name in ("a", "b"):
            edited = remove_list_item(edited, "mcpServers", name)
        assert read_yaml(edited) == {"name": "n", "mcpServers": [], "models": [{"name": "a", "provider": "p"}]}
        assert edited.count("#") == YAML.count("#") - 1  # "# h" stood inside the entry


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mcpServers: [] # c\nz: 1\n", "mcpServers: # c\n  - name: x\nz: 1\n"),
        ("mcpServers: # c\nz: 1\n", "mcpServers: # c\n  - name: x\nz: 1\n"),
        ("mcpServers: []", "mcpServers:\n  - name: x"),
        ("---\nz: 1", "---\nz: 1\nmcpServers:\n  - name: x\n"),
        ("# c\n", "# c\nmcpServers:\n  - name: x\n"),
    ],
)
def test_a_first_element_is_added_without_moving_comments(text: str, expected: str) -> None:
    assert put_list_item(text, "mcpServers", "x", {"name": "x"}) == expected


@given(st.text(min_size=1, max_size=12), st.text(max_size=12), st.sampled_from(["json", "toml", "yaml"]))
@example("%", "%x", "yaml")
@example("a: b", "- x", "yaml")
@example("#", "~", "yaml")
@example("1e3", "0o17", "yaml")
@example("\x85", "\u2028", "yaml")
@example("x\ud7ff", "\ufeff", "toml")
def test_any_name_and_value_come_back_as_they_were_written(name: str, value: str, form: str) -> None:
    try:
        (name + value).encode()
    except UnicodeEncodeError:
        return
    entry = {"command": value, "args": [value, name], "env": {name: value}}
    if form == "json":
        assert parse_jsonc(put_value("{}", ("s", name), entry)).value == {"s": {name: entry}}
    elif form == "toml":
        assert read_toml(put_table(TOML, ("s", name), entry))["s"] == {name: entry}
    else:
        text = "mcpServers:\n  - name: other name\n    command: c\n"
        named = {"name": name, **entry}
        assert read_yaml(put_list_item(text, "mcpServers", name, named))["mcpServers"][1] == named
