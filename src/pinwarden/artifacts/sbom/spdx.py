"""Writes an SBOM in SPDX 2.3 JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from pinwarden.artifacts.sbom.contents import NO_EDGES, Properties, SbomContents, SbomFile, SbomPackage, SbomServer
from pinwarden.core.digest import Digest
from pinwarden.core.record import Record, replace

SPEC_VERSION = "SPDX-2.3"
_DOCUMENT = "SPDXRef-DOCUMENT"
_UNKNOWN = "NOASSERTION"
_ALGORITHMS = {"sha256": "SHA256", "sha384": "SHA384", "sha512": "SHA512"}


def to_bytes(contents: SbomContents, lock_name: str, now: str, tool_version: str) -> bytes:
    """Return the SBOM as indented JSON with a final newline. Equal arguments give equal bytes."""
    document = {
        "spdxVersion": SPEC_VERSION,
        "dataLicense": "CC0-1.0",
        "SPDXID": _DOCUMENT,
        "name": lock_name,
        "documentNamespace": contents.serial.urn,
        "comment": f"pinwarden:lock={contents.lock_digest}; {NO_EDGES}",
        "creationInfo": {
            "created": re.sub(r"\.\d+", "", now),  # SPDX does not allow fractions of a second
            "creators": [f"Tool: pinwarden-{tool_version}"],
        },
        "packages": [_element_to_json(element) for element in _build_elements(contents)],
        "relationships": [*_build_relationships(contents)],
    }
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


class _Element(Record):
    """An SPDX package: a server, a package, or one file of a package."""

    ref: str
    name: str
    version: str | None
    purl: str | None
    purpose: str
    archive: SbomFile | None
    properties: Properties = ()


def _build_elements(contents: SbomContents) -> Iterator[_Element]:
    yield from (_build_server_element(server) for server in contents.servers)
    for package in contents.packages:
        yield from _build_package_elements(package)


def _build_server_element(server: SbomServer) -> _Element:
    single = server.archives[0] if len(server.archives) == 1 else None
    properties = server.properties
    if server.endpoint is not None:
        properties += (("pinwarden:endpoint", server.endpoint),)
    return _Element(
        ref=server.ref,
        name=server.name,
        version=server.version,
        purl=server.purl,
        purpose="CONTAINER" if server.is_image else "APPLICATION" if server.is_installed else "OTHER",
        archive=single,
        properties=properties,
    )


def _build_package_elements(package: SbomPackage) -> Iterator[_Element]:
    """Yield the package. If it has several files, also yield one element per file, because each has a checksum."""
    package_element = _Element(
        ref=package.ref,
        name=package.name,
        version=package.version,
        purl=package.purl,
        purpose="LIBRARY",
        archive=package.archives[0] if len(package.archives) == 1 else None,
        properties=package.properties,
    )
    yield package_element
    for archive in package.archives if package_element.archive is None else ():
        ref = _build_archive_ref(package, archive)
        yield replace(package_element, ref=ref, purpose="ARCHIVE", archive=archive, properties=())


def _element_to_json(element: _Element) -> dict[str, Any]:
    archive = element.archive
    document: dict[str, Any] = {
        "SPDXID": _build_id(element.ref),
        "name": element.name,
        "versionInfo": element.version,
        "packageFileName": archive.name if archive and archive.url else None,
        "downloadLocation": (archive.url if archive else None) or _UNKNOWN,
        "filesAnalyzed": False,
        "checksums": [_build_checksum(archive.digest)] if archive else None,
        "primaryPackagePurpose": element.purpose,
        "licenseConcluded": _UNKNOWN,
        "licenseDeclared": _UNKNOWN,
        "copyrightText": _UNKNOWN,
        "comment": "\n".join(f"{name}={value}" for name, value in element.properties) or None,
        "externalRefs": _build_purl_reference(element.purl) if element.purl else None,
    }
    return {name: value for name, value in document.items() if value is not None}


def _build_purl_reference(purl: str) -> list[dict[str, str]]:
    return [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}]


def _build_checksum(digest: Digest) -> dict[str, str]:
    return {"algorithm": _ALGORITHMS[digest.algorithm], "checksumValue": digest.hex}


def _build_relationships(contents: SbomContents) -> Iterator[dict[str, str]]:
    for server in contents.servers:
        yield _build_relationship(_DOCUMENT, "DESCRIBES", _build_id(server.ref))
        for ref in server.dependencies or ():
            yield _build_relationship(_build_id(server.ref), "DEPENDS_ON", _build_id(ref))
        if server.dependencies is None:
            yield _build_relationship(_build_id(server.ref), "DEPENDS_ON", _UNKNOWN)
    for package in contents.packages:
        for archive in package.archives if len(package.archives) > 1 else ():
            yield _build_relationship(
                _build_id(_build_archive_ref(package, archive)), "VARIANT_OF", _build_id(package.ref)
            )


def _build_relationship(source: str, kind: str, target: str) -> dict[str, str]:
    return {"spdxElementId": source, "relationshipType": kind, "relatedSpdxElement": target}


def _build_archive_ref(package: SbomPackage, archive: SbomFile) -> str:
    return f"{package.ref} {archive.name} {archive.digest}"


def _build_id(ref: str) -> str:
    """Return a unique identifier that has only characters allowed in SPDX."""
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", ref)[:60].strip("-")
    return f"SPDXRef-{readable}-{Digest.of_bytes(ref.encode('utf-8', 'surrogatepass')).hex[:16]}"
