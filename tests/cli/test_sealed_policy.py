"""``ci`` and what a pull request must not do in passing: loosen the policy, or put an older signed lock back."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.run import Outcome, pinwarden
from tests.conformance.vectors import vectors_dir

TOOLPIN = vectors_dir() / "toolpin"
AUDIT = '[policy]\nversion = 1\n[policy.gateway]\nenforcement = "audit"\n'
STRICT = '[policy]\nversion = 1\n[policy.gateway]\nblock-at = "info"\n'
LOOSE = {
    "enforcement": 'enforcement = "warn"',
    "unknown": 'unknown = "allow_degraded"',
    "block-at": 'block-at = "critical"',
    "one rule": '[[policy.gateway.rules]]\nserver = "*"\nenforcement = "audit"',
    "a digest": f'[[policy.gateway.allow]]\ntool = "search"\ndigest = "sha256:{"0" * 64}"',
    "lists": "relist-seconds = 86400",
    "calls": "relist-calls = 0",
}


class Repository:
    """A project with a lock, in git."""

    def __init__(self, root: Path) -> None:
        self.root = root / "project"
        self.home = root / "home"
        for folder in (self.root, self.home):
            folder.mkdir()
        self.clock = 1784548800
        shutil.copy(TOOLPIN / "locks/npm.claude.mcp-lock.json", self.root / "mcp-lock.json")

    def run(self, *arguments: str) -> Outcome:
        env = {"HOME": str(self.home), "SOURCE_DATE_EPOCH": str(self.clock), "PINWARDEN_APPROVER": "ada"}
        return pinwarden(*arguments, cwd=self.root, env=env)

    def policy(self, text: str) -> None:
        (self.root / "pinwarden.toml").write_text(text)

    def digest(self) -> str:
        return self.run("lock", "digest", "--sealed").out.split()[0]

    def ci(self, *arguments: str) -> tuple[int, list[str]]:
        done = self.run("ci", "--format", "json", "--no-configs", *arguments)
        report: dict[str, Any] = json.loads(done.out)
        if "error" in report:
            return done.code, [report["error"]["code"]]
        return done.code, [row["code"] for row in report["failures"]]

    def sign(self, later: int, *arguments: str) -> None:
        self.clock += later
        done = self.run("lock", "sign", "--dsse", "--key", "ada", *arguments)
        assert done.code == 0, done.err

    def git(self, *words: str) -> None:
        own = ["git", "-c", "user.name=me", "-c", "user.email=me@example.com", "-c", "commit.gpgsign=false"]
        subprocess.run([*own, *words], cwd=self.root, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_attack_a_pull_request_that_only_adds_a_looser_policy_fails_with_and_without_a_digest(
    repository: Repository,
) -> None:
    kept = repository.digest()
    assert repository.ci("--expect-digest", kept) == (0, [])
    repository.policy(AUDIT)
    assert repository.ci("--expect-digest", kept) == (1, ["policy_changed", "policy_loosened"])
    assert repository.ci() == (1, ["policy_loosened"])


@pytest.mark.parametrize("line", LOOSE.values(), ids=LOOSE)
def test_everything_that_is_looser_than_no_policy_is_a_finding(repository: Repository, line: str) -> None:
    repository.policy(f"[policy.gateway]\n{line}\n")
    assert repository.ci() == (1, ["policy_loosened"])


def test_a_digest_that_is_kept_outside_covers_the_policy_and_its_absence(repository: Repository) -> None:
    without = repository.digest()
    repository.policy(AUDIT)
    loose = repository.digest()
    assert repository.ci("--expect-digest", loose) == (0, [])  # it was reviewed, and is not looser than that
    repository.policy(STRICT)
    assert repository.ci("--expect-digest", loose) == (1, ["digest_mismatch"])
    assert repository.ci("--expect-digest", repository.digest()) == (0, [])
    (repository.root / "pinwarden.toml").unlink()
    assert repository.ci("--expect-digest", loose) == (1, ["digest_mismatch"])
    assert repository.ci("--expect-digest", without) == (0, [])
    (repository.root / ".toolpin").mkdir()
    (repository.root / ".toolpin/policy.json").write_text('{"version": 1, "minTrustScore": 1}')
    assert "policy_changed" in repository.ci("--expect-digest", without)[1]


def test_a_stricter_policy_is_not_a_finding(repository: Repository) -> None:
    repository.policy(STRICT)
    assert repository.ci() == (0, [])


def test_a_signature_that_names_the_policy_covers_it_and_one_that_names_none_does_not(repository: Repository) -> None:
    repository.run("keygen", "ada")
    repository.sign(0)
    repository.policy(AUDIT)
    assert repository.ci("--public-key", "ada.pub") == (1, ["signature_missing", "policy_loosened"])
    repository.sign(1, "--policy", "pinwarden.toml")
    assert repository.ci("--public-key", "ada.pub") == (0, [])
    (repository.root / "pinwarden.toml").unlink()
    assert repository.ci("--public-key", "ada.pub") == (1, ["signature_missing"])


# Rollback


def older_signature(repository: Repository) -> bytes:
    """The first signature of a lock that was changed and signed again since."""
    repository.run("keygen", "ada")
    repository.sign(0)
    older = (repository.root / "mcp-lock.sig").read_bytes()
    lock = repository.root / "mcp-lock.json"
    lock.write_bytes(lock.read_bytes() + b"\n")
    repository.sign(3600)
    return older


def roll_back(repository: Repository, older: bytes) -> None:
    (repository.root / "mcp-lock.sig").write_bytes(older)
    shutil.copy(TOOLPIN / "locks/npm.claude.mcp-lock.json", repository.root / "mcp-lock.json")


def test_attack_an_older_signed_lock_that_is_put_back_is_refused_by_the_time_that_is_kept_outside(
    repository: Repository,
) -> None:
    older = older_signature(repository)
    since = "2026-07-20T13:00:00Z"
    assert repository.ci("--public-key", "ada.pub", "--signed-since", since) == (0, [])
    roll_back(repository, older)
    assert repository.ci("--public-key", "ada.pub") == (0, [])  # it is whole, and was signed once
    code, codes = repository.ci("--public-key", "ada.pub", "--signed-since", since)
    assert (code, codes) == (1, ["signature_missing"])
    done = repository.run("ci", "--no-configs", "--public-key", "ada.pub", "--signed-since", since)
    assert "an older lock was restored" in done.out


def test_attack_an_older_signed_lock_that_is_put_back_is_refused_by_the_signature_of_the_target_branch(
    repository: Repository,
) -> None:
    older = older_signature(repository)
    repository.git("init", "-q", "-b", "main")
    repository.git("add", "mcp-lock.json", "mcp-lock.sig")
    repository.git("commit", "-q", "-m", "newer")
    wanted = ("--public-key", "ada.pub", "--signed-since-ref", "main")
    assert repository.ci(*wanted) == (0, [])
    roll_back(repository, older)
    assert repository.ci(*wanted) == (1, ["signature_missing"])


def test_a_target_branch_without_a_signature_requires_nothing_and_a_missing_branch_is_an_error(
    repository: Repository,
) -> None:
    repository.run("keygen", "ada")
    repository.sign(0)
    repository.git("init", "-q", "-b", "main")
    repository.git("commit", "-q", "--allow-empty", "-m", "empty")
    assert repository.ci("--public-key", "ada.pub", "--signed-since-ref", "main") == (0, [])
    for name in ("gone", "--help", "-x"):
        code, codes = repository.ci("--public-key", "ada.pub", f"--signed-since-ref={name}")
        assert (code, codes) == (3, ["FILE_UNREADABLE"])


@pytest.mark.parametrize("option", ["--signed-since=yesterday", "--signed-since=2026-07-20T13:00:00"])
def test_a_time_without_a_zone_is_a_usage_error(repository: Repository, option: str) -> None:
    repository.run("keygen", "ada")
    assert repository.run("ci", "--public-key", "ada.pub", option).code == 2
    assert repository.run("ci", option).code == 2
