"""Parse a command line: which package, image, file or address it starts, whether it is pinned, and its risks.

Launchers are parsed by their own rules for options, so the package is found anywhere in the line. Nothing is run or
resolved. An unknown command is a ``path``, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pinwarden.clients.launch import launchers
from pinwarden.clients.launch.launch import DANGERS, Launch, launch_of_url, temporary_path_risk
from pinwarden.core.lazy_regex import pattern
from pinwarden.core.record import replace
from pinwarden.system.command_words import is_absolute, name_set, parse_options, program_name, split_command_line
from pinwarden.system.environment_variables import is_redirecting
from pinwarden.system.target import HttpTarget, StdioTarget, Target

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
