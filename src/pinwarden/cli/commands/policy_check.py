"""Hold every locked server, or one, against the policy. What a waiver lets pass is still shown.

The policies are pinwarden.toml and .toolpin/policy.json, both if both are there, or the file that --policy names. A
blocked server is refused whatever they say. Exit code 1 if anything is refused.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, project_of


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("server", nargs="?", metavar="SERVER[:client]", help="only this one")
    parser.add_argument("--policy", metavar="FILE", help="another policy than the project's")
    parser.add_argument(
        "--environment", default="default", metavar="NAME", help="whose minimum tier of the policy counts"
    )
    add_project_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Check and report."""
    from pinwarden.project.policies import check_policy, policies_in
    from pinwarden.system.clock import now

    project = project_of(args)
    policies = policies_in(project, Path(args.policy) if args.policy else None, args.environment)
    return emit(check_policy(project, policies, now=now(), server=args.server), args.format)
