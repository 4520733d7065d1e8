"""What NuGet sources say: names, versions, the service index, hashes, and the ``.nuspec`` of a package."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as BinasciiError
from collections.abc import Mapping
from typing import Any
from xml.etree.ElementTree import Element, ParseError, fromstring

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

_NAME = re.compile(r"[A-Za-z0-9_]+(?:[.-][A-Za-z0-9_]+)*", re.ASCII)
_VERSION = re.compile(
    r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?"
    r"(-[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)
_SIZES = {"sha256": 32, "sha512": 64}
_UNLISTED_YEAR = "1900"  # the date of publication that sources give to what they no longer list

# The commitments of RFC 5126 that NuGet puts into a signature, as DER object identifiers.
_AUTHOR = bytes.fromhex("060b2a864886f70d0109100601")  # proof of origin
_REPOSITORY = bytes.fromhex("060b2a864886f70d0109100602")  # proof of receipt


class NugetClaims(Record):
    """What a source says about one version."""

    digests: tuple[Digest, ...] = ()
    published_at: str | None = None
    withdrawn: str | None = None


class Nuspec(Record):
    """What the ``.nuspec`` inside a package says."""

    name: str
    version: str
    repository: str | None


def check_name(text: str) -> str:
    """The name of a package. It may stand in an address or path afterwards."""
    if len(text) > 100 or not _NAME.fullmatch(text):
        raise PinwardenError("PACKAGE_INVALID", f"{text[:120]!a} is not the name of a NuGet package")
    return text


def normal_version(text: str) -> str:
    """One exact version as NuGet writes it in addresses: three or four numbers, no build metadata, lower case."""
    found = _VERSION.fullmatch(text)
    if found is None or len(text) > 256:
        raise PinwardenError("PACKAGE_INVALID", f"{text[:120]!a} is not one exact version of a NuGet package")
    numbers = [int(part or 0) for part in found.groups()[:4]]
    shown = numbers if numbers[3] else numbers[:3]
    return ".".join(map(str, shown)) + (found[5] or "").lower()


def parse_xml(data: bytes) -> Element | None:
    """An XML document without any declarations of its own, in UTF-8; None if it is something else."""
    try:
        text = data.decode("utf-8-sig")
        if "<!doctype" in text.lower() or "<!entity" in text.lower():
            return None
        return fromstring(text)  # noqa: S314 - what can be abused are declarations, and there are none
    except (UnicodeDecodeError, ParseError, ValueError, RecursionError):
        return None


def children(element: Element, name: str) -> list[Element]:
    """The elements of a name, in whatever namespace."""
    return [each for each in element if each.tag.rpartition("}")[2] == name]


def parse_nuspec(data: bytes) -> Nuspec | None:
    """The metadata of a package; None if it cannot be read in only one way."""
    root = parse_xml(data)
    found = children(root, "metadata") if root is not None else []
    if len(found) != 1:
        return None
    names, versions = children(found[0], "id"), children(found[0], "version")
    if len(names) != 1 or len(versions) != 1:
        return None
    repositories = [each.get("url") for each in children(found[0], "repository")]
    return Nuspec(
        name=(names[0].text or "").strip(),
        version=(versions[0].text or "").strip(),
        repository=repositories[0] if repositories else None,
    )


def resource(index: Any, kinds: tuple[str, ...]) -> str | None:
    """The address of the first resource of a service index that has one of those types, the best type first."""
    rows = index.get("resources") if isinstance(index, dict) else None
    usable = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    for kind in kinds:
        for row in usable:
            said = row.get("@type")
            if kind in (said if isinstance(said, list) else [said]) and isinstance(row.get("@id"), str):
                address: str = row["@id"]
                return address if address.endswith("/") else f"{address}/"
    return None


def entry_claims(entry: Mapping[str, Any]) -> NugetClaims:
    """What a catalog entry, or a registration that holds one, says."""
    published = entry.get("published")
    deprecation = entry.get("deprecation")
    withdrawn = None
    if entry.get("listed") is False or (isinstance(published, str) and published.startswith(_UNLISTED_YEAR)):
        withdrawn = "unlisted"
    if isinstance(deprecation, dict):
        message = deprecation.get("message")
        withdrawn = message if isinstance(message, str) and message else "deprecated"
    claimed = hash_claim(entry.get("packageHash"), entry.get("packageHashAlgorithm", "SHA512"))
    return NugetClaims(
        digests=(claimed,) if claimed else (),
        published_at=published if isinstance(published, str) else None,
        withdrawn=withdrawn,
    )


def hash_claim(text: Any, algorithm: Any) -> Digest | None:
    """A hash in base64; None where none is given. One that is not a hash is an error."""
    if text is None or text == "":
        return None
    name = algorithm.lower().replace("-", "") if isinstance(algorithm, str) else ""
    try:
        raw = b64decode(text, validate=True)
    except (BinasciiError, ValueError, TypeError):
        raw = b""
    if _SIZES.get(name) != len(raw):
        raise PinwardenError("DIGEST_INVALID", "the source states a package hash that is not one")
    return Digest(raw, name)


def signature_kinds(signature: bytes) -> tuple[str, ...]:
    """Whose signatures a package carries. Their presence alone: nothing is verified."""
    kinds = [("author", _AUTHOR), ("repository", _REPOSITORY)]
    return tuple(f"nuget-{name}-signature" for name, mark in kinds if mark in signature) or ("nuget-signature",)
