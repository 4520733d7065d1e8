"""What Pinwarden adds to a lock entry: surface, artifact bytes, provenance, and who approved them.

It is stored in ``capabilityManifest.pinwarden``, the one member that ToolPin neither hashes nor drops when it rewrites
the file. Its ``integrity`` covers the complete entry, including what ToolPin's own integrity value leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.json_values import escape_pointer_token
from pinwarden.core.record import Record, field, replace
from pinwarden.core.text import lazy_pattern
from pinwarden.core.typed_json import JsonObject
from pinwarden.lock.entry import (
    EXTENSION,
    Entry,
    compute_entry_seal,
    lock_error,
    raise_invalid,
    reorder_members,
    with_extension_json,
)

if TYPE_CHECKING:
    from pinwarden.surface.surface import Surface

FORMAT = "pinwarden-entry/1"
SURFACES_FOLDER = "mcp-lock.surfaces"

# One folder next to the lockfile and one file in it; no characters with a meaning in paths of any system.
_STEM, _FILE = r"[^./\\:*?\"<>|\x00-\x1f][^/\\:*?\"<>|\x00-\x1f]*", r"[a-z0-9_][a-z0-9._@=-]*\.json"
_SURFACE_PATH = lazy_pattern(rf"{_STEM}\.surfaces/{_FILE}")
_CLOSURE_PATH = lazy_pattern(rf"{_STEM}\.closures/{_FILE}")
_PLAIN = lazy_pattern(r"[a-z0-9.-]")
_RESERVED = lazy_pattern(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?")  # Windows gives these to devices
_MAX_STEM = 100  # file systems allow 255 bytes, for a name, a version and a temporary suffix


class SurfacePin(Record):
    """The approved surface: its digest, the digest of each item, and the file that keeps the approved text."""

    digest: Digest
    items: Mapping[str, Mapping[str, str]]
    """Per list (``tools``, …) the digest of each item by its key. A list that is not offered is absent."""
    path: str
    """Relative to the lockfile's folder, with forward slashes."""
    file_digest: Digest


class Artifact(Record):
    """One file that was downloaded and hashed."""

    name: str
    digest: Digest
    size: int | None = None


class ImagePin(Record):
    """A container image: the digest of its index, if it has one, and of the manifest for each platform."""

    index: Digest | None
    platforms: Mapping[str, Digest]


class ClosurePin(Record):
    """The dependency closure: how many packages it has, and the file that lists them all with their digests."""

    packages: int
    path: str
    """Relative to the lockfile's folder, with forward slashes."""
    file_digest: Digest


FilePin = SurfacePin | ClosurePin
"""The pin of a file next to the lock."""


class LockApproval(Record):
    """Who approved the entry, when, and why."""

    by: str
    at: str
    why: str


class ScriptApproval(Record):
    """A package whose install scripts may run, who approved it and when."""

    package: str
    """Name and version, for people."""
    digest: Digest
    """Digest of the package's archive. Other bytes under the same version are not approved."""
    by: str
    at: str


class ConfigOrigin(Record):
    """The client configuration that an entry was locked from."""

    client: str
    scope: str
    file: str
    answers: Mapping[str, Any] = field(default_factory=dict)
    """The default values of the file's input prompts when it was approved."""


class LaunchCommand(Record):
    """The server's own command, where the client's configuration names ``pinwarden run`` instead."""

    command: tuple[str, ...] = field(repr=False)
    """The words as approved; placeholders are not filled in."""
    variables: tuple[str, ...] = ()
    """Names of the environment variables that the server is given."""
    cwd: str | None = None


class LockExtension(Record):
    """What Pinwarden records about one entry. Members that only a newer version knows are kept in ``others``."""

    surface: SurfacePin | None = None
    api_surface: str | None = None
    artifacts: tuple[Artifact, ...] = ()
    image: ImagePin | None = None
    closure: ClosurePin | None = None
    provenance: Mapping[str, Any] | None = None
    """The identity that signed the build, as the verifier reported it."""
    registry: str | None = None
    """The registry endpoint that answered."""
    approval: LockApproval | None = None
    bundle: Mapping[str, Any] | None = None
    """The pin of a server installed from a bundle registry; ``bundle/bundle_pin.py`` reads it."""
    configured_in: ConfigOrigin | None = None
    surface_of: str | None = None
    """What the surface was approved for, if the entry starts something else now."""
    probed_release: str | None = None
    """The release that answered the probe, if the command names none."""
    install_scripts: tuple[ScriptApproval, ...] = ()
    bundle_tree: Digest | None = None
    """Digest of the files in an MCPB bundle, to check the unpacked one."""
    evidence: tuple[Mapping[str, Any], ...] | None = None
    """Evidence about the bytes, beyond that of the trust report."""
    published_at: str | None = None
    """When the locked release was published, as its registry says."""
    publisher: str | None = None
    """Who published the locked release, as its registry said when the bytes were pinned."""
    launch: LaunchCommand | None = None
    unknown_members: Mapping[str, Any] = field(default_factory=dict)
    member_order: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """The optional members in the order of the file, so that rewriting an entry moves none of them."""

    @property
    def has_pinned_bytes(self) -> bool:
        """Whether the bytes of the entry were ever pinned."""
        return bool(self.artifacts or self.image or self.closure)


def pin_surface(surface: Surface, path: str) -> SurfacePin:
    """The pin of an approved surface. Raises ``SURFACE_INVALID`` if an item cannot be digested."""
    from pinwarden.surface.surface import ITEM_KINDS, encode_surface  # not needed for locks without surfaces

    digest = surface.digest
    if digest is None:
        raise PinwardenError("SURFACE_INVALID", f"it cannot be digested: {surface.problem}")
    items = {
        kind.member: {item.key: str(item.digest) for item in surface.items_of_kind(kind)}
        for kind in ITEM_KINDS
        if kind.member in surface.items
    }
    for kind in ITEM_KINDS:
        if len(items.get(kind.member, {})) != len(surface.items_of_kind(kind)):
            raise PinwardenError("SURFACE_INVALID", f"two items of {kind.member} have the same {kind.key}")
    return SurfacePin(digest=digest, items=items, path=path, file_digest=Digest.of_bytes(encode_surface(surface)))


def format_surface_path(server: str, version: str | None = None, folder: str = SURFACES_FOLDER) -> str:
    """The path of a server's approved surface. Different names never share a file, on any file system.

    ``version`` is needed when two clients approved different versions of one server.
    """
    stem = _escape_file_name(server) + ("" if version is None else "@" + _escape_file_name(version))
    return f"{folder}/{stem}.json"


def _escape_file_name(name: str) -> str:
    """Lower case, digits, ``.`` and ``-`` stay, ``/`` becomes ``__``, other bytes ``_xx``."""
    pieces = [
        character if _PLAIN.fullmatch(character) else "__" if character == "/" else _escape_bytes(character)
        for character in name
    ]
    stem = "".join(pieces)
    if stem[:1] in ("", ".", "-") or stem.endswith(".") or _RESERVED.fullmatch(stem):
        stem = _escape_bytes(stem[:1]) + stem[1:] if stem else "_"
        stem = stem[:-1] + "_2e" if stem.endswith(".") else stem
    if len(stem) > _MAX_STEM:  # escaped names contain no "=", so this cannot collide
        stem = stem[: _MAX_STEM - 65] + "=" + Digest.of_bytes(name.encode("utf-8", "surrogatepass")).hex
    return stem


def _escape_bytes(character: str) -> str:
    return "".join(f"_{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))


def read_policy_members(document: Mapping[str, Any]) -> tuple[list[Any], str | None]:
    """The evidence and the publication time of a lock entry, without parsing the rest of the extension."""
    record = document["capabilityManifest"].get(EXTENSION, {})
    evidence = record.get("evidence")
    return (evidence if isinstance(evidence, list) else []), record.get("publishedAt")


def keep_optional_members(earlier: LockExtension, fresh: LockExtension) -> LockExtension:
    """``fresh`` with the optional members of ``earlier`` that it does not have itself."""
    return replace(
        fresh,
        bundle=fresh.bundle if fresh.bundle is not None else earlier.bundle,
        configured_in=fresh.configured_in or earlier.configured_in,
        surface_of=fresh.surface_of or earlier.surface_of,
        probed_release=fresh.probed_release or earlier.probed_release,
        install_scripts=fresh.install_scripts or earlier.install_scripts,
        bundle_tree=fresh.bundle_tree or earlier.bundle_tree,
        evidence=fresh.evidence or earlier.evidence,
        published_at=fresh.published_at or earlier.published_at,
        publisher=fresh.publisher or earlier.publisher,
        launch=fresh.launch or earlier.launch,
        unknown_members={**earlier.unknown_members, **fresh.unknown_members},
        member_order=earlier.member_order,
    )


# Format


def read_extension(entry: Entry) -> LockExtension | None:
    """The Pinwarden extension of an entry; None if it has none."""
    if EXTENSION not in entry.manifest:
        return None
    path = f"/servers/{escape_pointer_token(entry.key)}/capabilityManifest/{EXTENSION}"
    return parse_extension(entry.manifest[EXTENSION], path)


def has_surface(entry: Entry) -> bool:
    """Whether a surface was approved for this entry."""
    extension = read_extension(entry)
    return extension is not None and extension.surface is not None


def with_extension(entry: Entry, extension: LockExtension) -> Entry:
    """The entry with this extension, sealed. The entry must have a capability manifest."""
    if not entry.manifest:
        raise_invalid(
            f"/servers/{entry.key}/capabilityManifest", "is missing, so there is no object for the Pinwarden extension"
        )
    record = _to_json(extension)
    parse_extension(record, EXTENSION)  # never write what cannot be read back
    unsealed = with_extension_json(entry, record)
    return with_extension_json(unsealed, {**record, "integrity": compute_entry_seal(unsealed)})


def _to_json(extension: LockExtension) -> dict[str, Any]:
    record: dict[str, Any] = {"format": FORMAT}
    if (surface := extension.surface) is not None:
        record["surface"] = {
            "digest": str(surface.digest),
            "items": {member: dict(items) for member, items in surface.items.items()},
            "file": {"path": surface.path, "digest": str(surface.file_digest)},
        }
    if extension.api_surface is not None:
        record["apiSurface"] = extension.api_surface
    if extension.artifacts:
        record["artifacts"] = [
            {"name": file.name, "digest": str(file.digest), **({} if file.size is None else {"size": file.size})}
            for file in extension.artifacts
        ]
    if (image := extension.image) is not None:
        platforms = {platform: str(digest) for platform, digest in image.platforms.items()}
        record["image"] = {**({} if image.index is None else {"index": str(image.index)}), "platforms": platforms}
    if (closure := extension.closure) is not None:
        record["closure"] = {
            "packages": closure.packages,
            "file": {"path": closure.path, "digest": str(closure.file_digest)},
        }
    if extension.provenance is not None:
        record["provenance"] = dict(extension.provenance)
    if extension.registry is not None:
        record["registry"] = extension.registry
    if (approval := extension.approval) is not None:
        record["approval"] = {"by": approval.by, "at": approval.at, "why": approval.why}
    optional = {**_optional_members(extension), **extension.unknown_members}
    return {**record, **reorder_members(optional, extension.member_order)}


def _optional_members(extension: LockExtension) -> dict[str, Any]:
    members: dict[str, Any] = {}
    if extension.bundle is not None:
        members["bundle"] = dict(extension.bundle)
    if (configured := extension.configured_in) is not None:
        answers = {"answers": dict(configured.answers)} if configured.answers else {}
        location = {"client": configured.client, "scope": configured.scope, "file": configured.file}
        members["configuredIn"] = {**location, **answers}
    if extension.surface_of is not None:
        members["surfaceOf"] = extension.surface_of
    if extension.probed_release is not None:
        members["askedRelease"] = extension.probed_release
    if extension.install_scripts:
        members["installScripts"] = [
            {"package": row.package, "digest": str(row.digest), "by": row.by, "at": row.at}
            for row in extension.install_scripts
        ]
    if extension.bundle_tree is not None:
        members["bundleTree"] = str(extension.bundle_tree)
    if extension.evidence is not None:
        members["evidence"] = [dict(row) for row in extension.evidence]
    if extension.published_at is not None:
        members["publishedAt"] = extension.published_at
    if extension.publisher is not None:
        members["publisher"] = extension.publisher
    if (launch := extension.launch) is not None:
        cwd = {} if launch.cwd is None else {"cwd": launch.cwd}
        members["launch"] = {"command": list(launch.command), "variables": list(launch.variables), **cwd}
    return members


_KNOWN = (
    "format",
    "surface",
    "apiSurface",
    "artifacts",
    "image",
    "closure",
    "provenance",
    "registry",
    "approval",
    "integrity",
)
_OPTIONAL = (
    "bundle",
    "configuredIn",
    "surfaceOf",
    "askedRelease",
    "installScripts",
    "bundleTree",
    "evidence",
    "publishedAt",
    "publisher",
    "launch",
)


def parse_extension(value: Any, path: str) -> LockExtension:
    """Parse an extension; ``path`` is its JSON Pointer, for error messages."""
    record = JsonObject(value, path, lock_error)
    if record.string("format") != FORMAT:
        record.fail("format", f"is not {FORMAT}; a newer Pinwarden wrote it")
    return LockExtension(
        surface=_surface(record.object("surface")) if "surface" in record else None,
        api_surface=_text(record, "apiSurface"),
        artifacts=tuple(map(_artifact, record.objects("artifacts", default=[]))),
        image=_image(record.object("image")) if "image" in record else None,
        closure=_closure(record.object("closure")) if "closure" in record else None,
        provenance=dict(record.object("provenance").value) if "provenance" in record else None,
        registry=_text(record, "registry"),
        approval=_approval(record.object("approval")) if "approval" in record else None,
        bundle=dict(record.object("bundle").value) if "bundle" in record else None,
        configured_in=_configured_in(record.object("configuredIn")) if "configuredIn" in record else None,
        surface_of=_text(record, "surfaceOf"),
        probed_release=_text(record, "askedRelease"),
        install_scripts=tuple(map(_script_approval, record.objects("installScripts", default=[]))),
        bundle_tree=_digest(record, "bundleTree"),
        evidence=tuple(dict(row.value) for row in record.objects("evidence")) if "evidence" in record else None,
        published_at=_text(record, "publishedAt"),
        publisher=_text(record, "publisher"),
        launch=_launch(record.object("launch")) if "launch" in record else None,
        unknown_members={
            member: value for member, value in record.value.items() if member not in (*_KNOWN, *_OPTIONAL)
        },
        member_order=tuple(member for member in record.value if member not in _KNOWN),
    )


def _text(record: JsonObject, name: str) -> str | None:
    return record.string(name) if name in record else None


def _digest(record: JsonObject, name: str) -> Digest | None:
    return record.parse_string(name, Digest.parse) if name in record else None


def _surface(surface: JsonObject) -> SurfacePin:
    from pinwarden.surface.surface import ITEM_KINDS

    items, file = surface.object("items"), surface.object("file")
    if not items.value.keys() <= {kind.member for kind in ITEM_KINDS}:
        surface.fail("items", "has an unknown list")
    for _, digests in items.members():
        for name in digests.value:
            digests.parse_string(name, Digest.parse)
    return SurfacePin(
        digest=surface.parse_string("digest", Digest.parse),
        items={member: dict(digests) for member, digests in items.value.items()},
        path=file.string("path", _SURFACE_PATH, kind="a file in the surfaces folder"),
        file_digest=file.parse_string("digest", Digest.parse),
    )


def _closure(closure: JsonObject) -> ClosurePin:
    file = closure.object("file")
    return ClosurePin(
        packages=closure.integer("packages", minimum=1),
        path=file.string("path", _CLOSURE_PATH, kind="a file in the closures folder"),
        file_digest=file.parse_string("digest", Digest.parse),
    )


def _artifact(artifact: JsonObject) -> Artifact:
    return Artifact(
        name=artifact.string("name"),
        digest=artifact.parse_string("digest", Digest.parse),
        size=None if artifact.value.get("size") is None else artifact.integer("size"),
    )


def _image(image: JsonObject) -> ImagePin:
    platforms = image.object("platforms")
    return ImagePin(
        index=_digest(image, "index"),
        platforms={platform: platforms.parse_string(platform, Digest.parse) for platform in platforms.value},
    )


def _approval(approval: JsonObject) -> LockApproval:
    return LockApproval(by=approval.string("by"), at=approval.string("at"), why=approval.string("why"))


def _configured_in(configured: JsonObject) -> ConfigOrigin:
    return ConfigOrigin(
        client=configured.string("client"),
        scope=configured.string("scope"),
        file=configured.string("file"),
        answers=dict(configured.object("answers").value) if "answers" in configured else {},
    )


def _script_approval(approval: JsonObject) -> ScriptApproval:
    return ScriptApproval(
        package=approval.string("package"),
        digest=approval.parse_string("digest", Digest.parse),
        by=approval.string("by"),
        at=approval.string("at"),
    )


def _launch(launch: JsonObject) -> LaunchCommand:
    command = launch.strings("command", default=[])
    if not command:
        launch.fail("command", "is empty")
    return LaunchCommand(command=command, variables=launch.strings("variables", default=[]), cwd=_text(launch, "cwd"))
