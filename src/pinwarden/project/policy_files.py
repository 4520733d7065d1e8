"""Policy files by their names: which kind each is, and its digest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.report import Report
from pinwarden.lock.policy import Policy, ToolPinPolicy, parse_policy, parse_toolpin_policy
from pinwarden.project.project import OWN_POLICY, TOOLPIN_POLICY, Policies, load_policies, parsed_file

if TYPE_CHECKING:
    from pinwarden.project.project import Project


def read_policy(path: Path) -> Policy | ToolPinPolicy:
    """The policy in a file: ToolPin's if it is JSON, ours if it is TOML."""
    if path.suffix == ".json":
        return parsed_file(path, parse_toolpin_policy)
    return parsed_file(path, parse_policy)


def policy_digest(path: Path | None) -> str | None:
    """The digest that a lock signature names; None where no policy is named. A missing file is an error."""
    return None if path is None else read_policy(path).digest.sri


def policies_in(project: Project, named: Path | None, environment: str = "default") -> Policies:
    """The policy that was named, or else all that the project has; none at all is an error, not consent."""
    if named is None:
        found = load_policies(project, environment)
    else:
        policy = read_policy(named)
        own = policy if isinstance(policy, Policy) else None
        toolpin = policy if isinstance(policy, ToolPinPolicy) else None
        found = Policies(own=own, toolpin=toolpin, environment=environment)
    if not found.any:
        raise PinwardenError(
            "FILE_UNREADABLE",
            f"there is no policy here: neither {OWN_POLICY} with a table [policy] nor {TOOLPIN_POLICY}",
            hint="Write one with pinwarden policy init --recommended, or name one with --policy.",
        )
    return found


def digest_policy(project: Project, named: Path | None = None) -> Report:
    """The report of ``pinwarden policy digest``."""
    if named is not None:
        shown, digest = str(named), read_policy(named).digest.sri
    else:
        found = policies_in(project, None)
        stated = [policy for policy in (found.own, found.toolpin) if policy is not None]
        if len(stated) > 1:
            raise PinwardenError(
                "USAGE",
                f"both {OWN_POLICY} and {TOOLPIN_POLICY} state a policy",
                hint="Name one of them with --policy.",
            )
        shown = str(TOOLPIN_POLICY if found.own is None else OWN_POLICY)
        digest = stated[0].digest.sri
    return Report(
        command="policy digest",
        subject=shown,
        summary=digest,
        exit_code=EXIT_CLEAN,
        facts={"file": shown, "digest": digest},
    )
