"""Parses NuGet's formats: names, versions, the service index, hashes, and the ``.nuspec`` of a package."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as BinasciiError
from collections.abc import Mapping
from typing import Any
from xml.etree.ElementTree import Element, ParseError, fromstring

from pinwarden.artifacts.artifact import ReleaseFacts
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

_NAME = re.compile(r"[A-Za-z0-9_]+(?:[.-][A-Za-z0-9_]+)*", re.ASCII)
_VERSION = re.compile(
    r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?"
    r"(-[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)
_DIGEST_SIZES = {"sha256": 32, "sha512": 64}
_UNLISTED_YEAR = "1900"  # the publication year that sources state for unlisted versions

# The RFC 5126 commitment types in NuGet signatures, as DER object identifiers.
_AUTHOR_OID = bytes.fromhex("060b2a864886f70d0109100601")  # proof of origin
_REPOSITORY_OID = bytes.fromhex("060b2a864886f70d0109100602")  # proof of receipt


class NugetClaims(Record):
    """Unverified metadata of one version, as the package source states it."""

    digests: tuple[Digest, ...] = ()
    facts: ReleaseFacts = ReleaseFacts()
    """``yanked`` is the publisher's message about a deprecated version, or ``deprecated``, or ``unlisted``."""


class Nuspec(Record):
    """The fields of a ``.nuspec`` that Pinwarden uses."""

    name: str
    version: str
    repository: str | None


def check_name(text: str) -> str:
    """Return a package name unchanged. Raises ``PACKAGE_INVALID`` if it is not valid."""
    if len(text) > 100 or not _NAME.fullmatch(text):
        raise PinwardenError("PACKAGE_INVALID", f"{text[:120]!a} is not the name of a NuGet package")
    return text


def normalize_version(text: str) -> str:
    """Normalise an exact version as in NuGet's URLs: three or four numbers, lower case, without build metadata."""
    match = _VERSION.fullmatch(text)
    if match is None or len(text) > 256:
        raise PinwardenError("PACKAGE_INVALID", f"{text[:120]!a} is not an exact NuGet version")
    numbers = [int(part or 0) for part in match.groups()[:4]]
    significant = numbers if numbers[3] else numbers[:3]
    return ".".join(map(str, significant)) + (match[5] or "").lower()


def parse_xml(data: bytes) -> Element | None:
    """Parse an XML document. Returns None if it is invalid, not UTF-8, or has a DOCTYPE or ENTITY declaration."""
    try:
        text = data.decode("utf-8-sig")
        if "<!doctype" in text.lower() or "<!entity" in text.lower():
            return None
        return fromstring(text)  # noqa: S314 - attacks need declarations, which were refused above
    except (UnicodeDecodeError, ParseError, ValueError, RecursionError):
        return None


def find_children(element: Element, name: str) -> list[Element]:
    """Return the child elements with this name in any namespace."""
    return [child for child in element if child.tag.rpartition("}")[2] == name]


def parse_nuspec(data: bytes) -> Nuspec | None:
    """Parse a ``.nuspec``. Returns None if it is invalid or ambiguous."""
    root = parse_xml(data)
    metadata = find_children(root, "metadata") if root is not None else []
    if len(metadata) != 1:
        return None
    names, versions = find_children(metadata[0], "id"), find_children(metadata[0], "version")
    if len(names) != 1 or len(versions) != 1:
        return None
    repositories = [element.get("url") for element in find_children(metadata[0], "repository")]
    return Nuspec(
        name=(names[0].text or "").strip(),
        version=(versions[0].text or "").strip(),
        repository=repositories[0] if repositories else None,
    )


def find_resource_url(index: Any, resource_types: tuple[str, ...]) -> str | None:
    """Return the URL of a service index's resource with one of these types. Earlier types are preferred."""
    listed = index.get("resources") if isinstance(index, dict) else None
    resources = [resource for resource in listed if isinstance(resource, dict)] if isinstance(listed, list) else []
    for resource_type in resource_types:
        for resource in resources:
            types = resource.get("@type")
            has_type = resource_type in (types if isinstance(types, list) else [types])
            if has_type and isinstance(resource.get("@id"), str):
                url: str = resource["@id"]
                return url if url.endswith("/") else f"{url}/"
    return None


def parse_catalog_entry(entry: Mapping[str, Any]) -> NugetClaims:
    """Return the claims in a catalog entry, or in a registration that contains one."""
    published = entry.get("published")
    deprecation = entry.get("deprecation")
    yanked = None
    if entry.get("listed") is False or (isinstance(published, str) and published.startswith(_UNLISTED_YEAR)):
        yanked = "unlisted"
    if isinstance(deprecation, dict):
        message = deprecation.get("message")
        yanked = message if isinstance(message, str) and message else "deprecated"
    digest = parse_package_hash(entry.get("packageHash"), entry.get("packageHashAlgorithm", "SHA512"))
    return NugetClaims(
        digests=(digest,) if digest else (),
        facts=ReleaseFacts(published_at=published if isinstance(published, str) else None, yanked=yanked),
    )


def parse_package_hash(text: Any, algorithm: Any) -> Digest | None:
    """Parse a hash in base64; None if it is missing. Raises ``DIGEST_INVALID`` if it is malformed."""
    if text is None or text == "":
        return None
    name = algorithm.lower().replace("-", "") if isinstance(algorithm, str) else ""
    try:
        raw = b64decode(text, validate=True)
    except (BinasciiError, ValueError, TypeError):
        raw = b""
    if _DIGEST_SIZES.get(name) != len(raw):
        raise PinwardenError("DIGEST_INVALID", "the package source states a malformed package hash")
    return Digest(raw, name)


def detect_signature_kinds(signature: bytes) -> tuple[str, ...]:
    """Detect author and repository signatures in a package's signature file. Does not verify them."""
    kinds = [("author", _AUTHOR_OID), ("repository", _REPOSITORY_OID)]
    return tuple(f"nuget-{name}-signature" for name, oid in kinds if oid in signature) or ("nuget-signature",)
