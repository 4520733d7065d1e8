"""``mcp-lock/1``, the vendor-neutral draft of a lockfile: read, write, verify.

Digests are ``sha256-<base64>`` over RFC 8785 bytes, every member is hashed whether known or not, and no object may
hold two names that are equal after Unicode normalisation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from unicodedata import normalize

from pinwarden.core import strict_json
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.javascript_json import to_javascript_file
from pinwarden.core.patterns import pattern
from pinwarden.core.record import Record
from pinwarden.core.timestamps import moment_of
from pinwarden.lock.entry import LOCK_LIMITS
from pinwarden.lock.shape import all_text, invalid
from pinwarden.lock.verification import Problem

SPEC_VERSION = 1
COVERAGE = ("name", "description", "inputSchema")

_TIMESTAMP = pattern(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})")
# The pattern and not Digest.parse: the draft's own fixtures hold digests with stray bits in the last character.
_DIGEST = pattern(r"sha256-[A-Za-z0-9+/]{43}=")
_NAMESPACE = pattern(r"[a-z0-9-]+(\.[a-z0-9-]+)+")
_CLIENT = pattern(r"[a-z0-9][a-z0-9-]*")
_REGISTRY_TYPE = pattern(r"npm|oci|mcpb|pypi|nuget|[a-z0-9-]+(\.[a-z0-9-]+)+")
_IMMUTABLE_IMAGE = pattern(r".+@sha256:[0-9a-f]{64}")
_SECRET_NAME = pattern(r"[A-Z][A-Z0-9_]*")


class NeutralLock(Record):
    """A document of the draft, with every member in the order of the file."""

    document: Mapping[str, Any]

    @property
    def entries(self) -> tuple[Mapping[str, Any], ...]:
        """The entries in the order of the file."""
        return tuple(self.document["entries"])


def parse(data: bytes) -> NeutralLock:
    """Read a document strictly. Reading does not verify."""
    document = strict_json.parse(data, LOCK_LIMITS)
    if not isinstance(document, dict):
        invalid("", "is not an object")
    version = document.get("specVersion")
    if type(version) not in (int, float) or version != SPEC_VERSION:
        raise PinwardenError("LOCK_VERSION_UNSUPPORTED", f"specVersion is {str(version)[:40]!a}, not {SPEC_VERSION}")
    lock = NeutralLock(document=document)
    check_shape(lock)
    return lock


def verify(lock: NeutralLock, *, enforce: bool = False) -> tuple[Problem, ...]:
    """Every entry whose integrity value is not that of its content. An enforcer also refuses an empty lock."""
    problems = [
        Problem(
            code="integrity_mismatch",
            path=f"/entries/{place}/integrity",
            server=str(entry["name"]),
            client=str(entry["client"]),
        )
        for place, entry in enumerate(lock.entries)
        if entry["integrity"] != integrity_of(entry)
    ]
    if enforce and not lock.entries:
        problems.append(Problem(code="no_entries", path="/entries"))
    return tuple(problems)


def to_bytes(lock: NeutralLock) -> bytes:
    """The document as a file."""
    return to_javascript_file(lock.document)


def integrity_of(entry: Mapping[str, Any]) -> str:
    """The digest of an entry without its ``integrity``."""
    return digest_of({member: value for member, value in entry.items() if member != "integrity"})


def digest(lock: NeutralLock) -> str:
    """The whole-lock digest: the document without its two times. Unknown members are in it (section 10)."""
    timeless = {member: value for member, value in lock.document.items() if member not in ("generatedAt", "updatedAt")}
    return digest_of(timeless)


def digest_of(value: Any) -> str:
    """The draft's digest of a value, as for ``configDigest``."""
    return Digest.of(canonicalize(value, "jcs", LOCK_LIMITS)).sri


def surface_hash(tools: Iterable[Mapping[str, Any]], coverage: Sequence[str] = COVERAGE) -> str:
    """The declared-surface pin: records of exactly the covered members, by name in UTF-16 order."""
    records = [{field: tool[field] for field in coverage if field in tool} for tool in tools]
    return digest_of(sorted(records, key=lambda tool: str(tool.get("name", "")).encode("utf-16-be", "surrogatepass")))


# The shape of a document


def check_shape(lock: NeutralLock) -> None:
    """Raise LOCK_INVALID, naming the place, if the document breaks a rule of the draft."""
    document = lock.document
    _refuse_equal_names(document, "")
    _moments_at(document, ("generatedAt", "updatedAt"), "")
    if not isinstance(document.get("entries"), list):
        invalid("/entries", "is not a list")
    _check_extensions(document, "")
    seen: set[tuple[str, str, str]] = set()
    for place, entry in enumerate(document["entries"]):
        path = f"/entries/{place}"
        check_entry(entry, path)
        identity = (entry["name"], entry["client"], entry.get("scope", "project"))
        if identity in seen:
            invalid(path, "has the name, client and scope of an earlier entry")
        seen.add(identity)


def check_entry(entry: Any, path: str) -> None:
    """Raise LOCK_INVALID, naming the place, if an entry breaks a rule of the draft."""
    if not isinstance(entry, dict):
        invalid(path, "is not an object")
    for member in ("name", "version"):
        _demand(_is_text(entry.get(member)), f"{path}/{member}", "is not text, or empty")
    _demand(_matches(entry.get("client"), _CLIENT), f"{path}/client", "is not a lower-case client name")
    _demand(entry.get("scope", "project") in ("project", "user"), f"{path}/scope", "is neither project nor user")
    source = entry.get("source")
    if not isinstance(source, dict) or not _is_text(source.get("registry")) or not _is_text(source.get("id", "-")):
        invalid(f"{path}/source", "does not name a registry")
    for member in ("configDigest", "integrity"):
        _demand(_matches(entry.get(member), _DIGEST), f"{path}/{member}", "is not sha256-<base64>")
    for member in ("resolvedAt", "lockedAt"):
        _demand(is_timestamp(entry.get(member)), f"{path}/{member}", "is not a timestamp of RFC 3339")
    _check_target(entry.get("target"), f"{path}/target")
    if "surface" in entry:
        _check_surface(entry["surface"], f"{path}/surface")
    _check_verification(entry.get("verification", []), f"{path}/verification")
    _check_extensions(entry, path)


def _check_target(target: Any, path: str) -> None:
    kind = target.get("type") if isinstance(target, dict) else None
    if kind == "package":
        _check_package(target, path)
    elif kind == "remote":
        _demand(_is_text(target.get("transport")), f"{path}/transport", "is not text, or empty")
        url = str(target.get("url", ""))
        _demand(url.startswith("https://"), f"{path}/url", "is not an https address")
        _demand("@" not in url.split("/")[2], f"{path}/url", "holds a user or a password")
        names = target.get("headerSecretNames", [])
        good = isinstance(names, list) and all(_matches(name, _SECRET_NAME) for name in names)
        _demand(good, f"{path}/headerSecretNames", "holds something that is not the name of a secret")
    else:
        invalid(f"{path}/type", "is a kind of target that is not known, so it cannot be enforced")


def _check_package(target: Mapping[str, Any], path: str) -> None:
    _demand(_matches(target.get("registryType"), _REGISTRY_TYPE), f"{path}/registryType", "is not a kind of registry")
    identifier = target.get("identifier")
    _demand(_is_text(identifier), f"{path}/identifier", "is not text, or empty")
    if target["registryType"] == "oci" and not _matches(identifier, _IMMUTABLE_IMAGE):
        invalid(f"{path}/identifier", "names an image without its @sha256: digest")
    for member in ("version", "transport"):
        _demand(isinstance(target.get(member, ""), str), f"{path}/{member}", "is not text")
    artifact = target.get("artifact")
    if "artifact" in target and not (
        isinstance(artifact, dict) and _matches(artifact.get("digest"), _DIGEST) and _is_text(artifact.get("method"))
    ):
        invalid(f"{path}/artifact", "has no digest and method")


def _check_surface(surface: Any, path: str) -> None:
    if not isinstance(surface, dict):
        invalid(path, "is not an object")
    _demand(_matches(surface.get("hash"), _DIGEST), f"{path}/hash", "is not sha256-<base64>")
    coverage = surface.get("coverage")
    known = isinstance(coverage, list) and all(field in COVERAGE for field in coverage)
    if not known or any(field not in surface["coverage"] for field in ("name", "description")):
        invalid(f"{path}/coverage", "does not cover name and description")
    count = surface.get("toolCount")
    _demand(type(count) is int and count >= 0, f"{path}/toolCount", "is not a count")
    _moments_at(surface, ("capturedAt",), path)


def _check_verification(rows: Any, path: str) -> None:
    if not isinstance(rows, list):
        invalid(path, "is not a list")
    for place, row in enumerate(rows):
        where = f"{path}/{place}"
        good = isinstance(row, dict) and _is_text(row.get("code"))
        good = good and row.get("status") in ("passed", "failed", "declared", "unavailable")
        _demand(good, where, "is not evidence")
        named = tuple(member for member in ("verifier", "method", "anchor") if member in row)
        _demand(all_text(row, named) and isinstance(row.get("required", True), bool), where, "is not evidence")
        _moments_at(row, ("verifiedAt",), where)


def _check_extensions(holder: Mapping[str, Any], path: str) -> None:
    extensions = holder.get("extensions", {})
    if not isinstance(extensions, dict):
        invalid(f"{path}/extensions", "is not an object")
    for name, value in extensions.items():
        if not _NAMESPACE.fullmatch(name) or not isinstance(value, dict):
            invalid(f"{path}/extensions", f"has {name[:80]!a}, which is not a reverse-DNS name with an object")


def _refuse_equal_names(value: Any, path: str) -> None:
    pending = [(value, path)]
    while pending:
        item, where = pending.pop()
        if isinstance(item, dict):
            if len({normalize("NFC", name) for name in item}) != len(item):
                invalid(where, "holds two names that are equal after Unicode normalisation (NFC)")
            pending.extend((inner, f"{where}/{name}") for name, inner in item.items())
        elif isinstance(item, list):
            pending.extend((inner, f"{where}/{place}") for place, inner in enumerate(item))


def _moments_at(holder: Mapping[str, Any], members: Iterable[str], path: str) -> None:
    for member in members:
        good = member not in holder or is_timestamp(holder[member])
        _demand(good, f"{path}/{member}", "is not a timestamp of RFC 3339")


def is_timestamp(value: Any) -> bool:
    """Whether a value is a moment in the form that the draft demands, on a day that the calendar has."""
    return _matches(value, _TIMESTAMP) and moment_of(value) is not None


def _matches(value: Any, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _demand(holds: bool, path: str, why: str) -> None:
    if not holds:
        invalid(path, why)
