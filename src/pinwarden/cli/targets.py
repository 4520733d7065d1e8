"""From what a user names on the command line to a surface: a file, a URL, a command, or a server in a client config."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.adapters.files import read_file
from pinwarden.core.errors import PinwardenError
from pinwarden.documents.surface import Surface, parse_any

if TYPE_CHECKING:
    from pinwarden.adapters.probe.probe import ProbeOptions
    from pinwarden.documents.target import Target


def surface_of(name: str, args: Namespace) -> Surface:
    """The surface that a user named: read from a file, or asked from a live server."""
    if name != "-" and "://" not in name and Path(name).is_file():
        return parse_any(read_file(Path(name)))
    return probe_target(target_of(name, args), args, typed=is_address(name))


def is_address(name: str) -> bool:
    """Whether a user typed an address, and not the name of something in a file."""
    return name.startswith(("https://", "http://"))


def shown_target(name: str) -> str:
    """What a user named, for a report: an address may hold a key."""
    from pinwarden.rules.config.masking import shown_address

    return shown_address(name)


def shown_command(command: list[str]) -> str:
    """The command that stood after ``--``, for a report: an argument may be a key."""
    from pinwarden.rules.config.masking import shown_words

    return " ".join(shown_words(command))


def probe_target(target: Target, args: Namespace, *, typed: bool = False) -> Surface:
    """Ask a live server, with a sign of life on the terminal."""
    from pinwarden.adapters.probe.probe import probe
    from pinwarden.cli.progress import Progress

    with Progress("asking the server"):
        return probe(target, options_of(args, typed=typed))


def options_of(args: Namespace, *, typed: bool = False) -> ProbeOptions:
    """The probe's options from the command line; ``typed`` if the target itself stands there too.

    A target from a file gets only the variables that the user names.
    """
    from pinwarden.adapters.probe.probe import ProbeOptions
    from pinwarden.adapters.probe.session import ClientIdentity
    from pinwarden.adapters.sandbox import Sandbox

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
    from pinwarden.documents.target import StdioTarget

    return StdioTarget(command=tuple(command), env=dict(_pair(text, "=", "--env") for text in args.env))


def target_of(name: str, args: Namespace) -> Target:
    """A URL, or a server that a client config names."""
    from pinwarden.documents.target import HttpTarget

    if is_address(name):
        return HttpTarget(url=name, headers=dict(_pair(text, ":", "--header") for text in args.header))
    return _configured(name, args)


def _configured(name: str, args: Namespace) -> Target:
    from pinwarden.core.strict_json import parse
    from pinwarden.documents.clients.config import servers_in

    files = [Path(args.config)] if args.config else [path for path in map(Path, _PROJECT_CONFIGS) if path.is_file()]
    for path in files:
        servers = servers_in(parse(read_file(path)))
        if name in servers:
            return servers[name]
    looked = ", ".join(map(str, files)) or "no client config in this folder"
    raise PinwardenError(
        "TARGET_INVALID",
        f"{name[:80]!a} is neither a file, a URL, nor a server in {looked}",
        hint="Give a surface file, an https URL, a name from a client config, or a command after --",
    )


_PROJECT_CONFIGS = (".mcp.json", ".cursor/mcp.json", ".vscode/mcp.json", ".gemini/settings.json", ".roo/mcp.json")


def _pair(text: str, mark: str, option: str) -> tuple[str, str]:
    name, found, value = text.partition(mark)
    if not found or not name.strip():
        raise PinwardenError("USAGE", f"{option} takes NAME{mark}VALUE")
    return name.strip(), value.strip() if mark == ":" else value
