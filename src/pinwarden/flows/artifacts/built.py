"""Environments of locked servers: built from verified files, audited before every use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from pinwarden.adapters.environments.store import Store
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.documents.artifacts.closure import Closure, ClosureFile, ClosurePackage


class Environment(Record):
    """How one closure becomes an environment on this machine."""

    key: str
    files: Callable[[], tuple[ClosureFile, ...]]
    """The archives that it is built from; worked out only where something has to be built."""
    build: Callable[[Path], None]
    problem: Callable[[Path], str | None]
    command: Callable[[Path, str | None], list[str]]
    reads: tuple[str, ...] = ()
    """Folders beside its own that a started server must be able to read."""


def environment_of(closure: Closure, digest: Digest, store: Store, search_path: str) -> Environment:
    """The environment of a closure, whose file has this digest."""
    return _node(closure, digest, store, search_path) if closure.ecosystem == "npm" else _python(closure, digest, store)


def _node(closure: Closure, digest: Digest, store: Store, search_path: str) -> Environment:
    from pinwarden.adapters.environments import node

    here = node.NodePlatform.here()
    packages = node.chosen(closure, here)

    def command(folder: Path, program: str | None) -> list[str]:
        from pinwarden.adapters.programs import find_program

        interpreter = find_program("node", search_path)
        if interpreter is None:
            raise PinwardenError("PROGRAM_UNKNOWN", "node is needed to start this server, and is not installed")
        return node.start_command(folder, closure.root, program, interpreter)

    return Environment(
        key=node.environment_key(digest, here),
        files=lambda: tuple(package.files[0] for package in packages),
        build=lambda folder: node.build(folder, packages, store),
        problem=lambda folder: node.audit(folder, packages),
        command=command,
    )


def _python(closure: Closure, digest: Digest, store: Store) -> Environment:
    from pinwarden.adapters.environments import python

    here = python.Interpreter.here()
    key = python.environment_key(digest, here)
    closure = replace(closure, packages=tuple(_with_noted_content(package, store) for package in closure.packages))
    return Environment(
        key=key,
        files=lambda: tuple(file for _, file in python.chosen(closure)),
        build=lambda folder: python.build(folder, store.environment(key), python.chosen(closure), here, store),
        problem=lambda folder: python.audit(folder, closure, here),
        command=lambda folder, program: python.start_command(folder, closure.root, program),
        reads=(sys.base_prefix,),
    )


def _with_noted_content(package: ClosurePackage, store: Store) -> ClosurePackage:
    """What the store knows of a package that was locked on another platform, where none of its files is known."""
    if any(file.tree is not None for file in package.files):
        return package
    return replace(package, files=tuple(replace(file, tree=store.content(file.digest)) for file in package.files))


def ready(environment: Environment, store: Store, *, say: Callable[[str], None]) -> Path:
    """The folder of an environment that is exactly what was locked; a changed one is built anew from the store."""
    folder = store.environment(environment.key)
    if folder.is_dir():
        problem = environment.problem(folder)
        if problem is None:
            return folder
        say(f"the built environment is not what was locked ({problem}); it is built anew")
    missing = [file.name for file in environment.files() if not store.has(file.digest)]
    if missing:
        raise PinwardenError(
            "ARTIFACT_MISSING",
            f"{len(missing)} locked files are not in the store, first {missing[0]}",
            data={"missing": missing[:100]},
        )
    return store.build(environment.key, environment.build, good=lambda place: environment.problem(place) is None)
