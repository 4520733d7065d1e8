"""The neutral draft, and the way between it and v2, on which nothing is lost and nothing can be slipped in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinwarden import PinwardenError
from pinwarden.lock import lockfile, mcp_lock_1
from pinwarden.lock.conversion import NAMESPACE, from_neutral, set_aside, to_neutral
from pinwarden.lock.entry import Entry
from pinwarden.lock.lockfile import Lock
from pinwarden.lock.mcp_lock_1 import NeutralLock
from pinwarden.lock.relock import relock
from pinwarden.lock.verification import verify as verify_v2
from tests.support.locks import LATER, NOON, deep_copy, entry, our_entry


def neutral_entry(**changes: Any) -> dict[str, Any]:
    parts = {
        "name": "com.example/search",
        "version": "2.0.0",
        "client": "cursor",
        "source": {"registry": "https://registry.example", "id": "com.example/search"},
        "target": {"type": "remote", "transport": "streamable-http", "url": "https://mcp.example.com/v1"},
        "configDigest": mcp_lock_1.digest_of({}),
        "resolvedAt": NOON,
        "lockedAt": NOON,
        **changes,
    }
    return {**parts, "integrity": mcp_lock_1.integrity_of(parts)}


def document(*entries: Any, **changes: Any) -> bytes:
    return json.dumps({"specVersion": 1, "entries": list(entries), **changes}).encode()


def refusal(data: bytes) -> PinwardenError:
    with pytest.raises(PinwardenError) as caught:
        mcp_lock_1.parse(data)
    return caught.value


def rewritten(lock: NeutralLock) -> NeutralLock:
    return mcp_lock_1.parse(mcp_lock_1.to_bytes(lock))


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("/entries/0/name", {"name": ""}),
        ("/entries/0/client", {"client": "Claude Code"}),
        ("/entries/0/scope", {"scope": "global"}),
        ("/entries/0/source", {"source": {}}),
        ("/entries/0/configDigest", {"configDigest": "sha256-AAAA"}),
        ("/entries/0/resolvedAt", {"resolvedAt": "yesterday"}),
        ("/entries/0/lockedAt", {"lockedAt": "2026-13-01T00:00:00Z"}),
        (
            "/entries/0/target/url",
            {"target": {"type": "remote", "transport": "sse", "url": "https://user:pass@mcp.example.com/"}},
        ),
        ("/entries/0/target/type", {"target": None}),
        ("/entries/0/target/registryType", {"target": {"type": "package", "registryType": "conda"}}),
        (
            "/entries/0/target/artifact",
            {"target": {"type": "package", "registryType": "npm", "identifier": "x", "artifact": {"digest": "1"}}},
        ),
        ("/entries/0/surface/toolCount", {"surface": {"coverage": ["name", "description"], "toolCount": True}}),
        ("/entries/0/verification/0", {"verification": [{"code": "x", "status": "fine"}]}),
        ("/entries/0/extensions", {"extensions": {"toolpin": {}}}),
    ],
)
def test_a_broken_rule_is_refused_and_the_place_named(path: str, changes: dict[str, Any]) -> None:
    if "surface" in changes:
        changes["surface"]["hash"] = mcp_lock_1.surface_hash([])
    refused = refusal(document(neutral_entry(**changes)))
    assert (refused.code, refused.data["path"]) == ("LOCK_INVALID", path)


def test_unknown_members_are_kept_and_hashed_at_the_top_too() -> None:
    plain = mcp_lock_1.parse(document(neutral_entry()))
    more = mcp_lock_1.parse(document(neutral_entry(), later={"x": 1}))
    assert mcp_lock_1.verify(more) == ()
    assert json.loads(mcp_lock_1.to_bytes(more))["later"] == {"x": 1}
    assert mcp_lock_1.digest(more) != mcp_lock_1.digest(plain)


def test_timestamps_of_the_file_are_not_part_of_its_digest() -> None:
    timed = mcp_lock_1.parse(document(neutral_entry(), updatedAt=LATER))
    assert mcp_lock_1.digest(timed) == mcp_lock_1.digest(mcp_lock_1.parse(document(neutral_entry())))


def test_an_empty_document_is_read_but_does_not_pass_an_enforcer() -> None:
    lock = mcp_lock_1.parse(document())
    assert mcp_lock_1.verify(lock) == ()
    assert [problem.code for problem in mcp_lock_1.verify(lock, enforce=True)] == ["no_entries"]


def test_what_a_v2_entry_says_is_said_in_the_words_of_the_draft() -> None:
    (found,) = to_neutral(relock(None, [entry(scope="global")], NOON)).entries
    assert {name: value for name, value in found.items() if name not in ("extensions", "integrity")} == {
        "name": "io.github.acme/notes",
        "version": "1.2.3",
        "client": "claude-code",
        "scope": "user",
        "source": {"registry": "official", "id": "io.github.acme/notes"},
        "target": {
            "type": "package",
            "registryType": "npm",
            "identifier": "@acme/notes",
            "version": "1.2.3",
            "transport": "stdio",
        },
        "configDigest": mcp_lock_1.digest_of(entry().config),
        "verification": [
            {
                "code": "lock_integrity",
                "status": "passed",
                "verifier": "toolpin",
                "method": "canonical-json-sha256",
            }
        ],
        "resolvedAt": NOON,
        "lockedAt": NOON,
    }


@pytest.mark.parametrize("plain_v2", [True, False])
def test_v2_goes_there_and_back_without_a_changed_byte(plain_v2: bool) -> None:
    image = {"kind": "package", "registryType": "oci", "identifier": "ghcr.example/acme/notes:latest"}
    entries = [
        our_entry(),
        entry("io.github.acme/tagged", selected_target=image),
        entry("io.github.acme/crate", "zed", selected_target={**image, "registryType": "cargo"}),
        entry("io.github.acme/http", selected_target={"kind": "remote", "type": "sse", "url": "http://x.example"}),
    ]
    lock = relock(None, entries, NOON, plain_v2=plain_v2)
    neutral = rewritten(to_neutral(lock))
    assert mcp_lock_1.verify(neutral) == ()
    assert set_aside(neutral) == ("io.github.acme/tagged:claude", "io.github.acme/http:claude")
    assert lockfile.to_bytes(from_neutral(neutral)) == lockfile.to_bytes(lock)


def test_what_only_the_draft_can_say_is_set_aside_and_comes_back() -> None:
    data = mcp_lock_1.to_bytes(
        mcp_lock_1.parse(
            document(
                neutral_entry(client="emacs"),
                neutral_entry(),
                neutral_entry(scope="user"),
                neutral_entry(client="zed", later=1),
                extensions={"com.example": {"kept": True}},
                later=[1],
            )
        )
    )
    lock = lockfile.parse(lockfile.to_bytes(from_neutral(mcp_lock_1.parse(data))))
    assert verify_v2(lock) == ()
    assert [found.key for found in lock.entries] == ["com.example/search:cursor", "com.example/search:zed"]
    assert set_aside(lock) == ("com.example/search:emacs", "com.example/search:cursor")
    assert mcp_lock_1.to_bytes(to_neutral(lock)) == data


def test_an_entry_that_was_added_after_the_conversion_is_converted_too() -> None:
    made = from_neutral(mcp_lock_1.parse(document(neutral_entry())))
    more = relock(made, [entry()], LATER)
    neutral = rewritten(to_neutral(more))
    assert [found["name"] for found in neutral.entries] == ["com.example/search", "io.github.acme/notes"]
    assert neutral.document["updatedAt"] == LATER


def test_a_core_that_says_something_else_than_the_v2_entry_it_carries_is_refused() -> None:
    """Two readers would enforce two different servers."""
    neutral = to_neutral(relock(None, [entry()], NOON))
    changed = deep_copy(neutral.document)
    forged = changed["entries"][0]
    forged["target"]["identifier"] = "@evil/notes"
    forged["integrity"] = mcp_lock_1.integrity_of(forged)
    lock = mcp_lock_1.parse(json.dumps(changed).encode())
    assert mcp_lock_1.verify(lock) == ()
    with pytest.raises(PinwardenError) as caught:
        from_neutral(lock)
    assert caught.value.code == "LOCK_TAMPERED"


def test_a_forged_entry_among_those_set_aside_is_refused() -> None:
    image = {"kind": "package", "registryType": "oci", "identifier": "ghcr.example/acme/notes:latest"}
    changed = deep_copy(to_neutral(relock(None, [entry(selected_target=image)], NOON)).document)
    aside = changed["extensions"][NAMESPACE]["v2"]["setAside"]
    aside["io.github.acme/notes:claude"]["selectedTarget"]["identifier"] = "ghcr.example/evil/notes:latest"
    with pytest.raises(PinwardenError) as caught:
        from_neutral(mcp_lock_1.parse(json.dumps(changed).encode()))
    assert caught.value.code == "LOCK_TAMPERED"


def test_a_tampered_lock_is_not_converted() -> None:
    honest = entry()
    bad = Entry(key=honest.key, document={**honest.document, "version": "6.6.6"})
    with pytest.raises(PinwardenError) as caught:
        to_neutral(Lock(generated_at=NOON, updated_at=NOON, entries=(bad,)))
    assert caught.value.code == "LOCK_TAMPERED"


def test_a_tampered_document_of_the_draft_is_not_converted() -> None:
    bad = mcp_lock_1.parse(document({**neutral_entry(), "version": "6.6.6"}))
    with pytest.raises(PinwardenError) as caught:
        from_neutral(bad)
    assert caught.value.code == "LOCK_TAMPERED"


@pytest.mark.parametrize(
    "rest",
    [None, [], {"order": 1}, {"order": [], "setAside": []}, {"order": [], "seal": 1}, {"order": [[]], "others": 2}],
)
def test_a_malformed_remainder_is_refused(rest: Any) -> None:
    data = document(neutral_entry(), extensions={NAMESPACE: {"v2": rest}})
    if rest is None:
        assert from_neutral(mcp_lock_1.parse(data)).entries
        return
    with pytest.raises(PinwardenError) as caught:
        from_neutral(mcp_lock_1.parse(data))
    assert caught.value.code == "LOCK_INVALID"
