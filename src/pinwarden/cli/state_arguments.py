"""The option that says where the gateway keeps its events, and the state that it names."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pinwarden.cli.project_arguments import this_project

if TYPE_CHECKING:
    from pinwarden.gateway.state import GatewayState
    from pinwarden.project.project import Project


def add_state_argument(parser: ArgumentParser) -> None:
    """``--audit``."""
    parser.add_argument(
        "--audit",
        metavar="DATABASE",
        help="where events and reviews are kept: a file or postgresql://… (PINWARDEN_DATABASE, or a file of this user)",
    )


def state_from(args: Namespace, project: Project | None = None) -> GatewayState:
    """The state that the option or the environment names."""
    from pinwarden.gateway.state import state_of

    return state_of(project or this_project(), args.audit)


def state_to_read_from(args: Namespace, project: Project | None = None, *, needed: bool = False) -> GatewayState:
    """The same for a command that reads it: nothing is made where there is none."""
    from pinwarden.gateway.state import state_to_read

    return state_to_read(project or this_project(), args.audit, needed=needed)
