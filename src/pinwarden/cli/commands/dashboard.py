"""``dashboard``: pages on which a person decides about blocked changes."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.commands import command
from pinwarden.cli.project_arguments import (
    add_database_argument,
    add_project_arguments,
    approver_from,
    open_database,
    project_from,
    projects_in_scope,
    to_path,
)
from pinwarden.cli.server_arguments import add_log_arguments, bracket_ipv6, parse_address, parse_host
from pinwarden.cli.streams import print_notice
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace

if TYPE_CHECKING:
    from pinwarden.census.census import Census
    from pinwarden.dashboard.access import SignInCode, Site
    from pinwarden.dashboard.provider_login import ProviderLogin
    from pinwarden.project.project import Project

_FLUSH_SECONDS = 2.0
_ROLES = ("viewer", "reviewer", "admin")


def _configure_dashboard(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        type=parse_address,
        default=("127.0.0.1", 8643),
        metavar="HOST:PORT",
        help="address to listen on (default: 127.0.0.1:8643); port 0 picks a free one",
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain in PEM format; enables TLS")
    parser.add_argument("--tls-key", metavar="FILE", help="private key of the certificate, if it is in another file")
    parser.add_argument(
        "--allow-host",
        action="append",
        type=parse_host,
        default=[],
        metavar="NAME",
        help="host name under which browsers reach the dashboard; repeatable",
    )
    parser.add_argument(
        "--sign-in",
        choices=("code", "provider"),
        default="code",
        help="sign in with codes from the terminal, or at the issuer of [identity] in pinwarden.toml (default: code)",
    )
    parser.add_argument(
        "--public-url",
        metavar="URL",
        help="address that browsers use, to which the issuer sends them back (default: the printed address)",
    )
    parser.add_argument(
        "--policy", metavar="FILE", help="file with [identity] (default: pinwarden.toml in the project)"
    )
    parser.add_argument(
        "--role",
        choices=_ROLES,
        default="admin",
        help="what a person who signs in with a code may do: only look, also decide, or everything (default: admin)",
    )
    parser.add_argument(
        "--by", metavar="NAME", help="name to record as the approver (default: PINWARDEN_APPROVER, or your user name)"
    )
    parser.add_argument(
        "--census",
        metavar="PATH|URL",
        help="database of the census to show (default: PINWARDEN_CENSUS, or a file in the state folder)",
    )
    add_log_arguments(parser)
    add_project_arguments(parser)
    add_database_argument(parser)
    parser.set_defaults(why="")  # each decision has its own reason


@command(_configure_dashboard, prints_report=False)
def dashboard(args: Namespace) -> int:
    """Serve pages on which you review the changes that gateways blocked, and see the state of your servers.

    Prints the address to stdout, and to stderr a code with which you sign in. A code is valid for one sign-in; then the
    next one is printed. Decisions are those of pinwarden review: they are recorded in the audit log with your name, and
    a change that the server replaced in the meantime is refused.

    With --sign-in provider, people sign in at the issuer of [identity] in pinwarden.toml. Decisions are recorded with
    the name that the issuer states, and its groups decide on the role.

    Other machines can reach the dashboard only with --listen, --tls-cert and --allow-host.

    Examples:
      pinwarden dashboard
      pinwarden dashboard --role viewer --listen 127.0.0.1:0
    """
    try:
        from pinwarden.dashboard.app import DashboardApp
        from pinwarden.dashboard.remote_pages import CONNECT_CALLBACK, RemoteConnections
        from pinwarden.registry.http.server import open_listening_socket, serve_app
    except ImportError as err:
        raise PinwardenError(
            "DASHBOARD_UNAVAILABLE",
            f"the dashboard needs the package {err.name}, which is not installed",
            hint='Install it from a checkout of Pinwarden: pip install ".[registry]"',
        ) from err
    from pinwarden.dashboard.sources import Sources
    from pinwarden.system.service_log import ServiceLog

    site, approver = _read_address(args), approver_from(args)
    project = replace(project_from(args), policy=to_path(args.policy))
    with open_database(args, project) as state:
        census = _find_census(args)
        sources = Sources(state=state, project=project, scopes=projects_in_scope(args), census=census)
        listening, address = open_listening_socket(*args.listen)
        with listening:
            port = listening.getsockname()[1]
            host = args.allow_host[0] if args.allow_host else args.listen[0]
            address = f"{'https' if site.is_secure else 'http'}://{bracket_ipv6(host)}:{port}/"
            sign_in = _build_sign_in(args, project, approver.by, address)
            log = ServiceLog(print_notice, level=args.log_level, log_format=args.log_format)
            try:
                certificate, key = to_path(args.tls_cert), to_path(args.tls_key)
                remotes = RemoteConnections(sources, f"{(args.public_url or address).rstrip('/')}/{CONNECT_CALLBACK}")
                app = DashboardApp(sources, site, sign_in, remotes=remotes)
                serve_app(app, listening, log, certificate=certificate, key=key, on_stop=app.close)
            finally:
                log.close(_FLUSH_SECONDS)
                if census is not None:
                    census.close()
    return 0


def _find_census(args: Namespace) -> Census | None:
    """Return the census that the options, the environment or the state folder names."""
    from pinwarden.census.census import Census
    from pinwarden.system.state_folder import find_state_folder

    named = args.census or os.environ.get("PINWARDEN_CENSUS")
    if named:
        return Census(named, create=False)
    default = find_state_folder(os.environ, Path.home()) / "census.sqlite"
    return Census(str(default), create=False) if default.is_file() else None


def _build_sign_in(args: Namespace, project: Project, name: str, address: str) -> SignInCode | ProviderLogin:
    """Print the address, and return how people sign in there."""
    from pinwarden.dashboard.access import DashboardUser, SignInCode

    login = None if args.sign_in == "code" else _open_provider(project, args.public_url or address)
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()
    if login is not None:
        return login
    user = DashboardUser(name=name, role=args.role)
    return SignInCode(user, lambda code: print_notice(f"sign in at {address} with the code {code}"))


def _open_provider(project: Project, public_url: str) -> ProviderLogin:
    try:
        from pinwarden.identity.code_flow import LoginFlow
        from pinwarden.identity.identity_report import load_identity, open_issuer
    except ImportError as err:
        raise PinwardenError(
            "DASHBOARD_UNAVAILABLE",
            f"signing in at an issuer needs the package {err.name}, which is not installed",
            hint='Install it from a checkout of Pinwarden: pip install ".[identity]"',
        ) from err
    from pinwarden.dashboard.provider_login import CALLBACK, ProviderLogin

    settings = load_identity(project.policy_file, project.variables)
    if settings.login is None:
        raise PinwardenError("IDENTITY_INVALID", "identity.login is missing, so people cannot sign in at the issuer")
    flow = LoginFlow(open_issuer(settings, project.variables), settings.login)
    return ProviderLogin(flow, f"{public_url.rstrip('/')}/{CALLBACK}")


def _read_address(args: Namespace) -> Site:
    from pinwarden.dashboard.access import LOOPBACK_HOSTS, build_local_site

    host, _ = args.listen
    if args.tls_key and not args.tls_cert:
        raise PinwardenError("USAGE", "--tls-key needs --tls-cert")
    if host not in LOOPBACK_HOSTS and not args.tls_cert:
        raise PinwardenError(
            "DASHBOARD_UNAVAILABLE",
            f"{host[:80]!a} is reachable from other machines, and without TLS the code and the session can be read",
            hint="Add --tls-cert, or leave out --listen.",
        )
    for file in filter(None, (args.tls_cert, args.tls_key)):
        try:
            Path(file).open("rb").close()
        except OSError as err:
            raise PinwardenError("DASHBOARD_UNAVAILABLE", f"{file} cannot be read: {err.strerror}") from err
    hosts = {*args.allow_host, *((host, *LOOPBACK_HOSTS) if host in LOOPBACK_HOSTS else (host,))}
    return build_local_site(hosts, is_secure=args.tls_cert is not None)
