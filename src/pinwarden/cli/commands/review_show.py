"""Show what approving a change would change, and the definition that would be approved."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import this_project
from pinwarden.cli.state_arguments import add_state_argument, state_to_read_from


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("name", help="the name of the change, as pinwarden review list prints it")
    add_state_argument(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Show and report."""
    from pinwarden.gateway.review import show_review

    project = this_project()
    with state_to_read_from(args, project) as state:
        _, report = show_review(state, project, args.name)
    if args.format != "text":
        return emit(report, args.format)
    from pinwarden.cli.review_view import print_review

    print_review(report, definition=True)
    return report.exit_code
