"""Options for connecting to a live server, and how a server named on the command line becomes a surface."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pinwarden.cli.project_arguments import find_current_project
from pinwarden.core.errors import PinwardenError
from pinwarden.system.probe_budget import PROBE_SECONDS

if TYPE_CHECKING:
    from pinwarden.project.server_start import PreparedProbe
    from pinwarden.surface.probe.probe import ProbeOptions
    from pinwarden.surface.surface import Surface
    from pinwarden.system.target import Target

_MAX_SECONDS = 86_400
_MAX_PROBE_SECONDS = 3600

T = TypeVar("T")


def add_log_arguments(parser: ArgumentParser) -> None:
    """Add the options for the log that a gateway writes to stderr."""
    parser.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        default="info",
        help="minimum level of log lines on stderr (default: info)",
    )
    parser.add_argument(
        "--log-format",
        choices=["text", "json"],
        default="text",
        help="format of log lines on stderr: text, or JSON objects with time, level and message (default: text)",
    )


def add_probe_arguments(parser: ArgumentParser) -> None:
    """Add the options of every command that may connect to a live server."""
    live = parser.add_argument_group("connecting to a live server")
    live.add_argument("--allow-execute", action="store_true", help="allow Pinwarden to start the server's command")
    live.add_argument("--allow-private", action="store_true", help="allow connecting to loopback and private addresses")
    live.add_argument("--allow-redirects", action="store_true", help="follow HTTP redirects; every target is checked")
    live.add_argument("--sandbox", action="store_true", help="start the command in a bubblewrap sandbox, offline")
    live.add_argument(
        "--timeout",
        type=probe_seconds,
        default=PROBE_SECONDS,
        metavar="SECONDS",
        help=f"time limit for connecting and listing everything (default: {PROBE_SECONDS:g})",
    )
    live.add_argument(
        "--client-name",
        default="pinwarden",
        metavar="NAME",
        help="client name to send to the server (default: pinwarden)",
    )
    live.add_argument(
        "--pass-env",
        action="append",
        default=[],
        metavar="NAME",
        help="environment variable to pass to the server: a started command inherits it, and its value replaces "
        "${NAME} in a configured URL and its headers; repeatable",
    )


def add_target_arguments(parser: ArgumentParser) -> None:
    """Add the options of commands whose server is named on the command line, not in a lock or registry."""
    group = parser.add_argument_group("the server")
    group.add_argument("--config", metavar="FILE", help="client configuration that contains the server")
    group.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="HTTP header to send to a URL; ${VAR} is replaced by the environment variable; repeatable",
    )
    group.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="environment variable for the server command after --; repeatable",
    )


def add_response_argument(parser: ArgumentParser) -> None:
    """Add ``--response-seconds``: how long a server may take for a response."""
    from pinwarden.gateway.session.deferred import RESPONSE_SECONDS

    parser.add_argument(
        "--response-seconds",
        type=parse_seconds,
        default=RESPONSE_SECONDS,
        metavar="SECONDS",
        help="time limit for a server's response; a progress notification restarts it; when it expires, the client "
        f"gets an error and the server a cancellation (default: {RESPONSE_SECONDS:g}; 0: no limit)",
    )


def parse_seconds(text: str) -> float:
    """Return the value of an option in seconds, from 0 to one day, so that a typo cannot disable a limit."""
    value = _parse_number(text)
    if value is None or value > _MAX_SECONDS:
        raise ArgumentTypeError(f"{text[:80]!a} is not a number of seconds from 0 to {_MAX_SECONDS}")
    return value


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of an option."""
    host, separator, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ArgumentTypeError(f"{text[:80]!a} is not HOST:PORT")
    return host, int(port)


def parse_host(text: str) -> str:
    """Return a host name as in a Host header, without the port. Other values would never match."""
    name = text.removeprefix("[").removesuffix("]")
    if not text or not text.isascii() or set(text) & set("/@?# ") or (":" in text and name.count(":") < 2):
        raise ArgumentTypeError(f"{text[:80]!a} is not a host name; leave out https:// and the port")
    return name


def bracket_ipv6(host: str) -> str:
    """Return a host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def probe_seconds(text: str) -> float:
    """Return the value of an option in seconds, more than 0 and at most one hour."""
    value = _parse_number(text)
    if not value or value > _MAX_PROBE_SECONDS:
        raise ArgumentTypeError(f"{text[:40]!a} is not a number of seconds above 0 and at most {_MAX_PROBE_SECONDS}")
    return value


def load_surface(name: str, args: Namespace) -> Surface:
    """Return the surface that the user named: from a file, or from the live server."""
    from pinwarden.surface.surface import parse_surface_or_listing

    if is_file(name):
        return _parse_file(name, parse_surface_or_listing)
    return probe_target(name, parse_target(name, args), args, typed=is_url(name))


def load_file_targets(name: str) -> dict[str, Target]:
    """Return the servers of a client configuration that the user named, by name; empty for other files."""
    from pinwarden.clients.config import parse_targets
    from pinwarden.clients.documents import read_document

    try:
        return _parse_file(name, lambda data: parse_targets(read_document(data, name)))
    except PinwardenError:
        return {}


def is_file(name: str) -> bool:
    """Whether the user named a file, not a URL or a server."""
    return name != "-" and "://" not in name and Path(name).exists() and not Path(name).is_dir()


def is_url(name: str) -> bool:
    """Whether the user typed a URL, not the name of a server or file."""
    return name.startswith(("https://", "http://"))


def mask_target(name: str) -> str:
    """Return the target that the user named, for a report: secrets in a URL are masked."""
    from pinwarden.system.masking import mask_url

    return mask_url(name)


def mask_command(command: list[str]) -> str:
    """Return the command after ``--``, for a report: secrets in arguments are masked."""
    from pinwarden.system.masking import mask_words

    return " ".join(mask_words(command))


def probe_target(name: str | None, target: Target, args: Namespace, *, typed: bool = False) -> Surface:
    """Connect to a live server and list everything it offers."""
    return run_probe(prepare_target(name, target, args, typed=typed))


def prepare_target(name: str | None, target: Target, args: Namespace, *, typed: bool = False) -> PreparedProbe:
    """Check a target against the policy. A command without a name gets the name of its program."""
    from pinwarden.project.server_start import prepare_probe
    from pinwarden.system.target import StdioTarget

    if name is None:
        name = Path(target.command[0]).name if isinstance(target, StdioTarget) else target.url
    return prepare_probe(find_current_project(), name, target, probe_options(args, typed=typed))


def run_probe(prepared: PreparedProbe) -> Surface:
    """Connect to a live server, showing progress on a terminal."""
    from pinwarden.cli.streams import Progress
    from pinwarden.project import server_start

    with Progress("connecting to the server"):
        return server_start.probe_server(prepared)


def probe_options(args: Namespace, *, typed: bool = False) -> ProbeOptions:
    """Return the probe's options. ``typed``: the user typed the target itself, so its headers may use any variable.

    A target from a file gets only the variables named with ``--pass-env``.
    """
    from pinwarden.surface.probe.probe import ProbeOptions
    from pinwarden.surface.probe.session import ClientIdentity
    from pinwarden.system.sandbox import Sandbox

    return ProbeOptions(
        allow_execute=args.allow_execute,
        allow_private=args.allow_private,
        allow_redirects=args.allow_redirects,
        sandbox=Sandbox() if args.sandbox else None,
        timeout=args.timeout,
        client=ClientIdentity(name=args.client_name),
        env_allow=tuple(args.pass_env),
        send_only=None if typed else tuple(args.pass_env),
    )


def build_command_target(command: list[str], args: Namespace) -> Target:
    """Return the command after ``--`` as a target, with the variables of ``--env``."""
    from pinwarden.system.target import StdioTarget

    return StdioTarget(command=tuple(command), env=parse_variables(args))


def parse_variables(args: Namespace) -> dict[str, str]:
    """Return the variables given with ``--env``."""
    return dict(_split_pair(text, "=", "--env") for text in args.env)


def parse_target(name: str, args: Namespace) -> Target:
    """Return the target that the user named: a URL, or a server in a client configuration."""
    from pinwarden.system.target import HttpTarget

    if is_url(name):
        return HttpTarget(url=name, headers=dict(_split_pair(text, ":", "--header") for text in args.header))
    return _find_configured(name, args)


def _parse_file(name: str, parse: Callable[[bytes], T]) -> T:
    """Parse a file; an error names the file."""
    from pinwarden.system.files import read_file

    data = read_file(Path(name))
    try:
        return parse(data)
    except PinwardenError as err:
        raise PinwardenError(err.code, f"{name}: {err.message}", hint=err.hint, data=err.data) from err


def _find_configured(name: str, args: Namespace) -> Target:
    if args.config:
        from pinwarden.clients.config import parse_targets
        from pinwarden.clients.documents import read_document

        servers = _parse_file(args.config, lambda data: parse_targets(read_document(data, args.config)))
        if name in servers:
            return servers[name]
        raise _unknown_target_error(name, f"{args.config} has no server of this name")
    return _discover_configured(name)


def _discover_configured(name: str) -> Target:
    """Return a server in the files that ``init`` reads. If they disagree, the user has to choose one."""
    project = find_current_project()
    files = project.find_all_configs()
    matches = [
        (server.target, project.display_path(server.path))
        for file in files
        for server in file.servers
        if server.name == name and server.target is not None
    ]
    if not matches:
        unreadable = [
            f"; {project.display_path(file.path)} could not be read: {file.problem}" for file in files if file.fault
        ]
        if Path(name).is_file():
            raise PinwardenError(
                "TARGET_INVALID",
                f"{name[:80]!a} is a file, but this command needs a server",
                hint="Give an https URL, a command after --, or a server's name from a client configuration (--config)",
            )
        problem = "it is a directory" if Path(name).is_dir() else "there is no such file"
        raise _unknown_target_error(
            name, f"{problem}, and no client configuration has such a server{''.join(unreadable)}"
        )
    if any(target != matches[0][0] for target, _ in matches):
        paths = ", ".join(dict.fromkeys(path for _, path in matches))
        raise PinwardenError(
            "TARGET_INVALID",
            f"{name[:80]!a} is configured differently in {paths}",
            hint="Choose one: --config FILE",
        )
    return matches[0][0]


def _unknown_target_error(name: str, problem: str) -> PinwardenError:
    return PinwardenError(
        "TARGET_INVALID",
        f"{name[:80]!a}: {problem}",
        hint="Give a surface file, an https URL, a server's name from a client configuration, or a command after --",
    )


def _split_pair(text: str, separator: str, option: str) -> tuple[str, str]:
    name, _, value = text.partition(separator)
    if separator not in text or not name.strip():
        raise PinwardenError("USAGE", f"{option} takes NAME{separator}VALUE")
    return name.strip(), value.strip() if separator == ":" else value


def _parse_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value >= 0 else None
