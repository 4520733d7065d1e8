"""``gateway``, the enforcing HTTP proxy, and ``gateway token``, its access tokens."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from contextlib import ExitStack
from typing import TYPE_CHECKING

from pinwarden.cli.commands import command
from pinwarden.cli.commands.alerts import add_alerts_argument, send_gateway_alerts
from pinwarden.cli.key_arguments import KEYS_REQUIRED, PUBLIC_KEY_HELP, parse_signature_count, read_public_keys
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import (
    add_database_argument,
    add_project_arguments,
    find_person,
    open_database,
    project_from,
    to_path,
)
from pinwarden.cli.server_arguments import (
    add_log_arguments,
    add_response_argument,
    bracket_ipv6,
    parse_address,
    parse_host,
    parse_seconds,
)
from pinwarden.cli.streams import print_notice
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import replace
from pinwarden.gateway.http.http_limits import HttpLimits

if TYPE_CHECKING:
    from pinwarden.gateway.http.gateway import Settings
    from pinwarden.gateway.http.upstreams import LockedUpstreams
    from pinwarden.gateway.published_lock import LockSigners
    from pinwarden.gateway.state import GatewayState
    from pinwarden.project.project import Project

_NO_LIMIT = 10 * 365 * 86_400.0  # ten years, in seconds
_MAX_PROCESSES = 4096
_MAX_NOTICES_PER_SECOND = 200  # includes the lines that servers write to stderr
_FLUSH_SECONDS = 2.0  # how long shutdown waits until queued notices are written to stderr
_TOKEN_HEADINGS = ("ID", "CLIENT", "SERVERS", "SCOPES", "EXPIRES", "REVOKED")


def _configure_gateway(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        type=parse_address,
        default=("127.0.0.1", 8642),
        metavar="HOST:PORT",
        help="address to listen on (default: 127.0.0.1:8642); port 0 picks a free one",
    )
    parser.add_argument(
        "--metrics-listen",
        type=parse_address,
        default=None,
        metavar="HOST:PORT",
        help="also serve /metrics, /healthz and /readyz there, without TLS and to anyone who reaches it",
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain in PEM format; enables TLS")
    parser.add_argument("--tls-key", metavar="FILE", help="private key of the certificate, if it is in another file")
    parser.add_argument("--policy", metavar="FILE", help="policy file (default: pinwarden.toml in the project)")
    _add_published_lock_arguments(parser)
    _add_access_arguments(parser)
    parser.add_argument(
        "--when-away",
        choices=["refuse", "spool"],
        default="refuse",
        help="if the audit database is unavailable: block every message, or keep events in a file (default: refuse)",
    )
    parser.add_argument(
        "--approvals",
        choices=["database", "lock"],
        default="database",
        help="approvals to apply: those in the lock and the database, or only those in the lock (default: database)",
    )
    _add_limit_arguments(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="print what would be served, then exit; the exit code is 1 if a server cannot be served or "
        "its approvals cannot be read",
    )
    add_alerts_argument(parser)
    add_log_arguments(parser)
    add_project_arguments(parser)
    add_database_argument(parser)
    add_format_argument(parser)


def _add_published_lock_arguments(parser: ArgumentParser) -> None:
    published = parser.add_argument_group("following a published lock")
    published.add_argument(
        "--published",
        default="",
        metavar="NAME",
        help="serve the lock and the policy that pinwarden lock publish stored in the database under this name",
    )
    published.add_argument("--public-key", nargs="+", action="extend", default=[], metavar="KEY", help=PUBLIC_KEY_HELP)
    published.add_argument(
        "--require-signer",
        dest="require",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="names of keys that must all have signed the published lock",
    )
    published.add_argument(
        "--require-signatures",
        dest="threshold",
        type=parse_signature_count,
        default=1,
        metavar="N",
        help="minimum number of distinct keys that must have signed it (default: 1)",
    )


def _add_access_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--allow-host",
        action="append",
        type=parse_host,
        default=[],
        metavar="NAME",
        help="host name under which clients reach the gateway; repeatable",
    )
    parser.add_argument(
        "--allow-origin",
        action="append",
        type=_parse_origin,
        default=[],
        metavar="ORIGIN",
        help="origin of web pages that may send requests, e.g. https://app.example; repeatable",
    )
    parser.add_argument(
        "--allow-execute",
        action="store_true",
        help="also start servers whose bytes are not verified, with their configured commands",
    )
    parser.add_argument(
        "--allow-private", action="store_true", help="allow remote servers whose names resolve to private addresses"
    )
    parser.add_argument(
        "--dashboard-url",
        default="",
        metavar="URL",
        help="address of the dashboard, for messages to users who have to connect a remote server",
    )
    parser.add_argument(
        "--pass-env",
        action="append",
        default=[],
        metavar="NAME",
        help="environment variable to pass to servers; repeatable",
    )


def _add_limit_arguments(parser: ArgumentParser) -> None:
    limits = HttpLimits()
    add_response_argument(parser)
    parser.add_argument(
        "--drain-seconds",
        type=parse_seconds,
        default=limits.drain_seconds,
        metavar="SECONDS",
        help=f"time for open requests to finish after SIGTERM (default: {limits.drain_seconds:g}); the gateway exits "
        "at most 5 seconds later",
    )
    parser.add_argument(
        "--max-processes",
        type=_parse_process_count,
        default=limits.max_processes,
        metavar="N",
        help=f"maximum number of server processes (default: {limits.max_processes}); further requests get an error",
    )
    parser.add_argument(
        "--shared-processes",
        action=BooleanOptionalAction,
        default=limits.share_processes,
        help="share one process among all clients of a server with the stateless protocol 2026-07-28 (default: yes)",
    )
    parser.add_argument(
        "--idle-seconds",
        type=parse_seconds,
        default=limits.idle_seconds,
        metavar="SECONDS",
        help=f"end sessions and their processes after this time without use (default: {limits.idle_seconds:g})",
    )


@command(_configure_gateway, prints_report=False)
def gateway(args: Namespace) -> int:
    """Serve all locked servers over Streamable HTTP: each at /mcp/SERVER, and all together at /mcp.

    Everything that was not approved is blocked. Clients authenticate with a token (pinwarden gateway token add CLIENT).
    If there is none, the gateway creates one for this run, prints it, and accepts only local connections. Changes to
    the lock, the policy and the tokens take effect while it runs.

    SIGTERM lets open requests finish for --drain-seconds; a second SIGTERM ends them.

    Examples:
      pinwarden gateway --check --allow-execute
      pinwarden gateway --check --listen 127.0.0.1:0 --allow-execute --format json
    """
    _refuse_without_packages()
    from pinwarden.cli.streams import Progress
    from pinwarden.gateway.http.gateway import HttpGateway, serve
    from pinwarden.gateway.inside_server import register_gateway
    from pinwarden.system.service_log import ServiceLog

    settings = _build_settings(args)
    project = replace(project_from(args), policy=to_path(args.policy))
    complete = True
    with open_database(args, project) as state, ExitStack() as progress:
        token = _create_temporary_token(state, settings, project)
        progress.enter_context(Progress("reading the lock and preparing the servers"))

        def announce_start(host: str, port: int, locked: LockedUpstreams) -> None:
            nonlocal complete
            complete = not locked.problems and not server.unreadable - set(locked.unapproved)
            progress.close()
            _announce(args.format, f"{'https' if args.tls_cert else 'http'}://{bracket_ipv6(host)}:{port}", locked)
            if token and not args.check:
                print_notice(f"no client has a token yet; for this run only: Authorization: Bearer {token}")

        notices = ServiceLog(
            print_notice, level=args.log_level, log_format=args.log_format, max_per_second=_MAX_NOTICES_PER_SECOND
        )
        try:
            with (
                register_gateway(state.running_folder, client=None),
                send_gateway_alerts(None if args.check else args.alerts, state, notices),
            ):
                server = HttpGateway(project, state, settings, notices)
                drained = serve(server, announce_start, token, once=args.check)
            if not drained:
                notices("some open requests were ended")
        finally:
            notices.close(_FLUSH_SECONDS)
    return EXIT_REFUSED if args.check and not complete else EXIT_CLEAN


def _configure_gateway_token(parser: ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=["add", "list", "revoke"], help="add, list or revoke tokens")
    parser.add_argument("name", nargs="?", help="name of the client; revoke also accepts the id of a token")
    parser.add_argument(
        "--server",
        action="append",
        default=[],
        metavar="NAME",
        help="server that the client may use (default: all); repeatable",
    )
    parser.add_argument(
        "--allow",
        action="append",
        choices=["read", "call", "metrics"],
        default=[],
        help="what the token allows: to read lists, also to call tools, to read metrics (default: all); repeatable",
    )
    parser.add_argument(
        "--team", action="append", default=[], metavar="NAME", help="team of the client, for policy rules; repeatable"
    )
    parser.add_argument(
        "--days", type=int, default=None, metavar="N", help="with add: days until the token expires (default: 90)"
    )
    add_project_arguments(parser)
    add_database_argument(parser)
    add_format_argument(parser)


@command(_configure_gateway_token)
def gateway_token(args: Namespace) -> int:
    """Add, list or revoke the tokens with which clients authenticate at the gateway.

    A new token is printed once; the database stores only its hash.

    Examples:
      pinwarden gateway token add laptop
      pinwarden gateway token add dashboards --allow metrics --days 365
      pinwarden gateway token list
      pinwarden gateway token revoke laptop
    """
    if args.action is None:
        raise PinwardenError("USAGE", "gateway token needs one of: add, list, revoke")
    if (args.action == "list") != (args.name is None):
        raise PinwardenError("USAGE", f"{args.action} takes {'no name' if args.name else 'the name of a client'}")
    if args.action != "add":
        for option, value in (("--server", args.server), ("--allow", args.allow), ("--team", args.team)):
            if value:
                raise PinwardenError("USAGE", f"{option} can only be used with add")
        if args.days is not None:
            raise PinwardenError("USAGE", "--days can only be used with add")
    project = project_from(args)
    with open_database(args, project) as state:
        return _change_tokens(args, project, state)


def _refuse_without_packages() -> None:
    try:
        import pinwarden.gateway.http.gateway  # noqa: F401
    except ImportError as err:
        raise PinwardenError(
            "GATEWAY_UNAVAILABLE",
            f"the gateway over HTTP needs the package {err.name}, which is not installed",
            hint='Install it from a checkout of Pinwarden: pip install ".[gateway]"',
        ) from err


def _build_settings(args: Namespace) -> Settings:
    from pinwarden.gateway.http.gateway import Settings
    from pinwarden.gateway.http.listener import ListenAddress
    from pinwarden.gateway.http.upstreams import Permissions

    if bool(args.tls_key) and not args.tls_cert:
        raise PinwardenError("USAGE", "--tls-key needs --tls-cert")
    host, port = args.listen
    return Settings(
        listening=ListenAddress(host=host, port=port, certificate=to_path(args.tls_cert), key=to_path(args.tls_key)),
        status=args.metrics_listen,
        permissions=Permissions(execute=args.allow_execute, private=args.allow_private, variables=tuple(args.pass_env)),
        hosts=tuple(args.allow_host),
        origins=tuple(args.allow_origin),
        when_unavailable=args.when_away,
        shared_approvals=args.approvals == "database",
        published=args.published,
        dashboard_url=args.dashboard_url,
        signers=_read_signers(args),
        limits=HttpLimits(
            drain_seconds=args.drain_seconds,
            max_processes=args.max_processes,
            share_processes=args.shared_processes,
            idle_seconds=args.idle_seconds,
            response_seconds=args.response_seconds or _NO_LIMIT,
        ),
    )


def _read_signers(args: Namespace) -> LockSigners | None:
    """Return whose signatures a published lock needs; None if no key is given."""
    if args.published:
        from pinwarden.gateway.store.published_locks import check_name

        check_name(args.published)
        if args.policy or args.approvals == "lock":
            raise PinwardenError("USAGE", "--published cannot be used with --policy or --approvals lock")
    elif args.public_key:
        raise PinwardenError("USAGE", "--public-key needs --published", hint="Name the published lock to follow.")
    if not args.public_key:
        if args.require or args.threshold > 1:
            raise PinwardenError("USAGE", KEYS_REQUIRED)
        return None
    from pinwarden.gateway.published_lock import LockSigners
    from pinwarden.lock.signature import RequiredSigners

    keys = read_public_keys(args.public_key)
    unknown = next((name for name in args.require if name not in keys), None)
    if unknown is not None:
        raise PinwardenError("USAGE", f"no public key is named {unknown[:80]!a}; known names: {', '.join(keys)}")
    return LockSigners(keys=keys, required=RequiredSigners(names=tuple(args.require), threshold=args.threshold))


def _create_temporary_token(state: GatewayState, settings: Settings, project: Project) -> str:
    """Return a token for this run if no client has one, and no issuer gives them one; else an empty string."""
    from pinwarden.gateway.http.gateway import LOOPBACK, load_resource_server
    from pinwarden.gateway.store.tokens import generate_token

    host = settings.listening.host
    has_clients = state.tokens.list_valid() or load_resource_server(project, print_notice) is not None
    token = "" if has_clients else generate_token()
    if token and host not in LOOPBACK:
        raise PinwardenError(
            "GATEWAY_UNAVAILABLE",
            f"{host} is reachable from other machines, but no client has a token",
            hint="Create one: pinwarden gateway token add CLIENT",
        )
    if host not in LOOPBACK and settings.listening.certificate is None:
        print_notice("tokens are sent unencrypted to this address: use --tls-cert, or a reverse proxy with TLS")
    return token


def _announce(output_format: str, base: str, locked: LockedUpstreams) -> None:
    """Print the addresses to stdout, and problems to stderr."""
    from pinwarden.core.report import Report
    from pinwarden.core.text import plural
    from pinwarden.gateway.http.upstreams import CONSENT_HINT

    servers = {upstream.name: f"{base}/mcp/{slug}" for slug, upstream in sorted(locked.upstreams.items())}
    problems = dict(sorted(locked.problems.items()))
    facts = {
        "servers": servers,
        "merged": f"{base}/mcp",
        "not_served": problems,
        "unapproved": list(locked.unapproved),
    }
    for name, problem in problems.items():
        print_notice(f"{name} is not served: {problem}")
    if locked.needs_consent:
        print_notice(f"hint: {CONSENT_HINT}")
    for name in locked.unapproved:
        print_notice(f"{name}: everything is blocked, because nothing is approved; run: pinwarden approve {name}")
    if output_format == "text":
        width = max(map(len, ("all servers", *servers)))
        lines = [f"{name:{width}}  {url}\n" for name, url in (*servers.items(), ("all servers", f"{base}/mcp"))]
        sys.stdout.write("".join(lines))
        sys.stdout.flush()
        return
    summary = f"{plural(len(servers), 'server')} served"
    emit(Report(command="gateway", subject=base, summary=summary, exit_code=0, facts=facts), output_format)


def _parse_process_count(text: str) -> int:
    """Return a number of processes. Each may need a thread and three open files."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= _MAX_PROCESSES or len(text) > 9:
        raise ArgumentTypeError(f"{text[:80]!a} is not a number of processes from 1 to {_MAX_PROCESSES}")
    return int(text)


def _parse_origin(text: str) -> str:
    """Return an origin as browsers send it: scheme and host, and the port if it is not the default."""
    scheme, separator, rest = text.rstrip("/").partition("://")
    if text == "null":
        raise ArgumentTypeError("null is the origin of all sandboxed pages, so it does not identify one")
    if not separator or not scheme or not rest or set(rest) & set("/@?# *"):
        raise ArgumentTypeError(f"{text[:80]!a} is not an origin, such as https://app.example")
    return text


def _change_tokens(args: Namespace, project: Project, state: GatewayState) -> int:
    from pinwarden.gateway.store.tokens import TokenOptions, add_token, list_tokens, revoke_tokens
    from pinwarden.system.clock import wall_clock as now

    if args.action == "add":
        from pinwarden.cli.render.text import wrap

        options = TokenOptions(
            servers=tuple(args.server),
            days=90 if args.days is None else args.days,
            scopes=tuple(args.allow),
            teams=tuple(args.team),
        )
        report, secret = add_token(state, project, args.name, options, now(), find_person())
        if args.format == "text":
            sys.stdout.write(f"{secret}\n")
            sys.stdout.flush()
            sys.stderr.write("".join(map(wrap, (f"{report.summary}: {report.notes[0]}", *report.notes[1:]))))
            return report.exit_code
        return emit(report, args.format)
    if args.action == "revoke":
        return emit(revoke_tokens(state, args.name, now(), find_person()), args.format)
    report = list_tokens(state)
    if args.format == "text" and report.facts["tokens"]:
        from pinwarden.cli.render.text import render_table

        rows = [
            (
                token["id"],
                token["client"],
                ", ".join(token["servers"]) or "all",
                ", ".join(token["scopes"]),
                token["expires_at"] or "never",
                token["revoked_at"] or "-",
            )
            for token in report.facts["tokens"]
        ]
        sys.stdout.write(render_table(_TOKEN_HEADINGS, rows))
    return emit(report, args.format)
