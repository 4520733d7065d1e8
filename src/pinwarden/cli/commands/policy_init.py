"""Write a policy to start from: the table [policy] in pinwarden.toml, every rule explained in a comment.

Without --recommended only a minimum tier is in force and the rest is there to be switched on. --toolpin writes
.toolpin/policy.json instead, which ToolPin reads as well. A policy that is there is replaced only with --force.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, project_of


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("--recommended", action="store_true", help="also ask for pinned images and bundle hashes")
    parser.add_argument("--toolpin", action="store_true", help="write .toolpin/policy.json instead")
    parser.add_argument("--force", action="store_true", help="replace a policy that is there")
    add_project_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Write and report."""
    from pinwarden.project.policy_init import init_policy

    report = init_policy(project_of(args), recommended=args.recommended, toolpin=args.toolpin, force=args.force)
    return emit(report, args.format)
