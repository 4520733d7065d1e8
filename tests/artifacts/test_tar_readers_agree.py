"""One tar reader: what judged an archive also unpacks it, and neither sees a file that another program would not."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import posixpath
import tarfile
from pathlib import Path

import pytest

from pinwarden.artifacts.archives.package_tarball import read_package_json, read_tarball_files
from pinwarden.artifacts.archives.rules import ARCHIVE_LIMITS
from pinwarden.artifacts.archives.tar import read_tar
from pinwarden.core.errors import PinwardenError

GOOD, EVIL = b'{"name":"tool","version":"1.0.0"}', b'{"name":"tool","scripts":{"postinstall":"evil"}}'
END = bytes(1024)


def header(name: bytes, size: int = 0, kind: bytes = b"0", **fields: bytes) -> bytes:
    """One block, with whatever is to be wrong in it."""
    block = bytearray(512)
    places = {"mode": 100, "size": 124, "linkname": 157, "magic": 257, "prefix": 345}
    values = {"mode": b"0000644", "size": fields.pop("length", b"%011o" % size), "magic": b"ustar\x0000", **fields}
    block[: len(name)] = name
    block[156:157] = kind
    for field, value in values.items():
        if field in places:
            block[places[field] : places[field] + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = fields.get("checksum", b"%06o\0 " % sum(block))
    return bytes(block)


def member(name: bytes, data: bytes = b"", kind: bytes = b"0", **fields: bytes) -> bytes:
    return header(name, len(data), kind, **fields) + data + bytes(-len(data) % 512)


def pax(*records: tuple[bytes, bytes], kind: bytes = b"x") -> bytes:
    made = b""
    for key, value in records:
        rest = b" %b=%b\n" % (key, value)
        length = len(rest)
        while len(b"%d" % length) + len(rest) != length:
            length = len(b"%d" % length) + len(rest)
        made += b"%d" % length + rest
    return member(b"pax", made, kind)


MANIFEST = member(b"package/package.json", GOOD)
SECOND = member(b"package/package.json", EVIL)

ATTACKS = {
    "a second archive behind the end": MANIFEST + END + SECOND + END,
    "one block of zeros and then more": MANIFEST + bytes(512) + SECOND + END,
    "bytes behind the end": MANIFEST + END + b"x" * 512,
    "no end": MANIFEST,
    "the manifest twice": MANIFEST + SECOND + END,
    "the manifest twice, once with a dot": MANIFEST + member(b"./package/package.json", EVIL) + END,
    "the manifest in a second folder": MANIFEST + member(b"other/package.json", EVIL) + END,
    "the manifest in other capitals": MANIFEST + member(b"package/Package.json", EVIL) + END,
    "the manifest in other capitals alone": member(b"package/PACKAGE.JSON", GOOD) + END,
    "other bytes again with the step": MANIFEST + member(b"package/./package.json", EVIL) + END,
    "other bytes again without the step": member(b"package/./package.json", GOOD) + SECOND + END,
    "a program again without the step": member(b"package/./x", b"1")
    + member(b"package/x", b"1", mode=b"0000755")
    + END,
    "a file three times": member(b"package/./package.json", GOOD) + 2 * MANIFEST + END,
    "a file again with the step": MANIFEST + member(b"package/./package.json", GOOD) + END,
    "a step back": MANIFEST + member(b"package/x/../package.json", EVIL) + END,
    "two slashes": MANIFEST + member(b"package//package.json", EVIL) + END,
    "a backslash": MANIFEST + member(b"package\\package.json", EVIL) + END,
    "an absolute path": MANIFEST + member(b"/package/package.json", EVIL) + END,
    "bytes behind a name's end": MANIFEST + member(b"package/x\0\npackage.json", EVIL) + END,
    "another size in a pax header": pax((b"size", b"512")) + header(b"package/a", 0) + SECOND + MANIFEST + END,
    "another size in a pax header for all": pax((b"size", b"0"), kind=b"g") + MANIFEST + END,
    "a path for all members": pax((b"path", b"package/package.json"), kind=b"g") + member(b"package/x", GOOD) + END,
    "two paths in one pax header": pax((b"path", b"package/a"), (b"path", b"package/package.json")) + MANIFEST + END,
    "two pax headers for one member": pax((b"path", b"package/a")) + pax((b"mtime", b"1")) + MANIFEST + END,
    "a long name and a pax path": member(b"long", b"package/a\0", b"L") + pax((b"path", b"package/b")) + MANIFEST + END,
    "two long names": member(b"long", b"package/a\0", b"L") + member(b"long", b"package/b\0", b"L") + MANIFEST + END,
    "a long name with more behind its end": member(b"long", b"package/a\0\npackage.json", b"L") + MANIFEST + END,
    "a pax header for nothing": MANIFEST + pax((b"path", b"package/x")) + END,
    "a sparse file by pax": pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.realsize", b"9")) + MANIFEST + END,
    "a sparse file of GNU": MANIFEST + member(b"package/x", b"", b"S") + END,
    "another charset": pax((b"hdrcharset", b"BINARY")) + MANIFEST + END,
    "a damaged pax record": member(b"pax", b"99 path=package/x\n", b"x") + MANIFEST + END,
    "a folder with bytes in it": header(b"package/", 512, b"5") + SECOND[:512] + MANIFEST + END,
    "a link with bytes in it": header(b"package/x", 512, b"1") + SECOND[:512] + MANIFEST + END,
    "a file whose name is a folder's": member(b"package/package.json/", GOOD) + MANIFEST + END,
    "a contiguous file": member(b"package/package.json", GOOD, b"7") + END,
    "a device": MANIFEST + member(b"package/x", b"", b"3") + END,
    "a kind of no reader": MANIFEST + member(b"package/x", b"", b"Z") + END,
    "a size in base 256": MANIFEST + header(b"package/x", length=b"\x80" + bytes(10) + b"\1") + END,
    "a size with more behind it": MANIFEST + header(b"package/x", length=b"0000 000700") + END,
    "a prefix in a header of GNU": MANIFEST
    + member(b"package.json", EVIL, magic=b"ustar  \0", prefix=b"package")
    + END,
    "a prefix in a header of no kind": MANIFEST
    + member(b"package.json", EVIL, magic=bytes(8), prefix=b"package")
    + END,
    "a prefix that makes the manifest": MANIFEST + member(b"package.json", EVIL, prefix=b"package") + END,
    "a header whose sum is wrong": MANIFEST + member(b"package/package.json", EVIL, checksum=b"0000001\0") + END,
    "bytes behind a prefix's end": MANIFEST + member(b"package/x", EVIL, prefix=bytes(131) + b"package/evil") + END,
    "times behind a prefix that has none of its end": MANIFEST
    + member(b"x", EVIL, prefix=b"p" * 131 + b"15020720275\0" * 2)
    + END,
    "cut off": (MANIFEST + END)[:700],
}


def refused(data: bytes, path: Path) -> list[str]:
    """The codes of those who judge and of those who unpack."""
    path.write_bytes(data)
    codes = []
    for look in (
        lambda: read_package_json(io.BytesIO(data)),
        lambda: list(read_tarball_files(path)),
    ):
        with pytest.raises(PinwardenError) as caught:
            look()
        codes.append(caught.value.code)
    return codes


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_an_ambiguous_tarball_is_refused_when_checked_and_when_unpacked(attack: str, tmp_path: Path) -> None:
    plain = ATTACKS[attack]
    assert refused(gzip.compress(plain, mtime=0), tmp_path / "a.tgz") == ["ARCHIVE_UNSAFE"] * 2


@pytest.mark.parametrize(
    "attack", sorted(set(ATTACKS) - {each for each in ATTACKS if "folder" in each or "capitals" in each})
)
def test_attack_an_ambiguous_tarball_is_refused_as_a_bundle(attack: str) -> None:
    with pytest.raises(PinwardenError) as caught:
        [file.read() for file in read_tar(ATTACKS[attack], ARCHIVE_LIMITS)]
    assert caught.value.code == "ARCHIVE_UNSAFE"


def test_a_step_that_stays_in_the_folder_is_refused_in_a_bundle() -> None:
    with pytest.raises(PinwardenError, match="not a valid file name"):
        list(read_tar(member(b"package/./x.js", b"1") + END, ARCHIVE_LIMITS))


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(MANIFEST + END, mtime=0) + gzip.compress(SECOND + END, mtime=0),
        gzip.compress(MANIFEST, mtime=0) + gzip.compress(END, mtime=0),
        gzip.compress(MANIFEST + END, mtime=0) + b"trailing",
        gzip.compress(MANIFEST + END, mtime=0)[:-4],
        MANIFEST + END,
        bz2.compress(MANIFEST + END),
        lzma.compress(MANIFEST + END),
    ],
    ids=["second", "in two", "garbage", "without its checksum", "plain", "bzip2", "xz"],
)
def test_attack_a_package_in_another_compression_or_in_two_streams_is_refused(data: bytes, tmp_path: Path) -> None:
    assert refused(data, tmp_path / "a.tgz") == ["ARCHIVE_UNSAFE"] * 2


LONG = "/".join(["package", *["d" * 60] * 4, "x.js"])
HONEST = {
    "ustar with a prefix": MANIFEST + member(b"x.js", b"1", prefix=b"package/" + b"d" * 120),
    "times in the prefix field, as npm wrote them": member(
        b"package/package.json", GOOD, prefix=bytes(131) + b"15020720275\0" * 2
    ),
    "a prefix and times": MANIFEST
    + member(b"x.js", b"1", prefix=b"package/lib".ljust(131, b"\0") + b"15020720275\0" * 2),
    "old, without a magic": member(b"package/package.json", GOOD, magic=bytes(8)),
    "old, zero for a file": member(b"package/package.json", GOOD, b"\0"),
    "a comment for all, as git writes": pax((b"comment", b"f" * 40), kind=b"g") + MANIFEST,
    "times and the size again, as npm writes": pax(
        (b"path", LONG.encode()), (b"size", b"3"), (b"mtime", b"1.5"), (b"SCHILY.ino", b"7")
    )
    + member(b"short", b"abc")
    + MANIFEST,
    "a long name of GNU": member(b"long", LONG.encode() + b"\0", b"L") + member(b"short", b"abc") + MANIFEST,
    "folders": header(b"package/", kind=b"5") + MANIFEST,
    "a folder of another name": member(b"tool/package.json", GOOD),
    "zeros up to the size of a tape's record": MANIFEST + bytes(9216),
    "a step that stays in the folder, as agent-base 7.1.4 has": member(b"package/././lib/./x.js", b"1") + MANIFEST,
    "a file again without the step, as agent-base 7.1.4 has": member(b"package/./x.js", b"1")
    + member(b"package/x.js", b"1")
    + MANIFEST,
    "a step that stays, in the prefix": member(b"x.js", b"1", prefix=b"package/.") + MANIFEST,
}


@pytest.mark.parametrize("kind", HONEST)
def test_an_ordinary_tarball_has_the_files_that_the_standard_library_sees(kind: str, tmp_path: Path) -> None:
    data = gzip.compress(HONEST[kind] + END, mtime=0)
    path = tmp_path / "a.tgz"
    path.write_bytes(data)
    with tarfile.open(path) as archive:
        theirs = {
            posixpath.normpath(each.name).partition("/")[2]: (archive.extractfile(each) or io.BytesIO()).read()
            for each in archive
            if each.isreg()
        }
    assert {name: content for name, _, content in read_tarball_files(path)} == theirs
    assert theirs["package.json"] == GOOD
    assert read_package_json(io.BytesIO(data)).document["version"] == "1.0.0"
