"""The page of one version of a bundle: what the registry computed, apart from what the publisher claims."""

from __future__ import annotations

import shlex

from pinwarden.bundle.attestation import list_current_attestations, parse_attestation
from pinwarden.bundle.bundle_documents import BundleDescriptor, parse_descriptor, parse_manifest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.text import parse_timestamp
from pinwarden.html.items import list_parameters
from pinwarden.html.pages import PageContent
from pinwarden.registry.names import DEFAULT_CHANNEL
from pinwarden.registry.official_api import choose_latest_version
from pinwarden.registry.pages.page_request import PageRequest
from pinwarden.registry.pages.readme import RenderedReadme, render_readme
from pinwarden.registry.publish import MAX_README_BYTES, README_NAMES
from pinwarden.registry.registry import Registry
from pinwarden.registry.registry_documents import PublishedVersion
from pinwarden.registry.search import load_surface
from pinwarden.registry.store import catalog, publications, publishers
from pinwarden.surface.surface import PROMPT, RESOURCE, TEMPLATE, TOOL, Item, Surface
from pinwarden.system.database import Transaction

_MAX_ITEMS = 200  # of each kind; the surface document has all
_HEADINGS = ((TOOL, "Tools"), (PROMPT, "Prompts"), (RESOURCE, "Resources"), (TEMPLATE, "Resource templates"))
_PERMISSIONS = {
    ("network", "deny"): "No network access",
    ("network", "allow"): "Network access",
    ("filesystem", "deny"): "No files outside the bundle",
    ("filesystem", "read_only"): "Read files in the project",
    ("filesystem", "read_write"): "Read and write files in the project",
    ("exec", "deny"): "No other programs",
    ("exec", "allow"): "Start other programs",
}


class ShownItem(Record):
    """A tool, prompt, resource or template on a page."""

    name: str
    description: str
    parameters: tuple[tuple[str, str, bool], ...]
    """Name, type and whether it is required."""
    problem: str | None


class ShownClaim(Record):
    """A claim of an attestation on a page."""

    type: str
    role: str
    key_id: str
    issued_at: str
    expires_at: str | None
    is_expired: bool
    cid: str


def build_latest_page(
    registry: Registry, transaction: Transaction, request: PageRequest, tool: str
) -> PageContent | None:
    """Build the page of the latest version; None if the bundle is not published."""
    versions = publications.list_versions(transaction, tool)
    if not versions:
        return None
    return _build_page(registry, transaction, request, choose_latest_version(versions) or versions[-1], versions)


def build_version_page(
    registry: Registry, transaction: Transaction, request: PageRequest, tool: str, version: str
) -> PageContent | None:
    """Build the page of a version; None if it is not published."""
    versions = publications.list_versions(transaction, tool)
    shown = next((published for published in versions if published.version == version), None)
    return None if shown is None else _build_page(registry, transaction, request, shown, versions)


def _build_page(
    registry: Registry,
    transaction: Transaction,
    request: PageRequest,
    version: PublishedVersion,
    versions: list[PublishedVersion],
) -> PageContent:
    descriptor = _load_descriptor(transaction, version)
    surface = load_surface(transaction, version)
    channels = {
        row.channel: row.version
        for row in publications.list_channels(transaction, version.tool)
        if row.pointer is not None
    }
    own_channels = [channel for channel, target in channels.items() if target == version.version]
    before = [other for other in versions if other.seq < version.seq]
    readme, readme_problem = _load_readme(transaction, version)
    values = {
        "version": version,
        "descriptor": descriptor,
        "permissions": _describe_permissions(descriptor),
        "is_latest": version == choose_latest_version(versions),
        "versions": versions[::-1],
        "channels": channels,
        "own_channels": own_channels,
        "previous": before[-1] if before else None,
        "groups": _list_item_groups(surface),
        "instructions": _read_instructions(surface),
        "has_surface": surface is not None,
        "claims": _list_claims(registry, transaction, version),
        "signer_role": publishers.list_namespace_keys(transaction, version.namespace).get(version.published_by),
        "readme": readme,
        "readme_problem": readme_problem,
        "install_command": _build_install_command(version, own_channels, request.base_url),
        "verify_command": f"pinwarden log verify {shlex.quote(request.base_url or 'URL')}",
        "base_url": request.base_url,
    }
    return PageContent(template="package.html", values=values)


def _load_descriptor(transaction: Transaction, version: PublishedVersion) -> BundleDescriptor:
    body = publications.find_document(transaction, version.descriptor_cid)
    if body is None:
        raise PinwardenError("DATABASE_CORRUPT", f"the descriptor of {version.tool} {version.version} is missing")
    return parse_descriptor(body)


def _describe_permissions(descriptor: BundleDescriptor) -> list[tuple[bool, str]]:
    """Return each permission as text, and whether it is asked for."""
    policy = descriptor.policy
    stated = {"network": policy.network, "filesystem": policy.filesystem, "exec": policy.exec}
    return [(value != "deny", _PERMISSIONS[name, value]) for name, value in stated.items()]


def _list_item_groups(surface: Surface | None) -> list[tuple[str, list[ShownItem], int]]:
    """Return the heading, the first items and the number of items of each kind that the server offers."""
    if surface is None:
        return []
    return [
        (heading, [_describe_item(item) for item in items[:_MAX_ITEMS]], len(items))
        for kind, heading in _HEADINGS
        if (items := surface.items_of_kind(kind))
    ]


def _describe_item(item: Item) -> ShownItem:
    value = item.value if isinstance(item.value, dict) else {}
    description = value.get("description")
    return ShownItem(
        name=item.label,
        description=description if isinstance(description, str) else "",
        parameters=tuple((name, type_name, required) for name, type_name, required, _ in list_parameters(value)),
        problem=item.problem,
    )


def _read_instructions(surface: Surface | None) -> str | None:
    instructions = surface.server.get("instructions") if surface is not None and surface.server else None
    return instructions if isinstance(instructions, str) and instructions else None


def _list_claims(registry: Registry, transaction: Transaction, version: PublishedVersion) -> list[ShownClaim]:
    """Return the claims of all attestations that no other attestation renews. Their signatures were verified."""
    documents = {
        cid: parse_attestation(body)
        for cid in version.attestations
        if (body := publications.find_document(transaction, cid)) is not None
    }
    now = parse_timestamp(registry.now())
    return [
        ShownClaim(
            type=claim.type.removeprefix("mcp.claim."),
            role=claim.issuer_role,
            key_id=claim.issuer_key_id,
            issued_at=claim.issued_at_utc,
            expires_at=claim.expires_at_utc,
            is_expired=bool(now and (expiry := parse_timestamp(claim.expires_at_utc)) and expiry < now),
            cid=cid,
        )
        for cid in list_current_attestations(documents)
        for claim in documents[cid].claims
    ]


def _load_readme(transaction: Transaction, version: PublishedVersion) -> tuple[RenderedReadme | None, str]:
    """Return the README, or the reason why there is none to show."""
    stored = catalog.find_readme(transaction, version.root_cid)
    if stored is not None:
        return render_readme(stored.path, stored.body), ""
    body = publications.find_manifest(transaction, version.root_cid, version.descriptor_cid)
    entries = parse_manifest(body).entries if body is not None else ()
    entry = next((entry for entry in entries if entry.path.lower() in README_NAMES), None)
    if entry is None:
        return None, "This bundle has no README."
    if entry.size_bytes > MAX_README_BYTES:
        return None, f"The README has {entry.size_bytes:,} bytes. Pages show up to {MAX_README_BYTES:,}."
    return None, "The README is in the archive. It was published before this registry showed READMEs."


def _build_install_command(version: PublishedVersion, channels: list[str], base_url: str | None) -> str | None:
    """Return the command that installs this version or a newer one; None if no channel points to the version."""
    if version.yanked is not None or not channels:
        return None
    channel = DEFAULT_CHANNEL if DEFAULT_CHANNEL in channels else channels[0]
    tool = version.tool if channel == DEFAULT_CHANNEL else f"{version.tool}@{channel}"
    registry = f" --registry {shlex.quote(base_url)}" if base_url else ""
    return f"pinwarden install {tool} --floor {version.version}{registry}"
