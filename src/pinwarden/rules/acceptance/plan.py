"""The nine steps in their order."""

from __future__ import annotations

from pinwarden.core.errors import PinwardenError
from pinwarden.rules.acceptance.verdict import Submission, Verdict, refusal_of


def accept(submission: Submission) -> Verdict:
    """Whether a bundle may be installed. The first check that fails is the answer; there is exactly one code."""
    try:
        return _accept(submission)
    except PinwardenError as err:
        return Verdict(refusal=refusal_of(err))


def _accept(submission: Submission) -> Verdict:
    raise NotImplementedError(submission)
