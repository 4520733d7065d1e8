"""``policy``: write, check and try policies, and explain what they decide."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.commands import command
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import (
    add_database_argument,
    add_project_arguments,
    project_from,
    read_database,
)
from pinwarden.core.errors import PinwardenError

_POLICY_HELP = "policy file (default: pinwarden.toml and .toolpin/policy.json in the project)"


def _configure_policy_init(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--recommended", action="store_true", help="also require pinned container images and hashes of MCPB bundles"
    )
    parser.add_argument("--toolpin", action="store_true", help="write .toolpin/policy.json, which ToolPin reads too")
    parser.add_argument("--force", action="store_true", help="replace an existing policy")
    add_project_arguments(parser)
    add_format_argument(parser)


@command(_configure_policy_init)
def policy_init(args: Namespace) -> int:
    """Write a policy to start from: a [policy] table in pinwarden.toml, with every rule explained in a comment.

    Without --recommended, only a minimum trust tier is enabled; you can enable the other rules in the file.

    Examples:
      pinwarden policy init --recommended
      pinwarden policy init --force
    """
    from pinwarden.project.policy_commands import init_policy

    report = init_policy(project_from(args), recommended=args.recommended, toolpin=args.toolpin, force=args.force)
    return emit(report, args.format)


def _configure_policy_check(parser: ArgumentParser) -> None:
    parser.add_argument("server", nargs="?", metavar="SERVER[:client]", help="check only this server (default: all)")
    parser.add_argument("--policy", metavar="FILE", help=_POLICY_HELP)
    parser.add_argument(
        "--environment",
        default="default",
        metavar="NAME",
        help="apply the minimum trust tier that the policy sets for this environment (default: default)",
    )
    add_project_arguments(parser)
    add_format_argument(parser)


@command(_configure_policy_check)
def policy_check(args: Namespace) -> int:
    """Check the locked servers against the policy. The exit code is 1 if a server breaks a rule.

    If both policy files exist, both apply. Violations that a waiver allows are shown as well.

    Examples:
      pinwarden policy check
      pinwarden policy check notes --environment production
    """
    from pinwarden.project.policy_commands import check_policy, load_required_policies
    from pinwarden.system.clock import now

    project = project_from(args)
    policies = load_required_policies(project, Path(args.policy) if args.policy else None, args.environment)
    return emit(check_policy(project, policies, now=now(), server=args.server), args.format)


def _configure_policy_digest(parser: ArgumentParser) -> None:
    parser.add_argument("--policy", metavar="FILE", help=_POLICY_HELP)
    add_project_arguments(parser)
    add_format_argument(parser)


@command(_configure_policy_digest)
def policy_digest(args: Namespace) -> int:
    """Print the digest of the policy, which a signature of the lock includes.

    For a ToolPin policy, this is the digest that ToolPin computes.

    Examples:
      pinwarden policy digest
    """
    from pinwarden.project.policy_commands import report_policy_digest

    return emit(report_policy_digest(project_from(args), Path(args.policy) if args.policy else None), args.format)


def _configure_policy_generate(parser: ArgumentParser) -> None:
    parser.add_argument("--server", action="append", default=[], metavar="NAME", help="only this server; repeatable")
    parser.add_argument(
        "--all",
        action="store_true",
        help="all recorded servers, also those of other projects and commands without a lock",
    )
    parser.add_argument("--only-called", action="store_true", help="leave out tools that were never called")
    parser.add_argument("--output", "-o", default="-", metavar="FILE", help="new file to write (default: stdout)")
    add_project_arguments(parser)
    add_database_argument(parser)
    add_format_argument(parser)


@command(_configure_policy_generate, writes="policy")
def policy_generate(args: Namespace) -> int:
    """Propose a gateway policy from what the gateway recorded, for example after a week with enforcement = "audit".

    Each definition is allowed by its digest, with a comment on how long it was seen and how often it was called.
    Definitions that look like an attack, changed, appeared twice, were rejected or were blocked are left out, with the
    reason. In a project with a lock, the policy covers the servers in that lock. It takes effect when you put it into
    pinwarden.toml.

    Examples:
      pinwarden policy generate
      pinwarden policy generate --all --only-called --output proposed.toml
    """
    from pinwarden.cli.streams import Progress
    from pinwarden.gateway.policy_generate import PolicyScope, find_lock_scope, generate_policy

    if args.all and args.server:
        raise PinwardenError("USAGE", "--all and --server cannot be used together")
    project = project_from(args)
    names = tuple(args.server)
    coverage = PolicyScope(servers=names) if names or args.all else find_lock_scope(project)
    with read_database(args, project) as state, Progress("reading the recorded events"):
        proposal = generate_policy(state, coverage, only_called=args.only_called)
    if args.output != "-":
        from pinwarden.system.files import create_file

        create_file(Path(args.output), proposal.text.encode())
    if args.output != "-" or args.format != "text":
        return emit(proposal.report, args.format)
    sys.stdout.write(proposal.text)
    sys.stdout.flush()
    sys.stderr.write(f"{proposal.report.summary}\n")
    for note in proposal.report.notes:
        sys.stderr.write(f"note: {note}\n")
    return proposal.report.exit_code


def _configure_policy_explain(parser: ArgumentParser) -> None:
    parser.add_argument("--tool", required=True, metavar="NAME", help="the tool that is called")
    parser.add_argument("--client", default="", metavar="NAME", help="the client that calls it, as in the audit log")
    parser.add_argument("--server", metavar="NAME", help="only this server (default: all with such a tool)")
    parser.add_argument("--team", action="append", default=[], metavar="NAME", help="team of the client; repeatable")
    parser.add_argument("--policy", metavar="FILE", help="policy file (default: pinwarden.toml in the project)")
    add_project_arguments(parser)
    add_format_argument(parser)


@command(_configure_policy_explain)
def policy_explain(args: Namespace) -> int:
    """Explain which rule of [[policy.gateway.rules]] decides on the calls of a tool by a client, and its limits.

    Examples:
      pinwarden policy explain --client laptop --tool search_notes
      pinwarden policy explain --client alice@desk --team platform --tool delete_note --server notes
    """
    from pinwarden.core.record import replace
    from pinwarden.gateway.policy_explain import explain_policy

    project = project_from(args)
    if args.policy:
        project = replace(project, policy=Path(args.policy))
    return emit(explain_policy(project, args.tool, args.server, args.client, tuple(args.team)), args.format)


def _configure_policy_what_if(parser: ArgumentParser) -> None:
    parser.add_argument("proposed", metavar="FILE", help="the policy to try, like a pinwarden.toml; - for stdin")
    parser.add_argument(
        "--days",
        type=int,
        default=7,
        metavar="DAYS",
        help="days of recorded calls, up to 90 (default: 7)",
    )
    add_project_arguments(parser)
    add_database_argument(parser)
    add_format_argument(parser)


@command(_configure_policy_what_if)
def policy_what_if(args: Namespace) -> int:
    """Show what another policy would have done with the calls of the last days, compared with the present policy.

    Lists each item whose verdict would change, with the client and the number of its recorded calls, and how many of
    them a limit would have refused. Stores nothing.

    Examples:
      pinwarden policy what-if proposed.toml
      pinwarden policy what-if proposed.toml --days 30 --format json
    """
    from pinwarden.gateway.policy_what_if import MAX_DAYS, MAX_POLICY_BYTES, report_what_if
    from pinwarden.system.files import read_file

    if not 1 <= args.days <= MAX_DAYS:
        raise PinwardenError("USAGE", f"--days must be between 1 and {MAX_DAYS}")
    if args.proposed == "-":
        policy = sys.stdin.buffer.read(MAX_POLICY_BYTES)
    else:
        policy = read_file(Path(args.proposed), MAX_POLICY_BYTES)
    project = project_from(args)
    with read_database(args, project) as state:
        report = report_what_if(project, state, policy, args.days, time.time())
    return emit(report, args.format)
