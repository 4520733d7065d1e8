"""Observe a server, from its source or over the wire, and derive its contracts.

1. Probe the server as a client would; for a Python server, also collect facts in its process.
2. Reject what cannot be locked: items without a digest, two tools with one name.
3. Analyse the source of its handlers, if there is any.
4. Combine the results: contracts, prompts, and the lockfile extension.
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
    UnknownReach,
)
from pinwarden.contract.extension import IN_MEMORY, LIVE, SOURCE, UNKNOWN, ContractExtension, ToolFacts
from pinwarden.contract.surface_contracts import KnownServer, KnownTool, contracts_of, evidence_of, prompts_of
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.core.report import plural
from pinwarden.surface.surface import PROMPT, RESOURCE, TEMPLATE, TOOL, ItemKind, Surface
from pinwarden.system.files import read_file

if TYPE_CHECKING:
    from pinwarden.contract.python_server import PythonServer
    from pinwarden.surface.probe.probe import ProbeOptions
    from pinwarden.system.target import Target


class Observed(Record):
    """The current state of a server."""

    name: str
    contracts: Contracts
    prompts: tuple[PromptContract, ...]
    extension: ContractExtension
    analysis: Analysis | None = None
    """What its handlers can reach; None without source."""
    sources: Mapping[str, Source] = field(default_factory=dict, repr=False)


def observe_live(target: Target, options: ProbeOptions, folder: Path | None = None) -> Observed:
    """Observe a server in any language by probing it. Facts that only its process knows stay unknown.

    If ``folder`` has its Python source, the handlers are found and analysed there.
    """
    from pinwarden.surface.probe.probe import probe

    sources = {} if folder is None else read_folder(folder)
    surface = probe(target, options)
    if folder is None:
        return _observed(surface, None, {}, None, {})
    analysis = _analysed(surface, {}, sources, None)
    return _observed(surface, _known({}, analysis), {}, analysis, sources)


def observe_python(
    server: PythonServer,
    python: str,
    options: ProbeOptions,
    *,
    variables: Mapping[str, str] | None = None,
    scan_packages: bool = False,
) -> Observed:
    """Observe a Python server by importing it in a separate process with these environment variables."""
    from pinwarden.contract.python_server import introspect

    introspected = introspect(server, python, options, variables)
    facts = introspected.facts
    if facts.get("duplicates"):
        raise PinwardenError(
            "SERVER_TOOLS_DUPLICATE",
            f"{server.module} registers a name twice: {str(facts['duplicates'][0])[:200]}",
            data={"duplicates": list(facts["duplicates"])},
        )
    sources = read_modules(_texts(facts.get("modules")), server.folder)
    packages = InstalledPackages(_paths(facts.get("packages"))) if scan_packages else None
    analysis = _analysed(introspected.surface, facts, sources, packages)
    return _observed(introspected.surface, _known(facts, analysis), facts, analysis, sources)


def _observed(
    surface: Surface,
    known: KnownServer | None,
    facts: Mapping[str, Any],
    analysis: Analysis | None,
    sources: Mapping[str, Source],
) -> Observed:
    if surface.problem is not None:
        raise PinwardenError("SURFACE_INVALID", f"the server's surface cannot be locked: {surface.problem}")
    repeated = _repeated(surface)
    if repeated is not None:
        raise PinwardenError("SERVER_TOOLS_DUPLICATE", f"the server lists {repeated[:120]!a} twice")
    contracts = contracts_of(surface, known)
    tools = {name: _facts_of(name, known, facts, analysis) for name in contracts}
    protocol = surface.observed.get("protocolVersion")
    versions = {**_texts(facts.get("versions")), **({"protocol": protocol} if isinstance(protocol, str) else {})}
    analysed = analysis is not None and (analysis.handlers or analysis.prompts or analysis.resources)
    level = LIVE if known is None else SOURCE if analysed else IN_MEMORY
    return Observed(
        name=_server_name(surface),
        contracts=contracts,
        prompts=prompts_of(surface, known),
        extension=ContractExtension(
            surface=surface,
            contracts=contracts,
            evidence=level,
            versions=versions,
            tools=tools,
            details=_server_details(facts, analysis),
        ),
        analysis=analysis,
        sources=sources,
    )


def _repeated(surface: Surface) -> str | None:
    seen: set[str] = set()
    for item in surface.items_of_kind(TOOL):
        if item.key in seen:
            return item.key
        seen.add(item.key)
    return None


def _server_name(surface: Surface) -> str:
    info = (surface.server or {}).get("serverInfo")
    name = info.get("name") if isinstance(info, dict) else None
    return name if isinstance(name, str) and name else "mcp-server"


def _analysed(
    surface: Surface,
    facts: Mapping[str, Any],
    sources: Mapping[str, Source],
    packages: Mapping[str, Source] | None,
) -> Analysis:
    """Analyse the handlers. Those that the process does not report are looked up in the source."""
    from pinwarden.contract.entitlements.analysis import analyse, handlers_in

    handlers: list[Handler] = []
    unknown: set[tuple[str, str]] = set()
    for kind, lists in _HANDLED.items():
        recorded = facts.get(f"{kind}s")
        reported = [
            _handler(name, entry, kind) for name, entry in (recorded if isinstance(recorded, dict) else {}).items()
        ]
        known = [handler for handler in reported if handler is not None and handler.module in sources]
        handlers += known
        offered = {(kind, item.key) for listed in lists for item in surface.items_of_kind(listed)}
        unknown |= offered - {(kind, handler.name) for handler in known}
    if unknown:
        # Several functions may register one name; all of them count.
        in_source = handlers_in(sources)
        handlers += [handler for handler in in_source if (handler.kind, handler.name) in unknown]
        registered = {(handler.kind, handler.name) for handler in in_source}
        catch_all = [handler for handler in in_source if handler.name == "*" and handler.kind != "tool"]
        for kind, name in sorted(unknown - registered):
            handlers += [replace(handler, name=name) for handler in catch_all if handler.kind == kind]
    return analyse(sources, handlers, packages)


_HANDLED: Mapping[str, tuple[ItemKind, ...]] = {"tool": (TOOL,), "prompt": (PROMPT,), "resource": (RESOURCE, TEMPLATE)}


def _handler(name: str, tool: Any, kind: str) -> Handler | None:
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


def _known(facts: Mapping[str, Any], analysis: Analysis) -> KnownServer:
    middleware = [layer for layer in facts.get("middleware") or () if isinstance(layer, dict)]
    tools = facts.get("tools")
    prompts = facts.get("prompts")
    names = set(tools if isinstance(tools, dict) else ()) | set(analysis.handlers)
    return KnownServer(
        tools={name: _known_tool(name, _dict(tools, name), middleware, analysis) for name in names},
        prompt_tags={name: _tags(_dict(prompts, name)) for name in (prompts if isinstance(prompts, dict) else ())},
        prompts_have_middleware=any(layer.get("prompts") is True for layer in middleware),
    )


def _known_tool(name: str, facts: Mapping[str, Any], middleware: list[dict[str, Any]], analysis: Analysis) -> KnownTool:
    limits = [
        int(layer["maxSize"])
        for layer in middleware
        if isinstance(layer.get("maxSize"), int | float) and (not layer.get("onlyFor") or name in layer["onlyFor"])
    ]
    entitlements = analysis.handlers.get(name)
    return KnownTool(
        from_process=bool(facts),
        tags=_tags(facts),
        has_middleware=facts.get("auth") is True or any(layer.get("tools") is True for layer in middleware),
        egress_max_bytes=min(limits, default=None),
        entitlements=None if entitlements is None else _flags(entitlements),
    )


def _flags(entitlements: Entitlements) -> EntitlementContract:
    """The five flags of the format; the rest is in the extension.

    A missing entitlement is False only if all code could be analysed; otherwise it is unknown.
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


def _facts_of(name: str, known: KnownServer | None, facts: Mapping[str, Any], analysis: Analysis | None) -> ToolFacts:
    known_tool = None if known is None else known.tools.get(name, KnownTool(from_process=bool(facts)))
    entitlements = analysis.handlers.get(name) if analysis is not None else None
    tool = _dict(facts.get("tools"), name)
    handler = tool.get("handler")
    details = {
        **({"handler": f"{handler['module']}:{handler['qualname']}"} if isinstance(handler, dict) else {}),
        **({"timeout": tool["timeout"]} if tool.get("timeout") is not None else {}),
        **({"auth": True} if tool.get("auth") is True else {}),
    }
    return ToolFacts(
        evidence=evidence_of(known_tool),
        entitlements={} if entitlements is None else entitlement_facts(entitlements),
        middleware=tuple(
            {"name": layer["name"], "sourceDigest": layer.get("sourceDigest")}
            for layer in facts.get("middleware") or ()
            if isinstance(layer, dict) and layer.get("tools") is True
        ),
        details=details,
    )


def entitlement_facts(entitlements: Entitlements) -> dict[str, Any]:
    """The entitlements for the lockfile, without line numbers, which change without a change of behaviour."""
    return {
        "kinds": list(entitlements.kinds),
        "findings": _distinct(
            {"kind": finding.kind, "what": finding.what, "path": finding.path} for finding in entitlements.findings
        ),
        "unknown": _distinct(
            {"reason": unknown.reason, "what": unknown.what, "path": unknown.path} for unknown in entitlements.unknown
        ),
    }


def _distinct(rows: Any) -> list[dict[str, str]]:
    seen = {tuple(sorted(row.items())): row for row in rows}
    return [seen[key] for key in sorted(seen)]


def _server_details(facts: Mapping[str, Any], analysis: Analysis | None) -> dict[str, Any]:
    framework = facts.get("framework")
    return {
        **({"framework": framework} if isinstance(framework, str) else {}),
        **({"startup": entitlement_facts(analysis.startup)} if analysis is not None and analysis.startup.kinds else {}),
        **({} if analysis is None else _facts_by_name("prompts", analysis.prompts)),
        **({} if analysis is None else _facts_by_name("resources", analysis.resources)),
    }


def _facts_by_name(member: str, result: Mapping[str, Entitlements]) -> dict[str, Any]:
    return {member: {name: entitlement_facts(result[name]) for name in sorted(result)}} if result else {}


def unanalysed_note(observed: Observed) -> tuple[str, ...]:
    """A note that lists the tools whose entitlements are unknown."""
    names = [name for name, facts in observed.extension.tools.items() if facts.evidence["entitlements"] == UNKNOWN]
    if not names:
        return ()
    listed = ", ".join(name[:60] for name in names[:_MAX_LISTED]) + (
        f" and {len(names) - _MAX_LISTED} more" if names[_MAX_LISTED:] else ""
    )
    return (
        f"the code of {plural(len(names), 'tool')} was not analysed, so what it can do is unknown: {listed}. Only "
        "Python is analysed: --server FILE, or --source FOLDER with --command or --url",
    )


_MAX_LISTED = 5
"""Tool names in a note; the lock has all of them."""


def located(finding: EntitlementFinding | UnknownReach) -> str:
    """The location of a finding, and the call path from the handler to it."""
    call_path = " > ".join(f"{step.function} ({step.path}:{step.line})" for step in finding.call_path)
    return f"{finding.path}:{finding.line} {finding.what}" + (f" via {call_path}" if call_path else "")


def _dict(value: Any, name: str) -> Mapping[str, Any]:
    member = value.get(name) if isinstance(value, dict) else None
    return member if isinstance(member, dict) else {}


def _tags(facts: Mapping[str, Any]) -> tuple[str, ...]:
    tags = facts.get("tags")
    return tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else ()


def _paths(value: Any) -> list[Path]:
    return [Path(item) for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _texts(value: Any) -> dict[str, str]:
    pairs = value.items() if isinstance(value, dict) else ()
    return {name: text for name, text in pairs if isinstance(text, str)}


_MAX_MODULES = 5000
_FOREIGN = frozenset({"site-packages", "dist-packages", "node_modules"})
_MAX_BYTES = 4 << 20  # per module; larger ones are generated


def read_modules(modules: Mapping[str, str], folder: Path) -> dict[str, Source]:
    """The source of each module by dotted name. Raises if one cannot be read or is outside the server's folder.

    The server's own process reports the paths, so they are not trusted.
    """
    root = folder.resolve()
    for path in modules.values():
        if root not in Path(path).resolve().parents:
            raise PinwardenError(
                "SERVER_IMPORT_FAILED", f"the server names a module outside its folder: {path[:200]!a}"
            )
    return {name: _source(Path(path), folder) for name, path in sorted(modules.items())}


def read_folder(folder: Path) -> dict[str, Source]:
    """The source of every module below a folder, by dotted name."""
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
        if _FOREIGN.isdisjoint(parts) and all(part.isidentifier() for part in parts):
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            modules[name] = _source(path, root)
        if len(modules) > _MAX_MODULES:
            raise PinwardenError("USAGE", f"{folder.name[:120]!a} has more than {_MAX_MODULES} modules")
    return modules


def _source(path: Path, folder: Path) -> Source:
    import tokenize

    data = read_file(path, _MAX_BYTES)
    try:
        encoding, _ = tokenize.detect_encoding(iter(data.splitlines(keepends=True)).__next__)
        text = data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as err:
        raise PinwardenError("FILE_UNREADABLE", f"{path.name[:120]} is not Python source: {err}") from err
    try:
        display_path = path.relative_to(folder.resolve()).as_posix()
    except ValueError:
        display_path = path.name
    return Source(path=display_path, text=text, package=path.name == "__init__.py")


class InstalledPackages(Mapping[str, Source]):
    """The modules that an interpreter can import, read on demand."""

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
                    return _source(path, folder)
        return None
