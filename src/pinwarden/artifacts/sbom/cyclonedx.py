"""Writes an SBOM in CycloneDX 1.6 JSON."""

from __future__ import annotations

import json
from typing import Any

from pinwarden.artifacts.sbom.contents import (
    LOCK_REF,
    NO_EDGES,
    Properties,
    SbomContents,
    SbomFile,
    SbomPackage,
    SbomServer,
)

SPEC_VERSION = "1.6"
_ALGORITHMS = {"sha256": "SHA-256", "sha384": "SHA-384", "sha512": "SHA-512"}


def to_bytes(contents: SbomContents, lock_name: str, now: str, tool_version: str) -> bytes:
    """Return the SBOM as indented JSON with a final newline. Equal arguments give equal bytes."""
    document = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC_VERSION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "serialNumber": contents.serial.urn,
        "version": 1,
        "metadata": _build_metadata(contents, lock_name, now, tool_version),
        "components": [
            *(_build_server_component(server) for server in contents.servers if server.is_installed),
            *(_build_package_component(package) for package in contents.packages),
        ],
        "services": [_build_service(server) for server in contents.servers if server.endpoint is not None],
        "dependencies": _build_dependencies(contents),
        "compositions": _build_compositions(contents),
    }
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def _build_metadata(contents: SbomContents, lock_name: str, now: str, tool_version: str) -> dict[str, Any]:
    return {
        "timestamp": now,
        "tools": {"components": [{"type": "application", "name": "pinwarden", "version": tool_version}]},
        "component": {"type": "data", "bom-ref": LOCK_REF, "name": lock_name},
        "properties": _build_properties((("pinwarden:lock", contents.lock_digest), ("pinwarden:edges", NO_EDGES))),
    }


def _build_server_component(server: SbomServer) -> dict[str, Any]:
    return _drop_empty_members(
        {
            "type": "container" if server.is_image else "application",
            "bom-ref": server.ref,
            "name": server.name,
            "version": server.version,
            "hashes": _build_hashes(server.archives),
            "purl": server.purl,
            "externalReferences": _build_references(server.archives),
            "properties": _build_properties(server.properties),
        }
    )


def _build_service(server: SbomServer) -> dict[str, Any]:
    return _drop_empty_members(
        {
            "bom-ref": _build_service_ref(server),
            "name": server.name,
            "endpoints": [server.endpoint],
            "x-trust-boundary": True,
            "properties": _build_properties(server.properties),
        }
    )


def _build_package_component(package: SbomPackage) -> dict[str, Any]:
    return _drop_empty_members(
        {
            "type": "library",
            "bom-ref": package.ref,
            "name": package.name,
            "version": package.version,
            "scope": "optional" if package.optional else "required",
            "hashes": _build_hashes(package.archives),
            "purl": package.purl,
            "externalReferences": _build_references(package.archives),
            "properties": _build_properties(package.properties),
        }
    )


def _build_hashes(archives: tuple[SbomFile, ...]) -> list[dict[str, str]]:
    """Return the hash of a component that has one file.

    A component with one file per platform has its hashes in ``externalReferences``, next to the URLs.
    """
    return [_build_hash(archives[0])] if len(archives) == 1 else []


def _build_hash(archive: SbomFile) -> dict[str, str]:
    return {"alg": _ALGORITHMS[archive.digest.algorithm], "content": archive.digest.hex}


def _build_references(archives: tuple[SbomFile, ...]) -> list[dict[str, Any]]:
    return [
        {"type": "distribution", "url": archive.url, "comment": archive.name, "hashes": [_build_hash(archive)]}
        for archive in archives
        if archive.url is not None
    ]


def _build_properties(properties: Properties) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in properties]


def _build_dependencies(contents: SbomContents) -> list[dict[str, Any]]:
    """Return the known dependencies. CycloneDX treats the dependencies of components that are not listed as unknown."""
    servers = [ref for server in contents.servers for ref in _list_refs(server)]
    dependencies = [{"ref": LOCK_REF, "dependsOn": sorted(servers)}]
    dependencies += [
        {"ref": server.ref, "dependsOn": list(server.dependencies)}
        for server in contents.servers
        if server.dependencies is not None
    ]
    return dependencies


def _build_compositions(contents: SbomContents) -> list[dict[str, Any]]:
    """State for which components all dependencies are known: servers with a closure, but not their packages."""
    complete = [server.ref for server in contents.servers if server.dependencies is not None]
    unknown = [server.ref for server in contents.servers if server.dependencies is None and server.is_installed]
    unknown += [package.ref for package in contents.packages]
    compositions = [{"aggregate": "complete", "dependencies": [LOCK_REF, *complete]}]
    return [*compositions, {"aggregate": "unknown", "dependencies": unknown}] if unknown else compositions


def _list_refs(server: SbomServer) -> list[str]:
    refs = [server.ref] if server.is_installed else []
    return refs if server.endpoint is None else [*refs, _build_service_ref(server)]


def _build_service_ref(server: SbomServer) -> str:
    return f"{server.ref}:address" if server.is_installed else server.ref


def _drop_empty_members(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if value is not None and value != []}
