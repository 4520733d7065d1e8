"""The dependency closure of a package: every archive that would be installed, and the files in it.

It is stored next to the lockfile in ``mcp-lock.closures/<server>.json``, and the lock pins its digest. It records the
digest of each archive and of the archive's content (``tree``), so an installed environment can be verified without the
archive.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pinwarden.core import strict_json
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.strict_json import Limits
from pinwarden.core.text import lazy_pattern
from pinwarden.core.typed_json import JsonObject
from pinwarden.lock.extension import LockExtension, ScriptApproval

FORMAT = "pinwarden-closure/1"
LIMITS = Limits(max_bytes=64 * 1024 * 1024)
"""A closure of ten thousand packages has about ten megabytes."""

Ecosystem = Literal["npm", "pypi"]
_ECOSYSTEMS: tuple[Ecosystem, ...] = ("npm", "pypi")
_NODE_PATH = lazy_pattern(
    r"(?:node_modules/(?:@[^/\\\x00-\x1f:]+/)?[^/\\\x00-\x1f:@.][^/\\\x00-\x1f:]*)(?:/(?=node_modules/)|$)"
)


_FILE_NAME = lazy_pattern(r"(?!\.{1,2}\Z)[^/\\\x00-\x1f]+")


class ClosureFile(Record):
    """One archive of a package."""

    name: str
    url: str
    """The download URL, as the resolver reported it."""
    digest: Digest
    """SHA-256 of the archive."""
    size: int | None = None
    tree: Digest | None = None
    """The digest of the unpacked content (``artifacts/environments/tree.py``); None if the archive was not downloaded.
    In that case, ``digest`` comes from the package index, and Pinwarden verifies it when it downloads the archive."""
    uploaded_at: str | None = None


class ClosurePackage(Record):
    """One package of the closure, at one path."""

    name: str
    version: str
    files: tuple[ClosureFile, ...]
    path: str = ""
    """For npm, the folder of the package in the environment."""
    marker: str = ""
    """For Python, the environment marker."""
    os: tuple[str, ...] = ()
    cpu: tuple[str, ...] = ()
    libc: tuple[str, ...] = ()
    """For npm, the supported values of ``os``, ``cpu`` and ``libc``; ``!x`` excludes a value."""
    is_optional: bool = False
    has_install_scripts: bool = False
    """Whether npm would run install scripts of this package. Pinwarden runs only approved scripts."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Sort key, unique within a closure."""
        return self.name, self.version, self.path, self.marker


class Closure(Record):
    """A package and all its dependencies."""

    ecosystem: Ecosystem
    name: str
    version: str
    resolver: str
    """The program that resolved the dependencies, with its version."""
    registry: str
    """The registry that the dependencies were resolved from."""
    packages: tuple[ClosurePackage, ...]
    extras: tuple[str, ...] = ()

    @property
    def root(self) -> ClosurePackage:
        """The package that the closure belongs to."""
        for package in self.packages:
            if package.name == self.name and package.version == self.version:
                return package
        raise _closure_error("", "does not contain its own package")


def format_closure_path(lock_stem: str, surface_path: str) -> str:
    """Return the path of a server's closure, derived from the path of its surface."""
    return f"{lock_stem}.closures/{surface_path.rpartition('/')[2]}"


# File format


def to_bytes(closure: Closure) -> bytes:
    """Encode a closure as a file: sorted, indented, with a final newline. Equal closures give equal bytes."""
    import json  # not needed to start a server, which only reads closures

    document: dict[str, Any] = {
        "format": FORMAT,
        "ecosystem": closure.ecosystem,
        "name": closure.name,
        "version": closure.version,
        "extras": list(closure.extras),
        "resolver": closure.resolver,
        "registry": closure.registry,
        "packages": [_package_to_json(package) for package in sorted(closure.packages, key=lambda item: item.key)],
    }
    return (json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _package_to_json(package: ClosurePackage) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": package.name,
        "version": package.version,
        "files": [_file_to_json(file) for file in sorted(package.files, key=lambda item: item.name)],
        "path": package.path,
        "marker": package.marker,
        "os": list(package.os),
        "cpu": list(package.cpu),
        "libc": list(package.libc),
        "optional": package.is_optional,
        "installScripts": package.has_install_scripts,
    }
    return {name: value for name, value in document.items() if value not in ("", [], False)}


def _file_to_json(file: ClosureFile) -> dict[str, Any]:
    document = {
        "name": file.name,
        "url": file.url,
        "digest": str(file.digest),
        "size": file.size,
        "tree": None if file.tree is None else str(file.tree),
        "uploadedAt": file.uploaded_at,
    }
    return {name: value for name, value in document.items() if value is not None}


def parse(data: bytes) -> Closure:
    """Parse a closure. Raises CLOSURE_INVALID for anything unknown; nothing is skipped."""
    document = JsonObject(strict_json.parse_json(data, LIMITS), "", _closure_error)
    document.one_of("format", (FORMAT,))
    ecosystem = document.one_of("ecosystem", _ECOSYSTEMS)
    closure = Closure(
        ecosystem=ecosystem,
        name=document.string("name"),
        version=document.string("version"),
        extras=document.strings("extras", default=[]),
        resolver=document.string("resolver"),
        registry=document.string("registry"),
        packages=tuple(_parse_package(package, ecosystem) for package in document.objects("packages")),
    )
    locations = [(package.path or package.name, package.marker) for package in closure.packages]
    if len(set(locations)) != len(locations):
        raise _closure_error("", "lists a package or folder twice")
    closure.root  # noqa: B018  raises if the closure lacks its own package
    return closure


def _parse_package(entry: JsonObject, ecosystem: Ecosystem) -> ClosurePackage:
    name, path = entry.string("name"), entry.string("path", default="")
    if ecosystem == "npm" and not is_node_modules_path(path):
        entry.fail("path", f"is not a valid folder for {name[:120]!a}")
    if ecosystem == "pypi" and path:
        entry.fail("path", f"is a folder for {name[:120]!a}, which is not an npm package")
    files = entry.objects("files", min_items=1, max_items=1 if ecosystem == "npm" else None)
    return ClosurePackage(
        name=name,
        version=entry.string("version"),
        files=tuple(map(_parse_file, files)),
        path=path,
        marker=entry.string("marker", default=""),
        os=entry.strings("os", default=[]),
        cpu=entry.strings("cpu", default=[]),
        libc=entry.strings("libc", default=[]),
        is_optional=entry.boolean("optional", default=False),
        has_install_scripts=entry.boolean("installScripts", default=False),
    )


def is_node_modules_path(path: str) -> bool:
    """Whether a path consists of ``node_modules/<package>`` parts only, so that it stays inside its environment."""
    position = 0
    while position < len(path):
        match = _NODE_PATH.match(path, position)
        if match is None:
            return False
        if any(step in (".", "..") for step in match[0].split("/")):
            return False
        position = match.end()
    return bool(path)


def _parse_file(entry: JsonObject) -> ClosureFile:
    return ClosureFile(
        name=entry.string("name", _FILE_NAME, kind="a file name"),
        url=entry.string("url"),
        digest=_parse_sha256(entry, "digest"),
        size=None if entry.value.get("size") is None else entry.integer("size"),
        tree=_parse_sha256(entry, "tree") if "tree" in entry else None,
        uploaded_at=entry.optional_string("uploadedAt"),
    )


def _parse_sha256(entry: JsonObject, name: str) -> Digest:
    digest = entry.parse_string(name, Digest.parse)
    if digest.algorithm != "sha256":
        entry.fail(name, "is not SHA-256")
    return digest


def _closure_error(path: str, problem: str) -> PinwardenError:
    return PinwardenError("CLOSURE_INVALID", f"the dependency closure{path and f': {path}'} {problem}")


def list_approved_digests(extension: LockExtension | None) -> frozenset[Digest]:
    """Return the digests of archives whose install scripts may run."""
    return (
        frozenset(approval.digest for approval in extension.install_scripts) if extension is not None else frozenset()
    )


def keep_current_approvals(approvals: Iterable[ScriptApproval], closure: Closure) -> tuple[ScriptApproval, ...]:
    """Return the approvals whose archive, by digest, is still in the closure and has install scripts; sorted."""
    present = {package.files[0].digest for package in list_packages_with_scripts(closure)}
    approved = {approval.digest: approval for approval in approvals if approval.digest in present}
    return tuple(sorted(approved.values(), key=lambda approval: (approval.package, str(approval.digest))))


def list_packages_with_scripts(closure: Closure) -> tuple[ClosurePackage, ...]:
    """Return the packages with install scripts. Only npm packages have any; wheels do not."""
    return (
        tuple(package for package in closure.packages if package.has_install_scripts)
        if closure.ecosystem == "npm"
        else ()
    )


def list_unapproved_packages(closure: Closure, approved: frozenset[Digest]) -> tuple[ClosurePackage, ...]:
    """Return the packages with unapproved install scripts, without duplicates."""
    packages = {
        package.files[0].digest: package
        for package in list_packages_with_scripts(closure)
        if package.files[0].digest not in approved
    }
    return tuple(packages.values())
