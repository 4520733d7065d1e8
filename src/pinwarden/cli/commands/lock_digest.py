"""Print the digest of a whole lockfile, as ToolPin computes it, after checking that the file is whole.

Exit code 1 if anything in the file, or an approved surface beside it, is not what was approved.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, project_of


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument(
        "--sealed",
        action="store_true",
        help="print the digest for ci --expect-digest: of the whole file, and of the policy if there is one",
    )
    add_project_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Verify, digest and print."""
    from pinwarden.project.lock_digest import lock_digest
    from pinwarden.project.project import load_policies

    project = project_of(args)
    return emit(lock_digest(project.lock, load_policies(project) if args.sealed else None), args.format)
