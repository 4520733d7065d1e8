"""From what a user names on the command line to a surface: a file, a URL, a command, or a server in a client config."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pinwarden.cli.project_arguments import this_project
from pinwarden.core.errors import PinwardenError
from pinwarden.surface.surface import Surface, parse_any
from pinwarden.system.files import read_file

if TYPE_CHECKING:
    from pinwarden.project.server_start import PreparedProbe
    from pinwarden.surface.probe.probe import ProbeOptions
    from pinwarden.system.target import Target

T = TypeVar("T")


def surface_of(name: str, args: Namespace) -> Surface:
    """The surface that a user named: read from a file, or asked from a live server."""
    if name != "-" and "://" not in name and Path(name).exists() and not Path(name).is_dir():
        return _in_file(name, parse_any)
    return probe_target(name, target_of(name, args), args, typed=is_address(name))


def is_address(name: str) -> bool:
    """Whether a user typed an address, and not the name of something in a file."""
    return name.startswith(("https://", "http://"))


def shown_target(name: str) -> str:
    """What a user named, for a report: an address may hold a key."""
    from pinwarden.system.masking import shown_address

    return shown_address(name)


def shown_command(command: list[str]) -> str:
    """The command that stood after ``--``, for a report: an argument may be a key."""
    from pinwarden.system.masking import shown_words

    return " ".join(shown_words(command))


def probe_target(name: str | None, target: Target, args: Namespace, *, typed: bool = False) -> Surface:
    """Ask a live server, as the command line says."""
    return ask(prepared_target(name, target, args, typed=typed))


def prepared_target(name: str | None, target: Target, args: Namespace, *, typed: bool = False) -> PreparedProbe:
    """A target that may be asked. A command without a name has that of its program, for the rules of the policy."""
    from pinwarden.project.server_start import prepare_probe
    from pinwarden.system.target import StdioTarget

    if name is None:
        name = Path(target.command[0]).name if isinstance(target, StdioTarget) else target.url
    return prepare_probe(this_project(), name, target, options_of(args, typed=typed))


def ask(prepared: PreparedProbe) -> Surface:
    """Ask a live server, with a sign of life on the terminal."""
    from pinwarden.cli.progress import Progress
    from pinwarden.project import server_start

    with Progress("asking the server"):
        return server_start.ask(prepared)


def options_of(args: Namespace, *, typed: bool = False) -> ProbeOptions:
    """The probe's options from the command line; ``typed`` if the target itself stands there too.

    A target from a file gets only the variables that the user names.
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


def command_target(command: list[str], args: Namespace) -> Target:
    """The command that stood after ``--``."""
    from pinwarden.system.target import StdioTarget

    return StdioTarget(command=tuple(command), env=variables_of(args))


def variables_of(args: Namespace) -> dict[str, str]:
    """The variables that were given with ``--env``."""
    return dict(_pair(text, "=", "--env") for text in args.env)


def target_of(name: str, args: Namespace) -> Target:
    """A URL, or a server that a client config names."""
    from pinwarden.system.target import HttpTarget

    if is_address(name):
        return HttpTarget(url=name, headers=dict(_pair(text, ":", "--header") for text in args.header))
    return _configured(name, args)


def _in_file(name: str, read: Callable[[bytes], T]) -> T:
    """What a file holds; an error says which file it is about."""
    data = read_file(Path(name))
    try:
        return read(data)
    except PinwardenError as err:
        raise PinwardenError(err.code, f"{name}: {err.message}", hint=err.hint, data=err.data) from err


def _configured(name: str, args: Namespace) -> Target:
    if args.config:
        from pinwarden.clients.config import read_document, servers_in

        servers = _in_file(args.config, lambda data: servers_in(read_document(data, args.config)))
        if name in servers:
            return servers[name]
        raise _unknown(name, f"{args.config} names no such server")
    return _discovered(name)


def _discovered(name: str) -> Target:
    """A server from the files that ``init`` reads as well. Where they disagree, nobody can tell which one is meant."""
    project = this_project()
    files = project.configs()
    found = [
        (server.target, project.shown(server.path))
        for file in files
        for server in file.servers
        if server.name == name and server.target is not None
    ]
    if not found:
        unread = [f"; {project.shown(file.path)} could not be read: {file.problem}" for file in files if file.fault]
        if Path(name).is_file():
            raise PinwardenError(
                "TARGET_INVALID",
                f"{name[:80]!a} is a file, and a server is asked for",
                hint="Give an https URL, a command after --, or a name from a client config, which --config names",
            )
        why = "it is a directory" if Path(name).is_dir() else "there is no such file"
        raise _unknown(name, f"{why}, and no client config here names such a server" + "".join(unread))
    if any(target != found[0][0] for target, _ in found):
        places = ", ".join(dict.fromkeys(place for _, place in found))
        raise PinwardenError(
            "TARGET_INVALID", f"{name[:80]!a} is not the same in {places}", hint="Name one of them with --config FILE"
        )
    return found[0][0]


def _unknown(name: str, why: str) -> PinwardenError:
    return PinwardenError(
        "TARGET_INVALID",
        f"{name[:80]!a}: {why}",
        hint="Give a surface file, an https URL, a name from a client config, or a command after --",
    )


def _pair(text: str, mark: str, option: str) -> tuple[str, str]:
    name, found, value = text.partition(mark)
    if not found or not name.strip():
        raise PinwardenError("USAGE", f"{option} takes NAME{mark}VALUE")
    return name.strip(), value.strip() if mark == ":" else value
