"""Fetch the bytes of locked servers and of all their dependencies, hash them here, and pin them in the lock.

Nothing of them is run. npm or uv works out what a package depends on. --allow-script approves the install script of one
package, at the bytes that it has now; it runs in a sandbox when pinwarden fetch builds the server.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.fetch_arguments import add_fetch_arguments, workshop
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_approval_arguments, add_project_arguments, approver_of, project_of


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("server", nargs="*", help="names in the lock; default: all")
    parser.add_argument(
        "--allow-script",
        action="append",
        default=[],
        metavar="NAME@VERSION",
        help="approve the install script of this package; may be given again",
    )
    add_project_arguments(parser)
    add_approval_arguments(parser)
    add_format_argument(parser)
    add_fetch_arguments(parser)


def run(args: Namespace) -> int:
    """Fetch, hash, pin."""
    from pinwarden.project.install_scripts import AllowedScripts
    from pinwarden.project.prove import prove
    from pinwarden.system.clock import now

    project, scripts = project_of(args), tuple(args.allow_script)
    allowed = AllowedScripts(names=scripts, by=approver_of(args).by if scripts else "")
    with workshop(args, project, "proving") as shop:
        report = prove(project, args.server, shop, now(), allowed)
    return emit(report, args.format)
