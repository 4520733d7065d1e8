"""``remote``: connect remote servers that need a token of the person who uses them."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.commands import command
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import (
    add_database_argument,
    add_project_arguments,
    approver_from,
    open_database,
    project_from,
)
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.project.remote_access import find_local_owner, load_remote_settings

if TYPE_CHECKING:
    from pinwarden.gateway.state import GatewayState
    from pinwarden.identity.grants import GrantOwner
    from pinwarden.project.project import Project


def _configure_owner(parser: ArgumentParser) -> None:
    owner = parser.add_mutually_exclusive_group()
    owner.add_argument("--shared", action="store_true", help='for all users, if [remotes.NAME] says account = "shared"')
    owner.add_argument(
        "--for", dest="client", metavar="CLIENT", help="for the client of the gateway with a static token of this name"
    )
    parser.add_argument("--policy", metavar="FILE", help="file with [remotes] (default: the project's pinwarden.toml)")
    parser.add_argument(
        "--by", metavar="NAME", help="name to record in the audit log (default: PINWARDEN_APPROVER, or your user name)"
    )
    parser.set_defaults(why="")
    add_project_arguments(parser)
    add_database_argument(parser)
    add_format_argument(parser)


def _configure_remote_connect(parser: ArgumentParser) -> None:
    parser.add_argument("server", help="name of the locked server")
    parser.add_argument(
        "--register", action="store_true", help="let Pinwarden register itself as a client at an issuer that offers it"
    )
    parser.add_argument("--port", type=int, default=0, help="port of the redirect URI (default: any free port)")
    parser.add_argument("--open", action="store_true", help="open the browser, instead of only printing the URL")
    parser.add_argument(
        "--allow-private", action="store_true", help="allow a server and an issuer whose names have private addresses"
    )
    _configure_owner(parser)


@command(_configure_remote_connect)
def remote_connect(args: Namespace) -> int:
    """Connect a remote server with your account there, so that pinwarden run can use it.

    The server names its issuer. There you log in with your browser, and allow Pinwarden to use the server for you. The
    tokens are encrypted with a key that only you can read, renewed when they expire, and sent to this server only.

    Examples:
      pinwarden remote connect notes --open
      pinwarden remote connect notes --register
    """
    from pinwarden.gateway.remote_grants import (
        find_remote_target,
        finish_connecting,
        open_remote_tokens,
        report_connected,
    )
    from pinwarden.identity.code_flow import LOGIN_SECONDS, belongs_to_login
    from pinwarden.identity.loopback import LoopbackRedirect

    person, project = approver_from(args), _find_project(args)
    target = find_remote_target(project, args.server, allow_private=args.allow_private)
    if args.shared != (target.settings.account == "shared"):
        setting = f'account = "shared" in [remotes.{args.server}] of pinwarden.toml'
        problem = f"--shared needs {setting}" if args.shared else f"with {setting}, add --shared"
        raise PinwardenError("USAGE", problem)
    with open_database(args, project) as state, LoopbackRedirect(args.port) as redirect:
        tokens = open_remote_tokens(state, project.variables, create_key=True)
        owner = _find_owner(args, state)
        pending, url = tokens.begin(target, owner, redirect.uri, may_register=args.register)
        sys.stderr.write(
            f"{target.server} asks you to allow access at {pending.request.client.issuer}"
            f" ({' '.join(pending.request.scopes) or 'no scopes'}).\nOpen this address in your browser:\n{url}\n"
        )
        sys.stderr.flush()
        if args.open:
            import webbrowser

            webbrowser.open(url)
        begun = pending.request
        query = redirect.wait(lambda query: belongs_to_login(query, begun.state), LOGIN_SECONDS, begun.redirect_uri)
        grant = finish_connecting(state, tokens, pending, query, person.by)
    return emit(report_connected(grant), args.format)


def _configure_remote_list(parser: ArgumentParser) -> None:
    _configure_owner(parser)


@command(_configure_remote_list)
def remote_list(args: Namespace) -> int:
    """List the connected remote servers of all owners, and what you have to connect.

    Examples:
      pinwarden remote list
    """
    from pinwarden.gateway.remote_grants import list_missing, report_grants
    from pinwarden.identity.grants import list_grants

    project = _find_project(args)
    with open_database(args, project) as state:
        grants = list_grants(state.grants_database)
        owner = _find_owner(args, state) if args.shared or args.client else None
        chosen = [grant for grant in grants if owner in (None, grant.owner)]
        missing = list_missing(project, grants, find_local_owner(state.folder))
    return emit(report_grants(chosen, missing), args.format)


def _configure_remote_forget(parser: ArgumentParser) -> None:
    parser.add_argument("server", help="name of the server, or id of a grant")
    parser.add_argument("--all", action="store_true", help="forget the grants of all owners for this server")
    _configure_owner(parser)


@command(_configure_remote_forget)
def remote_forget(args: Namespace) -> int:
    """Forget a connected server: delete its tokens, and ask the issuer to revoke them.

    Examples:
      pinwarden remote forget notes
      pinwarden remote forget 4f0c2a9be1d37785
    """
    from pinwarden.gateway.remote_grants import find_remote_target, forget_grants, open_remote_tokens
    from pinwarden.identity.grants import list_grants

    person, name = approver_from(args), args.server
    args.server = None
    project = _find_project(args)
    with open_database(args, project) as state:
        grants = list_grants(state.grants_database)
        owner = _find_owner(args, state)
        chosen = [
            grant
            for grant in grants
            if grant.id == name or (grant.server == name and (args.all or grant.owner == owner))
        ]
        if not chosen:
            raise PinwardenError(
                "REMOTE_NOT_CONNECTED", f"{name[:120]!a} is not connected", hint="See pinwarden remote list."
            )
        targets = {}
        for server in {grant.server for grant in chosen}:
            try:
                targets[server] = find_remote_target(project, server)
            except PinwardenError:
                continue  # it is no longer locked: its tokens are deleted all the same
        tokens = open_remote_tokens(state, project.variables)
        report = forget_grants(state, tokens, chosen, targets, person.by)
    return emit(report, args.format)


def _find_owner(args: Namespace, state: GatewayState) -> GrantOwner:
    from pinwarden.identity.grants import EVERYONE, STATIC, GrantOwner

    if args.shared:
        return EVERYONE
    return GrantOwner(issuer=STATIC, subject=args.client) if args.client else find_local_owner(state.folder)


def _find_project(args: Namespace) -> Project:
    project = project_from(args)
    project = replace(project, policy=Path(args.policy)) if args.policy else project
    load_remote_settings(project.policy_file, project.variables)
    return project
