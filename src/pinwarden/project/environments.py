"""Environments of locked servers: built from verified files, audited before every use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from pinwarden.artifacts.environments.store import Store
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.lock.closure import Closure, ClosureFile, ClosurePackage


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


class Scripts(Record):
    """Whose install scripts may run, by the digests of their archives, and whether they may without a sandbox."""

    approved: frozenset[Digest] = frozenset()
    without_sandbox: bool = False


def environment_of(closure: Closure, digest: Digest, store: Store, search_path: str, scripts: Scripts) -> Environment:
    """The environment of a closure, whose file has this digest."""
    if closure.ecosystem == "npm":
        return _node(closure, digest, store, search_path, scripts)
    return _python(closure, digest, store)


def _node(closure: Closure, digest: Digest, store: Store, search_path: str, scripts: Scripts) -> Environment:
    from pinwarden.artifacts.environments import node

    here = node.NodePlatform.here()
    packages = node.chosen(closure, here)
    scripted = tuple(each for each in packages if each.install_scripts and each.files[0].digest in scripts.approved)
    key = node.environment_key(digest, here, scripted)

    def build(folder: Path) -> None:
        if not scripted:
            return node.build(folder, key, packages, store)
        from pinwarden.artifacts.environments.scripts import Scripting

        how = Scripting(packages=scripted, search_path=search_path, without_sandbox=scripts.without_sandbox)
        return node.build(folder, key, packages, store, how)

    def command(folder: Path, program: str | None) -> list[str]:
        from pinwarden.system.programs import find_program

        interpreter = find_program("node", search_path)
        if interpreter is None:
            raise PinwardenError("PROGRAM_UNKNOWN", "node is needed to start this server, and is not installed")
        return node.start_command(folder, closure.root, program, interpreter)

    return Environment(
        key=key,
        files=lambda: tuple(package.files[0] for package in packages),
        build=build,
        problem=lambda folder: node.audit(folder, packages, store, scripted),
        command=command,
    )


def _python(closure: Closure, digest: Digest, store: Store) -> Environment:
    from pinwarden.artifacts.environments import python

    here = python.Interpreter.here()
    key = python.environment_key(digest, here)
    closure = replace(closure, packages=tuple(_with_noted_content(package, store) for package in closure.packages))
    return Environment(
        key=key,
        files=lambda: tuple(file for _, file in python.chosen(closure)),
        build=lambda folder: python.build(folder, store.environment(key), python.chosen(closure), here, store),
        problem=lambda folder: python.audit(folder, closure, here, store),
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
