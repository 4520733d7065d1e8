"""Observe a server, from its source or as a client, and derive its contracts.

1. Probe the server as a client does. For a Python server, also collect facts in its process.
2. Refuse a surface that cannot be locked: items without a digest, or two tools with the same name.
3. Analyse the source code of the handlers, if it is available.
4. Combine the results into contracts, prompts and the lockfile extension.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.contract.contract import Contracts, EntitlementContract, PromptContract
from pinwarden.contract.entitlements.values import (
    CODE_EVALUATION,
    CRYPTO,
    FILESYSTEM_READ,
    FILESYSTEM_WRITE,
    NETWORK,
    SUBPROCESS,
    Analysis,
    EntitlementFinding,
    Entitlements,
    Handler,
    Source,
    UnfollowedCode,
)
from pinwarden.contract.extension import IN_MEMORY, LIVE, SOURCE, UNKNOWN, ContractExtension, ToolExtension
from pinwarden.contract.surface_contracts import (
    ServerInternals,
    ToolInternals,
    derive_contracts,
    derive_evidence,
    derive_prompts,
)
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.core.text import plural
from pinwarden.surface.surface import PROMPT, RESOURCE, TEMPLATE, TOOL, ItemKind, Surface
from pinwarden.system.files import read_file

if TYPE_CHECKING:
    from pinwarden.contract.javascript_server import JavaScriptSource
    from pinwarden.contract.python_server import PythonServer
    from pinwarden.surface.probe.probe import ProbeOptions
    from pinwarden.system.target import Target


class ObservedServer(Record):
    """A server as it is now: its contracts, its prompts, and the extension for its lockfile."""

    name: str
    contracts: Contracts
    prompts: tuple[PromptContract, ...]
    extension: ContractExtension
    analysis: Analysis | None = None
    """The entitlements of the server's code; None if the source was not available."""
    sources: Mapping[str, Source] = field(default_factory=dict, repr=False)


def observe_live(
    target: Target, options: ProbeOptions, folder: Path | None = None, *, scan_packages: bool = False
) -> ObservedServer:
    """Observe a server in any language by probing it. Facts that only the server's process knows stay unknown.

    The handlers are found and analysed in the source in ``folder``. Without it, they are analysed only if the command
    starts a JavaScript or TypeScript file.
    """
    from pinwarden.contract.javascript_server import (
        can_analyse_javascript,
        find_source_in_folder,
        find_source_of_command,
    )
    from pinwarden.surface.probe.probe import probe
    from pinwarden.system.target import StdioTarget

    command = target.command if isinstance(target, StdioTarget) else ()
    script = find_source_of_command(command) if folder is None and command else None
    if folder is not None:
        script = find_source_in_folder(folder, command)
    if script is not None and folder is not None and not can_analyse_javascript():
        raise PinwardenError(
            "USAGE",
            "the analysis of JavaScript and TypeScript is not installed",
            hint="Install it with: python3 -m pip install 'pinwarden[javascript]'",
        )
    sources = read_folder(folder) if folder is not None and script is None else {}
    surface = probe(target, options)
    if script is not None and can_analyse_javascript():
        analysis = _analyse_javascript(surface, script, scan_packages=scan_packages)
    elif folder is not None:
        analysis = _analyse_handlers(surface, {}, sources, None)
    else:
        return _build_observed_server(surface, None, {}, None, {})
    return _build_observed_server(surface, _build_internals({}, analysis), {}, analysis, sources)


def _analyse_javascript(surface: Surface, script: JavaScriptSource, *, scan_packages: bool) -> Analysis:
    from pinwarden.contract.javascript_server import analyse_server

    names = {
        kind: [item.key for listed in lists for item in surface.items_of_kind(listed)]
        for kind, lists in _ITEM_KINDS.items()
    }
    return analyse_server(script, names, scan_packages=scan_packages)


def observe_python(
    server: PythonServer,
    python: str,
    options: ProbeOptions,
    *,
    variables: Mapping[str, str] | None = None,
    scan_packages: bool = False,
) -> ObservedServer:
    """Observe a Python server by importing it in a separate process with these environment variables."""
    from pinwarden.contract.python_server import introspect

    introspected = introspect(server, python, options, variables)
    facts = introspected.facts
    if facts.get("duplicates"):
        raise PinwardenError(
            "SERVER_TOOLS_DUPLICATE",
            f"{server.module} registers the same name twice: {str(facts['duplicates'][0])[:200]}",
            data={"duplicates": list(facts["duplicates"])},
        )
    sources = read_modules(_read_strings(facts.get("modules")), server.folder)
    packages = InstalledPackages(_read_paths(facts.get("packages"))) if scan_packages else None
    analysis = _analyse_handlers(introspected.surface, facts, sources, packages)
    return _build_observed_server(introspected.surface, _build_internals(facts, analysis), facts, analysis, sources)


def _build_observed_server(
    surface: Surface,
    known: ServerInternals | None,
    facts: Mapping[str, Any],
    analysis: Analysis | None,
    sources: Mapping[str, Source],
) -> ObservedServer:
    if surface.problem is not None:
        raise PinwardenError("SURFACE_INVALID", f"the server's surface cannot be locked: {surface.problem}")
    repeated = _find_repeated_tool(surface)
    if repeated is not None:
        raise PinwardenError("SERVER_TOOLS_DUPLICATE", f"the server lists the tool {repeated[:120]!a} twice")
    contracts = derive_contracts(surface, known)
    tools = {name: _build_tool_extension(name, known, facts, analysis) for name in contracts}
    protocol = surface.observed.get("protocolVersion")
    versions = {**_read_strings(facts.get("versions")), **({"protocol": protocol} if isinstance(protocol, str) else {})}
    analysed = analysis is not None and (analysis.handlers or analysis.prompts or analysis.resources)
    level = LIVE if known is None else SOURCE if analysed else IN_MEMORY
    return ObservedServer(
        name=_read_server_name(surface),
        contracts=contracts,
        prompts=derive_prompts(surface, known),
        extension=ContractExtension(
            surface=surface,
            contracts=contracts,
            evidence=level,
            versions=versions,
            tools=tools,
            details=_build_server_details(facts, analysis),
        ),
        analysis=analysis,
        sources=sources,
    )


def _find_repeated_tool(surface: Surface) -> str | None:
    seen: set[str] = set()
    for item in surface.items_of_kind(TOOL):
        if item.key in seen:
            return item.key
        seen.add(item.key)
    return None


def _read_server_name(surface: Surface) -> str:
    info = (surface.server or {}).get("serverInfo")
    name = info.get("name") if isinstance(info, dict) else None
    return name if isinstance(name, str) and name else "mcp-server"


def _analyse_handlers(
    surface: Surface,
    facts: Mapping[str, Any],
    sources: Mapping[str, Source],
    packages: Mapping[str, Source] | None,
) -> Analysis:
    """Analyse the source code of the handlers. Searches the source for handlers that the process does not report."""
    from pinwarden.contract.entitlements.analysis import analyse, find_handlers

    handlers: list[Handler] = []
    unknown: set[tuple[str, str]] = set()
    for kind, lists in _ITEM_KINDS.items():
        recorded = facts.get(f"{kind}s")
        reported = [
            _parse_handler(name, entry, kind)
            for name, entry in (recorded if isinstance(recorded, dict) else {}).items()
        ]
        known = [handler for handler in reported if handler is not None and handler.module in sources]
        handlers += known
        offered = {(kind, item.key) for listed in lists for item in surface.items_of_kind(listed)}
        unknown |= offered - {(kind, handler.name) for handler in known}
    if unknown:
        # Several functions may be registered under one name, and any of them may handle a call.
        in_source = find_handlers(sources)
        handlers += [handler for handler in in_source if (handler.kind, handler.name) in unknown]
        registered = {(handler.kind, handler.name) for handler in in_source}
        catch_all = [handler for handler in in_source if handler.name == "*" and handler.kind != "tool"]
        for kind, name in sorted(unknown - registered):
            handlers += [replace(handler, name=name) for handler in catch_all if handler.kind == kind]
    return analyse(sources, handlers, packages)


_ITEM_KINDS: Mapping[str, tuple[ItemKind, ...]] = {
    "tool": (TOOL,),
    "prompt": (PROMPT,),
    "resource": (RESOURCE, TEMPLATE),
}


def _parse_handler(name: str, tool: Any, kind: str) -> Handler | None:
    location = tool.get("handler") if isinstance(tool, dict) else None
    if not isinstance(location, dict) or not isinstance(location.get("module"), str):
        return None
    line = location.get("line")
    return Handler(
        name=name,
        module=location["module"],
        function=str(location.get("qualname")),
        line=line if type(line) is int else 0,
        kind=kind,
    )


def _build_internals(facts: Mapping[str, Any], analysis: Analysis) -> ServerInternals:
    middleware = [layer for layer in facts.get("middleware") or () if isinstance(layer, dict)]
    tools = facts.get("tools")
    prompts = facts.get("prompts")
    names = set(tools if isinstance(tools, dict) else ()) | set(analysis.handlers)
    return ServerInternals(
        tools={name: _build_tool_internals(name, _get_object(tools, name), middleware, analysis) for name in names},
        prompt_tags={
            name: _read_tags(_get_object(prompts, name)) for name in (prompts if isinstance(prompts, dict) else ())
        },
        prompts_have_middleware=any(layer.get("prompts") is True for layer in middleware),
    )


def _build_tool_internals(
    name: str, facts: Mapping[str, Any], middleware: list[dict[str, Any]], analysis: Analysis
) -> ToolInternals:
    limits = [
        int(layer["maxSize"])
        for layer in middleware
        if isinstance(layer.get("maxSize"), int | float) and (not layer.get("onlyFor") or name in layer["onlyFor"])
    ]
    entitlements = analysis.handlers.get(name)
    return ToolInternals(
        from_process=bool(facts),
        tags=_read_tags(facts),
        has_middleware=facts.get("auth") is True or any(layer.get("tools") is True for layer in middleware),
        egress_max_bytes=min(limits, default=None),
        entitlements=None if entitlements is None else _summarize_entitlements(entitlements),
    )


def _summarize_entitlements(entitlements: Entitlements) -> EntitlementContract:
    """Reduce entitlements to the five flags of a contract. The extension of the lockfile has the details.

    If the analysis could not follow all code, an entitlement that was not found is unknown instead of False.
    """
    flags = EntitlementContract(
        filesystem=entitlements.has(FILESYSTEM_READ) or entitlements.has(FILESYSTEM_WRITE),
        network=entitlements.has(NETWORK),
        subprocess=entitlements.has(SUBPROCESS),
        crypto=entitlements.has(CRYPTO),
        code_evaluation=entitlements.has(CODE_EVALUATION),
        raw=tuple(sorted({finding.what for finding in entitlements.findings})),
    )
    return flags.with_unknown_flags() if entitlements.unknown else flags


def _build_tool_extension(
    name: str, known: ServerInternals | None, facts: Mapping[str, Any], analysis: Analysis | None
) -> ToolExtension:
    known_tool = None if known is None else known.tools.get(name, ToolInternals(from_process=bool(facts)))
    entitlements = analysis.handlers.get(name) if analysis is not None else None
    tool = _get_object(facts.get("tools"), name)
    handler = tool.get("handler")
    details = {
        **({"handler": f"{handler['module']}:{handler['qualname']}"} if isinstance(handler, dict) else {}),
        **({"timeout": tool["timeout"]} if tool.get("timeout") is not None else {}),
        **({"auth": True} if tool.get("auth") is True else {}),
    }
    return ToolExtension(
        evidence=derive_evidence(known_tool),
        entitlements={} if entitlements is None else entitlements_to_json(entitlements),
        middleware=tuple(
            {"name": layer["name"], "sourceDigest": layer.get("sourceDigest")}
            for layer in facts.get("middleware") or ()
            if isinstance(layer, dict) and layer.get("tools") is True
        ),
        details=details,
    )


def entitlements_to_json(entitlements: Entitlements) -> dict[str, Any]:
    """Return the entitlements for the lockfile, without line numbers, because unrelated edits change those."""
    return {
        "kinds": list(entitlements.kinds),
        "findings": _deduplicate(
            {"kind": finding.kind, "what": finding.what, "path": finding.path} for finding in entitlements.findings
        ),
        "unknown": _deduplicate(
            {"reason": unknown.reason, "what": unknown.what, "path": unknown.path} for unknown in entitlements.unknown
        ),
    }


def _deduplicate(rows: Any) -> list[dict[str, str]]:
    seen = {tuple(sorted(row.items())): row for row in rows}
    return [seen[key] for key in sorted(seen)]


def _build_server_details(facts: Mapping[str, Any], analysis: Analysis | None) -> dict[str, Any]:
    framework = facts.get("framework")
    return {
        **({"framework": framework} if isinstance(framework, str) else {}),
        **(
            {"startup": entitlements_to_json(analysis.startup)}
            if analysis is not None and analysis.startup.kinds
            else {}
        ),
        **({} if analysis is None else _map_entitlements("prompts", analysis.prompts)),
        **({} if analysis is None else _map_entitlements("resources", analysis.resources)),
    }


def _map_entitlements(member: str, result: Mapping[str, Entitlements]) -> dict[str, Any]:
    return {member: {name: entitlements_to_json(result[name]) for name in sorted(result)}} if result else {}


def note_unanalysed_tools(observed: ObservedServer) -> tuple[str, ...]:
    """Return a note for the report that lists the tools whose code was not analysed."""
    names = [name for name, facts in observed.extension.tools.items() if facts.evidence["entitlements"] == UNKNOWN]
    if not names:
        return ()
    listed = ", ".join(name[:60] for name in names[:_MAX_LISTED]) + (
        f" and {len(names) - _MAX_LISTED} more" if names[_MAX_LISTED:] else ""
    )
    return (
        f"the code of {plural(len(names), 'tool')} was not analysed, so its entitlements are unknown: {listed}. To "
        "analyse Python code, use --server FILE, or --source FOLDER with --command or --url. To analyse "
        "JavaScript, install pinwarden[javascript] and use --command -- node FILE",
    )


_MAX_LISTED = 5
"""The number of tool names in a note. The lock lists all tools."""


def describe_location(finding: EntitlementFinding | UnfollowedCode) -> str:
    """Return the file, line and called function of a finding, and the call path from the handler to that line."""
    call_path = " > ".join(f"{step.function} ({step.path}:{step.line})" for step in finding.call_path)
    return f"{finding.path}:{finding.line} {finding.what}" + (f" via {call_path}" if call_path else "")


def _get_object(value: Any, name: str) -> Mapping[str, Any]:
    member = value.get(name) if isinstance(value, dict) else None
    return member if isinstance(member, dict) else {}


def _read_tags(facts: Mapping[str, Any]) -> tuple[str, ...]:
    tags = facts.get("tags")
    return tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else ()


def _read_paths(value: Any) -> list[Path]:
    return [Path(item) for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _read_strings(value: Any) -> dict[str, str]:
    pairs = value.items() if isinstance(value, dict) else ()
    return {name: text for name, text in pairs if isinstance(text, str)}


_MAX_MODULES = 5000
_PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages", "node_modules"})
_MAX_BYTES = 4 << 20  # larger modules are probably generated


def read_modules(modules: Mapping[str, str], folder: Path) -> dict[str, Source]:
    """Read the source of each module, by dotted name.

    The server's process reports the paths, so they are not trusted: raises ``SERVER_IMPORT_FAILED`` if a path is
    outside the server's folder.
    """
    root = folder.resolve()
    for path in modules.values():
        if root not in Path(path).resolve().parents:
            raise PinwardenError(
                "SERVER_IMPORT_FAILED", f"the server's process reported a module outside its folder: {path[:200]!a}"
            )
    return {name: _read_source(Path(path), folder) for name, path in sorted(modules.items())}


def read_folder(folder: Path) -> dict[str, Source]:
    """Read the source of every module below a folder, by dotted name."""
    if not folder.is_dir():
        raise PinwardenError(
            "USAGE", f"{str(folder)[:200]!a} is not a folder", hint="Give the folder of the server's Python package."
        )
    folder = folder.resolve()
    root = folder
    while (root / "__init__.py").is_file():
        root = root.parent
    modules: dict[str, Source] = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if _PACKAGE_FOLDERS.isdisjoint(parts) and all(part.isidentifier() for part in parts):
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            modules[name] = _read_source(path, root)
        if len(modules) > _MAX_MODULES:
            raise PinwardenError("USAGE", f"{folder.name[:120]!a} has more than {_MAX_MODULES} modules")
    return modules


def _read_source(path: Path, folder: Path) -> Source:
    import tokenize

    data = read_file(path, _MAX_BYTES)
    try:
        encoding, _ = tokenize.detect_encoding(iter(data.splitlines(keepends=True)).__next__)
        text = data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as err:
        raise PinwardenError("FILE_UNREADABLE", f"{path.name[:120]} cannot be read as Python source: {err}") from err
    try:
        display_path = path.relative_to(folder.resolve()).as_posix()
    except ValueError:
        display_path = path.name
    return Source(path=display_path, text=text, package=path.name == "__init__.py")


class InstalledPackages(Mapping[str, Source]):
    """The modules of installed packages, read when they are needed."""

    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders
        self._cache: dict[str, Source | None] = {}

    def __getitem__(self, name: str) -> Source:
        if name not in self._cache:
            self._cache[name] = self._find(name)
        source = self._cache[name]
        if source is None:
            raise KeyError(name)
        return source

    def __iter__(self) -> Iterator[str]:
        return (name for name, source in self._cache.items() if source is not None)

    def __len__(self) -> int:
        return sum(source is not None for source in self._cache.values())

    def _find(self, name: str) -> Source | None:
        parts = name.split(".")
        if not all(part.isidentifier() for part in parts):
            return None
        for folder in self._folders:
            module = folder.joinpath(*parts)
            for path in (module / "__init__.py", module.with_suffix(".py")):
                if path.is_file() and path.stat().st_size <= _MAX_BYTES:
                    return _read_source(path, folder)
        return None
