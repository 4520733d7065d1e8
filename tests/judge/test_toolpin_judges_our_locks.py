"""The real ToolPin 0.5.4 as judge, both ways: it accepts what we write, and we accept what it writes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinwarden import PinwardenError, PrivateKey
from pinwarden.lock import lockfile
from pinwarden.lock import signature as lock_signature
from pinwarden.lock.entry import Entry, compute_integrity
from pinwarden.lock.extension import read_extension, with_extension
from pinwarden.lock.lockfile import Lock, put_entries, remove_entries, verify
from tests.conformance.vectors import vectors_dir
from tests.judge.toolpin import ToolPin
from tests.support.locks import LATER, NOON, InstallPlan, backwards, deep_copy, new_entry, record

WHOLE = vectors_dir() / "toolpin/locks/whole.mcp-lock.json"


@pytest.fixture
def toolpin(tmp_path: Path) -> ToolPin:
    return ToolPin(tmp_path)


def written_by_us(*, ours: bool) -> tuple[Entry, ...]:
    """The servers of the vectors, locked again by our code at another time."""
    entries = []
    for old in lockfile.parse(WHOLE.read_bytes()).entries:
        plan = InstallPlan(
            name=old.name,
            version=old.version,
            client=old.client,
            selected_target=backwards(old.selected_target),
            trust=backwards(old.trust),
            config=old.config,
            notes=old.document["notes"],
            manifest=backwards(old.manifest),
            source=str(old.source),
            resolved_at=LATER,
        )
        entry = new_entry(plan, LATER)
        entries.append(with_extension(entry, record(old.name)) if ours else entry)
    return tuple(entries)


@pytest.mark.parametrize("ours", [False, True], ids=["plain v2", "with our record and seal"])
def test_a_lock_written_by_us_passes_its_ci_and_has_our_digest(toolpin: ToolPin, ours: bool) -> None:
    lock = put_entries(None, written_by_us(ours=ours), LATER, plain_v2=not ours)
    assert lock.is_extended is ours
    toolpin.lock.write_bytes(lockfile.to_bytes(lock))
    code, report = toolpin.ci()
    assert (code, report["ok"], report["checkedEntries"], report["failures"]) == (0, True, 16, [])
    assert toolpin.digest() == lockfile.compute_lock_digest(lock)


def test_one_letter_changed_in_our_lock_and_it_refuses(toolpin: ToolPin) -> None:
    text = lockfile.to_bytes(put_entries(None, written_by_us(ours=True), LATER))
    changed = text.replace(b"@acme/mcp-notes@1.2.3", b"@acme/mcp-notez@1.2.3", 1)
    assert changed != text
    toolpin.lock.write_bytes(changed)
    code, report = toolpin.ci()
    assert code == 1
    assert "locked entry integrity does not match its contents" in {row["condition"] for row in report["failures"]}
    assert "integrity_mismatch" in {problem.code for problem in verify(lockfile.parse(changed))}


def test_a_lock_written_by_it_is_whole_for_us_and_comes_out_of_our_writer_unchanged(toolpin: ToolPin) -> None:
    for client in ("claude", "vscode", "codex"):
        assert toolpin.run("lock", "io.github.acme/npm-notes", "--client", client).returncode == 0
    assert toolpin.run("lock", "io.github.acme/npm-notes", "--client", "claude").returncode == 0
    data = toolpin.lock.read_bytes()
    lock = lockfile.parse(data)
    assert verify(lock) == ()
    assert [entry.client for entry in lock.entries] == ["claude", "vscode", "codex"]
    assert lockfile.to_bytes(lock) == data
    assert lockfile.compute_lock_digest(lock) == toolpin.digest()


def test_our_record_survives_when_it_rewrites_the_file_and_only_the_seal_is_gone(toolpin: ToolPin) -> None:
    ours = put_entries(None, written_by_us(ours=True), LATER)
    toolpin.lock.write_bytes(lockfile.to_bytes(ours))
    assert toolpin.run("lock", "io.github.acme/npm-notes", "--client", "codex").returncode == 0
    rewritten = lockfile.parse(toolpin.lock.read_bytes())
    assert [read_extension(entry) for entry in rewritten.entries[:16]] == [
        read_extension(entry) for entry in ours.entries
    ]
    assert [problem.code for problem in verify(rewritten)] == ["seal_missing"]
    resealed = put_entries(rewritten, (), str(rewritten.updated_at))
    assert verify(resealed) == ()
    toolpin.lock.write_bytes(lockfile.to_bytes(resealed))
    assert toolpin.ci()[0] == 0


def test_our_removal_of_an_entry_gives_the_file_that_its_own_removal_gives(toolpin: ToolPin) -> None:
    before = lockfile.parse(WHOLE.read_bytes())
    toolpin.lock.write_bytes(WHOLE.read_bytes())
    assert toolpin.run("remove", "io.github.acme/npm-notes", "--client", "claude").returncode == 0
    theirs = toolpin.lock.read_bytes()
    now = str(lockfile.parse(theirs).updated_at)
    assert lockfile.to_bytes(remove_entries(before, ["io.github.acme/npm-notes:claude"], now)) == theirs


def test_our_signature_is_valid_for_it_and_its_signature_for_us(toolpin: ToolPin) -> None:
    key = PrivateKey.from_seed(b"j" * 32)
    lock: Lock = put_entries(None, written_by_us(ours=False), LATER, plain_v2=True)
    toolpin.lock.write_bytes(lockfile.to_bytes(lock))
    (toolpin.folder / "public.pem").write_bytes(key.public_key.pem())
    (toolpin.folder / "private.pem").write_bytes(key.pem())
    policy = vectors_dir() / "toolpin/policies/recommended.json"
    (toolpin.folder / "policy.json").write_bytes(policy.read_bytes())
    policy_digest = json.loads(toolpin.run("policy", "digest", "--policy", "policy.json", "--json").stdout)["digest"]

    ours = lock_signature.sign(lockfile.compute_lock_digest(lock), key, NOON, policy_digest=policy_digest)
    (toolpin.folder / "mcp-lock.sig").write_bytes(lock_signature.to_bytes(ours))
    check = ("lock", "verify-signature", "--policy", "policy.json", "--public-key", "public.pem", "--json")
    done = toolpin.run(*check)
    assert (done.returncode, json.loads(done.stdout)["report"]["message"]) == (0, "Signature valid.")

    done = toolpin.run("lock", "sign", "--policy", "policy.json", "--key", "private.pem")
    assert done.returncode == 0
    theirs = lock_signature.parse((toolpin.folder / "mcp-lock.sig").read_bytes())
    assert isinstance(theirs, lock_signature.ToolPinEnvelope)
    problem = lock_signature.verify(
        theirs, lockfile.compute_lock_digest(lock), key.public_key, policy_digest=policy_digest
    )
    assert problem is None


# Whatever is put into a lock, both see the same thing in it


MUTATED = 400
ODD_VALUES: list[Any] = [
    *(None, True, 0, -0.0, 1.5, 1e21, 1e-7, 2**60, "", "x", "\u00e9\U0001f600"),
    *([], ["a", 1], {}, {"10": 1, "2": 2, "a": 3}, {"__proto__": 1, "z": 2}, {"code": "c", "message": "m"}),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, child in inner:
        yield (*path, step)
        yield from places(child, (*path, step))


def mutated(chance: random.Random, locks: list[Any]) -> bytes:
    document = deep_copy(chance.choice(locks))
    path = chance.choice(list(places(document)))
    holder = document
    for step in path[:-1]:
        holder = holder[step]
    match chance.choice(["replace", "replace", "remove", "add"]):
        case "replace":
            holder[path[-1]] = chance.choice(ODD_VALUES)
        case "remove":
            del holder[path[-1]]
        case _ if isinstance(holder, dict):
            holder[chance.choice(["odd", "7", "0", "__proto__", "\u00e9"])] = chance.choice(ODD_VALUES)
    return json.dumps(document).encode()


def test_of_mutated_locks_it_reads_the_same_and_computes_the_same_values(toolpin: ToolPin) -> None:
    names = ("npm.claude", "live-stdio.live", "remote.claude", "mcpb.verified")
    locks = [json.loads((WHOLE.parent / f"{name}.mcp-lock.json").read_bytes()) for name in names]
    chance = random.Random(54)
    texts = [mutated(chance, locks) for _ in range(MUTATED)]
    answers = toolpin.digests(texts)
    read_by_both = 0
    for text, theirs in zip(texts, answers, strict=True):
        try:
            lock = lockfile.parse(text)
            ours = {
                "digest": lockfile.compute_lock_digest(lock),
                "integrities": [compute_integrity(entry.document) for entry in lock.entries],
            }
        except PinwardenError as err:
            # ToolPin drops an updatedAt that is not text; that is the one thing that only we refuse.
            assert "error" in theirs or err.data["path"] == "/updatedAt", text
        else:
            read_by_both += 1
            assert ours == theirs
    assert read_by_both > MUTATED / 3
