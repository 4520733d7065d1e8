"""Add the packages that a Python project needs to its bundle, for every platform that the bundle declares.

The versions come from the project's lock (``pylock.toml`` or ``uv.lock``), or uv resolves them now. The wheels are
downloaded from the user's own index, verified and unpacked; no code of a package runs. They are in ``python_packages``,
in one folder for all platforms and one for each platform and version of Python that needs other wheels.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pinwarden.artifacts.environments.python import SITE_FOLDER, read_wheel_files
from pinwarden.artifacts.pylock import Pylock, parse_pylock
from pinwarden.artifacts.python_package import ChosenWheel, choose_wheels, normalize_name
from pinwarden.artifacts.resolvers import export_uv_lock, find_uv, resolve_python_requirements
from pinwarden.bundle import python_start
from pinwarden.bundle.bundle_documents import SupportedRuntimes
from pinwarden.bundle.pack import AddedPackages
from pinwarden.bundle.platforms import detect_platform, detect_python
from pinwarden.bundle.server_manifest import MANIFEST_NAME, PLATFORMS, ServerManifest
from pinwarden.bundle.source_tree import SourceFile, SourceTree
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.strict_json import encode_json_file
from pinwarden.core.text import plural
from pinwarden.lock.closure import Closure, ClosureFile, ClosurePackage
from pinwarden.project.fetch_context import FetchContext, build_resolver_endpoint, fetch_files
from pinwarden.system.files import read_file

if TYPE_CHECKING:
    from packaging.tags import Tag

FOLDER = "python_packages"
LAUNCHER = f"{FOLDER}/start.py"
PROJECT_FILE = "pyproject.toml"
_MAX_PROJECT_BYTES = 1 << 20
_GLIBC = (2, 28)
"""The oldest supported C library of Linux: RHEL 8, Debian 10, Ubuntu 18.10."""
_MACOS = (12, 0)
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


class Target(Record):
    """A platform and a version of Python that a bundle is for."""

    platform: str
    python: str

    @property
    def folder(self) -> str:
        """The name of its folder of packages, which the launcher computes in the same way."""
        return f"{self.platform.replace('/', '-')}-py{self.python}"

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor version."""
        major, _, minor = self.python.partition(".")
        return int(major), int(minor)


def read_requirements(tree: SourceTree) -> tuple[str, ...]:
    """Return the dependencies that ``pyproject.toml`` states; empty without the file."""
    data = next((file.data for file in tree.files if file.path == PROJECT_FILE), None)
    if data is None:
        return ()
    project = _parse_project(data)
    if "dependencies" in project.get("dynamic", ()):
        _refuse(f"the dependencies in {PROJECT_FILE} are dynamic", "State them in project.dependencies")
    stated = project.get("dependencies", [])
    if not isinstance(stated, list) or not all(isinstance(line, str) for line in stated):
        _refuse(f"project.dependencies in {PROJECT_FILE} is not a list of texts", f"Correct {PROJECT_FILE}")
    return tuple(_check_requirement(line) for line in stated)


def _parse_project(data: bytes) -> dict[str, Any]:
    try:
        document = tomllib.loads(data[:_MAX_PROJECT_BYTES].decode())
    except (ValueError, RecursionError) as err:
        raise PinwardenError(
            "PACKAGES_NOT_PACKED", f"{PROJECT_FILE} is not valid TOML", hint="Correct it, and pack the folder again."
        ) from err
    project = document.get("project", {})
    return project if isinstance(project, dict) else {}


def _check_requirement(line: str) -> str:
    """Return a requirement. Raises for one that names a URL, which no index has, or that is malformed."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(line)
    except InvalidRequirement as err:
        raise PinwardenError(
            "PACKAGES_NOT_PACKED",
            f"{PROJECT_FILE} has an invalid dependency: {line[:120]!a}",
            hint="Correct it, and pack the folder again.",
        ) from err
    if requirement.url is not None:
        _refuse(f"the dependency {requirement.name} comes from a URL, and not from an index", "Name a released version")
    return str(requirement)


def collect_packages(
    folder: Path, server: ServerManifest, tree: SourceTree, context: FetchContext
) -> AddedPackages | None:
    """Resolve, download, verify and unpack the packages of a project; None if it states no dependencies.

    1. Read the lock of the project, or resolve the dependencies for all platforms.
    2. Choose the wheels of every target, as an installer there would.
    3. Download them into the store, which verifies their digests.
    4. Unpack them: what all targets share once, the rest for each target.
    5. Add the launcher, which makes them importable and runs the server.
    """
    requirements = read_requirements(tree)
    if server.runtime != "python" or not requirements:
        return None
    if any(file.path.startswith(f"{FOLDER}/") for file in tree.files):
        _refuse(f"the folder has a {FOLDER}, where the packages are put", "Remove it")
    if not server.platforms and detect_platform() not in PLATFORMS:
        _refuse(f"packages cannot be packed for {detect_platform()}", f'State "platforms" in {MANIFEST_NAME}')
    platforms, pythons = server.platforms or (detect_platform(),), server.python or (detect_python(),)
    targets = [Target(platform=platform, python=python) for platform in platforms for python in pythons]
    locked = _read_lock(folder, tree, context)
    lock = locked or _resolve(requirements, min(targets, key=lambda target: target.version), context)
    _refuse_outdated(lock, requirements)
    closure = _build_closure(lock, server)
    chosen = {target: _choose_wheels(closure, target) for target in targets}
    files = {file.digest: file for wheels in chosen.values() for _, file in wheels}
    fetch_files(closure, list(files.values()), context)
    packages = sorted({f"{package.name}=={package.version}" for row in chosen.values() for package, _ in row})
    return AddedPackages(
        files=tuple(_unpack(server, tree, chosen, context)),
        target=LAUNCHER,
        supported=SupportedRuntimes(platforms=platforms, python=pythons),
        packages=tuple(packages),
        notes=tuple(_describe(server, targets, len(packages), is_locked=locked is not None)),
    )


def _describe(server: ServerManifest, targets: Sequence[Target], packages: int, *, is_locked: bool) -> Iterator[str]:
    names = ", ".join(f"{target.platform} with Python {target.python}" for target in targets)
    yield f"packed {plural(packages, 'package')} for {names}"
    if not server.platforms or not server.python:
        example = '"platforms": ["linux/amd64", "darwin/arm64"], "python": ["3.12"]'
        yield f"for others, state them in {MANIFEST_NAME}: {example}"
    if not is_locked:
        yield "the versions were resolved now; to pack the same ones again, commit a lock: uv lock"


def _read_lock(folder: Path, tree: SourceTree, context: FetchContext) -> Pylock | None:
    paths = {file.path: file.data for file in tree.files}
    if "pylock.toml" in paths:
        return parse_pylock(paths["pylock.toml"])
    if "uv.lock" in paths:
        variables = context.sources.settings.variables
        return parse_pylock(export_uv_lock(folder, find_uv(variables), variables))
    return None


def _resolve(requirements: Sequence[str], oldest: Target, context: FetchContext) -> Pylock:
    variables = context.sources.settings.variables
    index = build_resolver_endpoint(context.sources.find_pypi_index(), context)
    text = resolve_python_requirements(
        requirements,
        index,
        uv=find_uv(variables),
        variables=variables,
        python_version=oldest.python,
        allow_plain_http=context.fetcher.rules.allow_plain_http,
    )
    return parse_pylock(text)


def _refuse_outdated(lock: Pylock, requirements: Sequence[str]) -> None:
    """Raise if the lock lacks a dependency, or has a version that ``pyproject.toml`` does not allow."""
    from packaging.requirements import Requirement

    versions: dict[str, list[str]] = {}
    for package in lock.packages:
        versions.setdefault(package.name, []).append(package.version)
    for line in requirements:
        wanted = Requirement(line)
        present = versions.get(normalize_name(wanted.name))
        if present is None and wanted.marker is None:
            _refuse(f"the project's lock has no {wanted.name}, which {PROJECT_FILE} needs", "Run uv lock")
        for version in present or ():
            if not wanted.specifier.contains(version, prereleases=True):
                _refuse(
                    f"the project's lock has {wanted.name} {version}, and {PROJECT_FILE} needs {line}", "Run uv lock"
                )


def _build_closure(lock: Pylock, server: ServerManifest) -> Closure:
    return Closure(
        ecosystem="pypi",
        name=server.name,
        version=server.version,
        resolver="",
        registry="",
        packages=tuple(
            ClosurePackage(
                name=row.name,
                version=row.version,
                marker=row.marker,
                files=tuple(
                    ClosureFile(name=wheel.name, url=wheel.url, digest=wheel.sha256, size=wheel.size)
                    for wheel in row.wheels
                ),
            )
            for row in lock.packages
        ),
    )


def _choose_wheels(closure: Closure, target: Target) -> tuple[ChosenWheel, ...]:
    try:
        return choose_wheels(closure.packages, _build_environment(target), list_tags(target))
    except PinwardenError as err:
        if err.code != "NO_USABLE_FILE":
            raise
        name = f"{err.data.get('package')} {err.data.get('version')}"
        raise PinwardenError(
            "NO_USABLE_FILE",
            f"{name} has no wheel for {target.platform} with Python {target.python}; nothing is built from source here",
            hint='State other "platforms" or "python" in server.json, or use another version of this package.',
            data=err.data,
        ) from err


def list_tags(target: Target) -> list[Tag]:
    """Return the tags of the wheels that run on a target, best first."""
    from packaging import tags

    system, _, architecture = target.platform.partition("/")
    if system == "darwin":
        machine = "arm64" if architecture == "arm64" else "x86_64"
        platforms = list(tags.mac_platforms(_MACOS, machine))
    elif system == "windows":
        platforms = ["win_amd64" if architecture == "amd64" else "win_arm64"]
    else:
        machine = _MACHINES[architecture]
        platforms = [f"manylinux_{_GLIBC[0]}_{minor}_{machine}" for minor in range(_GLIBC[1], 16, -1)]
        platforms += [f"manylinux2014_{machine}"]
        if architecture == "amd64":
            platforms += [f"manylinux_2_12_{machine}", f"manylinux2010_{machine}"]
            platforms += [f"manylinux_2_5_{machine}", f"manylinux1_{machine}"]
        platforms += [f"linux_{machine}"]
    interpreter = f"cp{target.python.replace('.', '')}"
    return [
        *tags.cpython_tags(target.version, [interpreter], platforms),
        *tags.compatible_tags(target.version, interpreter, platforms),
    ]


def _build_environment(target: Target) -> dict[str, str]:
    """Return the values of environment markers (PEP 508) on a target."""
    system, _, architecture = target.platform.partition("/")
    names = {
        "linux": ("linux", "Linux", "posix", _MACHINES[architecture]),
        "darwin": ("darwin", "Darwin", "posix", "arm64" if architecture == "arm64" else "x86_64"),
        "windows": ("win32", "Windows", "nt", "AMD64" if architecture == "amd64" else "ARM64"),
    }
    sys_platform, platform_system, os_name, machine = names[system]
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{target.python}.0",
        "os_name": os_name,
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": platform_system,
        "platform_version": "",
        "python_full_version": f"{target.python}.0",
        "python_version": target.python,
        "sys_platform": sys_platform,
    }


def _unpack(
    server: ServerManifest, tree: SourceTree, chosen: Mapping[Target, Sequence[ChosenWheel]], context: FetchContext
) -> Iterator[SourceFile]:
    shared = set.intersection(*({file.name for _, file in wheels} for wheels in chosen.values()))
    shared = {name for name in shared if name.endswith("-none-any.whl")}
    done: set[tuple[str, str]] = set()
    for target, wheels in chosen.items():
        for package, file in wheels:
            folder = "all" if file.name in shared else target.folder
            if (folder, file.name) not in done:
                done.add((folder, file.name))
                yield from _read_wheel(package, file, folder, context)
    yield from _build_metadata(tree)
    yield SourceFile(path=LAUNCHER, data=read_file(Path(python_start.__file__)))
    yield SourceFile(path=f"{FOLDER}/start.json", data=_build_start(server.entry, tree))


def _read_wheel(package: ClosurePackage, file: ClosureFile, folder: str, context: FetchContext) -> Iterator[SourceFile]:
    archive = context.store.find(file.digest)
    if archive is None:
        raise PinwardenError("ARTIFACT_MISSING", f"{file.name} is not in the store", data={"name": package.name})
    for path, executable, data in read_wheel_files(archive):
        place, _, inner = path.partition("/")
        if place == SITE_FOLDER:  # programs and data of a wheel belong to an environment, which a bundle does not have
            yield SourceFile(path=f"{FOLDER}/{folder}/{inner}", data=bytes(data), executable=executable)


def _build_metadata(tree: SourceTree) -> Iterator[SourceFile]:
    """Yield the metadata of the project itself, with which servers look up their own version."""
    project = _parse_project(next(file.data for file in tree.files if file.path == PROJECT_FILE))
    name, version = project.get("name"), project.get("version")
    if isinstance(name, str) and isinstance(version, str) and version.isascii() and version.isprintable():
        stem = f"{normalize_name(name).replace('-', '_')}-{version}.dist-info"
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        yield SourceFile(path=f"{FOLDER}/all/{stem}/METADATA", data=text.encode())


def _build_start(entry: str, tree: SourceTree) -> bytes:
    """Return what the launcher starts. A file of a package is run as a module, for its relative imports."""
    paths = {file.path for file in tree.files}
    folder, _, name = entry.rpartition("/")
    module = [name.removesuffix(".py")]
    while folder and f"{folder}/__init__.py" in paths:
        folder, _, package = folder.rpartition("/")
        module.insert(0, package)
    return encode_json_file(
        {"root": folder or ".", "module": ".".join(module) if len(module) > 1 else "", "entry": entry}
    )


def _refuse(problem: str, hint: str) -> NoReturn:
    raise PinwardenError("PACKAGES_NOT_PACKED", problem, hint=f"{hint}, and pack the folder again.")
