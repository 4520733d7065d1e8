"""Pinwarden's extension of a lock entry: the surface, artifact digests, provenance, and who approved them.

The extension is the member ``capabilityManifest.pinwarden``, because ToolPin keeps unknown members of that object when
it rewrites the file. The extension's ``integrity`` covers the complete entry, including members that ToolPin does not
hash.

To add a member, add a field to `LockExtension` and a row to ``_OPTIONAL_MEMBERS``. A fact of the release is a field of
`ReleaseFacts` with the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    compute_entry_integrity,
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
_RESERVED = lazy_pattern(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?")  # device names on Windows
_TRANSPORT = lazy_pattern(r"auto|streamable-http|sse")
_VARIABLE = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_STEM = 100  # so that name, version and temporary suffix stay below the 255 bytes that file systems allow


class SurfacePin(Record):
    """The approved surface: its digest, the digest of each item, and the file that keeps the approved text."""

    digest: Digest
    items: Mapping[str, Mapping[str, str]]
    """Per list (``tools``, …) the digest of each item by its key. A list that is not offered is absent."""
    path: str
    """The path of the file, relative to the lockfile's folder, with forward slashes."""
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
    """The path of the file, relative to the lockfile's folder, with forward slashes."""
    file_digest: Digest


class SkillsPin(Record):
    """The approved skills of a project or user. The pin is in the seal of the lock, not in an entry."""

    path: str
    """The name of the file next to the lock."""
    file_digest: Digest


FilePin = SurfacePin | ClosurePin | SkillsPin
"""The pin of a file next to the lock."""


class LockApproval(Record):
    """Who approved the entry, when, and why."""

    by: str
    at: str
    why: str


class ScriptApproval(Record):
    """A package whose install scripts may run, who approved it and when."""

    package: str
    """Name and version, for display."""
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
    """The default values of the file's input prompts when the entry was approved."""


class LaunchCommand(Record):
    """The server's own command, if the client's configuration starts it through ``pinwarden run``."""

    command: tuple[str, ...] = field(repr=False)
    """The approved command line, with placeholders instead of values."""
    variables: tuple[str, ...] = ()
    """Names of the environment variables that the server is given."""
    cwd: str | None = None


class RemoteLaunch(Record):
    """The server's own address, if the client's configuration connects to it through ``pinwarden run``."""

    url: str
    """The approved address, with placeholders instead of values."""
    transport: str = "auto"
    headers: Mapping[str, str] = field(default_factory=dict)
    """For each header, the name of the environment variable with its value. The values are in the client's file."""
    url_variable: str | None = None
    """The environment variable with the complete address, if the lock cannot store it."""


class LockExtension(Record):
    """Pinwarden's extension of one entry. ``unknown_members`` keeps the members that a newer Pinwarden wrote."""

    surface: SurfacePin | None = None
    api_surface: str | None = None
    artifacts: tuple[Artifact, ...] = ()
    image: ImagePin | None = None
    closure: ClosurePin | None = None
    provenance: Mapping[str, Any] | None = None
    """The identity that signed the build, as the verifier reported it."""
    registry: str | None = None
    """The URL of the package registry that served the artifacts."""
    approval: LockApproval | None = None
    bundle: Mapping[str, Any] | None = None
    """The pin of a server installed from a bundle registry; ``bundle/bundle_pin.py`` reads it."""
    configured_in: ConfigOrigin | None = None
    api_surface_of: str | None = None
    """Digest of the bytes that `api_surface` is about, if no person approved the surface. Others may be pinned."""
    api_surface_unknown: str | None = None
    """The reason why the API surface is unknown, although the server is installed."""
    surface_of: str | None = None
    """The launch that the surface was approved for, if the entry starts another command now."""
    probed_release: str | None = None
    """The release that responded to the probe, if the command names no version."""
    install_scripts: tuple[ScriptApproval, ...] = ()
    bundle_tree: Digest | None = None
    """Digest of the files in an MCPB bundle, to verify the unpacked bundle."""
    evidence: tuple[Mapping[str, Any], ...] | None = None
    """Evidence about the artifacts, in addition to the evidence in the trust report."""
    published_at: str | None = None
    """When the locked release was published, as its registry says."""
    publisher: str | None = None
    """Who published the locked release, as its registry said when the bytes were pinned."""
    launch: LaunchCommand | RemoteLaunch | None = None
    unknown_members: Mapping[str, Any] = field(default_factory=dict)
    member_order: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """The optional members in the order of the file, so that rewriting an entry moves none of them."""

    @property
    def has_pinned_bytes(self) -> bool:
        """Whether the extension pins an artifact, an image or a closure."""
        return bool(self.artifacts or self.image or self.closure)


def pin_surface(surface: Surface, path: str) -> SurfacePin:
    """Return the pin of an approved surface. Raises ``SURFACE_INVALID`` if an item cannot be digested."""
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
    """Return the path of a server's approved surface. Different names never share a file, on any file system.

    ``version`` is needed when two clients approved different versions of one server.
    """
    stem = _escape_file_name(server) + ("" if version is None else "@" + _escape_file_name(version))
    return f"{folder}/{stem}.json"


def _escape_file_name(name: str) -> str:
    """Keep ``a-z``, ``0-9``, ``.`` and ``-``; write ``/`` as ``__`` and every other byte as ``_xx``."""
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


def read_evidence_and_publication_time(document: Mapping[str, Any]) -> tuple[list[Any], str | None]:
    """Return the evidence and the publication time of a lock entry, without parsing the rest of the extension."""
    record = document["capabilityManifest"].get(EXTENSION, {})
    evidence = record.get("evidence")
    return (evidence if isinstance(evidence, list) else []), record.get("publishedAt")


def keep_optional_members(earlier: LockExtension, fresh: LockExtension) -> LockExtension:
    """Return ``fresh`` with the optional members of ``earlier`` wherever ``fresh`` has none."""
    return replace(
        fresh,
        **_fill_missing(fresh, earlier, _OPTIONAL_MEMBERS),
        unknown_members={**earlier.unknown_members, **fresh.unknown_members},
        member_order=earlier.member_order,
    )


def keep_pinned_bytes(earlier: LockExtension, fresh: LockExtension, *, same_config: bool) -> LockExtension:
    """Return ``fresh`` with the pinned bytes of ``earlier``, which starts the same release.

    The command behind ``pinwarden run`` is kept only if the configuration did not change either (``same_config``).
    """
    members = tuple(member for member in _OPTIONAL_MEMBERS if member.describes_bytes)
    kept = _fill_missing(fresh, earlier, members)
    if not same_config:
        kept["launch"] = fresh.launch
    names = {member.name for member in members}
    return replace(
        fresh,
        artifacts=earlier.artifacts,
        image=earlier.image,
        closure=earlier.closure,
        provenance=earlier.provenance,
        registry=earlier.registry,
        **kept,
        member_order=tuple(name for name in earlier.member_order if name in names),
    )


def _fill_missing(fresh: LockExtension, earlier: LockExtension, members: tuple[_Member, ...]) -> dict[str, Any]:
    return {member.field: getattr(fresh, member.field) or getattr(earlier, member.field) for member in members}


# Format


_MAX_PARSED = 1000
_PARSED: dict[int, tuple[Any, LockExtension]] = {}
"""A cache of parsed extensions, by ``id()`` of their JSON. It keeps the JSON too, so that no id is reused."""


def read_extension(entry: Entry) -> LockExtension | None:
    """Return the Pinwarden extension of an entry; None if it has none."""
    if EXTENSION not in entry.manifest:
        return None
    value = entry.manifest[EXTENSION]
    known = _PARSED.get(id(value))
    if known is not None:
        return known[1]
    path = f"/servers/{escape_pointer_token(entry.key)}/capabilityManifest/{EXTENSION}"
    extension = parse_extension(value, path)
    if len(_PARSED) >= _MAX_PARSED:
        _PARSED.clear()
    _PARSED[id(value)] = value, extension
    return extension


def is_enforced(entry: Entry) -> bool:
    """Whether the client starts this entry through ``pinwarden run``."""
    extension = read_extension(entry)
    return extension is not None and extension.launch is not None


def has_surface(entry: Entry) -> bool:
    """Whether a surface was approved for this entry."""
    extension = read_extension(entry)
    return extension is not None and extension.surface is not None


def has_approved_tools(entry: Entry) -> bool:
    """Whether an entry has an approved surface or ToolPin's tool hashes, to compare a live server with."""
    return has_surface(entry) or entry.has_tool_hashes


def with_extension(entry: Entry, extension: LockExtension) -> Entry:
    """Return the entry with this extension, sealed. The entry must have a capability manifest."""
    if not entry.manifest:
        raise_invalid(
            f"/servers/{entry.key}/capabilityManifest", "is missing, so there is no object for the Pinwarden extension"
        )
    record = _to_json(extension)
    parse_extension(record, EXTENSION)  # raises before an invalid extension is written
    unsealed = with_extension_json(entry, record)
    return with_extension_json(unsealed, {**record, "integrity": compute_entry_integrity(unsealed)})


def _to_json(extension: LockExtension) -> dict[str, Any]:
    optional = {**_members_to_json(extension, _OPTIONAL_MEMBERS), **extension.unknown_members}
    return {
        "format": FORMAT,
        **_members_to_json(extension, _LEADING_MEMBERS),
        **reorder_members(optional, extension.member_order),
    }


def _members_to_json(extension: LockExtension, members: tuple[_Member, ...]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for member in members:
        value = getattr(extension, member.field)
        if value is not None and (value or not member.omit_empty):
            document[member.name] = member.to_json(value)
    return document


def parse_extension(value: Any, path: str) -> LockExtension:
    """Parse an extension; ``path`` is its JSON Pointer, for error messages."""
    record = JsonObject(value, path, lock_error)
    if record.string("format") != FORMAT:
        record.fail("format", f"is not {FORMAT}; a newer Pinwarden wrote it")
    fields: dict[str, Any] = {}
    unknown_members: dict[str, Any] = {}
    member_order: list[str] = []
    for name in record.value:
        member = _MEMBERS_BY_NAME.get(name)
        if member is not None:
            fields[member.field] = member.parse(record, name)
        elif name not in ("format", "integrity"):
            unknown_members[name] = record.value[name]
        if name not in _LEADING_NAMES:
            member_order.append(name)
    return LockExtension(**fields, unknown_members=unknown_members, member_order=tuple(member_order))


# Members of the extension


def _surface_to_json(surface: SurfacePin) -> dict[str, Any]:
    return {
        "digest": str(surface.digest),
        "items": {member: dict(items) for member, items in surface.items.items()},
        "file": {"path": surface.path, "digest": str(surface.file_digest)},
    }


def _parse_surface(surface: JsonObject) -> SurfacePin:
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


def _closure_to_json(closure: ClosurePin) -> dict[str, Any]:
    return {"packages": closure.packages, "file": {"path": closure.path, "digest": str(closure.file_digest)}}


def _parse_closure(closure: JsonObject) -> ClosurePin:
    file = closure.object("file")
    return ClosurePin(
        packages=closure.integer("packages", minimum=1),
        path=file.string("path", _CLOSURE_PATH, kind="a file in the closures folder"),
        file_digest=file.parse_string("digest", Digest.parse),
    )


def _artifact_to_json(artifact: Artifact) -> dict[str, Any]:
    size = {} if artifact.size is None else {"size": artifact.size}
    return {"name": artifact.name, "digest": str(artifact.digest), **size}


def _parse_artifact(artifact: JsonObject) -> Artifact:
    return Artifact(
        name=artifact.string("name"),
        digest=artifact.parse_string("digest", Digest.parse),
        size=None if artifact.value.get("size") is None else artifact.integer("size"),
    )


def _image_to_json(image: ImagePin) -> dict[str, Any]:
    index = {} if image.index is None else {"index": str(image.index)}
    return {**index, "platforms": {platform: str(digest) for platform, digest in image.platforms.items()}}


def _parse_image(image: JsonObject) -> ImagePin:
    platforms = image.object("platforms")
    return ImagePin(
        index=_parse_digest(image, "index") if "index" in image else None,
        platforms={platform: platforms.parse_string(platform, Digest.parse) for platform in platforms.value},
    )


def _approval_to_json(approval: LockApproval) -> dict[str, Any]:
    return {"by": approval.by, "at": approval.at, "why": approval.why}


def _parse_approval(approval: JsonObject) -> LockApproval:
    return LockApproval(by=approval.string("by"), at=approval.string("at"), why=approval.string("why"))


def _config_origin_to_json(origin: ConfigOrigin) -> dict[str, Any]:
    answers = {"answers": dict(origin.answers)} if origin.answers else {}
    return {"client": origin.client, "scope": origin.scope, "file": origin.file, **answers}


def _parse_config_origin(configured: JsonObject) -> ConfigOrigin:
    return ConfigOrigin(
        client=configured.string("client"),
        scope=configured.string("scope"),
        file=configured.string("file"),
        answers=dict(configured.object("answers").value) if "answers" in configured else {},
    )


def _script_approval_to_json(approval: ScriptApproval) -> dict[str, Any]:
    return {"package": approval.package, "digest": str(approval.digest), "by": approval.by, "at": approval.at}


def _parse_script_approval(approval: JsonObject) -> ScriptApproval:
    return ScriptApproval(
        package=approval.string("package"),
        digest=approval.parse_string("digest", Digest.parse),
        by=approval.string("by"),
        at=approval.string("at"),
    )


def _launch_to_json(launch: LaunchCommand | RemoteLaunch) -> dict[str, Any]:
    if isinstance(launch, RemoteLaunch):
        variable = {} if launch.url_variable is None else {"urlVariable": launch.url_variable}
        return {"url": launch.url, "transport": launch.transport, "headers": dict(launch.headers), **variable}
    cwd = {} if launch.cwd is None else {"cwd": launch.cwd}
    return {"command": list(launch.command), "variables": list(launch.variables), **cwd}


def _parse_launch(launch: JsonObject) -> LaunchCommand | RemoteLaunch:
    if "url" in launch:
        return _parse_remote_launch(launch)
    command = launch.strings("command", default=[])
    if not command:
        launch.fail("command", "is empty")
    return LaunchCommand(
        command=command,
        variables=launch.strings("variables", default=[]),
        cwd=launch.string("cwd") if "cwd" in launch else None,
    )


def _parse_remote_launch(launch: JsonObject) -> RemoteLaunch:
    headers = launch.object("headers")
    return RemoteLaunch(
        url=launch.string("url"),
        transport=launch.string("transport", _TRANSPORT, kind="a transport"),
        headers={name: headers.string(name, _VARIABLE, kind="a variable's name") for name in headers.value},
        url_variable=launch.string("urlVariable", _VARIABLE, kind="a variable's name")
        if "urlVariable" in launch
        else None,
    )


# The table of members


class _Member(Record):
    """How one field of `LockExtension` is written in the lockfile."""

    field: str
    name: str
    """The name in JSON."""
    parse: Callable[[JsonObject, str], Any]
    """Reads the member of this name from the extension."""
    to_json: Callable[[Any], Any]
    omit_empty: bool = False
    """Whether an empty value is left out, as None is."""
    describes_bytes: bool = False
    """Whether the member is about the pinned bytes, so that another entry with the same release can share it."""
    states_release: bool = False
    """Whether the field is a fact of `ReleaseFacts`, which is recorded when the bytes are pinned."""


def _define_text_member(field: str, name: str, *, describes_bytes: bool = False) -> _Member:
    return _Member(field=field, name=name, parse=JsonObject.string, to_json=str, describes_bytes=describes_bytes)


def _define_release_member(field: str, name: str) -> _Member:
    return replace(_define_text_member(field, name, describes_bytes=True), states_release=True)


def _define_verbatim_member(field: str, name: str) -> _Member:
    return _Member(field=field, name=name, parse=lambda record, name: dict(record.object(name).value), to_json=dict)


def _define_object_member(
    field: str,
    name: str,
    parse: Callable[[JsonObject], Any],
    to_json: Callable[[Any], dict[str, Any]],
    *,
    describes_bytes: bool = False,
) -> _Member:
    return _Member(
        field=field,
        name=name,
        parse=lambda record, name: parse(record.object(name)),
        to_json=to_json,
        describes_bytes=describes_bytes,
    )


def _define_list_member(  # noqa: PLR0913  most have defaults
    field: str,
    name: str,
    parse: Callable[[JsonObject], Any],
    to_json: Callable[[Any], dict[str, Any]],
    *,
    omit_empty: bool = True,
    describes_bytes: bool = False,
) -> _Member:
    return _Member(
        field=field,
        name=name,
        parse=lambda record, name: tuple(map(parse, record.objects(name))),
        to_json=lambda items: list(map(to_json, items)),
        omit_empty=omit_empty,
        describes_bytes=describes_bytes,
    )


def _parse_digest(record: JsonObject, name: str) -> Digest:
    return record.parse_string(name, Digest.parse)


_LEADING_MEMBERS = (
    _define_object_member("surface", "surface", _parse_surface, _surface_to_json),
    _define_text_member("api_surface", "apiSurface"),
    _define_list_member("artifacts", "artifacts", _parse_artifact, _artifact_to_json),
    _define_object_member("image", "image", _parse_image, _image_to_json),
    _define_object_member("closure", "closure", _parse_closure, _closure_to_json),
    _define_verbatim_member("provenance", "provenance"),
    _define_text_member("registry", "registry"),
    _define_object_member("approval", "approval", _parse_approval, _approval_to_json),
)
"""Members that are always written first, in this order."""
_OPTIONAL_MEMBERS = (
    _define_verbatim_member("bundle", "bundle"),
    _define_object_member("configured_in", "configuredIn", _parse_config_origin, _config_origin_to_json),
    _define_text_member("surface_of", "surfaceOf"),
    _define_text_member("probed_release", "probedRelease"),
    _define_list_member(
        "install_scripts", "installScripts", _parse_script_approval, _script_approval_to_json, describes_bytes=True
    ),
    _Member(field="bundle_tree", name="bundleTree", parse=_parse_digest, to_json=str, describes_bytes=True),
    _define_list_member(
        "evidence", "evidence", lambda row: dict(row.value), dict, omit_empty=False, describes_bytes=True
    ),
    _define_release_member("published_at", "publishedAt"),
    _define_release_member("publisher", "publisher"),
    _define_text_member("api_surface_of", "apiSurfaceOf", describes_bytes=True),
    _define_text_member("api_surface_unknown", "apiSurfaceUnknown", describes_bytes=True),
    _define_object_member("launch", "launch", _parse_launch, _launch_to_json, describes_bytes=True),
)
"""Members that keep their position in the file when an entry is rewritten. New ones are appended in this order."""
RELEASE_FIELDS = tuple(member.field for member in _OPTIONAL_MEMBERS if member.states_release)
"""The facts of a release that the lock keeps: fields of `LockExtension` and of `ReleaseFacts`."""
_MEMBERS_BY_NAME = {member.name: member for member in (*_LEADING_MEMBERS, *_OPTIONAL_MEMBERS)}
_LEADING_NAMES = frozenset({"format", "integrity", *(member.name for member in _LEADING_MEMBERS)})
