"""A program that imports a server in the server's own Python, records facts about it, and then serves it.

    python introspector.py FACTS FOLDER MODULE [OBJECT]

After writing the facts, this program serves MCP on its standard streams, and Pinwarden probes the surface like that of
any other server. It imports only the standard library, because the server's environment may not have Pinwarden, and
uses nothing newer than Python 3.10.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import inspect
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PACKAGES = ("mcp", "fastmcp", "pydantic")
_FRAMEWORK_PREFIXES = ("mcp.", "fastmcp.")
_MIDDLEWARE_HOOKS = {
    "tools": ("on_call_tool", "on_request", "on_message"),
    "prompts": ("on_get_prompt", "on_request", "on_message"),
}
_USUAL_NAMES = (
    "mcp",
    "server",
    "app",
)  # the names that the frameworks' own commands look for


class NoServerError(Exception):
    """The imported module has no MCP server, or has several."""


def main(arguments: list[str]) -> int:
    """Import the server, write the facts to a file, and serve MCP. Returns the exit code."""
    target, folder, module_name = Path(arguments[0]), arguments[1], arguments[2]
    object_name = arguments[3] if len(arguments) > 3 else None
    duplicates = _Duplicates()
    logging.getLogger().addHandler(duplicates)
    try:
        with _redirect_stdout_to_stderr():
            _import_from(folder)
            sys.argv[:] = [str(Path(folder, *module_name.split(".")).with_suffix(".py"))]  # as if started alone
            module = importlib.import_module(module_name)
            server = _find_server(module, object_name)
            facts = _collect_facts(server, Path(folder), duplicates.names)
    except NoServerError as err:
        return _report_failure(target, "no-server", str(err))
    except SystemExit as err:
        return _report_failure(target, "exited", f"the server called sys.exit({err.code!r}) while it was imported")
    except BaseException as err:  # noqa: BLE001 - the server's own code may raise anything
        import traceback

        traceback.print_exc()
        return _report_failure(target, "import-failed", f"{type(err).__name__}: {err}"[:2000])
    _write_facts(target, facts)
    _serve(server)
    return 0


def _import_from(folder: str) -> None:
    """Set the import path as if the user had started the server's own file."""
    own_folder = Path(__file__).resolve().parent
    sys.path[:] = [folder, *(path for path in sys.path if not path or Path(path).resolve() != own_folder)]


@contextmanager
def _redirect_stdout_to_stderr() -> Iterator[None]:
    """Redirect standard output to standard error during the import, because standard output is for MCP messages."""
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        if sys.__stdout__ is not None:
            sys.stdout = sys.__stdout__  # the server may have replaced it
            sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


class _Duplicates(logging.Handler):
    """Collects warnings about duplicate names, which both frameworks only log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.names: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(_FRAMEWORK_PREFIXES) or record.name in ("mcp", "fastmcp"):
            text = record.getMessage()
            if "already exists" in text:
                self.names.append(text[:200])


def _find_server(module: Any, object_name: str | None) -> Any:
    if object_name is not None:
        server = module
        for part in object_name.split("."):
            if not hasattr(server, part):
                raise NoServerError(f"{module.__name__} has no {object_name}{_list_servers(module)}")
            server = getattr(server, part)
        if _detect_framework(server) is None and callable(server):
            server = server()  # a factory that the user named
        if _detect_framework(server) is None:
            raise NoServerError(f"{object_name} in {module.__name__} is not an MCP server{_list_servers(module)}")
        return server
    servers: dict[int, tuple[str, Any]] = {}
    for name, value in vars(module).items():
        if _detect_framework(value) is not None:
            servers.setdefault(id(value), (name, value))
    if not servers:
        raise NoServerError(f"{module.__name__} has no MCP server at its top level")
    preferred = [value for name, value in servers.values() if name in _USUAL_NAMES]
    if len(servers) > 1 and len(preferred) != 1:
        names = ", ".join(sorted(name for name, _ in servers.values()))
        raise NoServerError(f"{module.__name__} has several MCP servers: {names}")
    return preferred[0] if preferred else next(iter(servers.values()))[1]


def _list_servers(module: Any) -> str:
    names = sorted(name for name, value in vars(module).items() if _detect_framework(value) is not None)
    return f"; its servers: {', '.join(names)}" if names else ""


def _detect_framework(value: Any) -> str | None:
    """Return the framework of a server object; None if it is not a server."""
    for base in type(value).__mro__:
        if base.__module__.startswith("fastmcp.") and base.__name__ == "FastMCP":
            return "fastmcp"
        if base.__module__.startswith("mcp.server.") and base.__name__ in ("MCPServer", "FastMCP"):
            return "mcp"
        if base.__module__.startswith("mcp.server.lowlevel") and base.__name__ == "Server":
            return "lowlevel"
    return None


def _collect_facts(server: Any, folder: Path, duplicates: list[str]) -> dict[str, Any]:
    kind = _detect_framework(server)
    middleware = [_describe_middleware(layer) for layer in getattr(server, "middleware", None) or ()]
    own_middleware = [layer for layer in middleware if layer is not None]
    return {
        "framework": kind,
        "versions": {"python": sys.version.split()[0], **_read_versions()},
        "tools": {name: _describe_component(tool) for name, tool in _list_tools(server, kind)},
        "prompts": {name: _describe_component(prompt) for name, prompt in _list_prompts(server, kind)},
        "resources": {name: _describe_component(resource) for name, resource in _list_resources(server, kind)},
        "middleware": own_middleware,
        "modules": _list_modules(folder),
        "packages": [folder for folder in sys.path if Path(folder).name in ("site-packages", "dist-packages")],
        "duplicates": duplicates,
    }


def _read_versions() -> dict[str, str]:
    versions: dict[str, str] = {}
    for name in _PACKAGES:
        if name not in sys.modules:
            continue
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _list_tools(server: Any, kind: str | None) -> list[tuple[str, Any]]:
    if kind == "mcp":
        return list(getattr(server._tool_manager, "_tools", {}).items())
    if kind == "fastmcp":
        return _list_fastmcp_items(server, "tool")
    return []


def _list_prompts(server: Any, kind: str | None) -> list[tuple[str, Any]]:
    if kind == "mcp":
        return list(getattr(server._prompt_manager, "_prompts", {}).items())
    if kind == "fastmcp":
        return _list_fastmcp_items(server, "prompt")
    return []


def _list_resources(server: Any, kind: str | None) -> list[tuple[str, Any]]:
    """List resources with their URI, and resource templates with their URI template."""
    if kind == "mcp":
        manager = server._resource_manager
        return [
            *((str(uri), resource) for uri, resource in getattr(manager, "_resources", {}).items()),
            *((str(uri), template) for uri, template in getattr(manager, "_templates", {}).items()),
        ]
    if kind == "fastmcp":
        return [
            *((str(resource.uri), resource) for _, resource in _list_fastmcp_items(server, "resource")),
            *(
                (str(template.uri_template), template)
                for _, template in _list_fastmcp_items(server, "resource_template")
            ),
        ]
    return []


def _list_fastmcp_items(server: Any, kind: str) -> list[tuple[str, Any]]:
    """Return the items of a fastmcp server and of the servers mounted in it, without running middleware."""
    import asyncio

    async def list_items() -> Any:
        return await getattr(server, f"list_{kind}s")(run_middleware=False)

    return [(item.name, item) for item in asyncio.run(list_items())]


def _describe_component(component: Any) -> dict[str, Any]:
    meta = getattr(component, "meta", None)
    tags = getattr(component, "tags", None) or (meta.get("tags") if isinstance(meta, dict) else None) or ()
    rules = meta.get("systemRules") if isinstance(meta, dict) else None
    return {
        "handler": _locate_handler(getattr(component, "fn", None)),
        "tags": sorted(str(tag) for tag in tags),
        "timeout": _to_float(getattr(component, "timeout", None)),
        "auth": getattr(component, "auth", None) is not None,
        "system_rules": [str(rule) for rule in rules] if isinstance(rules, list | tuple) else None,
    }


def _to_float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _locate_handler(function: Any) -> dict[str, Any] | None:
    """Return the module, name and line of a handler, without its decorators."""
    if function is None:
        return None
    while hasattr(function, "func") and callable(function.func):  # functools.partial
        function = function.func
    decorated = function
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return {
        "module": getattr(function, "__module__", None),
        "qualname": getattr(function, "__qualname__", type(function).__qualname__),
        "path": None if code is None else code.co_filename,
        "line": None if code is None else code.co_firstlineno,
        "wrapped": decorated is not function,
    }


def _describe_middleware(value: Any) -> dict[str, Any] | None:
    """Describe a middleware that the server's author added; None for one that the framework adds itself."""
    kind = value if inspect.isfunction(value) else type(value)
    module = getattr(kind, "__module__", "")
    own = not (module.startswith(("mcp.server", "fastmcp.server.middleware.dereference")))
    if not own:
        return None
    return {
        "name": f"{module}.{kind.__qualname__}",
        "sourceDigest": _hash_source(kind),
        "tools": _overrides_hook(kind, _MIDDLEWARE_HOOKS["tools"]),
        "prompts": _overrides_hook(kind, _MIDDLEWARE_HOOKS["prompts"]),
        "maxSize": _to_float(getattr(value, "max_size", None)),
        "onlyFor": sorted(str(tool) for tool in getattr(value, "tools", None) or ()),
    }


def _overrides_hook(kind: Any, hooks: tuple[str, ...]) -> bool:
    if not inspect.isclass(kind):
        return True
    if not any(base.__module__.startswith("fastmcp.") for base in kind.__mro__):
        return True  # the official SDK calls middleware for every request
    return any(
        hook in vars(base) for base in kind.__mro__ if base.__name__ != "Middleware" for hook in (*hooks, "__call__")
    )


def _hash_source(kind: Any) -> str | None:
    try:
        text = inspect.getsource(kind)
    except (OSError, TypeError):
        return None
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _list_modules(folder: Path) -> dict[str, str]:
    """Return the file of each module that was imported from the server's folder, by module name."""
    modules: dict[str, str] = {}
    root = folder.resolve()
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__dict__", {}).get("__file__")  # getattr could import a lazy module
        if not isinstance(path, str) or not path.endswith(".py"):
            continue
        file = Path(path).resolve()
        if root in file.parents and not {"site-packages", "dist-packages"} & set(file.relative_to(root).parts):
            modules[name] = str(file)
    return modules


def _serve(server: Any) -> None:
    kind = _detect_framework(server)
    if kind == "fastmcp":
        server.run("stdio", show_banner=False)
    elif kind == "mcp":
        server.run("stdio")
    else:
        import asyncio

        asyncio.run(_serve_lowlevel(server))


async def _serve_lowlevel(server: Any) -> None:
    from mcp.server.stdio import stdio_server

    streams: Callable[[], Any] = stdio_server
    async with streams() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def _report_failure(target: Path, reason: str, message: str) -> int:
    _write_facts(target, {"failed": {"reason": reason, "message": message}})
    return 1


def _write_facts(target: Path, facts: dict[str, Any]) -> None:
    temporary = target.with_suffix(".part")
    temporary.write_text(json.dumps(facts), "utf-8")
    temporary.replace(target)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)  # skip interpreter shutdown, which takes a third of a second with a framework loaded
