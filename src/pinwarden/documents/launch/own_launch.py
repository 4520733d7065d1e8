"""Commands that start a locked server through us, ``pinwarden run NAME``: what they run is what the lock says."""

from __future__ import annotations

from collections.abc import Sequence

from pinwarden.documents.launch.options import names, program_name, read_options

PROGRAM = "pinwarden"
_WITH_VALUE = names("--client --name --policy --audit --when-away --project --file")


def started_through_us(command: Sequence[str]) -> str | None:
    """The name of the locked server that a command starts, wherever the program lies; None if it starts none."""
    words = list(command)
    if program_name(words[0]).startswith("python") and words[1:3] == ["-m", PROGRAM]:
        words = words[2:]
    if program_name(words[0]) != PROGRAM or words[1:2] != ["run"]:
        return None
    ours = words[2 : words.index("--")] if "--" in words else words[2:]
    return next(iter(read_options(ours, _WITH_VALUE).rest), None)


def is_enforced_start(command: Sequence[str], name: str) -> bool:
    """Whether a command is the one that ``pinwarden enforce`` writes for this server: our program by its bare name."""
    return command[0] == PROGRAM and started_through_us(command) == name
