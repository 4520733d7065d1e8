"""What the original's command line says and how it exits, for those who compare the two.

It has one exit code for drift, a missing file, a corrupt file and a wrong argument. Ours has three
(``core/errors.py``); ``exit_code_now`` tells which.
"""

from __future__ import annotations

from pinwarden.contract.dialect import F1, Dialect
from pinwarden.contract.lockfile import Lockfile, LockfileCheckResult
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED
from pinwarden.core.record import Record


class Outcome(Record):
    """The last words of a run. What comes before them is progress, which differs with every release."""

    exit_code: int
    stdout: str = ""
    stderr_end: str = ""
    exit_code_now: int
    """How ``pinwarden contract`` exits in the same situation."""


def lock_outcome(lockfile: Lockfile, dialect: Dialect) -> Outcome:
    """After writing a lockfile."""
    tools, prompts = len(lockfile.tools), len(lockfile.prompts)
    told = f"{tools} tool{'' if tools == 1 else 's'}"
    if prompts:
        told += f", {prompts} prompt{'' if prompts == 1 else 's'}"
    out = f"\n✓ {dialect.file_name} generated ({told}).\n  Integrity: {lockfile.integrity_digest}\n"
    return Outcome(exit_code=EXIT_CLEAN, stdout=out, exit_code_now=EXIT_CLEAN)


def check_outcome(result: LockfileCheckResult | None, dialect: Dialect) -> Outcome:
    """After a check; None where no lockfile was found, which includes one that could not be read."""
    name, program = dialect.file_name, dialect.program
    if result is None:
        end = f"\n✗ No {name} found. Run `{program} lock` to generate.\n"
        if dialect is not F1:
            end = f"  ✗ Reading existing lockfile — {name} not found — run: {program} lock\n"
        return Outcome(exit_code=EXIT_REFUSED, stderr_end=end, exit_code_now=EXIT_UNCHECKED)
    if result.ok:
        return Outcome(exit_code=EXIT_CLEAN, stdout=f"\n✓ {name} is up to date.\n", exit_code_now=EXIT_CLEAN)
    moved = (
        ("+ Tools added", result.added),
        ("- Tools removed", result.removed),
        ("~ Tools changed", result.changed),
        ("+ Prompts added", result.added_prompts),
        ("- Prompts removed", result.removed_prompts),
        ("~ Prompts changed", result.changed_prompts),
    )
    lines = [f"  {what}: {', '.join(names)}" for what, names in moved if names]
    end = "\n".join((f"\n✗ {result.message}", *lines)) + "\n"
    return Outcome(exit_code=EXIT_REFUSED, stderr_end=end, exit_code_now=EXIT_REFUSED)
