"""Serve all locked servers over Streamable HTTP: each at /mcp/SERVER, and all of them together at /mcp.

Nothing that was not approved reaches a client. Clients show a token (pinwarden gateway token add CLIENT); if there is
none, one is made for this run and printed, and only this machine may use it. The lock, the policy and the tokens are
read again when they change. SIGTERM lets requests in flight end for --drain-seconds; the gateway ends at most five
seconds later. A second SIGTERM cuts them off.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.durations import add_answer_argument, seconds
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, project_of
from pinwarden.cli.state_arguments import add_state_argument, state_from
from pinwarden.cli.streams import say
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.record import replace
from pinwarden.gateway.http.limits import HttpLimits

if TYPE_CHECKING:
    from pinwarden.gateway.http.gateway import Settings
    from pinwarden.gateway.http.locked import Locked
    from pinwarden.gateway.state import GatewayState

_NO_LIMIT = 10 * 365 * 86_400.0  # seconds
_MOST_PROCESSES = 4096
_SENTENCES = 200  # in a second; those of all servers on their own standard error are among them
_LAST_WORDS_SECONDS = 2.0  # how long the end waits for somebody to read


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument(
        "--listen", type=_address, default=("127.0.0.1", 8642), metavar="HOST:PORT", help="127.0.0.1:8642; port 0: any"
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain in PEM form")
    parser.add_argument("--tls-key", metavar="FILE", help="its private key, if it is not in the same file")
    parser.add_argument("--policy", metavar="FILE", help="a policy file in place of the project's pinwarden.toml")
    parser.add_argument(
        "--allow-host",
        action="append",
        type=_host,
        default=[],
        metavar="NAME",
        help="a name under which clients reach the gateway",
    )
    parser.add_argument(
        "--allow-origin",
        action="append",
        type=_origin,
        default=[],
        metavar="ORIGIN",
        help="a web page's origin that may ask, as https://app.example",
    )
    parser.add_argument(
        "--allow-execute", action="store_true", help="start commands as configured where their bytes are not verified"
    )
    parser.add_argument(
        "--allow-private", action="store_true", help="contact remote servers whose names lead to private addresses"
    )
    parser.add_argument(
        "--pass-env", action="append", default=[], metavar="NAME", help="a variable that servers may be given"
    )
    parser.add_argument(
        "--when-away",
        choices=["refuse", "spool"],
        default="refuse",
        help="if the audit database is away (refuse)",
    )
    parser.add_argument(
        "--approvals",
        choices=["database", "lock"],
        default="database",
        help="which approvals count: those of the lock and of the database (database), or of the lock alone",
    )
    _add_limits(parser)
    parser.add_argument(
        "--check", action="store_true", help="say what would be served, and end; exit code 1 if anything is not"
    )
    add_project_arguments(parser)
    add_state_argument(parser)
    add_format_argument(parser)


def _add_limits(parser: ArgumentParser) -> None:
    limits = HttpLimits()
    add_answer_argument(parser)
    parser.add_argument(
        "--drain-seconds",
        type=seconds,
        default=limits.drain_seconds,
        metavar="SECONDS",
        help=f"for requests in flight to end after SIGTERM ({limits.drain_seconds:g}); the gateway ends "
        "at most 5 seconds later",
    )
    parser.add_argument(
        "--max-processes",
        type=_count,
        default=limits.max_children,
        metavar="N",
        help=f"server processes that may run at once ({limits.max_children}); one more is refused with an error",
    )
    parser.add_argument(
        "--shared-processes",
        action=BooleanOptionalAction,
        default=limits.share_processes,
        help="run one process for all clients of a server that needs no session (2026-07-28); this is the default",
    )
    parser.add_argument(
        "--idle-seconds",
        type=seconds,
        default=limits.session_seconds,
        metavar="SECONDS",
        help=f"end sessions, and their processes, that were not used for so long ({limits.session_seconds:g})",
    )


def run(args: Namespace) -> int:
    """Open everything, say where, and serve until told to end."""
    _refuse_without_packages()
    from pinwarden.cli.progress import Progress
    from pinwarden.gateway.http.gateway import HttpGateway, serve
    from pinwarden.gateway.inside_server import running_gateway
    from pinwarden.gateway.log_output import Telling

    settings = _settings(args)
    project = replace(project_of(args), policy=_path(args.policy))
    complete = True
    with state_from(args, project) as state, ExitStack() as showing:
        token = _token_of_this_run(state, settings)
        showing.enter_context(Progress("reading the lock and preparing the servers"))

        def started(taken: str, number: int, locked: Locked) -> None:
            nonlocal complete
            complete = not locked.problems
            showing.close()
            _announce(args.format, f"{'https' if args.tls_cert else 'http'}://{_shown(taken)}:{number}", locked)
            if token and not args.check:
                say(f"no client has a token yet; for this run only: Authorization: Bearer {token}")

        tell = Telling(say, most=_SENTENCES)
        try:
            with running_gateway(state.running, client=None):
                drained = serve(HttpGateway(project, state, settings, tell), started, token, once=args.check)
            if not drained:
                tell("some requests were cut off")
        finally:
            tell.close(_LAST_WORDS_SECONDS)
    return EXIT_REFUSED if args.check and not complete else EXIT_CLEAN


def _refuse_without_packages() -> None:
    try:
        import pinwarden.gateway.http.gateway  # noqa: F401
    except ImportError as err:
        raise PinwardenError(
            "GATEWAY_UNAVAILABLE",
            f"the gateway over HTTP needs the package {err.name}, which is not installed",
            hint='Install it from the checkout of Pinwarden, which is in no package index: pip install ".[gateway]"',
        ) from err


def _settings(args: Namespace) -> Settings:
    from pinwarden.gateway.http.gateway import Settings
    from pinwarden.gateway.http.locked import Permissions
    from pinwarden.gateway.http.serving import Listening

    if bool(args.tls_key) and not args.tls_cert:
        raise PinwardenError("USAGE", "--tls-key needs --tls-cert")
    host, port = args.listen
    return Settings(
        listening=Listening(host=host, port=port, certificate=_path(args.tls_cert), key=_path(args.tls_key)),
        permissions=Permissions(execute=args.allow_execute, private=args.allow_private, variables=tuple(args.pass_env)),
        hosts=tuple(args.allow_host),
        origins=tuple(args.allow_origin),
        when_away=args.when_away,
        shared_approvals=args.approvals == "database",
        limits=HttpLimits(
            drain_seconds=args.drain_seconds,
            max_children=args.max_processes,
            share_processes=args.shared_processes,
            session_seconds=args.idle_seconds,
            answer_seconds=args.answer_seconds or _NO_LIMIT,
        ),
    )


def _token_of_this_run(state: GatewayState, settings: Settings) -> str:
    """A token, if no client has one; empty if one has."""
    from pinwarden.gateway.http.gateway import LOOPBACK
    from pinwarden.gateway.store.tokens import new_token

    host = settings.listening.host
    token = "" if state.tokens.valid() else new_token()
    if token and host not in LOOPBACK:
        raise PinwardenError(
            "GATEWAY_UNAVAILABLE",
            f"{host} can be reached from elsewhere, and no client has a token",
            hint="Make one with: pinwarden gateway token add CLIENT",
        )
    if host not in LOOPBACK and settings.listening.certificate is None:
        say("tokens reach this address unencrypted: give --tls-cert, or let only a web server with TLS reach it")
    return token


def _announce(form: str, base: str, locked: Locked) -> None:
    """The addresses are what was asked for; the rest is for whoever looks on."""
    from pinwarden.core.report import Report, counted
    from pinwarden.gateway.http.locked import CONSENT_HINT

    servers = {each.name: f"{base}/mcp/{slug}" for slug, each in sorted(locked.upstreams.items())}
    problems = dict(sorted(locked.problems.items()))
    facts = {
        "servers": servers,
        "merged": f"{base}/mcp",
        "not_served": problems,
        "unapproved": list(locked.unapproved),
    }
    for name, problem in problems.items():
        say(f"{name} is not served: {problem}")
    if locked.needs_consent:
        say(f"hint: {CONSENT_HINT}")
    for name in locked.unapproved:
        say(f"{name}: nothing that it tells is approved, so all of it is withheld; see pinwarden approve {name}")
    if form == "text":
        width = max(map(len, ("all servers", *servers)))
        lines = [f"{name:{width}}  {url}\n" for name, url in (*servers.items(), ("all servers", f"{base}/mcp"))]
        sys.stdout.write("".join(lines))
        sys.stdout.flush()
        return
    summary = f"{counted(len(servers), 'server')} served"
    emit(Report(command="gateway", subject=base, summary=summary, exit_code=0, facts=facts), form)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _address(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ArgumentTypeError(f"{text[:80]!a} is not HOST:PORT")
    return host, int(port)


def _count(text: str) -> int:
    """How many processes: each may take a thread, and three open files."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= _MOST_PROCESSES or len(text) > 9:
        raise ArgumentTypeError(f"{text[:80]!a} is not a number of processes from 1 to {_MOST_PROCESSES}")
    return int(text)


def _host(text: str) -> str:
    """A name as it stands in a Host header, without the port: one with more in it would never be asked for."""
    name = text.removeprefix("[").removesuffix("]")
    if not text or not text.isascii() or set(text) & set("/@?# ") or (":" in text and name.count(":") < 2):
        raise ArgumentTypeError(f"{text[:80]!a} is not the name of a host; write it without https:// and port")
    return name


def _origin(text: str) -> str:
    """An origin as browsers send it: scheme and host, and the port if it is not the usual one."""
    scheme, separator, rest = text.rstrip("/").partition("://")
    if text == "null":
        raise ArgumentTypeError("null is the origin of any page that a browser shuts in, and names nobody")
    if not separator or not scheme or not rest or set(rest) & set("/@?# *"):
        raise ArgumentTypeError(f"{text[:80]!a} is no origin; write it as https://app.example")
    return text
