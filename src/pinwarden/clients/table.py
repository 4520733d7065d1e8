"""The clients that start MCP servers: where each keeps its configuration, and the format of its entries.

``CLIENTS`` has everything that differs between clients. A path in it begins with the name of a folder in braces, such
as ``{config}/opencode/opencode.json``. ``FOLDERS`` says where each folder is on each system.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NoReturn

from pinwarden.clients import risky_settings
from pinwarden.clients.risky_settings import RiskySettings
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

System = Literal["linux", "mac", "windows"]
FileScope = Literal["project", "global", "local"]
"""Whose servers a client's file, or a part of it, has: the project's, the user's, or the user's for one project."""
Format = Literal["json", "toml", "yaml"]

SYSTEMS: tuple[System, ...] = ("linux", "mac", "windows")

FORMATS: Mapping[str, Format] = MappingProxyType(
    {".json": "json", ".jsonc": "json", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}
)
"""The format of a configuration file, by the suffix of its name."""


class Folder(Record):
    """A folder that paths in ``CLIENTS`` begin with: the value of an environment variable, or else a fixed path."""

    variable: str | None = None
    variable_on: tuple[System, ...] = SYSTEMS
    otherwise: Mapping[System, str]
    """The fixed path on each system. It begins with ``{home}`` or ``{root}``."""


def _on_all_systems(path: str) -> Mapping[System, str]:
    return MappingProxyType(dict.fromkeys(SYSTEMS, path))


def _by_system(linux: str, mac: str, windows: str) -> Mapping[System, str]:
    return MappingProxyType({"linux": linux, "mac": mac, "windows": windows})


FOLDERS: Mapping[str, Folder] = MappingProxyType(
    {
        "roaming": Folder(
            variable="APPDATA",
            variable_on=("windows",),
            otherwise=_by_system("{home}/.config", "{home}/Library/Application Support", "{home}/AppData/Roaming"),
        ),
        "local": Folder(
            variable="LOCALAPPDATA", variable_on=("windows",), otherwise=_on_all_systems("{home}/AppData/Local")
        ),
        "config": Folder(variable="XDG_CONFIG_HOME", otherwise=_on_all_systems("{home}/.config")),
        "claude": Folder(variable="CLAUDE_CONFIG_DIR", otherwise=_on_all_systems("{home}/.claude")),
        "claude_state": Folder(variable="CLAUDE_CONFIG_DIR", otherwise=_on_all_systems("{home}")),
        "codex": Folder(variable="CODEX_HOME", otherwise=_on_all_systems("{home}/.codex")),
        "copilot": Folder(variable="COPILOT_HOME", otherwise=_on_all_systems("{home}/.copilot")),
        "continue": Folder(variable="CONTINUE_GLOBAL_DIR", otherwise=_on_all_systems("{home}/.continue")),
        "managed_claude": Folder(
            otherwise=_by_system(
                "{root}/etc/claude-code",
                "{root}/Library/Application Support/ClaudeCode",
                "{root}/Program Files/ClaudeCode",
            )
        ),
        "managed_gemini": Folder(
            otherwise=_by_system(
                "{root}/etc/gemini-cli",
                "{root}/Library/Application Support/GeminiCli",
                "{root}/ProgramData/gemini-cli",
            )
        ),
    }
)
"""Folders by name. Desktop programs keep their settings in ``roaming``. ``{root}`` is the root of the file system."""


class ConfigLocation(Record):
    """A configuration file that a client reads, or a pattern for several of them.

    In a pattern, ``*`` at the start of a path segment matches any characters, and ``**`` matches folders of any depth.
    """

    scope: FileScope
    path: str
    systems: tuple[System, ...] = SYSTEMS
    root: tuple[str, ...] | None = None
    """The member path to the servers in this file, if it differs from ``Client.root``."""
    installs: bool = False
    """Whether Pinwarden adds installed servers to this file."""
    projects_member: str | None = None
    """The member that lists more servers for each project folder, such as ``projects`` in Claude Code's file."""
    settings: bool = False
    """Whether the file has only settings that apply to servers, and no servers."""
    more_roots: tuple[tuple[str, ...], ...] = ()
    """Further member paths under which this file may have servers."""
    dotted: bool = False
    """Whether ``"a.b": value`` means the same as ``"a": {"b": value}``, as in the settings of VS Code."""
    may_be_one_server: bool = False
    """Whether a file without a servers member is itself the entry of one server, named after the file."""
    agents: bool = False
    """Whether the file describes an agent in Markdown. Its front matter may declare servers."""
    code: bool = False
    """Whether the file is a program that the client loads, such as a plugin."""


class EntryFormat(Record):
    """The member names that a client uses in the entry of one server."""

    url_members: tuple[str, ...] = ("url",)
    """Members that may have the server's URL. If several are present, the client uses the first in this list."""
    headers_path: tuple[str, ...] = ("headers",)
    """The member path to the HTTP headers inside the entry."""
    env_member: str = "env"
    disabling_member: tuple[str, bool] = ("disabled", True)
    """The member that disables a server, and the value that disables it."""
    local_type: str | None = None
    """The value of ``type`` that Pinwarden writes for a server that the client starts; None to write no ``type``."""
    command_member: str = "command"
    """The member with the program."""
    wrapper_member: str | None = None
    """A member that may contain all other members of the entry."""
    builtin_types: tuple[str, ...] = ()
    """Values of ``type`` for built-in features of the client, which are not MCP servers."""
    command_list: bool = False
    """Whether ``command`` is one list of the program and its arguments."""
    named_list: bool = False
    """Whether servers are a list of objects with a ``name``, instead of an object with a member per server."""
    url_transport: str = "auto"
    """The transport that the client uses if the entry does not name one."""
    auto_approve_members: tuple[str, ...] = ()
    """Members that let the client call tools without asking the user."""
    inputs_member: str | None = None
    """The member that declares the inputs for ``${input:id}``, for which the client asks the user.

    It is a sibling of the servers member.
    """
    variable_reference: str | None = None
    """How an entry refers to an environment variable: a format string for its name. None if it cannot."""
    passed_variables_member: str | None = None
    """The member that lists variables to pass to the server: of the client's own environment, or from a keyring."""
    header_variables_member: str | None = None
    """The member that names, for each header, the environment variable with its value."""
    bearer_variable_member: str | None = None
    """The member that names the environment variable with the token of the ``Authorization`` header."""
    mixed: bool = False
    """Whether an entry may use the member names of any client."""

    @property
    def names_variables(self) -> bool:
        """Whether variables are named in members of their own, because the client expands no references."""
        return self.header_variables_member is not None and self.variable_reference is None


class Client(Record):
    """A program that starts MCP servers."""

    id: str
    title: str
    root: tuple[str, ...]
    """The member path to the servers in the client's files."""
    entry_format: EntryFormat
    locations: tuple[ConfigLocation, ...]
    risky_settings: RiskySettings = RiskySettings()
    """Settings in the files that also have servers. Files with ``settings`` are checked by ``clients/findings.py``."""
    starts_in_any_folder: bool = False
    """Whether the client may start a server outside the project. It then fills in ``${workspaceFolder}``."""
    value_storage: str | None = None
    """What the user does with the value of a secret, if references do not name environment variables; a clause."""
    env_fix: str | None = None
    """What to write instead of a secret environment variable, if not a reference: a format string for its name."""


GENERIC_CLIENT = "generic"
"""The id of the entry in ``CLIENTS`` for a client that is not known. lockfileVersion 2 has the same name for it."""

_SERVERS = ("mcpServers",)
_SHELL_REFERENCE = "${{{}}}"
_ENV_REFERENCE = "${{env:{}}}"
_AMP = ("amp", "mcpServers")  # the Amp extension keeps its servers in the settings of VS Code
_VSCODE_FOLDERS = ("Code", "Code - Insiders", "VSCodium")
_IN_SETTINGS = ("mcp", "servers")
_IN_CONTAINER = ("customizations", "vscode")
_CONTAINER_SETTINGS = (*_IN_CONTAINER, "settings", *_IN_SETTINGS)
_CONTAINERS = (".devcontainer/devcontainer.json", ".devcontainer.json", ".devcontainer/*/devcontainer.json")
_AMAZON_Q = ("mcp.json", "default.json", "agents/*.json", "cli-agents/*.json")
"""Files of Amazon Q: the old file, the default file of the editors, and agents of the editors and the command line."""


def _build_project_file(path: str, *, installs: bool = False) -> ConfigLocation:
    return ConfigLocation(
        scope="project", path="{project}/" + path, installs=installs, more_roots=_list_visual_studio_roots(path)
    )


def _build_global_file(path: str, *, installs: bool = False) -> ConfigLocation:
    return ConfigLocation(scope="global", path=path, installs=installs)


def _list_visual_studio_roots(path: str) -> tuple[tuple[str, ...], ...]:
    """Return a further member path for files of other clients that Visual Studio reads; it expects ``servers``."""
    return (("servers",),) if path in (".mcp.json", ".cursor/mcp.json") else ()


def _list_agent_files(scope: FileScope, folder: str) -> tuple[ConfigLocation, ...]:
    """Return the location of a client's agents: one Markdown file per agent, in folders of any depth."""
    return (ConfigLocation(scope=scope, path=f"{folder}/**/*.md", agents=True),)


def _build_vscode_settings(
    scope: FileScope, path: str, root: tuple[str, ...], *more: tuple[str, ...]
) -> ConfigLocation:
    return ConfigLocation(scope=scope, path=path, root=root, more_roots=(*more, _AMP), dotted=True)


def _list_program_locations(scope: FileScope, folder: str, *kinds: str) -> tuple[ConfigLocation, ...]:
    """Return the locations of JavaScript and TypeScript files that a client loads as plugins or tools."""
    return tuple(
        ConfigLocation(scope=scope, path=f"{folder}/{kind}/*.{ending}", code=True)
        for kind in kinds
        for ending in ("js", "ts", "mjs", "cjs")
    )


def _list_extension_files(extension: str, file: str) -> tuple[ConfigLocation, ...]:
    """Return the location of an extension's file in VS Code and in each of its variants."""
    return tuple(
        _build_global_file(f"{{roaming}}/{code}/User/globalStorage/{extension}/settings/{file}")
        for code in _VSCODE_FOLDERS
    )


def _list_continue_blocks(scope: FileScope, folder: str) -> tuple[ConfigLocation, ...]:
    """Return the locations in a folder of Continue: its own YAML blocks, and JSON files in other clients' formats."""
    return (
        ConfigLocation(scope=scope, path=f"{folder}/*.yaml"),
        ConfigLocation(scope=scope, path=f"{folder}/*.yml"),
        ConfigLocation(scope=scope, path=f"{folder}/*.json", projects_member="projects", may_be_one_server=True),
    )


def _list_continue_assistants(scope: FileScope, folder: str) -> tuple[ConfigLocation, ...]:
    """Return the locations of Continue's assistants, later called agents. Each file is a complete configuration."""
    kinds = [(kind, form) for kind in ("assistants", "agents") for form in ("yaml", "yml")]
    return tuple(ConfigLocation(scope=scope, path=f"{folder}/{kind}/*.{form}") for kind, form in kinds)


_OLD_CONTINUE = (("experimental", "modelContextProtocolServers"),)

_TABLE: tuple[Client, ...] = (
    Client(
        id="claude",
        title="Claude Code",
        root=_SERVERS,
        entry_format=EntryFormat(variable_reference=_SHELL_REFERENCE),
        locations=(
            _build_project_file(".mcp.json", installs=True),
            ConfigLocation(scope="global", path="{claude_state}/.claude.json", projects_member="projects"),
            _build_global_file("{managed_claude}/managed-mcp.json"),
            ConfigLocation(scope="project", path="{project}/.claude/settings.json", settings=True),
            ConfigLocation(scope="project", path="{project}/.claude/settings.local.json", settings=True),
            ConfigLocation(scope="global", path="{claude}/settings.json", settings=True),
            ConfigLocation(scope="global", path="{claude}/settings.local.json", settings=True),
            ConfigLocation(scope="global", path="{managed_claude}/managed-settings.json", settings=True),
            *_list_agent_files("project", "{project}/.claude/agents"),
            *_list_agent_files("global", "{claude}/agents"),
        ),
    ),
    Client(
        id="claude-desktop",
        title="Claude Desktop",
        root=_SERVERS,
        entry_format=EntryFormat(),
        locations=(_build_global_file("{roaming}/Claude/claude_desktop_config.json", installs=True),),
    ),
    Client(
        id="cursor",
        title="Cursor",
        root=_SERVERS,
        entry_format=EntryFormat(variable_reference=_ENV_REFERENCE),
        locations=(
            _build_project_file(".cursor/mcp.json", installs=True),
            _build_global_file("{home}/.cursor/mcp.json", installs=True),
            ConfigLocation(scope="project", path="{project}/.cursor/hooks.json", settings=True),
            ConfigLocation(scope="global", path="{home}/.cursor/hooks.json", settings=True),
        ),
        starts_in_any_folder=True,
    ),
    Client(
        id="vscode",
        title="VS Code",
        root=("servers",),
        entry_format=EntryFormat(variable_reference=_ENV_REFERENCE, inputs_member="inputs"),
        locations=(
            ConfigLocation(scope="project", path="{project}/.vscode/mcp.json", installs=True, more_roots=(_SERVERS,)),
            _build_global_file("{roaming}/Code/User/mcp.json", installs=True),
            _build_global_file("{roaming}/Code - Insiders/User/mcp.json"),
            _build_global_file("{roaming}/VSCodium/User/mcp.json"),
            # Every VS Code profile except the default one has its own folder.
            *(_build_global_file(f"{{roaming}}/{code}/User/profiles/*/mcp.json") for code in _VSCODE_FOLDERS),
            # Until mid-2025, VS Code kept servers in its settings, and it still reads them there.
            _build_vscode_settings("project", "{project}/.vscode/settings.json", _IN_SETTINGS),
            *(
                _build_vscode_settings("global", f"{{roaming}}/{code}/User/settings.json", _IN_SETTINGS)
                for code in _VSCODE_FOLDERS
            ),
            *(
                _build_vscode_settings("global", f"{{roaming}}/{code}/User/profiles/*/settings.json", _IN_SETTINGS)
                for code in _VSCODE_FOLDERS
            ),
            # A multi-root workspace keeps its settings in a file with any name and this suffix.
            _build_vscode_settings("project", "{project}/*.code-workspace", ("settings", *_IN_SETTINGS)),
            # A dev container declares servers of its own, and its settings may declare more.
            *(
                _build_vscode_settings(
                    "project", f"{{project}}/{file}", (*_IN_CONTAINER, *_IN_SETTINGS), _CONTAINER_SETTINGS
                )
                for file in _CONTAINERS
            ),
        ),
        risky_settings=risky_settings.VSCODE,
        starts_in_any_folder=True,
    ),
    Client(
        id="codex",
        title="Codex",
        root=("mcp_servers",),
        entry_format=EntryFormat(
            passed_variables_member="env_vars",
            header_variables_member="env_http_headers",
            bearer_variable_member="bearer_token_env_var",
            headers_path=("http_headers",),
            disabling_member=("enabled", False),
        ),
        locations=(
            _build_project_file(".codex/config.toml", installs=True),
            _build_global_file("{codex}/config.toml", installs=True),
            _build_project_file(".codex/agents/*.toml"),
            _build_global_file("{codex}/agents/*.toml"),
        ),
        risky_settings=risky_settings.CODEX,
        env_fix='Remove it from env and write env_vars = ["{}"]; Codex then passes the variable on.',
    ),
    Client(
        id="opencode",
        title="opencode",
        root=("mcp",),
        entry_format=EntryFormat(
            variable_reference="{{env:{}}}",
            env_member="environment",
            disabling_member=("enabled", False),
            local_type="local",
            command_list=True,
        ),
        locations=(
            _build_project_file("opencode.json", installs=True),
            _build_project_file("opencode.jsonc"),
            _build_project_file(".opencode/opencode.json"),
            _build_project_file(".opencode/opencode.jsonc"),
            _build_global_file("{config}/opencode/opencode.json", installs=True),
            _build_global_file("{config}/opencode/opencode.jsonc"),
            *_list_program_locations("project", "{project}/.opencode", "plugin", "plugins", "tool", "tools"),
            *_list_program_locations("global", "{config}/opencode", "plugin", "plugins", "tool", "tools"),
        ),
        risky_settings=risky_settings.OPENCODE,
    ),
    Client(
        id="windsurf",
        title="Windsurf",
        root=_SERVERS,
        entry_format=EntryFormat(
            variable_reference=_ENV_REFERENCE, url_members=("serverUrl", "url"), auto_approve_members=("alwaysAllow",)
        ),
        locations=(
            _build_global_file("{home}/.codeium/windsurf/mcp_config.json", installs=True),
            _build_global_file("{home}/.codeium/windsurf-next/mcp_config.json"),
        ),
    ),
    Client(
        id="cline",
        title="Cline",
        root=_SERVERS,
        entry_format=EntryFormat(
            variable_reference=_ENV_REFERENCE, auto_approve_members=("autoApprove", "alwaysAllow")
        ),
        locations=(
            _build_global_file("{home}/.cline/mcp.json", installs=True),
            _build_global_file("{home}/.cline/data/settings/cline_mcp_settings.json"),
            *_list_extension_files("saoudrizwan.claude-dev", "cline_mcp_settings.json"),
        ),
    ),
    Client(
        id="continue",
        title="Continue",
        root=_SERVERS,
        entry_format=EntryFormat(
            variable_reference="${{{{ secrets.{} }}}}", headers_path=("requestOptions", "headers"), named_list=True
        ),
        locations=(
            _build_global_file("{continue}/config.yaml", installs=True),
            _build_global_file("{continue}/config.yml"),
            ConfigLocation(scope="global", path="{continue}/config.json", more_roots=_OLD_CONTINUE),
            _build_project_file(".continue/config.yaml"),
            _build_project_file(".continue/config.yml"),
            ConfigLocation(scope="project", path="{project}/.continue/config.json", more_roots=_OLD_CONTINUE),
            *_list_continue_blocks("project", "{project}/.continue/mcpServers"),
            *_list_continue_blocks("global", "{continue}/mcpServers"),
            *_list_continue_assistants("project", "{project}/.continue"),
            *_list_continue_assistants("global", "{continue}"),
            ConfigLocation(scope="project", path="{project}/.continuerc.json", more_roots=_OLD_CONTINUE),
        ),
        value_storage="store the value as a secret of Continue",
    ),
    Client(
        id="gemini",
        title="Gemini CLI",
        root=_SERVERS,
        entry_format=EntryFormat(
            variable_reference=_SHELL_REFERENCE,
            url_members=("httpUrl", "url"),
            url_transport="sse",
            auto_approve_members=("trust",),
        ),
        locations=(
            _build_project_file(".gemini/settings.json", installs=True),
            _build_global_file("{home}/.gemini/settings.json", installs=True),
            _build_global_file("{managed_gemini}/settings.json"),
            _build_project_file(".gemini/extensions/*/gemini-extension.json"),
            _build_global_file("{home}/.gemini/extensions/*/gemini-extension.json"),
            *_list_agent_files("project", "{project}/.gemini/agents"),
            *_list_agent_files("global", "{home}/.gemini/agents"),
        ),
        risky_settings=risky_settings.GEMINI,
    ),
    Client(
        id="zed",
        title="Zed",
        root=("context_servers",),
        entry_format=EntryFormat(disabling_member=("enabled", False)),
        locations=(
            _build_project_file(".zed/settings.json"),
            ConfigLocation(scope="global", path="{config}/zed/settings.json", systems=("linux", "mac")),
            ConfigLocation(scope="global", path="{roaming}/Zed/settings.json", systems=("windows",)),
        ),
        risky_settings=risky_settings.ZED,
    ),
    Client(
        id="roo",
        title="Roo Code",
        root=_SERVERS,
        entry_format=EntryFormat(variable_reference=_ENV_REFERENCE, auto_approve_members=("alwaysAllow",)),
        locations=(
            _build_project_file(".roo/mcp.json", installs=True),
            *_list_extension_files("rooveterinaryinc.roo-cline", "mcp_settings.json"),
        ),
    ),
    Client(
        id="kiro",
        title="Kiro",
        root=_SERVERS,
        entry_format=EntryFormat(variable_reference=_SHELL_REFERENCE, auto_approve_members=("autoApprove",)),
        locations=(
            _build_project_file(".kiro/settings/mcp.json"),
            _build_project_file(".kiro/agents/*.json"),
            _build_global_file("{home}/.kiro/settings/mcp.json"),
            _build_global_file("{home}/.kiro/agents/*.json"),
        ),
    ),
    Client(
        id="amazon-q",
        title="Amazon Q Developer",
        root=_SERVERS,
        entry_format=EntryFormat(auto_approve_members=("autoApprove",)),
        locations=(
            *(_build_project_file(f".amazonq/{file}") for file in _AMAZON_Q),
            *(_build_global_file(f"{{home}}/.aws/amazonq/{file}") for file in _AMAZON_Q),
        ),
    ),
    Client(
        id="junie",
        title="Junie",
        root=_SERVERS,
        entry_format=EntryFormat(),
        locations=(_build_project_file(".junie/mcp/mcp.json"), _build_global_file("{home}/.junie/mcp/mcp.json")),
    ),
    Client(
        id="copilot-cli",
        title="GitHub Copilot CLI",
        root=_SERVERS,
        entry_format=EntryFormat(variable_reference=_SHELL_REFERENCE),
        locations=(
            _build_project_file(".github/mcp.json"),
            _build_global_file("{copilot}/mcp-config.json"),
            *_list_agent_files("project", "{project}/.github/agents"),
            *_list_agent_files("global", "{copilot}/agents"),
        ),
    ),
    Client(
        id="visual-studio",
        title="Visual Studio",
        root=_SERVERS,  # a lockfile stores entries of this client under mcpServers
        entry_format=EntryFormat(inputs_member="inputs"),
        locations=(
            ConfigLocation(scope="project", path="{project}/.vs/mcp.json", more_roots=(("servers",),)),
            ConfigLocation(scope="global", path="{home}/.mcp.json", more_roots=(("servers",),)),
        ),
    ),
    Client(
        id="kilo",
        title="Kilo Code",
        root=_SERVERS,
        entry_format=EntryFormat(variable_reference=_ENV_REFERENCE, auto_approve_members=("alwaysAllow",)),
        locations=(
            _build_project_file(".kilocode/mcp.json"),
            *_list_extension_files("kilocode.kilo-code", "mcp_settings.json"),
        ),
    ),
    Client(
        id="qwen",
        title="Qwen Code",
        root=_SERVERS,
        entry_format=EntryFormat(
            variable_reference=_SHELL_REFERENCE,
            url_members=("httpUrl", "url"),
            url_transport="sse",
            auto_approve_members=("trust",),
        ),
        locations=(_build_project_file(".qwen/settings.json"), _build_global_file("{home}/.qwen/settings.json")),
        risky_settings=risky_settings.GEMINI,
    ),
    Client(
        id="trae",
        title="Trae",
        root=_SERVERS,
        entry_format=EntryFormat(),
        locations=(_build_project_file(".trae/mcp.json"),),
    ),
    Client(
        id="factory",
        title="Factory Droid",
        root=_SERVERS,
        entry_format=EntryFormat(),
        locations=(_build_project_file(".factory/mcp.json"), _build_global_file("{home}/.factory/mcp.json")),
    ),
    Client(
        id="crush",
        title="Crush",
        root=("mcp",),
        entry_format=EntryFormat(variable_reference=_SHELL_REFERENCE),
        locations=(
            _build_project_file(".crush.json"),
            _build_project_file("crush.json"),
            _build_project_file(".crush/crush.json"),
            _build_global_file("{config}/crush/crush.json"),
            _build_global_file("{home}/.local/share/crush/crush.json"),
            ConfigLocation(scope="global", path="{local}/crush/crush.json", systems=("windows",)),
        ),
        risky_settings=risky_settings.CRUSH,
    ),
    Client(
        id="amp",
        title="Amp",
        root=_AMP,
        entry_format=EntryFormat(variable_reference=_SHELL_REFERENCE),
        locations=(
            *(
                ConfigLocation(scope="project", path=f"{{project}}/.amp/settings.{form}", dotted=True)
                for form in ("json", "jsonc")
            ),
            *(
                ConfigLocation(scope="global", path=f"{{config}}/amp/settings.{form}", dotted=True)
                for form in ("json", "jsonc")
            ),
        ),
        risky_settings=risky_settings.AMP,
    ),
    Client(
        id="goose",
        title="Goose",
        root=("extensions",),
        entry_format=EntryFormat(
            passed_variables_member="env_keys",
            url_members=("uri", "url"),
            env_member="envs",
            disabling_member=("enabled", False),
            command_member="cmd",
            wrapper_member="config",
            builtin_types=("builtin", "platform", "frontend"),
        ),
        locations=(
            ConfigLocation(scope="global", path="{config}/goose/config.yaml", systems=("linux", "mac")),
            ConfigLocation(scope="global", path="{roaming}/Block/goose/config/config.yaml", systems=("windows",)),
            *(_build_project_file(f".goose/{file}") for file in ("config.yaml", "config.yml")),
            *(_build_project_file(f".goose/recipes/*.{form}") for form in ("yaml", "yml", "json")),
            *(_build_global_file(f"{{config}}/goose/recipes/*.{form}") for form in ("yaml", "yml", "json")),
        ),
        risky_settings=risky_settings.GOOSE,
        env_fix=("Move {} from envs to env_keys, and store it with goose configure; Goose reads it from the keyring."),
    ),
    Client(
        id=GENERIC_CLIENT,
        title="any client that reads mcpServers",
        root=_SERVERS,
        entry_format=EntryFormat(
            variable_reference=_SHELL_REFERENCE,
            passed_variables_member="env_vars",
            header_variables_member="env_http_headers",
            bearer_variable_member="bearer_token_env_var",
            mixed=True,
            auto_approve_members=("autoApprove", "alwaysAllow", "trust"),
        ),
        locations=(
            _build_project_file(".mcp.json", installs=True),
            _build_global_file("{home}/.config/toolpin/generic-mcp.json", installs=True),
        ),
    ),
)

CLIENTS: Mapping[str, Client] = MappingProxyType({client.id: client for client in _TABLE})
"""All supported clients, by id."""


def list_client_titles() -> tuple[str, ...]:
    """Return the titles of the clients whose configuration files Pinwarden searches."""
    return tuple(client.title for client in CLIENTS.values() if client.id != GENERIC_CLIENT)


def get_client(identifier: str) -> Client:
    """Return the client with this id. Raises ``CLIENT_UNKNOWN`` if there is none."""
    if identifier not in CLIENTS:
        _raise_unknown_client(identifier)
    return CLIENTS[identifier]


def find_installation_location(client: Client, scope: str) -> ConfigLocation | None:
    """Return the file to which Pinwarden installs servers of this client and scope; None if there is no such file."""
    return next((location for location in client.locations if location.installs and location.scope == scope), None)


def _raise_unknown_client(identifier: str) -> NoReturn:
    raise PinwardenError("CLIENT_UNKNOWN", f"unknown client {identifier[:40]!a}", data={"clients": list(CLIENTS)})
