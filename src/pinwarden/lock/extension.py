"""What we add to a lockfile entry: the whole surface, the bytes, where they come from, and who approved them.

It lives in ``capabilityManifest.pinwarden``. ToolPin does not hash that member, so its own integrity value stays as
it is, and keeps it when it rewrites the file, which no unknown member elsewhere in an entry survives. The member
``integrity`` inside it covers the whole entry, including all that ToolPin's value leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.lazy_regex import pattern
from pinwarden.core.record import Record, field
from pinwarden.lock.entry import EXTENSION, Entry
from pinwarden.lock.seal import seal_of, with_record
from pinwarden.lock.shape import invalid

if TYPE_CHECKING:
    from pinwarden.surface.surface import Surface

FORMAT = "pinwarden-entry/1"
EVIDENCE = "evidence"
"""A member of our record: rows of evidence about the bytes, beyond those of the trust report."""
PUBLISHED = "publishedAt"
"""A member of our record: when the locked release came out, as its registry says."""
PUBLISHER = "publisher"
"""A member of our record: who published the locked release, as its registry said when its bytes were pinned."""
BUNDLE_TREE = "bundleTree"
"""A member of our record: the digest of what unpacks from a bundle, so that an unpacked one can be held against it."""
SURFACE_OF = "surfaceOf"
"""A member of our record: what the approved surface was approved for, where that is not what the entry starts now."""
SURFACES_FOLDER = "mcp-lock.surfaces"

# One folder beside the lockfile, one file in it: nothing that a system could take for another place.
_STEM, _FILE = r"[^./\\:*?\"<>|\x00-\x1f][^/\\:*?\"<>|\x00-\x1f]*", r"[a-z0-9_][a-z0-9._@=-]*\.json"
_SURFACE_PATH = pattern(rf"{_STEM}\.surfaces/{_FILE}")
_CLOSURE_PATH = pattern(rf"{_STEM}\.closures/{_FILE}")
_PLAIN = pattern(r"[a-z0-9.-]")
_RESERVED = pattern(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?")  # Windows gives these to devices
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
"""Something that is kept in a file beside the lock."""


class Approval(Record):
    """Who approved the entry, when, and why."""

    by: str
    at: str
    why: str


class Extension(Record):
    """All that we record about one entry. What a later version adds is kept in ``others``."""

    surface: SurfacePin | None = None
    api_surface: str | None = None
    artifacts: tuple[Artifact, ...] = ()
    image: ImagePin | None = None
    closure: ClosurePin | None = None
    provenance: Mapping[str, Any] | None = None
    """The identity that signed the build, as the verifier reported it."""
    registry: str | None = None
    """The registry endpoint that answered."""
    approval: Approval | None = None
    others: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_bytes(self) -> bool:
        """Whether the bytes of the entry were ever pinned."""
        return bool(self.artifacts or self.image or self.closure)


def pin_surface(surface: Surface, path: str) -> SurfacePin:
    """The pin of an approved surface. One of which a part cannot be digested cannot be approved."""
    from pinwarden.surface.surface import ITEM_KINDS, encode_surface  # checking a lock without surfaces does without it

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


def surface_path(server: str, version: str | None = None, folder: str = SURFACES_FOLDER) -> str:
    """Where the approved text of a server is kept. Different names never share a file, on any file system.

    The version is given when two clients approved different versions of one server.
    """
    stem = _file_stem(server) + ("" if version is None else "@" + _file_stem(version))
    return f"{folder}/{stem}.json"


def _file_stem(name: str) -> str:
    """Lower case, digits, ``.`` and ``-`` stand for themselves, ``/`` becomes ``__``, other bytes ``_xx``."""
    pieces = [
        character if _PLAIN.fullmatch(character) else "__" if character == "/" else _escaped(character)
        for character in name
    ]
    stem = "".join(pieces)
    if stem[:1] in ("", ".", "-") or stem.endswith(".") or _RESERVED.fullmatch(stem):
        stem = _escaped(stem[:1]) + stem[1:] if stem else "_"
        stem = stem[:-1] + "_2e" if stem.endswith(".") else stem
    if len(stem) > _MAX_STEM:  # no short name holds "=", so none looks like this
        stem = stem[: _MAX_STEM - 65] + "=" + Digest.of_bytes(name.encode("utf-8", "surrogatepass")).hex
    return stem


def _escaped(character: str) -> str:
    return "".join(f"_{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))


# In and out of an entry


def extended(entry: Entry, extension: Extension) -> Entry:
    """The entry with our record in it, sealed. Needs a capability manifest to live in."""
    if not entry.manifest:
        invalid(f"/servers/{entry.key}/capabilityManifest", "is missing, so there is no place for our record")
    record = _to_json(extension)
    parse_record(record, EXTENSION)  # what we could not read again is not written
    unsealed = with_record(entry, record)
    return with_record(unsealed, {**record, "integrity": seal_of(unsealed)})


def _to_json(extension: Extension) -> dict[str, Any]:
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
    return {**record, **extension.others}


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


def parse_record(record: Any, path: str) -> Extension:
    """Our record as a value; ``path`` is where it stands, for what is wrong with it."""
    try:
        return _read(record, path)
    except (KeyError, TypeError, AttributeError) as err:
        invalid(path, f"lacks a member or has one of another kind: {err}")
    except PinwardenError as err:
        if err.code == "DIGEST_INVALID":
            invalid(path, err.message)
        raise


def _read(record: Any, path: str) -> Extension:
    if record["format"] != FORMAT:
        invalid(f"{path}/format", f"is not {FORMAT}; a newer Pinwarden wrote it")
    return Extension(
        surface=_surface(record["surface"], f"{path}/surface") if "surface" in record else None,
        api_surface=_text(record["apiSurface"]) if "apiSurface" in record else None,
        artifacts=tuple(
            Artifact(name=_text(row["name"]), digest=Digest.parse(row["digest"]), size=_size(row))
            for row in _rows(record, "artifacts")
        ),
        image=_image(record["image"]) if "image" in record else None,
        closure=_closure(record["closure"], f"{path}/closure") if "closure" in record else None,
        provenance=dict(record["provenance"].items()) if "provenance" in record else None,
        registry=_text(record["registry"]) if "registry" in record else None,
        approval=_approval(record["approval"]) if "approval" in record else None,
        others={member: value for member, value in record.items() if member not in _KNOWN},
    )


def _rows(record: Any, member: str) -> list[Any]:
    rows = record.get(member, [])
    return rows if isinstance(rows, list) else _other_kind("a list", rows)


def _surface(value: Any, path: str) -> SurfacePin:
    where = _text(value["file"]["path"])
    if not _SURFACE_PATH.fullmatch(where):
        invalid(f"{path}/file/path", "does not name a file in the surfaces folder")
    from pinwarden.surface.surface import ITEM_KINDS

    members = {kind.member for kind in ITEM_KINDS}
    items = {member: dict(rows.items()) for member, rows in value["items"].items()}
    if not items.keys() <= members:
        invalid(f"{path}/items", "names a list that servers do not have")
    for rows in items.values():
        for digest in rows.values():
            Digest.parse(digest)
    return SurfacePin(
        digest=Digest.parse(value["digest"]),
        items=items,
        path=where,
        file_digest=Digest.parse(value["file"]["digest"]),
    )


def _closure(value: Any, path: str) -> ClosurePin:
    where, count = _text(value["file"]["path"]), value["packages"]
    if not _CLOSURE_PATH.fullmatch(where):
        invalid(f"{path}/file/path", "does not name a file in the closures folder")
    if type(count) is not int or count < 1:
        invalid(f"{path}/packages", "is not a number of packages")
    return ClosurePin(packages=count, path=where, file_digest=Digest.parse(value["file"]["digest"]))


def _image(value: Any) -> ImagePin:
    return ImagePin(
        index=Digest.parse(value["index"]) if "index" in value else None,
        platforms={platform: Digest.parse(digest) for platform, digest in value["platforms"].items()},
    )


def _approval(value: Any) -> Approval:
    return Approval(by=_text(value["by"]), at=_text(value["at"]), why=_text(value["why"]))


def _size(row: Any) -> int | None:
    size = row.get("size")
    if size is not None and (type(size) is not int or size < 0):
        _other_kind("size", size)
    return size


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _other_kind("text", value)


def _other_kind(expected: str, value: Any) -> NoReturn:
    raise TypeError(f"{type(value).__name__} is not {expected}")
