"""Small servers, written as text: what the analysis says about their only handler."""

from __future__ import annotations

from textwrap import dedent

from pinwarden.contract.entitlements.analysis import analyse, find_handlers
from pinwarden.contract.entitlements.values import Analysis, Entitlements, Handler, Source


def sources(**modules: str) -> dict[str, Source]:
    """Modules by name; ``pkg__init`` is the package ``pkg``, ``pkg__mod`` is ``pkg.mod``."""
    found = {}
    for given, text in modules.items():
        package = given.endswith("__init")
        name = given.removesuffix("__init").replace("__", ".")
        path = name.replace(".", "/") + ("/__init__.py" if package else ".py")
        found[name] = Source(path=path, text=dedent(text), package=package)
    return found


def analysed(text: str, function: str = "handler", **others: str) -> Analysis:
    """The analysis of a module ``server`` with one handler."""
    handler = Handler(name="tool", module="server", function=function)
    return analyse(sources(server=text, **others), [handler])


def entitlements_of(text: str, function: str = "handler", **others: str) -> Entitlements:
    """What the handler of a module ``server`` can do."""
    return analysed(text, function, **others).handlers["tool"]


def kinds(text: str, function: str = "handler", **others: str) -> tuple[str, ...]:
    """The entitlements of the handler of a module ``server``."""
    return entitlements_of(text, function, **others).kinds


def tools(text: str, **others: str) -> dict[str, tuple[str, ...]]:
    """The entitlements of every tool that a module ``server`` registers."""
    given = sources(server=text, **others)
    return {name: result.kinds for name, result in analyse(given, find_handlers(given)).handlers.items()}
