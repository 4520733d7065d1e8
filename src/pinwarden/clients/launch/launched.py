"""What a command runs: which package, image, file or address, whether it is pinned, and what is dangerous about it.

Launchers are recognised by their own rules for options, so that the package is found wherever it stands in the line.
Nothing is run or resolved here; a command that is not understood is a ``path``, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from pinwarden.clients.launch import packages, programs
from pinwarden.clients.launch.values import DANGERS, Launched, address, in_temporary
from pinwarden.core.lazy_regex import pattern
from pinwarden.core.record import replace
from pinwarden.system.command_words import is_absolute, name_set, parse_options, program_name, split_command_line
from pinwarden.system.environment_variables import is_redirecting
from pinwarden.system.target import HttpTarget, Target

__all__ = ["DANGERS", "Launched", "command_words", "what_runs"]

PROGRAM = "pinwarden"
OWN_RUN_VALUES = name_set("--client --name --policy --audit --when-away --project --file")
"""Options of ``pinwarden run`` that take the next word."""

MAX_WRAPPERS = 8  # how many commands inside one another are looked through

_PYTHON = pattern(r"(?:python|pypy)[0-9.]*w?|py")
_ASSIGNMENT = pattern(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)

Inner = tuple[list[str], list[str]]
"""The words inside a wrapper, and the dangers of the wrapper."""


def what_runs(target: Target) -> Launched:
    """What a configured server starts or contacts."""
    if isinstance(target, HttpTarget):
        return address(target.url, "http")
    words = command_words(target.command)
    dangers = _dangers_of_program(words[0])
    around: list[str] = []
    while (inner := _inner(words)) is not None and len(around) < MAX_WRAPPERS:
        around.append(program_name(words[0]))
        words = inner[0]
        dangers += [*inner[1], *_dangers_of_program(words[0])]
    found = _leaf(words)
    if found.kind != "shell":
        dangers += programs.dangers_in_arguments(words[1:])
    return replace(found.and_dangers(dangers), wrappers=tuple(name for name in around if name not in _FINDERS))


def inner_words(command: Sequence[str]) -> list[str]:
    """The words of the innermost command, without the programs around it that only start another one."""
    words = command_words(command)
    for _ in range(MAX_WRAPPERS):
        inner = _inner(words)
        if inner is None:
            break
        words = inner[0]
    return words


def _inner(words: list[str]) -> Inner | None:
    wrapper = _WRAPPERS.get(program_name(words[0]))
    inner = wrapper(words) if wrapper else None
    return inner if inner is not None and inner[0] else None


def command_words(command: Sequence[str]) -> list[str]:
    """The words of a command. Some clients take a whole line as the command."""
    if len(command) == 1 and re.search(r"\s", command[0]) and not is_absolute(command[0]):
        return split_command_line(command[0]) or list(command)
    return list(command)


def _leaf(words: list[str]) -> Launched:
    name = program_name(words[0])
    launcher = programs.python if _PYTHON.fullmatch(name) else _LAUNCHERS.get(name)
    return launcher(name, words[1:]) if launcher else Launched(kind="path", identity=words[0], runner=name)


def _dangers_of_program(program: str) -> list[str]:
    relative = bool(re.search(r"[\\/]", program)) and not is_absolute(program)
    return [*(["relative_path"] if relative else []), *in_temporary(program)]


def _cmd(words: list[str]) -> Inner | None:
    """``cmd /c npx …`` is how Windows starts a script; with operators it is a shell like any other."""
    rest = words[1:]
    while rest and re.fullmatch(r"/[A-Za-z](?::\w+)?", rest[0]):
        rest = rest[1:]
    if re.search(r"[&|<>]", " ".join(rest)):
        return None
    return (split_command_line(rest[0].replace("\\", "\\\\")) if len(rest) == 1 else rest), []


def _env(words: list[str]) -> Inner:
    options = parse_options(words[1:], name_set("-u --unset -C --chdir -S --split-string"))
    rest = [*split_command_line(options.get("-S", "--split-string") or ""), *options.rest]
    dangers: list[str] = []
    while rest and _ASSIGNMENT.fullmatch(rest[0]):
        dangers += ["redirecting_variable"] if is_redirecting(rest[0].partition("=")[0]) else []
        rest = rest[1:]
    return rest, dangers


def _before(words: list[str]) -> Inner:
    """A program that starts the rest of its own line."""
    options = parse_options(words[1:], name_set("-u --user -g --group -n -s -k --signal -o -e -i"))
    return list(options.rest[1:] if program_name(words[0]) == "timeout" else options.rest), []


def _after_dashes(words: list[str]) -> Inner | None:
    """A program that fills in secrets and starts what stands after ``--``."""
    return (words[words.index("--") + 1 :], []) if "--" in words else None


def _uv(words: list[str]) -> Inner | None:
    options = parse_options(words[1:], packages.UV_VALUES)
    before = words[1 : len(words) - len(options.rest)]
    if options.rest[:2] == ("tool", "run"):
        return ["uvx", *before, *options.rest[2:]], []
    if options.rest[:1] != ("run",):
        return None
    return _uv_run([*before, *options.rest[1:]])


def _uv_run(words: list[str]) -> Inner:
    """A command inside a project's environment: the project's folder decides what that is."""
    options = parse_options(words, packages.UV_VALUES)
    folder = options.get("--directory", "--project")
    dangers = ["other_index"] if options.has(*packages.UV_INDEXES) else []
    rest = list(options.rest)
    if options.has("-m", "--module"):
        rest = ["python", "-m", options.get("-m", "--module") or "", *rest]
    elif rest and rest[0].endswith((".py", ".pyw")):
        rest = ["python", f"{folder}/{rest[0]}" if folder and not is_absolute(rest[0]) else rest[0], *rest[1:]]
    if folder is None or not is_absolute(folder):
        dangers.append("relative_path")
    return rest, dangers


def _python_runner(words: list[str]) -> Inner | None:
    """``python -m uv …`` and ``python -m pipx …``."""
    return (words[2:], []) if words[1:2] == ["-m"] and words[2:3] in (["uv"], ["uvx"], ["pipx"]) else None


def _own_run(words: list[str]) -> Inner | None:
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

_WRAPPERS: Mapping[str, Callable[[list[str]], Inner | None]] = {
    "cmd": _cmd,
    "env": _env,
    "uv": _uv,
    PROGRAM: _own_run,
    **dict.fromkeys(("python", "python3", "py"), _python_runner),
    **dict.fromkeys(("sudo", "doas", "nohup", "nice", "time", "timeout", "exec", "command", "stdbuf"), _before),
    **dict.fromkeys(("op", "doppler", "infisical", "dotenvx", "dotenv", "chamber", "aws-vault"), _after_dashes),
}
"""Programs that only start another one."""


def _cmd_text(name: str, words: Sequence[str]) -> Launched:
    return programs.text_in_shell(name, " ".join(words))


_LAUNCHERS: Mapping[str, Callable[[str, Sequence[str]], Launched]] = {
    **dict.fromkeys(("npx", "pnpx", "bunx"), packages.npx),
    **dict.fromkeys(("npm", "pnpm", "yarn"), packages.npm),
    **dict.fromkeys(("node", "nodejs", "tsx", "ts-node", "bun"), packages.node),
    "deno": packages.deno,
    "uvx": packages.uvx,
    "pipx": packages.pipx,
    "dnx": packages.dnx,
    "dotnet": packages.dotnet,
    **dict.fromkeys(("docker", "podman", "nerdctl"), programs.docker),
    **dict.fromkeys(("sh", "bash", "zsh", "dash", "ash", "ksh", "fish", "csh", "tcsh"), programs.shell),
    **dict.fromkeys(("powershell", "pwsh"), programs.powershell),
    "cmd": _cmd_text,
    **dict.fromkeys(("perl", "ruby", "php", "osascript", "lua"), programs.interpreter),
    **dict.fromkeys(("curl", "wget"), programs.fetcher),
}
"""How each launcher reads its own words."""
