"""Parse a command line: which package, image, file or address it starts, whether it is pinned, and its risks.

Launchers are parsed by their own rules for options, so the package is found anywhere in the line. Nothing is run or
resolved. An unknown command is a ``path``, never a guess.

A command that starts a locked server with ``pinwarden run NAME`` is parsed by `parse_locked_start`. The lock says what
such a command runs, so callers must look the server up there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pinwarden.clients import launchers
from pinwarden.clients.launchers import DANGERS, UV_VALUES, Launch, launch_of_url, temporary_path_risk
from pinwarden.core.record import Record, replace
from pinwarden.core.text import pattern
from pinwarden.system.environment_variables import is_redirecting
from pinwarden.system.target import (
    HttpTarget,
    StdioTarget,
    Target,
    is_absolute,
    name_set,
    parse_options,
    program_name,
    split_command_line,
)

__all__ = ["DANGERS", "Launch", "command_words", "parse_launch"]

PROGRAM = "pinwarden"
OWN_RUN_VALUES = name_set("--client --name --policy --audit --when-away --project --file")
"""Options of ``pinwarden run`` that take the next word."""

MAX_WRAPPERS = 8  # how many commands inside one another are looked through

_PYTHON = pattern(r"(?:python|pypy)[0-9.]*w?|py")
_ASSIGNMENT = pattern(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)

Unwrapped = tuple[list[str], list[str]]
"""The words inside a wrapper, and the dangers of the wrapper."""


def parse_launch(target: Target) -> Launch:
    """What a configured server starts or contacts."""
    if isinstance(target, HttpTarget):
        return launch_of_url(target.url, "http")
    words = command_words(target.command)
    dangers = _dangers_of_program(words[0])
    around: list[str] = []
    while (inner := _inner(words)) is not None and len(around) < MAX_WRAPPERS:
        around.append(program_name(words[0]))
        words = inner[0]
        dangers += [*inner[1], *_dangers_of_program(words[0])]
    found = _leaf(words)
    if found.kind != "shell":
        dangers += launchers.dangers_in_arguments(words[1:])
    return replace(found.with_dangers(dangers), wrappers=tuple(name for name in around if name not in _FINDERS))


def unwrap_command(command: Sequence[str]) -> list[str]:
    """The words of the innermost command, without the programs around it that only start another one."""
    words = command_words(command)
    for _ in range(MAX_WRAPPERS):
        inner = _inner(words)
        if inner is None:
            break
        words = inner[0]
    return words


def _inner(words: list[str]) -> Unwrapped | None:
    wrapper = _WRAPPERS.get(program_name(words[0]))
    inner = wrapper(words) if wrapper else None
    return inner if inner is not None and inner[0] else None


def command_words(command: Sequence[str]) -> list[str]:
    """The words of a command. Some clients take a whole line as the command."""
    if len(command) == 1 and re.search(r"\s", command[0]) and not is_absolute(command[0]):
        return split_command_line(command[0]) or list(command)
    return list(command)


def _leaf(words: list[str]) -> Launch:
    name = program_name(words[0])
    launcher = launchers.python if _PYTHON.fullmatch(name) else _LAUNCHERS.get(name)
    return launcher(name, words[1:]) if launcher else Launch(kind="path", identity=words[0], runner=name)


def _dangers_of_program(program: str) -> list[str]:
    relative = bool(re.search(r"[\\/]", program)) and not is_absolute(program)
    return [*(["relative_path"] if relative else []), *temporary_path_risk(program)]


def _cmd(words: list[str]) -> Unwrapped | None:
    """``cmd /c npx …`` is how Windows starts a script; with operators it is a shell like any other."""
    rest = words[1:]
    while rest and re.fullmatch(r"/[A-Za-z](?::\w+)?", rest[0]):
        rest = rest[1:]
    if re.search(r"[&|<>]", " ".join(rest)):
        return None
    return (split_command_line(rest[0].replace("\\", "\\\\")) if len(rest) == 1 else rest), []


def _env(words: list[str]) -> Unwrapped:
    options = parse_options(words[1:], name_set("-u --unset -C --chdir -S --split-string"))
    rest = [*split_command_line(options.get("-S", "--split-string") or ""), *options.rest]
    dangers: list[str] = []
    while rest and _ASSIGNMENT.fullmatch(rest[0]):
        dangers += ["redirecting_variable"] if is_redirecting(rest[0].partition("=")[0]) else []
        rest = rest[1:]
    return rest, dangers


def _before(words: list[str]) -> Unwrapped:
    """A program that starts the rest of its own line."""
    options = parse_options(words[1:], name_set("-u --user -g --group -n -s -k --signal -o -e -i"))
    return list(options.rest[1:] if program_name(words[0]) == "timeout" else options.rest), []


def _after_dashes(words: list[str]) -> Unwrapped | None:
    """A program that fills in secrets and starts what stands after ``--``."""
    return (words[words.index("--") + 1 :], []) if "--" in words else None


def _uv(words: list[str]) -> Unwrapped | None:
    options = parse_options(words[1:], launchers.UV_VALUES)
    before = words[1 : len(words) - len(options.rest)]
    if options.rest[:2] == ("tool", "run"):
        return ["uvx", *before, *options.rest[2:]], []
    if options.rest[:1] != ("run",):
        return None
    return _uv_run([*before, *options.rest[1:]])


def _uv_run(words: list[str]) -> Unwrapped:
    """A command inside a project's environment: the project's folder decides what that is."""
    options = parse_options(words, launchers.UV_VALUES)
    folder = options.get("--directory", "--project")
    dangers = ["other_index"] if options.has(*launchers.UV_INDEXES) else []
    rest = list(options.rest)
    if options.has("-m", "--module"):
        rest = ["python", "-m", options.get("-m", "--module") or "", *rest]
    elif rest and rest[0].endswith((".py", ".pyw")):
        rest = ["python", f"{folder}/{rest[0]}" if folder and not is_absolute(rest[0]) else rest[0], *rest[1:]]
    if folder is None or not is_absolute(folder):
        dangers.append("relative_path")
    return rest, dangers


def _python_runner(words: list[str]) -> Unwrapped | None:
    """``python -m uv …`` and ``python -m pipx …``."""
    return (words[2:], []) if words[1:2] == ["-m"] and words[2:3] in (["uv"], ["uvx"], ["pipx"]) else None


def _own_run(words: list[str]) -> Unwrapped | None:
    """``pinwarden run -- COMMAND``; without a command after the dashes it starts a server of the lock."""
    if words[1:2] != ["run"] or "--" not in words:
        return None
    place = words.index("--")
    before = words[2:place]
    named = [word for number, word in enumerate(before) if not word.startswith("-") and not _is_value(before, number)]
    return None if named else (words[place + 1 :], [])


def _is_value(words: list[str], place: int) -> bool:
    return place > 0 and words[place - 1] in OWN_RUN_VALUES


_FINDERS = frozenset({"cmd", "uv", "python", "python3", "py"})
"""Wrappers that only find the launcher."""

_WRAPPERS: Mapping[str, Callable[[list[str]], Unwrapped | None]] = {
    "cmd": _cmd,
    "env": _env,
    "uv": _uv,
    PROGRAM: _own_run,
    **dict.fromkeys(("python", "python3", "py"), _python_runner),
    **dict.fromkeys(("sudo", "doas", "nohup", "nice", "time", "timeout", "exec", "command", "stdbuf"), _before),
    **dict.fromkeys(("op", "doppler", "infisical", "dotenvx", "dotenv", "chamber", "aws-vault"), _after_dashes),
}
"""Programs that only start another one."""


def _cmd_text(name: str, words: Sequence[str]) -> Launch:
    return launchers.text_in_shell(name, " ".join(words))


_LAUNCHERS: Mapping[str, Callable[[str, Sequence[str]], Launch]] = {
    **dict.fromkeys(("npx", "pnpx", "bunx"), launchers.npx),
    **dict.fromkeys(("npm", "pnpm", "yarn"), launchers.npm),
    **dict.fromkeys(("node", "nodejs", "tsx", "ts-node", "bun"), launchers.node),
    "deno": launchers.deno,
    "uvx": launchers.uvx,
    "pipx": launchers.pipx,
    "dnx": launchers.dnx,
    "dotnet": launchers.dotnet,
    **dict.fromkeys(("docker", "podman", "nerdctl"), launchers.docker),
    **dict.fromkeys(("sh", "bash", "zsh", "dash", "ash", "ksh", "fish", "csh", "tcsh"), launchers.shell),
    **dict.fromkeys(("powershell", "pwsh"), launchers.powershell),
    "cmd": _cmd_text,
    **dict.fromkeys(("perl", "ruby", "php", "osascript", "lua"), launchers.interpreter),
    **dict.fromkeys(("curl", "wget"), launchers.fetcher),
}
"""How each launcher reads its own words."""


class _NotOneError(Exception):
    """Nothing in an entry is the word, or several things are."""


def replace_release(target: StdioTarget, version: str, digest: str | None) -> tuple[str, str] | None:
    """The word that names the release, and the same word for another release; None if no single word does.

    A word is replaced only if the command then starts the same package at the other release, so that no other number
    in the line is taken for the version.
    """
    runs = parse_launch(target)
    wanted = _at(runs, version, digest)
    found: list[tuple[str, str]] = []
    for place, word in enumerate(target.command):
        for spelled in _spellings(word, runs.via or runs, version, digest):
            words = (*target.command[:place], spelled, *target.command[place + 1 :])
            if parse_launch(replace(target, command=words)) == wanted:
                found.append((word, spelled))
                break
    return found[0] if len(found) == 1 else None


def replace_word(entry: Any, old: str, new: str) -> dict[str, Any] | None:
    """A client's entry with one word of its command exchanged; None if that is not exactly one word of it."""
    if not isinstance(entry, dict):
        return None
    command = entry.get("command")
    try:
        if isinstance(command, list) and "args" not in entry:
            return {**entry, "command": _exchanged(command, old, new)}
        if isinstance(command, dict):
            return {**entry, "command": {**command, "args": _exchanged(command.get("args"), old, new)}}
        return {**entry, "args": _exchanged(entry.get("args"), old, new)}
    except _NotOneError:
        return None


def _at(runs: Launch, version: str, digest: str | None) -> Launch:
    if runs.via is not None:
        return replace(runs, via=_at(runs.via, version, digest))
    return replace(runs, version=version, digest=digest if runs.digest else None)


def _spellings(word: str, package: Launch, version: str, digest: str | None) -> Iterator[str]:
    before = package.version or ""
    if package.digest:
        old, new = f":{before}@{package.digest}", f":{version}@{digest}"
    else:
        old, new = before, version
    if before and word.endswith(old):
        yield word.removesuffix(old) + new


def _exchanged(words: Any, old: str, new: str) -> Sequence[Any]:
    if not isinstance(words, list) or words.count(old) != 1:
        raise _NotOneError
    return [new if word == old else word for word in words]


_MOST_SHELLS = 3  # shells inside one another that are looked through
_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ash", "ksh", "fish"})
_BEFORE_COMMAND = frozenset({"exec", "command", "nohup"})


class LockedStart(Record):
    """What a ``pinwarden run`` command says about the server that it starts."""

    name: str
    """The server's name in the lock."""
    client: str | None = None
    project: str | None = None
    file: str | None = None
    """The lock, where the command names another than that of the project."""
    requires_lock: bool = False
    arguments: tuple[str, ...] = ()
    """What stands after ``--``."""


def parse_locked_start(command: Sequence[str]) -> LockedStart | None:
    """What a command starts from the lock; None if it does not start a locked server through us."""
    words = pinwarden_arguments(command)
    if words is None or words[:1] != ["run"]:
        return None
    place = words.index("--") if "--" in words else len(words)
    options, rest = _options(words[1:place])
    if not rest:
        return None
    return LockedStart(
        name=rest[0],
        client=options.get("--client"),
        project=options.get("--project"),
        file=options.get("--file"),
        requires_lock="--require-lock" in options,
        arguments=tuple(words[place + 1 :]),
    )


def pinwarden_arguments(command: Sequence[str]) -> list[str] | None:
    """The words that Pinwarden is given by a command, however the program is found; None if it is another program."""
    words = list(command)
    for _ in range(_MOST_SHELLS):
        words = unwrap_command(words)
        if not words or program_name(words[0]) not in _SHELLS:
            break
        text = next(
            (words[place + 1] for place in range(1, len(words) - 1) if re.fullmatch(r"-\w*c", words[place])), ""
        )
        inner = split_command_line(text)
        while inner and inner[0] in _BEFORE_COMMAND:
            inner = inner[1:]
        if not inner:
            break
        words = inner
    return _own(words)


def _own(words: list[str]) -> list[str] | None:
    if not words:
        return None
    program = program_name(words[0])
    if program == PROGRAM:
        return words[1:]
    if program == "uvx" or words[:2] == ["pipx", "run"]:
        options = parse_options(words[1:] if program == "uvx" else words[2:], UV_VALUES)
        runs = list(options.rest)
        named = bool(runs) and re.split(r"[\[=<>!~@;\s]", runs[0])[0].lower() == PROGRAM
        return runs[1:] if named else None
    if program.startswith(("python", "pypy")) or program == "py":
        return _of_python(words[1:])
    return None


def _of_python(words: list[str]) -> list[str] | None:
    """``python -m pinwarden …``, or the program's own file given to Python."""
    for place, word in enumerate(words):
        cluster = re.fullmatch(r"-[A-Za-z]*m(.*)", word) if not word.startswith(("--", "-X", "-W")) else None
        if cluster is not None:
            module, rest = (cluster[1], words[place + 1 :]) if cluster[1] else (words[place + 1 : place + 2], [])
            if isinstance(module, list):
                module, rest = "".join(module), words[place + 2 :]
            return rest if module.partition(".")[0] == PROGRAM else None
        if not word.startswith("-") and words[place - 1 : place] not in (["-X"], ["-W"]):
            return words[place + 1 :] if program_name(word) == PROGRAM else None
    return None


def _options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The options of ``pinwarden run``, which may stand on both sides of the name, and the other words."""
    options: dict[str, str] = {}
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            rest.append(word)
        elif name in OWN_RUN_VALUES and not equals:
            options[name] = left.pop(0) if left else ""
        else:
            options[name] = value
    return options, rest


def locked_server_name(command: Sequence[str]) -> str | None:
    """The name of the locked server that a command starts, wherever the program lies; None if it starts none."""
    start = parse_locked_start(command)
    return None if start is None else start.name


def is_enforced_start(command: Sequence[str], name: str) -> bool:
    """Whether a command is the one that ``pinwarden enforce`` writes for this server: our program by its bare name."""
    return command[0] == PROGRAM and locked_server_name(command) == name


class RunCommand(Record):
    """What a ``pinwarden run`` command says about where its server belongs, with or without a command of its own."""

    name: str | None
    """The server's name: the word after ``run``, or that of ``--name``."""
    names_project: bool
    """Whether it says which lock or project applies."""
    command: tuple[str, ...]
    """What stands after ``--``."""


def parse_run_command(command: Sequence[str]) -> RunCommand | None:
    """The ``pinwarden run`` within a command line; None if there is none."""
    words = command_words(command)
    for place in (*(number for number, word in enumerate(words) if word == "--"), len(words)):
        ours = pinwarden_arguments(words[:place]) if place else None
        if ours is not None and ours[:1] == ["run"]:
            options, rest = _options(ours[1:])
            return RunCommand(
                name=rest[0] if rest else options.get("--name"),
                names_project="--project" in options or "--file" in options,
                command=tuple(words[place + 1 :]),
            )
    return None
