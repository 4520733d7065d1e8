"""What the registry's operator did reaches those who install, and those who locked."""

from __future__ import annotations

from typing import Any

import pytest

from pinwarden.bundle.log_documents import Constraints
from pinwarden.bundle.trust import AttestationKey, TrustedKey, add_key
from pinwarden.bundle.trust_files import change_trust
from pinwarden.core.keys import PrivateKey
from pinwarden.registry import ownership
from pinwarden.registry.requirements import set_requirements
from pinwarden.registry.takedowns import reinstate, take_down
from tests.install.desk import Desk
from tests.install.world import VERA, User
from tests.registry.world import ACME, MALLORY, SERVER, attested, bundle

WHY = "acme.notes 1.0.0 was taken down by the registry's operator at "
HEIR = PrivateKey.from_seed(b"h" * 32).public_key.did


def _messages(report: Any, code: str) -> list[str]:
    rows = [row for name in ("failures", "remarks", "findings", "changes") for row in report.get(name, [])]
    return [row["message"] for row in rows if row["code"] == code]


def test_lock_holders_hear_of_a_takedown_and_can_update(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    assert desk.install()[0] == 0
    take_down(desk.user.world.registry, "acme.notes", "1.0.0", "it sends notes away")
    desk.write_export()

    code, report = desk.install("--client", "claude")
    assert (code, report["error"]["code"]) == (1, "VERSION_TAKEN_DOWN")
    assert "it sends notes away" in report["error"]["what"]
    code, report = desk.run("ci")  # offline: uses the log state that install saved
    assert code == 1
    assert [message.startswith(WHY) for message in _messages(report, "version_taken_down")] == [True]
    code, report = desk.run("fetch", "--registry", str(desk.export))
    assert code == 1
    assert WHY in desk.started().stderr
    assert desk.update()[0] == 1

    desk.publish(bundle(version="1.1.0", content=SERVER + b"# fixed\n"))
    code, report = desk.update("--yes")
    assert _messages(report, "version_taken_down")
    assert desk.record()["bundle"]["version"] == "1.1.0"
    code, report = desk.run("ci")
    assert (code, _messages(report, "version_taken_down")) == (0, [])


def test_a_reinstated_version_is_no_longer_reported(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    desk.install()
    registry = desk.user.world.registry
    take_down(registry, "acme.notes", None, "a mistake")
    desk.write_export()
    assert desk.install()[1]["error"]["code"] == "VERSION_TAKEN_DOWN"
    assert desk.run("ci")[0] == 1
    reinstate(registry, "acme.notes", None, "sorry")
    desk.write_export()
    assert desk.run("fetch", "--registry", str(desk.export))[0] == 0
    assert desk.run("ci")[0] == 0


def test_lock_holders_hear_of_a_new_owner_of_the_namespace(desk: Desk) -> None:
    desk.publish(bundle(content=SERVER))
    desk.install()
    ownership.start_recovery(desk.user.world.registry, "acme", HEIR, "key lost", 7)
    desk.write_export()
    code, report = desk.run("fetch", "--registry", str(desk.export))
    assert (code, len(_messages(report, "namespace_owner_changed"))) == (0, 1)
    code, report = desk.run("ci")
    assert code == 0
    assert _messages(report, "namespace_owner_changed")[0].startswith("recovery-start of acme at ")


@pytest.mark.parametrize(
    ("constraints", "code"),
    [
        (Constraints(min_attestations=2), "INSUFFICIENT_ATTESTATIONS"),
        (Constraints(require_signers=(MALLORY.public_key.did,)), "REQUIRED_SIGNER_MISSING"),
        (Constraints(require_verifier_attestation=True), "VERIFIER_ATTESTATION_REQUIRED"),
        (Constraints(require_signers=(VERA.public_key.did,)), None),
    ],
)
def test_an_operator_decides_what_step_seven_requires(user: User, constraints: Constraints, code: str | None) -> None:
    role = "maintainer" if constraints.require_verifier_attestation else "verifier"
    made = bundle()
    if role == "maintainer":
        known = TrustedKey(key=ACME.public_key, name="acme maintainer", roles=("maintainer",))
        change_trust(
            user.trust, lambda store: add_key(store, AttestationKey(key=known, added_at="2026-01-01T00:00:00Z"))
        )
        user.publish(made, attestations=[attested(made, ACME)])
    else:
        user.publish(made)
    assert user.accepts()
    registry = user.world.registry
    set_requirements(registry, "acme", "beta", Constraints(min_attestations=9), "another channel")
    assert user.accepts()
    set_requirements(registry, "acme", None, constraints, "audited")
    if code is None:
        assert user.accepts()
    else:
        assert user.code() == code
    set_requirements(registry, "acme.notes", "stable", Constraints(), "an exception for one bundle")
    assert user.accepts()
    set_requirements(registry, "acme.notes", "stable", None, "no exception")
    assert user.accepts() == (code is None)
