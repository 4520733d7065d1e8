"""The dependency closure of a package: every file that would be installed, and every file that comes out of it.

It is kept beside the lockfile in ``mcp-lock.closures/<server>.json`` and pinned there by its digest. Of each archive it
says what its bytes are and what its content is (``tree``), so that an installed environment can be held against it
without the archive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NoReturn

from pinwarden.core import strict_json
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.strict_json import Limits
from pinwarden.core.text import pattern
from pinwarden.lock.extension import Extension, ScriptApproval

FORMAT = "pinwarden-closure/1"
LIMITS = Limits(max_bytes=64 * 1024 * 1024)
"""A closure of ten thousand packages has about ten megabytes."""

Ecosystem = Literal["npm", "pypi"]
_NODE_PATH = pattern(
    r"(?:node_modules/(?:@[^/\\\x00-\x1f:]+/)?[^/\\\x00-\x1f:@.][^/\\\x00-\x1f:]*)(?:/(?=node_modules/)|$)"
)


class ClosureFile(Record):
    """One archive of a package."""

    name: str
    url: str
    """Where the resolver found it."""
    digest: Digest
    """SHA-256 of its bytes."""
    size: int | None = None
    tree: Digest | None = None
    """The digest of its content, see :func:`tree_digest`. None if the bytes were never here: then the digest is
    what the index claims, and is held against the bytes before they are used."""
    uploaded_at: str | None = None


class ClosurePackage(Record):
    """One package of the closure, in one place."""

    name: str
    version: str
    files: tuple[ClosureFile, ...]
    path: str = ""
    """For npm, the folder that it goes to, below the environment."""
    marker: str = ""
    """For Python, the environments that it is for."""
    systems: tuple[str, ...] = ()
    processors: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    """For npm, the values of os, cpu and libc that it is for; ``!x`` excludes."""
    optional: bool = False
    install_scripts: bool = False
    """Whether an ordinary client would run scripts of it. They are not run here."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What orders packages and tells them apart."""
        return self.name, self.version, self.path, self.marker


class Closure(Record):
    """Everything that a package needs to run, itself included."""

    ecosystem: Ecosystem
    name: str
    version: str
    resolver: str
    """The program that resolved it, with its version."""
    registry: str
    """The endpoint that it was resolved with."""
    packages: tuple[ClosurePackage, ...]
    extras: tuple[str, ...] = ()

    @property
    def root(self) -> ClosurePackage:
        """The package that was asked for."""
        for package in self.packages:
            if package.name == self.name and package.version == self.version:
                return package
        _invalid("does not hold the package that it is about")


def closure_path(lock_stem: str, surface_path: str) -> str:
    """Where the closure of a server is kept, given where its approved text would be."""
    return f"{lock_stem}.closures/{surface_path.rpartition('/')[2]}"


# In and out of a file


def to_bytes(closure: Closure) -> bytes:
    """The file: sorted, indented, with a final newline; equal closures give equal bytes."""
    import json  # starting a server only reads

    document: dict[str, Any] = {
        "format": FORMAT,
        "ecosystem": closure.ecosystem,
        "name": closure.name,
        "version": closure.version,
        "extras": list(closure.extras),
        "resolver": closure.resolver,
        "registry": closure.registry,
        "packages": [_package_json(package) for package in sorted(closure.packages, key=lambda item: item.key)],
    }
    return (json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _package_json(package: ClosurePackage) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": package.name,
        "version": package.version,
        "files": [_file_json(file) for file in sorted(package.files, key=lambda item: item.name)],
        "path": package.path,
        "marker": package.marker,
        "os": list(package.systems),
        "cpu": list(package.processors),
        "libc": list(package.libraries),
        "optional": package.optional,
        "installScripts": package.install_scripts,
    }
    return {name: value for name, value in document.items() if value not in ("", [], False)}


def _file_json(file: ClosureFile) -> dict[str, Any]:
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
    """A closure from its file. What cannot be understood is refused, never skipped."""
    document = strict_json.parse_json(data, LIMITS)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        _invalid(f"is not of format {FORMAT}")
    ecosystem = document.get("ecosystem")
    if ecosystem not in ("npm", "pypi"):
        _invalid("is of an ecosystem that is not known here")
    try:
        closure = Closure(
            ecosystem=ecosystem,
            name=_text(document["name"]),
            version=_text(document["version"]),
            extras=_texts(document.get("extras", [])),
            resolver=_text(document["resolver"]),
            registry=_text(document["registry"]),
            packages=tuple(_package(package, ecosystem) for package in _list(document["packages"])),
        )
    except KeyError as err:
        _invalid(f"lacks {err}")
    except PinwardenError as err:
        if err.code == "DIGEST_INVALID":
            _invalid(err.message)
        raise
    locations = [(package.path or package.name, package.marker) for package in closure.packages]
    if len(set(locations)) != len(locations):
        _invalid("names one package or folder twice")
    closure.root  # noqa: B018  raises if it is not there
    return closure


def _package(value: Any, ecosystem: str) -> ClosurePackage:
    document = _object(value)
    package = ClosurePackage(
        name=_text(document["name"]),
        version=_text(document["version"]),
        files=tuple(_file(file) for file in _list(document["files"])),
        path=_text(document.get("path", "")),
        marker=_text(document.get("marker", "")),
        systems=_texts(document.get("os", [])),
        processors=_texts(document.get("cpu", [])),
        libraries=_texts(document.get("libc", [])),
        optional=_flag(document.get("optional", False)),
        install_scripts=_flag(document.get("installScripts", False)),
    )
    if not package.files:
        _invalid(f"has no file for {package.name[:120]!a}")
    if ecosystem == "npm" and (len(package.files) != 1 or not is_node_path(package.path)):
        _invalid(f"does not say in which folder {package.name[:120]!a} belongs")
    if ecosystem == "pypi" and package.path:
        _invalid(f"gives {package.name[:120]!a} a folder")
    return package


def is_node_path(path: str) -> bool:
    """Whether a path is made of ``node_modules/<package>`` steps only, and so stays inside its environment."""
    position = 0
    while position < len(path):
        match = _NODE_PATH.match(path, position)
        if match is None:
            return False
        if any(step in (".", "..") for step in match[0].split("/")):
            return False
        position = match.end()
    return bool(path)


def _file(value: Any) -> ClosureFile:
    document = _object(value)
    name = _text(document["name"])
    if not name or re.search(r"[/\\\x00-\x1f]", name) or name in (".", ".."):
        _invalid(f"names a file {name[:120]!a}")
    size = document.get("size")
    if size is not None and (type(size) is not int or size < 0):
        _invalid("has a size that is not a number of bytes")
    digest = Digest.parse(_text(document["digest"]))
    tree = Digest.parse(_text(document["tree"])) if "tree" in document else None
    if digest.algorithm != "sha256" or (tree is not None and tree.algorithm != "sha256"):
        _invalid("has a digest that is not SHA-256")
    uploaded = document.get("uploadedAt")
    return ClosureFile(
        name=name,
        url=_text(document["url"]),
        digest=digest,
        size=size,
        tree=tree,
        uploaded_at=None if uploaded is None else _text(uploaded),
    )


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else _invalid("has something other than an object where one belongs")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else _invalid("has something other than a list where one belongs")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _invalid("has something other than text where text belongs")


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(_text(row) for row in _list(value))


def _flag(value: Any) -> bool:
    return value if isinstance(value, bool) else _invalid("has something other than true or false where that belongs")


def _invalid(why: str) -> NoReturn:
    raise PinwardenError("CLOSURE_INVALID", f"the dependency closure {why}")


def approved_digests(extension: Extension | None) -> frozenset[Digest]:
    """The archives whose install scripts may run."""
    return (
        frozenset(approval.digest for approval in extension.install_scripts) if extension is not None else frozenset()
    )


def still_approved(approvals: Iterable[ScriptApproval], closure: Closure) -> tuple[ScriptApproval, ...]:
    """The approvals that are about packages of a closure, sorted. The others are dropped."""
    present = {package.files[0].digest for package in with_scripts(closure)}
    kept = {approval.digest: approval for approval in approvals if approval.digest in present}
    return tuple(sorted(kept.values(), key=lambda approval: (approval.package, str(approval.digest))))


def with_scripts(closure: Closure) -> tuple[ClosurePackage, ...]:
    """The packages with install scripts. Only npm packages have any; wheels do not."""
    return (
        tuple(package for package in closure.packages if package.install_scripts) if closure.ecosystem == "npm" else ()
    )


def not_approved(closure: Closure, approved: frozenset[Digest]) -> tuple[ClosurePackage, ...]:
    """The packages whose scripts are left out, each once, however often it is installed."""
    packages = {
        package.files[0].digest: package for package in with_scripts(closure) if package.files[0].digest not in approved
    }
    return tuple(packages.values())
