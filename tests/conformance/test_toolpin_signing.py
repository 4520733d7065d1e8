"""Signatures that the real ToolPin made and judged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pinwarden import PrivateKey, PublicKey, canonicalize
from pinwarden.core.digest import Digest
from pinwarden.lock import lockfile
from pinwarden.lock import signature as lock_signature
from pinwarden.lock.signature import RequiredSigners, ToolPinEnvelope, verify_signatures
from tests.cli.run import pinwarden
from tests.conformance.vectors import load, vectors_dir

FOLDER = vectors_dir() / "toolpin"
PUBLIC = PublicKey.from_pem((FOLDER / "signing/fixture-public.pem").read_bytes())
PRIVATE = PrivateKey.from_seed(bytes.fromhex(load("toolpin/signing/fixture-seed.json")["ed25519_seed_hex"]))
COMMANDS = [row for row in load("toolpin/MANIFEST.json")["commands"] if "signing/" in str(row.get("out"))]


def policy_digest(path: str | None) -> str | None:
    if path is None or not (FOLDER / path).exists():
        return None
    return Digest.of_bytes(canonicalize((FOLDER / path).read_bytes(), "toolpin")).sri


def option(command: str, name: str) -> str | None:
    words = command.split()
    return words[words.index(name) + 1] if name in words else None


def asked(kind: str) -> list[dict[str, Any]]:
    rows = [row for row in COMMANDS if f" {kind} " in row["cmd"]]
    assert rows
    return rows


def lock_of(command: str) -> bytes:
    return (FOLDER / str(option(command, "--file"))).read_bytes()


def name(row: dict[str, Any]) -> str:
    return Path(row["out"]).stem


def test_the_fingerprint_of_a_key_is_that_of_toolpin() -> None:
    assert PUBLIC.fingerprint == load("toolpin/signing/fingerprint.json")["fingerprint"]
    assert PRIVATE.public_key == PUBLIC


@pytest.mark.parametrize("row", asked("sign"), ids=name)
def test_signing_gives_the_envelope_that_toolpin_gave(row: dict[str, Any]) -> None:
    report = load(f"toolpin/{row['out']}")
    lock = lockfile.parse(lock_of(row["cmd"]))
    envelope = lock_signature.sign(
        lockfile.compute_lock_digest(lock),
        PRIVATE,
        report["envelope"]["signedAt"],
        policy_digest=policy_digest(option(row["cmd"], "--policy")),
    )
    written = lock_signature.to_bytes(envelope)
    assert json.loads(written) == report["envelope"]
    assert lock_signature.parse(written) == envelope


@pytest.mark.parametrize("path", sorted((FOLDER / "signing").glob("*.sig")), ids=lambda path: path.name)
def test_an_envelope_round_trips(path: Path) -> None:
    envelope = lock_signature.parse(path.read_bytes())
    assert isinstance(envelope, ToolPinEnvelope)
    assert lock_signature.to_bytes(envelope) == path.read_bytes()


@pytest.mark.parametrize("row", asked("verify-signature"), ids=name)
def test_a_signature_is_judged_as_toolpin_judged_it(row: dict[str, Any]) -> None:
    report = load(f"toolpin/{row['out']}")
    result = verify_signatures(
        lock_of(row["cmd"]),
        [(FOLDER / "signing" / report["signature"]).read_bytes()],
        {"fixture": PUBLIC},
        RequiredSigners(names=("fixture",)),
        policy_digest=policy_digest(option(row["cmd"], "--policy")),
    )
    assert result.ok is report["report"]["ok"]
    assert bool(result.rejected) is not result.ok


@pytest.mark.parametrize("row", asked("ci"), ids=name)
def test_a_gate_that_demands_the_signature_passes_where_toolpins_passed(tmp_path: Path, row: dict[str, Any]) -> None:
    expected = load(f"toolpin/{row['out']}")
    shutil.copytree(FOLDER / "dot-toolpin", tmp_path / ".toolpin")
    (tmp_path / "mcp-lock.json").write_bytes(lock_of(row["cmd"]))
    demanded = ["--signature", signing(row, "--signature"), "--public-key", signing(row, "--public-key")]
    policy = ["--signed-policy", str(FOLDER / str(option(row["cmd"], "--policy")))]
    gate = ("ci", "--registry", "--offline", "--format", "json")
    env = {"HOME": str(tmp_path / "home"), "SOURCE_DATE_EPOCH": "1784548800"}
    outcome = pinwarden(*gate, *demanded, *policy, cwd=tmp_path, env=env)
    report = json.loads(outcome.out)
    assert (outcome.code == 0, report["checkedEntries"]) == (expected["ok"], expected["checkedEntries"])
    assert report["checks"]["signature"] == expected["signature"]["status"]
    # The signature names a policy: without that policy it does not count.
    refused = json.loads(pinwarden(*gate, *demanded, cwd=tmp_path, env=env).out)
    assert [failure["code"] for failure in refused["failures"]] == ["signature_missing"]


def signing(row: dict[str, Any], name: str) -> str:
    return str(FOLDER / "signing" / str(option(row["cmd"], name)))
