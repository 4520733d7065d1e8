"""Arguments that are numbers of seconds."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError

_MOST_SECONDS = 86_400
ANSWER_SECONDS = 300.0
"""For an answer of a server, if nothing else is chosen. Calls that take longer should tell of their progress."""


def seconds(text: str) -> float:
    """A time; at most a day, so that a typing error does not switch a limit off."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= _MOST_SECONDS:
        raise ArgumentTypeError(f"{text[:80]!a} is not a number of seconds from 0 to {_MOST_SECONDS}")
    return found


def add_answer_argument(parser: ArgumentParser) -> None:
    """How long a server may take for an answer."""
    parser.add_argument(
        "--answer-seconds",
        type=seconds,
        default=ANSWER_SECONDS,
        metavar="SECONDS",
        help=f"for a server to answer a request ({ANSWER_SECONDS:g}; 0: no limit); progress starts the time again. "
        "Then the client gets an error, and the server a cancellation",
    )
