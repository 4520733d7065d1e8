"""mcp-lock.json v2 with our record and seal: written like JavaScript, read strictly, and nothing in it unprotected."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwarden import PinwardenError
from pinwarden.core.digest import Digest
from pinwarden.core.javascript import encode_javascript_json
from pinwarden.core.record import replace
from pinwarden.lock import extension, lockfile
from pinwarden.lock.entry import Entry, compute_entry_integrity, with_integrity
from pinwarden.lock.extension import (
    FORMAT,
    ClosurePin,
    LockApproval,
    LockExtension,
    format_surface_path,
    parse_extension,
    pin_surface,
    read_extension,
    with_extension,
)
from pinwarden.lock.lockfile import (
    PROBLEMS,
    Lock,
    LockProblem,
    put_entries,
    refuse_if_tampered,
    remove_entries,
    verify,
    verify_files,
)
from pinwarden.surface.surface import encode_surface, surface_from_listing
from tests.support.javascript import needs_node
from tests.support.locks import LATER, NOON, SURFACE, deep_copy, entry, our_entry, record


def codes(lock: Lock, **options: bool) -> list[str]:
    return [problem.code for problem in verify(lock, **options)]


def reread(lock: Lock) -> Lock:
    return lockfile.parse(lockfile.to_bytes(lock))


def sealed_lock() -> Lock:
    return put_entries(None, [our_entry(), our_entry(client="vscode"), entry("io.github.acme/plain")], NOON)


def refusal(data: bytes) -> PinwardenError:
    with pytest.raises(PinwardenError) as caught:
        lockfile.parse(data)
    return caught.value


# Writing


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**100), 2**100)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.sampled_from("0 1 10 01"), inner),
    max_leaves=12,
)


@given(JSON_VALUES)
def test_what_is_written_is_read_back_as_the_same_value(value: Any) -> None:
    text = encode_javascript_json(value)
    assert text.endswith(b"\n")
    assert json.loads(text, parse_int=float) == json.loads(json.dumps(value), parse_int=float)


@needs_node
def test_text_is_written_as_javascript_writes_it() -> None:
    values: list[Any] = [
        {"b": 1, "a": [], "c": {}, "10": "x", "2": [1.0, 1e21, 1e-7, 5e-324, -0.0, 0.1, 123456789012345680000]},
        {'\u2028 \u007f \x01 \t " \\ / é 😀': None, "4294967294": 1, "4294967295": 2, "01": 3, "-1": 4},
        {"plain": {"nested": [{"deep": True}, [[]], "é\u00ad"]}},
    ]
    program = "for(const v of JSON.parse(require('fs').readFileSync(0))) console.log(JSON.stringify(v,null,2))"
    done = subprocess.run(["node", "-e", program], input=json.dumps(values).encode(), capture_output=True, check=True)
    assert b"".join(encode_javascript_json(value) for value in values) == done.stdout


def test_unknown_members_everywhere_survive_reading_and_writing() -> None:
    document = json.loads(lockfile.to_bytes(sealed_lock()))
    document["later"] = {"x": 1}
    for value in document["servers"].values():
        value["later"] = 2
        value["trust"]["later"] = 3
    data = encode_javascript_json(document)
    assert lockfile.to_bytes(lockfile.parse(data)) == data


def test_plain_v2_writes_only_members_of_v2() -> None:
    entries = [entry(), entry(client="vscode"), entry("io.github.acme/plain")]
    plain = lockfile.to_bytes(put_entries(None, entries, NOON, plain_v2=True))
    assert lockfile.to_bytes(sealed_lock(), plain_v2=True) == plain
    assert b"pinwarden" not in plain
    assert b'"servers"' in plain


# Reading


def test_a_truncated_file_is_refused_at_every_length() -> None:
    data = lockfile.to_bytes(put_entries(None, [entry()], NOON)).rstrip(b"\n")
    for length in range(len(data)):
        assert refusal(data[:length]).code == "JSON_PARSE_ERROR"


def test_a_duplicate_member_is_refused() -> None:
    data = lockfile.to_bytes(put_entries(None, [entry()], NOON))
    twice = data.replace(b'"version": "1.2.3",', b'"version": "1.2.3", "version": "6.6.6",', 1)
    assert refusal(twice).code == "JSON_CANONICALIZATION_ERROR"


@pytest.mark.parametrize("version", [0, 1, 3, "2", None, True, [2]])
def test_other_versions_are_refused_with_a_hint(version: Any) -> None:
    refused = refusal(json.dumps({"lockfileVersion": version, "generatedAt": NOON, "servers": {}}).encode())
    assert refused.code == "LOCK_VERSION_UNSUPPORTED"
    assert refused.hint
    assert refused.exit_code == 3


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/generatedAt", 5),
        ("/updatedAt", None),
        ("/servers", []),
        ("/pinwarden", "sealed"),
        ("/servers/*", []),
        ("/servers/*/name", None),
        ("/servers/*/version", 1),
        ("/servers/*/client", "emacs"),
        ("/servers/*/client", ["claude"]),
        ("/servers/*/scope", "everywhere"),
        ("/servers/*/scope", None),
        ("/servers/*/selectedTarget", None),
        ("/servers/*/notes", "none"),
        ("/servers/*/integrity", None),
        ("/servers/*/trust", []),
        ("/servers/*/trust/score", True),
        ("/servers/*/trust/tier", "excellent"),
        ("/servers/*/trust/badges", [1]),
        ("/servers/*/trust/issues", {}),
        ("/servers/*/trust/issues", [{"severity": "mild", "code": "c", "message": "m"}]),
        ("/servers/*/trust/gates", [{"code": "c"}]),
        ("/servers/*/trust/pillars", {}),
        ("/servers/*/trust/evidence", [{"code": "c", "message": "m", "status": "maybe"}]),
        ("/servers/*/trust/evidence", [{"code": "c", "message": "m", "status": "passed", "required": "yes"}]),
        ("/servers/*/capabilityManifest", None),
        ("/servers/*/capabilityManifest/version", 2),
        ("/servers/*/capabilityManifest/secrets", None),
        ("/servers/*/capabilityManifest/toolSurfaceHash", {"algorithm": "md5"}),
        ("/servers/*/capabilityManifest/toolDescriptionScan", []),
    ],
)
def test_a_malformed_member_is_refused_with_its_path(path: str, value: Any) -> None:
    document = json.loads(lockfile.to_bytes(put_entries(None, [entry()], NOON)))
    key = next(iter(document["servers"]))
    steps = [key if step == "*" else step for step in path[1:].split("/")]
    holder = document
    for step in steps[:-1]:
        holder = holder[step]
    holder[steps[-1]] = value
    refused = refusal(json.dumps(document).encode())
    assert refused.code == "LOCK_INVALID"
    assert str(refused.data["path"]).startswith("/" + "/".join(step.replace("/", "~1") for step in steps))


@pytest.mark.parametrize(
    "name", ["__proto__", "../../etc/passwd", "a:b", "a/b~c", "\u202e\u0000", "0", "", "x" * 10_000, "constructor"]
)
def test_hostile_names_are_kept_and_verified_like_any_other(name: str) -> None:
    lock = put_entries(None, [our_entry(name), our_entry(name, "zed")], NOON)
    again = reread(lock)
    assert again == lock
    assert [entry.name for entry in again.entries] == [name, name]
    assert verify(again) == ()


def test_thousands_of_entries_are_read_and_verified() -> None:
    template = entry()
    entries = [
        Entry(key=f"io.github.acme/notes-{index}:claude", document={**template.document, "name": f"n{index}"})
        for index in range(3_000)
    ]
    lock = reread(Lock(generated_at=NOON, updated_at=NOON, entries=tuple(entries)))
    assert len(lock.entries) == 3_000
    assert {problem.code for problem in verify(lock)} >= {"entry_key_mismatch", "integrity_mismatch"}


# Verifying


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, child in inner:
        yield from places(child, (*path, step))


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        document = document[step]
    return document


def answer(document: Any) -> tuple[str, ...]:
    try:
        return tuple(codes(lockfile.parse(json.dumps(document).encode())))
    except PinwardenError as err:
        return (err.code,)


def spoil_leaf(holder: Any, step: Any) -> None:
    value = holder[step]
    match value:
        case bool():
            holder[step] = not value
        case int():
            holder[step] = value + 1
        case str():
            holder[step] = value + "x"
        case _:
            holder[step] = {"spoilt": 1} if isinstance(value, dict) else ["spoilt"]


def remove(holder: Any, step: Any) -> None:
    del holder[step]


def add_beside(holder: Any, step: Any) -> None:
    if isinstance(holder, dict):
        holder["added"] = step
    else:
        holder.append("added")


@pytest.mark.parametrize("spoil", [spoil_leaf, remove, add_beside])
def test_any_change_to_a_sealed_file_is_detected(spoil: Callable[[Any, Any], None]) -> None:
    document = json.loads(lockfile.to_bytes(sealed_lock()))
    assert answer(document) == ()
    for path in places(document):
        if path:
            changed = deep_copy(document)
            spoil(at(changed, path[:-1]), path[-1])
            assert answer(changed), path


@pytest.mark.parametrize("spoil", [spoil_leaf, remove, add_beside])
def test_in_a_plain_file_only_changes_that_v2_ignores_are_undetected(spoil: Callable[[Any, Any], None]) -> None:
    document = json.loads(lockfile.to_bytes(put_entries(None, [entry()], NOON, plain_v2=True)))
    unseen = set()
    for path in places(document):
        if path:
            changed = deep_copy(document)
            spoil(at(changed, path[:-1]), path[-1])
            if not answer(changed):
                unseen.add("/".join(map(str, path)))
    key = "servers/io.github.acme/notes:claude"
    open_in_v2: dict[Callable[[Any, Any], None], set[str]] = {
        spoil_leaf: {"generatedAt", "updatedAt"},
        remove: {"updatedAt", f"{key}/scope"},  # an entry without scope is for the project, and hashed so
        add_beside: set(),
    }
    assert unseen == open_in_v2[spoil]


def test_a_forged_entry_under_another_key_is_detected_despite_a_valid_integrity_value() -> None:
    """The attack that ToolPin 0.5.4 does not see: it never looks the entry up."""
    honest = entry()
    forged = with_integrity(
        Entry(key=honest.key + "x", document={**honest.document, "selectedTarget": {"kind": "package"}})
    )
    problems = verify(Lock(generated_at=NOON, updated_at=NOON, entries=(honest, forged)))
    assert [(problem.code, problem.path) for problem in problems] == [
        ("entry_key_mismatch", "/servers/io.github.acme~1notes:claudex"),
        ("locked_copy_differs", "/servers/io.github.acme~1notes:claudex/locked/selectedTarget"),
    ]


def test_true_instead_of_one_is_a_difference() -> None:
    honest = our_entry(config={"n": 1})
    locked = {**honest.document["locked"], "config": {"n": True}}
    changed = with_integrity(replace(honest, document={**honest.document, "locked": locked}))
    assert "locked_copy_differs" in codes(Lock(generated_at=NOON, updated_at=NOON, entries=(changed,)))


def test_names_that_are_equal_after_normalisation_make_an_entry_not_canonical() -> None:
    twins = {"caf\u00e9": 1, "cafe\u0301": 2}
    lock = put_entries(None, [entry()], NOON)
    changed = replace(lock.entries[0], document={**lock.entries[0].document, "config": twins})
    assert "not_canonical" in codes(replace(lock, entries=(changed,)))


def test_keys_that_are_equal_after_normalisation_are_a_problem() -> None:
    lock = put_entries(None, [entry("caf\u00e9"), entry("cafe\u0301")], NOON)
    assert [(problem.code, problem.path) for problem in verify(lock)] == [
        ("not_canonical", "/servers/cafe\u0301:claude")
    ]


def test_a_removed_extension_is_a_problem_where_it_is_required() -> None:
    stripped = lockfile.to_plain_v2(sealed_lock())
    assert codes(stripped) == []
    assert codes(stripped, require_extension=True) == ["not_extended"] * 3


def test_a_changed_extension_is_detected_although_the_file_was_resealed() -> None:
    lock = sealed_lock()
    first = lock.entries[0]
    manifest = deep_copy(first.manifest)
    manifest["pinwarden"]["approval"]["by"] = "mallory@example.org"
    changed = replace(first, document={**first.document, "capabilityManifest": manifest})
    resealed = lockfile.seal_lock(replace(lock, entries=(changed, *lock.entries[1:])))
    assert codes(resealed) == ["entry_seal_mismatch"]


def test_the_error_for_a_rewritten_file_says_how_to_seal_it_again() -> None:
    rewritten = replace(sealed_lock(), seal=None)
    with pytest.raises(PinwardenError) as caught:
        refuse_if_tampered(verify(rewritten))
    assert "lock again" in caught.value.hint
    assert verify(put_entries(rewritten, [], LATER)) == ()


def test_problems_are_raised_with_their_paths() -> None:
    lock = sealed_lock()
    with pytest.raises(PinwardenError) as caught:
        refuse_if_tampered(verify(replace(lock, entries=lock.entries[1:])))
    assert caught.value.code == "LOCK_TAMPERED"
    assert caught.value.exit_code == 1
    assert caught.value.data["problems"] == [
        {
            "code": "sealed_entry_removed",
            "path": "/pinwarden/entries/io.github.acme~1notes:claude",
            "message": PROBLEMS["sealed_entry_removed"] + ": 'io.github.acme/notes:claude'",
        }
    ]


# Our record


OPTIONAL: dict[str, Any] = {
    "launch": {"command": ["npx", "notes"], "variables": ["TOKEN"], "cwd": "/srv"},
    "publisher": "ada",
    "publishedAt": NOON,
    "evidence": [{"code": "npm_integrity"}],
    "bundleTree": str(Digest.of_bytes(b"tree")),
    "installScripts": [{"package": "a@1", "digest": str(Digest.of_bytes(b"a")), "by": "ada", "at": NOON}],
    "probedRelease": "1.2.3",
    "surfaceOf": "pkg:npm/notes@1.0.0",
    "configuredIn": {"client": "claude", "scope": "project", "file": ".mcp.json", "answers": {"key": "v"}},
    "bundle": {"tool": "acme.notes"},
    "newer": 1,
}


def test_optional_members_keep_their_position_when_rewritten() -> None:
    extension = parse_extension({"format": FORMAT, **OPTIONAL}, "/x")
    assert extension.unknown_members == {"newer": 1}
    written = with_extension(entry(), replace(extension, registry="https://registry.example"))
    members = {name: value for name, value in written.manifest["pinwarden"].items() if name in OPTIONAL}
    assert (list(members), members) == (list(OPTIONAL), OPTIONAL)


@pytest.mark.parametrize("member", [name for name in OPTIONAL if name != "newer"])
def test_a_malformed_optional_member_is_an_invalid_lock(member: str) -> None:
    with pytest.raises(PinwardenError) as caught:
        parse_extension({"format": FORMAT, **OPTIONAL, member: 5}, "/x")
    assert caught.value.code == "LOCK_INVALID"


def test_every_field_of_the_extension_has_a_row_in_the_table_of_members() -> None:
    fields = [member.field for member in extension._MEMBERS_BY_NAME.values()]
    assert sorted([*fields, "unknown_members", "member_order"]) == sorted(LockExtension.__slots__)


def test_the_extension_survives_a_round_trip() -> None:
    given_record = record(unknown_members={"newer": {"member": [1]}})
    written = with_extension(entry(), given_record)
    again = reread(put_entries(None, [written], NOON)).entries[0]
    assert read_extension(again) == given_record
    assert again.manifest["pinwarden"]["integrity"] == compute_entry_integrity(again)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("format", "pinwarden-entry/9"),
        ("surface", {"digest": "sha256:00"}),
        ("surface", None),
        ("artifacts", [{"name": "x"}]),
        ("artifacts", [{"name": "x", "digest": str(Digest.of_bytes(b"")), "size": -1}]),
        ("image", {"platforms": {"linux/amd64": "latest"}}),
        ("closure", {"packages": 0, "file": {"path": "mcp-lock.closures/x.json", "digest": "sha256:" + "0" * 64}}),
        ("closure", {"packages": 1, "file": {"path": "mcp-lock.surfaces/x.json", "digest": "sha256:" + "0" * 64}}),
        ("provenance", "github"),
        ("registry", 1),
        ("approval", {"by": "ada"}),
    ],
)
def test_a_malformed_extension_is_refused(member: str, value: Any) -> None:
    written = our_entry()
    manifest = deep_copy(written.manifest)
    manifest["pinwarden"][member] = value
    with pytest.raises(PinwardenError) as caught:
        read_extension(replace(written, document={**written.document, "capabilityManifest": manifest}))
    assert caught.value.code == "LOCK_INVALID"


@pytest.mark.parametrize(
    "path",
    [
        "../mcp-lock.surfaces/x.json",
        "/etc/x.surfaces/x.json",
        "mcp-lock.surfaces/../../x.json",
        "mcp-lock.surfaces/.x.json",
        "mcp-lock.surfaces/x",
        "mcp-lock.surfaces/a/b.json",
        "mcp-lock.surfaces\\x.json",
        "C:x.surfaces/x.json",
        ".git.surfaces/x.json",
        "other/x.json",
    ],
)
def test_a_surface_pin_outside_its_folder_is_refused(path: str) -> None:
    with pytest.raises(PinwardenError) as caught:
        with_extension(entry(), LockExtension(surface=pin_surface(SURFACE, path)))
    assert caught.value.code == "LOCK_INVALID"


@given(st.lists(st.text() | st.text("aA/._-=@~:"), unique=True, min_size=2, max_size=2))
def test_two_servers_never_share_a_surface_file(names: list[str]) -> None:
    first, second = (format_surface_path(name) for name in names)
    assert first.casefold() != second.casefold()


def test_surface_files_have_readable_portable_names() -> None:
    assert format_surface_path("io.github.acme/npm-notes") == "mcp-lock.surfaces/io.github.acme__npm-notes.json"
    assert format_surface_path("a/b", "1.0.0") == "mcp-lock.surfaces/a__b@1.0.0.json"
    assert format_surface_path("con") == "mcp-lock.surfaces/_63on.json"
    assert format_surface_path("..") == "mcp-lock.surfaces/_2e_2e.json"
    assert format_surface_path("Acme/X") == "mcp-lock.surfaces/_41cme___58.json"
    assert len(format_surface_path("é" * 500, "9" * 500)) < 240


def test_the_approved_surface_is_compared_with_its_pin() -> None:
    lock = put_entries(None, [our_entry()], NOON)
    path = format_surface_path("io.github.acme/notes")
    good = encode_surface(SURFACE)
    other = surface_from_listing({"tools": [{"name": "add", "description": "now evil"}]})
    assert verify_files(lock, {path: good}) == ()
    assert [problem.code for problem in verify_files(lock, {})] == ["surface_missing"]
    for bad in (good + b" ", encode_surface(other), b"not json"):
        problems = verify_files(lock, {path: bad})
        assert [problem.code for problem in problems] == ["surface_mismatch"]
        assert problems[0].path.endswith("/capabilityManifest/pinwarden/surface")


def test_a_pin_with_item_digests_that_do_not_match_its_file_is_detected() -> None:
    pin = replace(pin_surface(SURFACE, format_surface_path("io.github.acme/notes")), items={"tools": {}})
    lock = put_entries(None, [with_extension(entry(), LockExtension(surface=pin))], NOON)
    problems = verify_files(lock, {pin.path: encode_surface(SURFACE)})
    assert [problem.code for problem in problems] == ["surface_mismatch"]


def test_two_entries_that_pin_different_surfaces_in_one_file_are_a_problem() -> None:
    other = pin_surface(surface_from_listing({"tools": []}), format_surface_path("io.github.acme/notes"))
    lock = put_entries(None, [our_entry(), with_extension(entry(client="zed"), record(surface=other))], NOON)
    assert codes(lock) == ["surface_conflict"]


@pytest.mark.parametrize(
    "listing",
    [
        {"tools": [{"description": "no name"}]},
        {"tools": [{"name": "a"}, {"name": "a", "x": 1}]},
        {"tools": [], "capabilities": {"experimental": {"n": 2**53 + 1}}},
    ],
    ids=["an item without a name", "an item twice", "an answer about itself that has no canonical form"],
)
def test_an_ambiguous_surface_cannot_be_pinned(listing: dict[str, Any]) -> None:
    with pytest.raises(PinwardenError) as caught:
        pin_surface(surface_from_listing(listing), format_surface_path("x"))
    assert caught.value.code == "SURFACE_INVALID"


# Locking again


def test_locking_the_same_entries_again_gives_the_same_lock_and_file() -> None:
    for plain_v2 in (True, False):
        lock = put_entries(None, [our_entry(), entry(client="zed")], NOON, plain_v2=plain_v2)
        before = lockfile.to_bytes(lock)
        manifest = {**our_entry().manifest, "generatedAt": LATER}
        manifest.pop("pinwarden")
        again = with_extension(entry(at=LATER, resolved_at=LATER, manifest=manifest), record(at=LATER))
        result = put_entries(lock, [again, entry(client="zed", at=LATER)], LATER, plain_v2=plain_v2)
        assert result is lock
        assert lockfile.to_bytes(result) == before


def test_a_changed_entry_keeps_its_position_and_the_others_their_times() -> None:
    lock = sealed_lock()
    changed = put_entries(lock, [our_entry(at=LATER, version="1.2.4")], LATER)
    assert [entry.key for entry in changed.entries] == [entry.key for entry in lock.entries]
    assert changed.entries[0].version == "1.2.4"
    assert [entry.locked_at for entry in changed.entries] == [LATER, NOON, NOON]
    assert (changed.generated_at, changed.updated_at) == (NOON, LATER)
    assert verify(reread(changed)) == ()


def test_a_sealed_lock_can_be_made_plain_and_keeps_its_times() -> None:
    plain = put_entries(sealed_lock(), [our_entry(at=LATER)], LATER, plain_v2=True)
    assert plain == lockfile.to_plain_v2(sealed_lock())
    assert not plain.is_extended
    assert verify(plain) == ()


def test_another_approver_or_reason_is_a_change() -> None:
    lock = put_entries(None, [our_entry()], NOON)
    approval = LockApproval(by="bob@example.org", at=LATER, why="second pair of eyes")
    changed = put_entries(lock, [with_extension(entry(at=LATER), record(approval=approval))], LATER)
    assert changed is not lock
    extension = read_extension(changed.entries[0])
    assert extension is not None
    assert extension.approval == approval


def test_unknown_members_of_other_entries_are_kept_when_the_file_is_rewritten() -> None:
    document = json.loads(lockfile.to_bytes(sealed_lock()))
    document["later"] = 1
    document["servers"]["io.github.acme/plain:claude"]["later"] = {"x": 1}
    resealed = lockfile.seal_lock(lockfile.parse(json.dumps(document).encode()))
    changed = put_entries(resealed, [entry("io.github.acme/new")], LATER)
    assert changed.unknown_members == {"later": 1}
    assert changed.entries[2].document["later"] == {"x": 1}
    assert verify(changed) == ()


def test_a_tampered_lock_is_not_sealed_again() -> None:
    lock = sealed_lock()
    first = lock.entries[0]
    tampered = replace(
        lock, entries=(replace(first, document={**first.document, "version": "6.6.6"}), *lock.entries[1:])
    )
    with pytest.raises(PinwardenError) as caught:
        put_entries(tampered, [entry("io.github.acme/new")], LATER)
    assert caught.value.code == "LOCK_TAMPERED"
    healed = put_entries(tampered, [our_entry(at=LATER)], LATER)
    assert verify(healed) == ()


def test_a_forged_entry_is_not_fixed_by_locking_the_real_one_again() -> None:
    honest = entry()
    forged = replace(with_integrity(honest), key=honest.key + "x")
    lock = Lock(generated_at=NOON, updated_at=NOON, entries=(honest, forged))
    with pytest.raises(PinwardenError) as caught:
        put_entries(lock, [entry(version="2.0.0")], LATER)
    assert caught.value.code == "LOCK_TAMPERED"


def test_removing_an_entry_reseals_the_file_and_removing_none_changes_nothing() -> None:
    lock = sealed_lock()
    assert remove_entries(lock, ["unknown:claude"], LATER) is lock
    rest = remove_entries(lock, ["io.github.acme/notes:vscode"], LATER)
    assert [entry.client for entry in rest.entries] == ["claude", "claude"]
    assert verify(reread(rest)) == ()


def spoilt(lock: Lock, edit: Callable[[Any], object]) -> Lock:
    document = json.loads(lockfile.to_bytes(lock))
    edit(document)
    return lockfile.parse(json.dumps(document).encode())


NOTES_KEY = "io.github.acme/notes:claude"


@pytest.mark.parametrize(
    ("lock", "edit", "code"),
    [
        (
            put_entries(None, [entry()], NOON, plain_v2=True),
            lambda lock: lock["servers"][NOTES_KEY].pop("integrity"),
            "integrity_missing",
        ),
        (
            put_entries(None, [our_entry()], NOON),
            lambda lock: lock["servers"][NOTES_KEY]["capabilityManifest"]["pinwarden"].pop("integrity"),
            "entry_seal_missing",
        ),
        (
            put_entries(None, [our_entry()], NOON),
            lambda lock: lock["pinwarden"].update(format="later"),
            "seal_format_unknown",
        ),
    ],
    ids=["no integrity", "no seal of an entry", "a seal of another format"],
)
def test_a_missing_integrity_value_or_unknown_seal_is_reported(
    lock: Lock, edit: Callable[[Any], object], code: str
) -> None:
    assert codes(lock) == []
    assert code in codes(spoilt(lock, edit))


def test_two_entries_that_pin_different_closures_in_one_file_are_a_problem() -> None:
    pins = [
        ClosurePin(packages=1, path="mcp-lock.closures/notes.json", file_digest=Digest.of_bytes(data))
        for data in (b"a", b"b")
    ]
    entries = [
        with_extension(entry(client=client), record(closure=pin))
        for client, pin in zip(("claude", "zed"), pins, strict=True)
    ]
    assert codes(put_entries(None, entries, NOON)) == ["closure_conflict"]


def test_every_problem_has_its_own_sentence() -> None:
    report = [LockProblem(code=code, path="", detail="here").message for code in PROBLEMS]
    assert len(set(report)) == len(PROBLEMS)
    assert all(message.endswith("here") for message in report)


def test_a_lock_without_entries_is_a_problem() -> None:
    assert [problem.code for problem in verify(put_entries(None, [], NOON))] == ["no_entries"]
