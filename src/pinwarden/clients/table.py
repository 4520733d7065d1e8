"""The clients that start MCP servers: where each keeps its configuration, and the format of its entries.

Everything that differs between clients is data in ``CLIENTS``. A path begins with the name of a folder in braces;
``FOLDERS`` says where that folder is; ``files.py`` resolves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NoReturn

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

System = Literal["linux", "mac", "windows"]
Scope = Literal["project", "global", "local"]
Format = Literal["json", "toml", "yaml"]

SYSTEMS: tuple[System, ...] = ("linux", "mac", "windows")

FORMATS: Mapping[str, Format] = MappingProxyType(
    {".json": "json", ".jsonc": "json", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}
)
"""The format of a file by its suffix."""


class Folder(Record):
    """A folder at the start of paths: the value of a variable, or else a fixed path."""

    variable: str | None = None
    variable_on: tuple[System, ...] = SYSTEMS
    otherwise: Mapping[System, str]
    """By system, a path that itself begins with ``{home}``, ``{project}`` or the root of the file system."""


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
"""Folders by name. ``roaming`` has the settings of desktop programs; ``{root}`` is the root of the file system."""


class ConfigLocation(Record):
    """A file that a client reads, or several: a part of the path may be or begin with ``*``. ``**`` is any depth."""

    scope: Scope
    path: str
    systems: tuple[System, ...] = SYSTEMS
    root: tuple[str, ...] | None = None
    """The path of members to the servers, if it is not the client's usual one."""
    installs: bool = False
    """Whether installations are written to this file."""
    folders: str | None = None
    """A member with more objects of servers, by project folder."""
    settings: bool = False
    """The file has no servers, but settings that apply to them."""
    more_roots: tuple[tuple[str, ...], ...] = ()
    """More paths of members to servers."""
    dotted: bool = False
    """A path of members may be written as one member with dots, as in the settings of VS Code."""
    may_be_one_server: bool = False
    """A file without the member for servers is one server, named like the file."""
    agents: bool = False
    """The file describes an agent in Markdown; its front matter may declare servers."""
    code: bool = False
    """The file is a program that the client loads."""


class Spelling(Record):
    """How a client writes the entry of one server."""

    url: tuple[str, ...] = ("url",)
    """Members with the address; the first one has precedence."""
    headers: tuple[str, ...] = ("headers",)
    """The path to the headers inside the entry."""
    env: str = "env"
    off: tuple[str, bool] = ("disabled", True)
    """The member, and its value, that disable a server."""
    local: str | None = None
    """The ``type`` that is written for a server that is a command, if any."""
    command: str = "command"
    """The member with the program."""
    wrapped: str | None = None
    """A member that may contain all the others."""
    inside: tuple[str, ...] = ()
    """The ``type`` of entries that are parts of the client itself, not servers."""
    command_list: bool = False
    """Program and arguments are one list in ``command``."""
    named_list: bool = False
    """Servers are a list of objects with a ``name``, not the members of an object."""
    url_transport: str = "auto"
    """The transport of an entry that states none."""
    consent: tuple[str, ...] = ()
    """Members that allow calls without asking the user."""
    inputs: str | None = None
    """A member next to the servers that declares the inputs for ``${input:id}``."""


class Client(Record):
    """A program that starts MCP servers."""

    id: str
    title: str
    root: tuple[str, ...]
    spelling: Spelling
    locations: tuple[ConfigLocation, ...]


_SERVERS = ("mcpServers",)
_AMP = ("amp", "mcpServers")  # Amp in an editor has its servers in the editor's settings
_CODES = ("Code", "Code - Insiders", "VSCodium")
_IN_SETTINGS = ("mcp", "servers")
_IN_CONTAINER = ("customizations", "vscode")
_CONTAINER_SETTINGS = (*_IN_CONTAINER, "settings", *_IN_SETTINGS)
_CONTAINERS = (".devcontainer/devcontainer.json", ".devcontainer.json", ".devcontainer/*/devcontainer.json")
_AMAZON_Q = ("mcp.json", "default.json", "agents/*.json", "cli-agents/*.json")
"""The old file, what the editors write, and the agents of the editors and of the command line."""


def _project_file(path: str, *, installs: bool = False) -> ConfigLocation:
    return ConfigLocation(
        scope="project", path="{project}/" + path, installs=installs, more_roots=_visual_studio_roots(path)
    )


def _global_file(path: str, *, installs: bool = False) -> ConfigLocation:
    return ConfigLocation(scope="global", path=path, installs=installs)


def _visual_studio_roots(path: str) -> tuple[tuple[str, ...], ...]:
    """Visual Studio also reads the files of other clients, but expects ``servers`` in them."""
    return (("servers",),) if path in (".mcp.json", ".cursor/mcp.json") else ()


def _agent_files(scope: Scope, folder: str) -> tuple[ConfigLocation, ...]:
    """Agents of a client, one per file, in folders of any depth."""
    return (ConfigLocation(scope=scope, path=f"{folder}/**/*.md", agents=True),)


def _vscode_settings(scope: Scope, path: str, root: tuple[str, ...], *more: tuple[str, ...]) -> ConfigLocation:
    return ConfigLocation(scope=scope, path=path, root=root, more_roots=(*more, _AMP), dotted=True)


def _program_locations(scope: Scope, folder: str, *kinds: str) -> tuple[ConfigLocation, ...]:
    """Programs that a client loads from its folders."""
    return tuple(
        ConfigLocation(scope=scope, path=f"{folder}/{kind}/*.{ending}", code=True)
        for kind in kinds
        for ending in ("js", "ts", "mjs", "cjs")
    )


def _extension_files(extension: str, file: str) -> tuple[ConfigLocation, ...]:
    """A file of an extension, in VS Code and its variants."""
    return tuple(_global_file(f"{{roaming}}/{code}/User/globalStorage/{extension}/settings/{file}") for code in _CODES)


def _continue_blocks(scope: Scope, folder: str) -> tuple[ConfigLocation, ...]:
    """A folder of Continue: its own blocks, and files of other clients, which it reads too."""
    return (
        ConfigLocation(scope=scope, path=f"{folder}/*.yaml"),
        ConfigLocation(scope=scope, path=f"{folder}/*.yml"),
        ConfigLocation(scope=scope, path=f"{folder}/*.json", folders="projects", may_be_one_server=True),
    )


def _continue_assistants(scope: Scope, folder: str) -> tuple[ConfigLocation, ...]:
    """Assistants of Continue, later called agents: each is a complete configuration."""
    kinds = [(kind, form) for kind in ("assistants", "agents") for form in ("yaml", "yml")]
    return tuple(ConfigLocation(scope=scope, path=f"{folder}/{kind}/*.{form}") for kind, form in kinds)


_OLD_CONTINUE = (("experimental", "modelContextProtocolServers"),)

_TABLE: tuple[Client, ...] = (
    Client(
        id="claude",
        title="Claude Code",
        root=_SERVERS,
        spelling=Spelling(),
        locations=(
            _project_file(".mcp.json", installs=True),
            ConfigLocation(scope="global", path="{claude_state}/.claude.json", folders="projects"),
            _global_file("{managed_claude}/managed-mcp.json"),
            ConfigLocation(scope="project", path="{project}/.claude/settings.json", settings=True),
            ConfigLocation(scope="project", path="{project}/.claude/settings.local.json", settings=True),
            ConfigLocation(scope="global", path="{claude}/settings.json", settings=True),
            ConfigLocation(scope="global", path="{claude}/settings.local.json", settings=True),
            ConfigLocation(scope="global", path="{managed_claude}/managed-settings.json", settings=True),
            *_agent_files("project", "{project}/.claude/agents"),
            *_agent_files("global", "{claude}/agents"),
        ),
    ),
    Client(
        id="claude-desktop",
        title="Claude Desktop",
        root=_SERVERS,
        spelling=Spelling(),
        locations=(_global_file("{roaming}/Claude/claude_desktop_config.json", installs=True),),
    ),
    Client(
        id="cursor",
        title="Cursor",
        root=_SERVERS,
        spelling=Spelling(),
        locations=(
            _project_file(".cursor/mcp.json", installs=True),
            _global_file("{home}/.cursor/mcp.json", installs=True),
            ConfigLocation(scope="project", path="{project}/.cursor/hooks.json", settings=True),
            ConfigLocation(scope="global", path="{home}/.cursor/hooks.json", settings=True),
        ),
    ),
    Client(
        id="vscode",
        title="VS Code",
        root=("servers",),
        spelling=Spelling(inputs="inputs"),
        locations=(
            ConfigLocation(scope="project", path="{project}/.vscode/mcp.json", installs=True, more_roots=(_SERVERS,)),
            _global_file("{roaming}/Code/User/mcp.json", installs=True),
            _global_file("{roaming}/Code - Insiders/User/mcp.json"),
            _global_file("{roaming}/VSCodium/User/mcp.json"),
            # Every profile but the default one has its own folder.
            *(_global_file(f"{{roaming}}/{code}/User/profiles/*/mcp.json") for code in _CODES),
            # Until mid-2025 servers were a part of the settings; old files are still read.
            _vscode_settings("project", "{project}/.vscode/settings.json", _IN_SETTINGS),
            *(_vscode_settings("global", f"{{roaming}}/{code}/User/settings.json", _IN_SETTINGS) for code in _CODES),
            *(
                _vscode_settings("global", f"{{roaming}}/{code}/User/profiles/*/settings.json", _IN_SETTINGS)
                for code in _CODES
            ),
            # A workspace of several folders has its settings in a file of any name.
            _vscode_settings("project", "{project}/*.code-workspace", ("settings", *_IN_SETTINGS)),
            # A dev container has its own servers, and its settings may contain more.
            *(
                _vscode_settings("project", f"{{project}}/{file}", (*_IN_CONTAINER, *_IN_SETTINGS), _CONTAINER_SETTINGS)
                for file in _CONTAINERS
            ),
        ),
    ),
    Client(
        id="codex",
        title="Codex",
        root=("mcp_servers",),
        spelling=Spelling(headers=("http_headers",), off=("enabled", False)),
        locations=(
            _project_file(".codex/config.toml", installs=True),
            _global_file("{codex}/config.toml", installs=True),
            _project_file(".codex/agents/*.toml"),
            _global_file("{codex}/agents/*.toml"),
        ),
    ),
    Client(
        id="opencode",
        title="opencode",
        root=("mcp",),
        spelling=Spelling(env="environment", off=("enabled", False), local="local", command_list=True),
        locations=(
            _project_file("opencode.json", installs=True),
            _project_file("opencode.jsonc"),
            _project_file(".opencode/opencode.json"),
            _project_file(".opencode/opencode.jsonc"),
            _global_file("{config}/opencode/opencode.json", installs=True),
            _global_file("{config}/opencode/opencode.jsonc"),
            *_program_locations("project", "{project}/.opencode", "plugin", "plugins", "tool", "tools"),
            *_program_locations("global", "{config}/opencode", "plugin", "plugins", "tool", "tools"),
        ),
    ),
    Client(
        id="windsurf",
        title="Windsurf",
        root=_SERVERS,
        spelling=Spelling(url=("serverUrl", "url"), consent=("alwaysAllow",)),
        locations=(
            _global_file("{home}/.codeium/windsurf/mcp_config.json", installs=True),
            _global_file("{home}/.codeium/windsurf-next/mcp_config.json"),
        ),
    ),
    Client(
        id="cline",
        title="Cline",
        root=_SERVERS,
        spelling=Spelling(consent=("autoApprove", "alwaysAllow")),
        locations=(
            _global_file("{home}/.cline/mcp.json", installs=True),
            _global_file("{home}/.cline/data/settings/cline_mcp_settings.json"),
            *_extension_files("saoudrizwan.claude-dev", "cline_mcp_settings.json"),
        ),
    ),
    Client(
        id="continue",
        title="Continue",
        root=_SERVERS,
        spelling=Spelling(headers=("requestOptions", "headers"), named_list=True),
        locations=(
            _global_file("{continue}/config.yaml", installs=True),
            _global_file("{continue}/config.yml"),
            ConfigLocation(scope="global", path="{continue}/config.json", more_roots=_OLD_CONTINUE),
            _project_file(".continue/config.yaml"),
            _project_file(".continue/config.yml"),
            ConfigLocation(scope="project", path="{project}/.continue/config.json", more_roots=_OLD_CONTINUE),
            *_continue_blocks("project", "{project}/.continue/mcpServers"),
            *_continue_blocks("global", "{continue}/mcpServers"),
            *_continue_assistants("project", "{project}/.continue"),
            *_continue_assistants("global", "{continue}"),
            ConfigLocation(scope="project", path="{project}/.continuerc.json", more_roots=_OLD_CONTINUE),
        ),
    ),
    Client(
        id="gemini",
        title="Gemini CLI",
        root=_SERVERS,
        spelling=Spelling(url=("httpUrl", "url"), url_transport="sse", consent=("trust",)),
        locations=(
            _project_file(".gemini/settings.json", installs=True),
            _global_file("{home}/.gemini/settings.json", installs=True),
            _global_file("{managed_gemini}/settings.json"),
            _project_file(".gemini/extensions/*/gemini-extension.json"),
            _global_file("{home}/.gemini/extensions/*/gemini-extension.json"),
            *_agent_files("project", "{project}/.gemini/agents"),
            *_agent_files("global", "{home}/.gemini/agents"),
        ),
    ),
    Client(
        id="zed",
        title="Zed",
        root=("context_servers",),
        spelling=Spelling(off=("enabled", False)),
        locations=(
            _project_file(".zed/settings.json"),
            ConfigLocation(scope="global", path="{config}/zed/settings.json", systems=("linux", "mac")),
            ConfigLocation(scope="global", path="{roaming}/Zed/settings.json", systems=("windows",)),
        ),
    ),
    Client(
        id="roo",
        title="Roo Code",
        root=_SERVERS,
        spelling=Spelling(consent=("alwaysAllow",)),
        locations=(
            _project_file(".roo/mcp.json", installs=True),
            *_extension_files("rooveterinaryinc.roo-cline", "mcp_settings.json"),
        ),
    ),
    Client(
        id="kiro",
        title="Kiro",
        root=_SERVERS,
        spelling=Spelling(consent=("autoApprove",)),
        locations=(
            _project_file(".kiro/settings/mcp.json"),
            _project_file(".kiro/agents/*.json"),
            _global_file("{home}/.kiro/settings/mcp.json"),
            _global_file("{home}/.kiro/agents/*.json"),
        ),
    ),
    Client(
        id="amazon-q",
        title="Amazon Q Developer",
        root=_SERVERS,
        spelling=Spelling(consent=("autoApprove",)),
        locations=(
            *(_project_file(f".amazonq/{file}") for file in _AMAZON_Q),
            *(_global_file(f"{{home}}/.aws/amazonq/{file}") for file in _AMAZON_Q),
        ),
    ),
    Client(
        id="junie",
        title="Junie",
        root=_SERVERS,
        spelling=Spelling(),
        locations=(_project_file(".junie/mcp/mcp.json"), _global_file("{home}/.junie/mcp/mcp.json")),
    ),
    Client(
        id="copilot-cli",
        title="GitHub Copilot CLI",
        root=_SERVERS,
        spelling=Spelling(),
        locations=(
            _project_file(".github/mcp.json"),
            _global_file("{copilot}/mcp-config.json"),
            *_agent_files("project", "{project}/.github/agents"),
            *_agent_files("global", "{copilot}/agents"),
        ),
    ),
    Client(
        id="visual-studio",
        title="Visual Studio",
        root=_SERVERS,  # lockfiles have no separate format for this client
        spelling=Spelling(inputs="inputs"),
        locations=(
            ConfigLocation(scope="project", path="{project}/.vs/mcp.json", more_roots=(("servers",),)),
            ConfigLocation(scope="global", path="{home}/.mcp.json", more_roots=(("servers",),)),
        ),
    ),
    Client(
        id="kilo",
        title="Kilo Code",
        root=_SERVERS,
        spelling=Spelling(consent=("alwaysAllow",)),
        locations=(_project_file(".kilocode/mcp.json"), *_extension_files("kilocode.kilo-code", "mcp_settings.json")),
    ),
    Client(
        id="qwen",
        title="Qwen Code",
        root=_SERVERS,
        spelling=Spelling(url=("httpUrl", "url"), url_transport="sse", consent=("trust",)),
        locations=(_project_file(".qwen/settings.json"), _global_file("{home}/.qwen/settings.json")),
    ),
    Client(
        id="trae",
        title="Trae",
        root=_SERVERS,
        spelling=Spelling(),
        locations=(_project_file(".trae/mcp.json"),),
    ),
    Client(
        id="factory",
        title="Factory Droid",
        root=_SERVERS,
        spelling=Spelling(),
        locations=(_project_file(".factory/mcp.json"), _global_file("{home}/.factory/mcp.json")),
    ),
    Client(
        id="crush",
        title="Crush",
        root=("mcp",),
        spelling=Spelling(),
        locations=(
            _project_file(".crush.json"),
            _project_file("crush.json"),
            _project_file(".crush/crush.json"),
            _global_file("{config}/crush/crush.json"),
            _global_file("{home}/.local/share/crush/crush.json"),
            ConfigLocation(scope="global", path="{local}/crush/crush.json", systems=("windows",)),
        ),
    ),
    Client(
        id="amp",
        title="Amp",
        root=_AMP,
        spelling=Spelling(),
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
    ),
    Client(
        id="goose",
        title="Goose",
        root=("extensions",),
        spelling=Spelling(
            url=("uri", "url"),
            env="envs",
            off=("enabled", False),
            command="cmd",
            wrapped="config",
            inside=("builtin", "platform", "frontend"),
        ),
        locations=(
            ConfigLocation(scope="global", path="{config}/goose/config.yaml", systems=("linux", "mac")),
            ConfigLocation(scope="global", path="{roaming}/Block/goose/config/config.yaml", systems=("windows",)),
            *(_project_file(f".goose/{file}") for file in ("config.yaml", "config.yml")),
            *(_project_file(f".goose/recipes/*.{form}") for form in ("yaml", "yml", "json")),
            *(_global_file(f"{{config}}/goose/recipes/*.{form}") for form in ("yaml", "yml", "json")),
        ),
    ),
    Client(
        id="generic",
        title="any client that reads mcpServers",
        root=_SERVERS,
        spelling=Spelling(consent=("autoApprove", "alwaysAllow", "trust")),
        locations=(
            _project_file(".mcp.json", installs=True),
            _global_file("{home}/.config/toolpin/generic-mcp.json", installs=True),
        ),
    ),
)

CLIENTS: Mapping[str, Client] = MappingProxyType({client.id: client for client in _TABLE})
"""All clients by id."""


def list_client_titles() -> tuple[str, ...]:
    """The titles of the clients whose files are searched."""
    return tuple(client.title for client in CLIENTS.values() if client.id != "generic")


def get_client(identifier: str) -> Client:
    """The client with this id. Raises ``CLIENT_UNKNOWN``."""
    if identifier not in CLIENTS:
        _raise_unknown_client(identifier)
    return CLIENTS[identifier]


def find_installation_location(client: Client, scope: str) -> ConfigLocation | None:
    """The file that an installation for this client and scope is written to; None if that is not supported."""
    return next((location for location in client.locations if location.installs and location.scope == scope), None)


def _raise_unknown_client(identifier: str) -> NoReturn:
    raise PinwardenError("CLIENT_UNKNOWN", f"unknown client {identifier[:40]!a}", data={"clients": list(CLIENTS)})
