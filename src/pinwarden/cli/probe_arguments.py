"""The options of commands that may ask a live server."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError


def add_probe_arguments(parser: ArgumentParser) -> None:
    """The options of every command that may ask a live server."""
    live = parser.add_argument_group("asking a live server")
    live.add_argument("--allow-execute", action="store_true", help="consent to starting the server's command")
    live.add_argument("--allow-private", action="store_true", help="allow loopback and private addresses")
    live.add_argument("--allow-redirects", action="store_true", help="follow redirects, each checked anew")
    live.add_argument("--sandbox", action="store_true", help="start the command in bubblewrap, without network")
    live.add_argument("--timeout", type=seconds, default=60.0, metavar="SECONDS", help="for the whole probe (60)")
    live.add_argument("--client-name", default="pinwarden", metavar="NAME", help="the client to introduce ourselves as")
    live.add_argument(
        "--pass-env",
        action="append",
        default=[],
        metavar="NAME",
        help="let the server have this variable: inherited by a command, sent to an address that a config names",
    )


def add_target_arguments(parser: ArgumentParser) -> None:
    """The options of a command whose server is named on the command line, and not by a lock or a registry."""
    named = parser.add_argument_group("the server")
    named.add_argument("--config", metavar="FILE", help="client config in which names are looked up")
    named.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="${VAR} is filled in")
    named.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for the started command")


def seconds(text: str) -> float:
    """The value of an option that takes seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 3600:
        raise ArgumentTypeError(f"{text[:40]!a} is not a number of seconds above 0 and up to 3600")
    return value
