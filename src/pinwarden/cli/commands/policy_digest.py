"""Print the digest of the policy, which a signature of the lock names. ToolPin's policy has the digest of ToolPin."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, project_of


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("--policy", metavar="FILE", help="another policy than the project's")
    add_project_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Digest and print."""
    from pinwarden.project.policies import digest_policy

    return emit(digest_policy(project_of(args), Path(args.policy) if args.policy else None), args.format)
