"""The nine steps in words, so that an install can show which were taken and which one stopped it."""

from __future__ import annotations

from typing import Any

from pinwarden.bundle.acceptance.verdict import Refusal
from pinwarden.core.record import Record

PASSED, FAILED, NOT_REACHED = "passed", "failed", "not reached"
_READING = ("JSON_PARSE_ERROR", "JSON_CANONICALIZATION_ERROR")


class Step(Record):
    """One step of the rulebook."""

    number: int
    check: str
    codes: tuple[str, ...]


STEPS = (
    Step(number=1, check="a registry that you trust signed the pointer", codes=("POINTER_SIGNATURE_INVALID",)),
    Step(number=2, check="the channel is no legacy one, or those are allowed", codes=("LEGACY_NOT_ALLOWED",)),
    Step(number=3, check="descriptor and manifest have one meaning", codes=_READING),
    Step(
        number=4,
        check="pointer, descriptor and manifest are about one bundle",
        codes=(
            "CID_PROFILE_MISMATCH",
            "ROOT_CID_MISMATCH",
            "DESCRIPTOR_CID_MISMATCH",
            "MANIFEST_CID_MISMATCH",
            "MANIFEST_DESCRIPTOR_LINK_MISMATCH",
        ),
    ),
    Step(
        number=5,
        check="its files are in order and stay inside",
        codes=("MANIFEST_ENTRY_ORDER_INVALID", "MANIFEST_PATH_INVALID"),
    ),
    Step(
        number=6,
        check="somebody whom you trust vouches for it",
        codes=("ATTESTATION_EXPIRED", "NO_VALID_ATTESTATIONS"),
    ),
    Step(
        number=7,
        check="they are those, and as many, as the registry demands",
        codes=("REQUIRED_SIGNER_MISSING", "VERIFIER_ATTESTATION_REQUIRED", "INSUFFICIENT_ATTESTATIONS"),
    ),
    Step(
        number=8,
        check="you allow what it asks for",
        codes=("POLICY_BLOCKED_NETWORK", "POLICY_BLOCKED_FILESYSTEM", "POLICY_BLOCKED_EXEC"),
    ),
)
ACCEPTED = 9
"""The last step, which is no check: the provenance is written down."""


class PlanLine(Record):
    """One line of the plan: a step of the rulebook by its number, or a check of ours by its name."""

    step: int | None
    check: str
    result: str
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """The line as JSON."""
        return {"step": self.step, "check": self.check, "result": self.result, "detail": self.detail}

    def __str__(self) -> str:
        place = "+" if self.step is None else str(self.step)
        told = f": {self.detail}" if self.detail else ""
        return f"{place}  {self.result:11}  {self.check}{told}"


def step_of(refusal: Refusal) -> int:
    """The step that a refusal comes from. Codes that are not of the rulebook come after its checks."""
    if refusal.code in _READING and refusal.why.get("document") == "pointer":
        return 1
    if refusal.code == "POINTER_NOT_FOUND":
        return 1
    return next((step.number for step in STEPS if refusal.code in step.codes), ACCEPTED)


def plan_of(refusal: Refusal | None, details: dict[int, str], stopped: int | None = None) -> list[PlanLine]:
    """Steps 1 to 8, as far as they were taken. ``stopped`` is where, if the refusal's code does not tell."""
    if stopped is None:
        stopped = ACCEPTED if refusal is None else step_of(refusal)
    lines: list[PlanLine] = []
    for step in STEPS:
        result = PASSED if step.number < stopped else FAILED if step.number == stopped else NOT_REACHED
        told = details.get(step.number, "") if result == PASSED else ""
        if result == FAILED and refusal is not None:
            told = f"{refusal.what} ({refusal.code})"
        lines.append(PlanLine(step=step.number, check=step.check, result=result, detail=told))
    return lines
