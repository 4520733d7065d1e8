"""policy init, policy check and policy digest as a user meets them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pinwarden.lock.entry import Entry, with_integrity
from pinwarden.lock.policy import parse_policy
from tests.cli.run import Outcome, pinwarden
from tests.conformance.vectors import load, vectors_dir
from tests.support.locks import NOON, entry

TOOLPIN = vectors_dir() / "toolpin"
NOON_EPOCH = {"SOURCE_DATE_EPOCH": "1784548800"}  # 2026-07-20T12:00:00Z, when the vectors were made
POLICIES = sorted(path for path in (TOOLPIN / "policies").glob("*.json") if path.name.count(".") == 1)
READABLE = [path for path in POLICIES if path.with_suffix(".digest.json").read_bytes().strip()]
WAIVED = """
[policy]
minimum-tier = {{ default = "conditional", production = "verified" }}

[[policy.waivers]]
server = "io.github.acme/*"
code = "tier_below_minimum"
reason = "reviewed by hand"
owner = "ada@example.org"
expires = {expires}
"""


def project(folder: Path, lock: str = "locks/whole.mcp-lock.json") -> Path:
    (folder / "mcp-lock.json").write_bytes((TOOLPIN / lock).read_bytes())
    return folder


def lock_of(folder: Path, *entries: Entry) -> Path:
    servers = {entry.key: entry.document for entry in entries}
    lock = {"lockfileVersion": 2, "generatedAt": NOON, "updatedAt": NOON, "servers": servers}
    (folder / "mcp-lock.json").write_text(json.dumps(lock))
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def parse_report(outcome: Outcome) -> Any:
    return json.loads(outcome.out)


class TestDigest:
    @pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
    def test_a_policy_has_toolpins_digest_or_is_refused_by_both(self, path: Path) -> None:
        stated = path.with_suffix(".digest.json").read_bytes().strip()
        outcome = pinwarden("policy", "digest", "--policy", str(path), "--format", "json")
        if stated:
            assert (outcome.code, parse_report(outcome)["digest"]) == (0, json.loads(stated)["digest"])
        else:
            assert (outcome.code, parse_report(outcome)["error"]["code"]) == (3, "POLICY_INVALID")

    def test_the_text_is_the_digest_and_nothing_else(self, tmp_path: Path) -> None:
        pinwarden("policy", "init", "--recommended", cwd=tmp_path)
        outcome = pinwarden("policy", "digest", cwd=tmp_path)
        digest = parse_policy((tmp_path / "pinwarden.toml").read_bytes()).digest.sri
        assert (outcome.code, outcome.out) == (0, f"{digest}\n")

    def test_with_two_policies_one_must_be_named(self, tmp_path: Path) -> None:
        for form in ((), ("--toolpin",)):
            pinwarden("policy", "init", "--recommended", *form, cwd=tmp_path)
        assert pinwarden("policy", "digest", cwd=tmp_path).code == 2
        for name in ("pinwarden.toml", ".toolpin/policy.json"):
            assert pinwarden("policy", "digest", "--policy", name, cwd=tmp_path).code == 0

    @pytest.mark.parametrize("arguments", [(), ("--policy", "missing.json"), ("--policy", "missing.toml")])
    def test_no_policy_has_no_digest(self, tmp_path: Path, arguments: tuple[str, ...]) -> None:
        outcome = pinwarden("policy", "digest", *arguments, cwd=tmp_path)
        assert outcome.code == 3
        assert outcome.out == ""


class TestInit:
    def test_the_recommended_policy_has_toolpins_requirements(self, tmp_path: Path) -> None:
        assert pinwarden("policy", "init", "--recommended", cwd=tmp_path).code == 0
        text = (tmp_path / "pinwarden.toml").read_text()
        policy = parse_policy(text.encode())
        assert policy.minimum_tier == {"default": "conditional"}
        assert policy.require_pinned_images
        assert policy.require_bundle_hashes
        assert "# " in text

    def test_every_rule_that_is_commented_out_can_be_switched_on(self, tmp_path: Path) -> None:
        assert pinwarden("policy", "init", cwd=tmp_path).code == 0
        lines = (tmp_path / "pinwarden.toml").read_text().splitlines()
        bare = [line.removeprefix("# ") if line.startswith("# ") and _is_rule(line) else line for line in lines]
        policy = parse_policy("\n".join(bare).encode())
        assert policy.deny_remotes
        assert policy.required_evidence
        assert policy.minimum_age_days == 3
        assert len(policy.waivers) == 1

    def test_the_toolpin_policy_is_identical_to_toolpins(self, tmp_path: Path) -> None:
        assert pinwarden("policy", "init", "--recommended", "--toolpin", cwd=tmp_path).code == 0
        assert json.loads((tmp_path / ".toolpin/policy.json").read_bytes()) == load("toolpin/policies/recommended.json")

    @pytest.mark.parametrize("form", [(), ("--toolpin",)])
    def test_an_existing_policy_is_kept_unless_forced(self, tmp_path: Path, form: tuple[str, ...]) -> None:
        pinwarden("policy", "init", *form, cwd=tmp_path)
        before = files(tmp_path)
        refused = pinwarden("policy", "init", "--recommended", *form, cwd=tmp_path)
        assert (refused.code, files(tmp_path)) == (1, before)
        assert "--force" in refused.err
        assert pinwarden("policy", "init", "--recommended", "--force", *form, cwd=tmp_path).code == 0
        assert files(tmp_path) != before

    def test_other_tables_of_the_file_stay_as_they_are(self, tmp_path: Path) -> None:
        path = tmp_path / "pinwarden.toml"
        path.write_text("# ours\n[gateway]\nport = 1\n")
        assert pinwarden("policy", "init", cwd=tmp_path).code == 0
        assert path.read_text().startswith("# ours\n[gateway]\nport = 1\n\n[policy]\n")
        before = files(tmp_path)
        assert pinwarden("policy", "init", "--force", cwd=tmp_path).code == 1
        assert files(tmp_path) == before

    def test_a_damaged_file_is_not_overwritten(self, tmp_path: Path) -> None:
        (tmp_path / "pinwarden.toml").write_text("[policy\n")
        outcome = pinwarden("policy", "init", "--force", cwd=tmp_path)
        assert outcome.code == 3
        assert files(tmp_path) == {"pinwarden.toml": b"[policy\n"}

    def test_a_link_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "other").write_text("")
        (tmp_path / "pinwarden.toml").symlink_to(tmp_path / "other")
        assert pinwarden("policy", "init", "--force", cwd=tmp_path).code == 1
        assert (tmp_path / "other").read_text() == ""


def _is_rule(line: str) -> bool:
    bare = line.removeprefix("# ")
    if bare.startswith(" "):  # another way to write the rule that follows
        return False
    return bare.startswith("[") or " = " in bare.split('"')[0]


class TestCheck:
    @pytest.mark.parametrize("path", READABLE, ids=lambda path: path.stem)
    def test_a_lock_is_refused_for_the_same_reasons_as_by_toolpin(self, tmp_path: Path, path: Path) -> None:
        expected = json.loads(path.with_suffix(".ci.json").read_bytes())
        outcome = pinwarden(
            "policy", "check", "--policy", str(path), "--format", "json", cwd=project(tmp_path), env=NOON_EPOCH
        )
        facts = parse_report(outcome)
        conditions = {
            (row["server"], row["client"]): "; ".join(
                f"{finding['code']}: {finding['message']}" for finding in row["findings"]
            )
            for row in facts["entries"]
            if not row["ok"]
        }
        assert conditions == {(row["entryName"], row["client"]): row["condition"] for row in expected["failures"]}
        assert (outcome.code, facts["ok"]) == (0 if expected["ok"] else 1, expected["ok"])
        assert len(facts["entries"]) == expected["checkedEntries"]

    def test_both_policies_of_a_project_count(self, tmp_path: Path) -> None:
        here = project(tmp_path)
        pinwarden("policy", "init", cwd=here)
        own = parse_report(pinwarden("policy", "check", "--format", "json", cwd=here))
        (here / ".toolpin").mkdir()
        (here / ".toolpin/policy.json").write_text('{"deniedClients": ["vscode"]}')
        both = parse_report(pinwarden("policy", "check", "--format", "json", cwd=here))
        denied = {row["client"] for row in both["entries"] if "client_denied" in str(row["findings"])}
        assert denied == {"vscode"}
        assert own["policies"].keys() == {"pinwarden"}
        assert both["policies"].keys() == {"pinwarden", "toolpin"}

    def test_one_server_is_checked_if_it_is_named(self, tmp_path: Path) -> None:
        here = project(tmp_path)
        pinwarden("policy", "init", "--recommended", cwd=here)
        good = pinwarden("policy", "check", "io.github.acme/npm-notes", cwd=here)
        bad = pinwarden("policy", "check", "io.github.acme/oci-tagged:vscode", "--format", "json", cwd=here)
        assert (good.code, bad.code) == (0, 1)
        assert [row["key"] for row in parse_report(bad)["entries"]] == ["io.github.acme/oci-tagged:vscode"]

    def test_a_server_that_is_not_locked_is_not_allowed(self, tmp_path: Path) -> None:
        here = project(tmp_path)
        pinwarden("policy", "init", cwd=here)
        outcome = pinwarden("policy", "check", "io.github.acme/npm-note", cwd=here)
        assert outcome.code == 1
        assert "did you mean 'io.github.acme/npm-notes'" in outcome.err

    def test_a_waiver_is_shown_until_it_expires(self, tmp_path: Path) -> None:
        here = lock_of(tmp_path, entry())
        asked = ("policy", "check", "--environment", "production")
        today = on_its_last_day = None
        while today != datetime.now(UTC).date():  # which may end while the command runs
            today = datetime.now(UTC).date()  # SOURCE_DATE_EPOCH does not make a waiver last longer
            (here / "pinwarden.toml").write_text(WAIVED.format(expires=today))
            on_its_last_day = pinwarden(*asked, cwd=here, env=NOON_EPOCH)
        assert today is not None
        assert on_its_last_day is not None
        yesterday = today - timedelta(days=1)
        (here / "pinwarden.toml").write_text(WAIVED.format(expires=yesterday))
        a_day_later = pinwarden(*asked, cwd=here, env=NOON_EPOCH)
        assert (on_its_last_day.code, a_day_later.code) == (0, 1)
        assert f"waived by ada@example.org until {today}: reviewed by hand" in " ".join(on_its_last_day.out.split())
        assert f"ended on {yesterday}" in " ".join(a_day_later.out.split())

    def test_a_blocked_server_is_refused_whatever_the_policy_says(self, tmp_path: Path) -> None:
        trust = {**entry().trust, "tier": "blocked"}
        here = lock_of(tmp_path, entry(trust=trust))
        (here / "pinwarden.toml").write_text('[policy.servers]\nallow = ["**"]\n')
        outcome = pinwarden("policy", "check", cwd=here)
        assert outcome.code == 1
        assert "verdict_blocked" in outcome.out

    @pytest.mark.parametrize("member", ["capabilityManifest", "resolved"])
    def test_an_incomplete_entry_is_refused(self, tmp_path: Path, member: str) -> None:
        document = {name: value for name, value in entry().document.items() if name not in (member, "locked")}
        here = lock_of(tmp_path, with_integrity(Entry(key=entry().key, document=document)))
        (here / "pinwarden.toml").write_text('[policy]\nminimum-tier = "unverified"\n')
        outcome = pinwarden("policy", "check", cwd=here)
        assert outcome.code == 1
        assert "entry_incomplete" in outcome.out

    def test_a_tampered_lock_is_not_judged(self, tmp_path: Path) -> None:
        here = project(tmp_path, "tamper/trust_score_raised.mcp-lock.json")
        pinwarden("policy", "init", cwd=here)
        outcome = pinwarden("policy", "check", cwd=here)
        assert outcome.code == 1
        assert "[LOCK_TAMPERED]" in outcome.err

    def test_a_hostile_name_cannot_reach_the_terminal(self, tmp_path: Path) -> None:
        """Attack: escape codes and a direction override in the name of a refused server."""
        here = lock_of(tmp_path, entry("\x1b[2Kio.github.acme/notes\u202e"))
        (here / "pinwarden.toml").write_text('[policy]\nminimum-tier = "verified"\n')
        for form in ("text", "json", "sarif", "markdown"):
            outcome = pinwarden("policy", "check", "--format", form, cwd=here)
            assert outcome.code == 1
            assert not set("\x1b\u202e") & set(outcome.out + outcome.err), form

    @pytest.mark.parametrize(
        ("policy", "code"),
        [(None, 3), ("", 3), ("[policy]\n", 3), ("[policy]\nminimum-teir = 'verified'\n", 3), ("[policy", 3)],
    )
    def test_without_a_usable_policy_nothing_is_allowed(self, tmp_path: Path, policy: str | None, code: int) -> None:
        here = project(tmp_path)
        if policy is not None:
            (here / "pinwarden.toml").write_text(policy)
        outcome = pinwarden("policy", "check", cwd=here)
        assert (outcome.code, outcome.out) == (code, "")

    def test_without_a_lock_nothing_is_checked(self, tmp_path: Path) -> None:
        pinwarden("policy", "init", cwd=tmp_path)
        outcome = pinwarden("policy", "check", cwd=tmp_path)
        assert outcome.code == 3
        assert "[LOCK_MISSING]" in outcome.err

    def test_the_family_name_alone_lists_its_commands(self) -> None:
        outcome = pinwarden("policy")
        assert outcome.code == 2
        assert "init, check, digest" in outcome.err
