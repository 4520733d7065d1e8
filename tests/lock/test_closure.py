"""The dependency closure as a document, and its pin in the lock."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinwarden.artifacts.npm_package import parse_npm_lock, select_strongest_digests
from pinwarden.core.digest import Digest, hash_file_list
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.lock.closure import (
    Closure,
    ClosureFile,
    ClosurePackage,
    format_closure_path,
    is_node_modules_path,
    parse,
    to_bytes,
)
from pinwarden.lock.extension import ClosurePin, read_extension, with_extension
from pinwarden.lock.lockfile import parse as parse_lock
from pinwarden.lock.lockfile import put_entries, verify, verify_files
from pinwarden.lock.lockfile import to_bytes as lock_bytes
from tests.support.locks import NOON, entry, record


def file(name: str = "notes-1.2.3.tgz", **changes: Any) -> ClosureFile:
    made = ClosureFile(
        name=name,
        url=f"https://registry.example/{name}",
        digest=Digest.of_bytes(name.encode()),
        size=5,
        tree=hash_file_list([("index.js", False, "00" * 32)]),
        uploaded_at="2026-01-01T00:00:00Z",
    )
    return replace(made, **changes)


CLOSURE = Closure(
    ecosystem="npm",
    name="@acme/notes",
    version="1.2.3",
    resolver="npm 11.0.0",
    registry="https://registry.example/",
    packages=(
        ClosurePackage(name="@acme/notes", version="1.2.3", path="node_modules/@acme/notes", files=(file(),)),
        ClosurePackage(
            name="zod",
            version="4.0.0",
            path="node_modules/@acme/notes/node_modules/zod",
            files=(file("zod-4.0.0.tgz"),),
            os=("linux", "darwin"),
            cpu=("!arm",),
            is_optional=True,
            has_install_scripts=True,
        ),
    ),
)


def test_a_closure_survives_a_round_trip_and_equal_closures_have_equal_bytes() -> None:
    data = to_bytes(CLOSURE)
    assert parse(data) == CLOSURE
    assert to_bytes(replace(CLOSURE, packages=CLOSURE.packages[::-1])) == data
    assert data.endswith(b"\n")


def changed(**changes: Any) -> bytes:
    return json.dumps({**json.loads(to_bytes(CLOSURE)), **changes}).encode()


def with_package(**changes: Any) -> bytes:
    document = json.loads(to_bytes(CLOSURE))
    document["packages"][0] |= changes
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b"{}",
        changed(format="pinwarden-closure/2"),
        changed(ecosystem="cargo"),
        changed(name=5),
        changed(name="other"),
        changed(packages=[]),
        changed(packages={}),
        changed(packages=[5]),
        changed(packages=json.loads(to_bytes(CLOSURE))["packages"] * 2),
        with_package(files=[]),
        with_package(files=[{"name": "x"}]),
        with_package(files=[{"name": "../x", "url": "u", "digest": "sha256:" + "0" * 64}]),
        with_package(files=[{"name": "x", "url": "u", "digest": "sha512:" + "0" * 128}]),
        with_package(files=[{"name": "x", "url": "u", "digest": "sha256:00"}]),
        with_package(files=[{"name": "x", "url": "u", "digest": "sha256:" + "0" * 64, "size": -1}]),
        with_package(path=""),
        with_package(path="node_modules/../../../etc"),
        with_package(path="/node_modules/x"),
        with_package(path="node_modules/x/lib"),
        with_package(optional="yes"),
        with_package(os="linux"),
    ],
)
def test_an_invalid_closure_is_refused(data: bytes) -> None:
    with pytest.raises(PinwardenError) as caught:
        parse(data)
    assert caught.value.code == "CLOSURE_INVALID"


@pytest.mark.parametrize(
    ("path", "good"),
    [
        ("node_modules/zod", True),
        ("node_modules/@acme/notes", True),
        ("node_modules/a/node_modules/@b/c/node_modules/d", True),
        ("node_modules", False),
        ("node_modules/", False),
        ("node_modules/..", False),
        ("node_modules/.bin", False),
        ("node_modules/@a", False),
        ("node_modules/a/../b", False),
        ("node_modules/a//node_modules/b", False),
        ("node_modules/a\\b", False),
        ("node_modules/a\nnode_modules/b", False),
        ("lib/a", False),
    ],
)
def test_a_path_outside_node_modules_is_refused(path: str, good: bool) -> None:
    assert is_node_modules_path(path) is good


def test_the_lock_pins_the_closure_and_a_changed_one_is_detected() -> None:
    data = to_bytes(CLOSURE)
    path = format_closure_path("mcp-lock", "mcp-lock.surfaces/io.github.acme__notes.json")
    pin = ClosurePin(packages=2, path=path, file_digest=Digest.of_bytes(data))
    lock = put_entries(None, [with_extension(entry(), record(surface=None, closure=pin))], NOON)
    again = parse_lock(lock_bytes(lock))
    extension = read_extension(again.entries[0])
    assert extension is not None
    assert extension.closure == pin
    assert verify(again) == ()
    assert verify_files(again, {path: data}) == ()
    assert [problem.code for problem in verify_files(again, {})] == ["closure_missing"]
    assert [problem.code for problem in verify_files(again, {path: data + b" "})] == ["closure_mismatch"]


def npm_lock(**packages: Any) -> bytes:
    return json.dumps({"name": "x", "lockfileVersion": 3, "packages": {"": {}, **packages}}).encode()


ROW = {
    "version": "1.0.0",
    "resolved": "https://registry.example/a.tgz",
    "integrity": Digest.of_bytes(b"a", "sha512").sri,
}


def test_what_npm_resolved_is_read_with_platforms_aliases_and_without_bundled_packages() -> None:
    rows = parse_npm_lock(
        npm_lock(
            **{
                "node_modules/b": {**ROW, "name": "real-b", "os": ["linux"], "cpu": ["x64"], "optional": True},
                "node_modules/a": {**ROW, "hasInstallScript": True},
                "node_modules/a/node_modules/inner": {"version": "1.0.0", "inBundle": True},
            }
        )
    )
    assert [(row.name, row.path, row.install_scripts, row.optional, row.systems) for row in rows] == [
        ("a", "node_modules/a", True, False, ()),
        ("real-b", "node_modules/b", False, True, ("linux",)),
    ]


@pytest.mark.parametrize(
    "row",
    [
        {"link": True, "resolved": "../elsewhere"},
        {**ROW, "resolved": "git+ssh://git@host.example/a.git#main"},
        {**ROW, "resolved": "file:../a.tgz"},
        {"version": "1.0.0", "resolved": "https://registry.example/a.tgz"},
        {**ROW, "version": 1},
        {**ROW, "os": {"linux": True}},
    ],
)
def test_a_dependency_without_verifiable_bytes_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(PinwardenError) as caught:
        parse_npm_lock(npm_lock(**{"node_modules/a": row}))
    assert caught.value.code == "CLOSURE_INVALID"


def test_only_the_strongest_digests_of_an_integrity_text_count_and_sha1_never_does() -> None:
    strong, weak = Digest.of_bytes(b"a", "sha512"), Digest.of_bytes(b"b")
    assert select_strongest_digests(f"{weak.sri} {strong.sri}?x=y") == (strong,)
    assert select_strongest_digests("sha1-qvTGHdzF6KLavt4PO0gs2a6pQ00=") == ()
