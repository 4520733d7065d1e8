"""List the locked servers: what each is, for whom, how far it is trusted, whether its surface is pinned, and by whom.

Exit code 1 if the lock is not what was approved; it is listed all the same.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, project_of

_HEADINGS = ("NAME", "VERSION", "CLIENT", "SCOPE", "TIER", "SURFACE", "APPROVED BY", "TARGET")


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_project_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """List and report."""
    from pinwarden.project.explain import list_locked

    report = list_locked(project_of(args))
    if args.format == "text":
        from pinwarden.cli.layout import table

        sys.stdout.write(
            table(
                _HEADINGS,
                (
                    (
                        row["name"],
                        row["version"] or "-",
                        *(row[member] for member in ("client", "scope")),
                        row["tier"] or "unknown",
                        "pinned" if row["surface_pinned"] else "not pinned",
                        row["approved_by"] or "not recorded",
                        row["target"],
                    )
                    for row in report.facts["entries"]
                ),
            )
        )
    return emit(report, args.format)
