"""Parse a command line: which package, image, file or address it starts, whether it is pinned, and its risks.

The parser knows the options of each launcher, so it finds the package anywhere in the line. It runs nothing and makes
no request. A command that it does not know gets the kind ``path``.

`parse_locked_start` parses ``pinwarden run NAME``. Only the lock says which program such a command runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from pinwarden.clients import launchers
from pinwarden.clients.launchers import DANGERS, UV_VALUES, Launch, build_url_launch, find_temporary_path_danger
from pinwarden.core.record import Record, replace
from pinwarden.core.text import lazy_pattern
from pinwarden.system.environment_variables import is_redirecting_variable
from pinwarden.system.target import (
    HttpTarget,
    Target,
    is_absolute,
    parse_name_set,
    parse_options,
    program_name,
    split_command_line,
)

__all__ = ["DANGERS", "Launch", "parse_launch", "split_command"]

PROGRAM = "pinwarden"
RUN_OPTIONS_WITH_VALUE = parse_name_set("--client --name --policy --audit --when-away --project --file --scope")
"""Options of ``pinwarden run`` whose value is the next word."""

_PACKAGE_KINDS = ("npm", "pypi", "oci", "nuget", "jsr", "source")
MAX_WRAPPERS = 8  # at most this many nested programs such as env and sudo are unwrapped

_PYTHON = lazy_pattern(r"(?:python|pypy)[0-9.]*w?|py")
_ASSIGNMENT = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)

Unwrapped = tuple[list[str], list[str]]
"""The words of the inner command, and codes of ``DANGERS`` that apply to the program around it."""


def parse_launch(target: Target) -> Launch:
    """Parse the command or URL of a configured server."""
    if isinstance(target, HttpTarget):
        return build_url_launch(target.url, "http")
    words = split_command(target.command)
    dangers = _find_program_dangers(words[0])
    wrappers: list[str] = []
    wrapper_words: tuple[str, ...] | None = ()
    for _ in range(MAX_WRAPPERS):
        inner = _unwrap(words)
        if inner is None:
            break
        if program_name(words[0]) not in _UNREPORTED_WRAPPERS:
            wrappers.append(program_name(words[0]))
            before = words[: -len(inner[0])]
            is_prefix = wrapper_words is not None and [*before, *inner[0]] == words
            wrapper_words = (*(wrapper_words or ()), *before) if is_prefix else None
        words = inner[0]
        dangers += [*inner[1], *_find_program_dangers(words[0])]
    launch = _parse_launcher(words)
    if launch.kind != "shell":
        dangers += launchers.find_argument_dangers(words[1:])
    return replace(launch.with_dangers(dangers), wrappers=tuple(wrappers), wrapper_words=wrapper_words)


def find_floating_package(target: Target | None) -> Launch | None:
    """Return the package or image that a target starts without pinning it; None if there is no such one."""
    if target is None or isinstance(target, HttpTarget):
        return None
    runs = parse_launch(target)
    package = runs.via or runs
    return package if package.kind in _PACKAGE_KINDS and not package.pinned else None


def unwrap_command(command: Sequence[str]) -> list[str]:
    """Return the words of the innermost command, without wrappers such as ``env``, ``sudo`` and ``cmd /c``."""
    words = split_command(command)
    for _ in range(MAX_WRAPPERS):
        inner = _unwrap(words)
        if inner is None:
            break
        words = inner[0]
    return words


def _unwrap(words: list[str]) -> Unwrapped | None:
    wrapper = _WRAPPERS.get(program_name(words[0]))
    inner = wrapper(words) if wrapper else None
    return inner if inner is not None and inner[0] else None


def split_command(command: Sequence[str]) -> list[str]:
    """Return the words of a command. A single word with spaces is split: some clients accept a whole command line."""
    if len(command) == 1 and re.search(r"\s", command[0]) and not is_absolute(command[0]):
        return split_command_line(command[0]) or list(command)
    return list(command)


def _parse_launcher(words: list[str]) -> Launch:
    name = program_name(words[0])
    launcher = launchers.parse_python if _PYTHON.fullmatch(name) else _LAUNCHERS.get(name)
    return launcher(name, words[1:]) if launcher else Launch(kind="path", identity=words[0], runner=name)


def _find_program_dangers(program: str) -> list[str]:
    relative = bool(re.search(r"[\\/]", program)) and not is_absolute(program)
    return [*(["relative_path"] if relative else []), *find_temporary_path_danger(program)]


def _unwrap_cmd(words: list[str]) -> Unwrapped | None:
    """Unwrap ``cmd /c npx …``, which starts a script on Windows. A line with shell operators stays wrapped."""
    rest = words[1:]
    while rest and re.fullmatch(r"/[A-Za-z](?::\w+)?", rest[0]):
        rest = rest[1:]
    if re.search(r"[&|<>]", " ".join(rest)):
        return None
    return (split_command_line(rest[0].replace("\\", "\\\\")) if len(rest) == 1 else rest), []


def _unwrap_env(words: list[str]) -> Unwrapped:
    options = parse_options(words[1:], parse_name_set("-u --unset -C --chdir -S --split-string"))
    rest = [*split_command_line(options.get("-S", "--split-string") or ""), *options.rest]
    dangers: list[str] = []
    while rest and _ASSIGNMENT.fullmatch(rest[0]):
        dangers += ["redirecting_variable"] if is_redirecting_variable(rest[0].partition("=")[0]) else []
        rest = rest[1:]
    return rest, dangers


def _unwrap_prefix_program(words: list[str]) -> Unwrapped:
    """Unwrap a program such as ``sudo``, which starts the command after its own options."""
    options = parse_options(words[1:], parse_name_set("-u --user -g --group -n -s -k --signal -o -e -i"))
    return list(options.rest[1:] if program_name(words[0]) == "timeout" else options.rest), []


def _unwrap_after_dashes(words: list[str]) -> Unwrapped | None:
    """Unwrap a program such as ``doppler``, which provides secrets to the command after ``--``."""
    return (words[words.index("--") + 1 :], []) if "--" in words else None


def _unwrap_uv(words: list[str]) -> Unwrapped | None:
    options = parse_options(words[1:], launchers.UV_VALUES)
    before = words[1 : len(words) - len(options.rest)]
    if options.rest[:2] == ("tool", "run"):
        return ["uvx", *before, *options.rest[2:]], []
    if options.rest[:1] != ("run",):
        return None
    return _unwrap_uv_run([*before, *options.rest[1:]])


def _unwrap_uv_run(words: list[str]) -> Unwrapped:
    """Unwrap ``uv run``, which runs a command in the environment of a Python project."""
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


def _unwrap_python_module(words: list[str]) -> Unwrapped | None:
    """Unwrap ``python -m uv …`` and ``python -m pipx …``."""
    return (words[2:], []) if words[1:2] == ["-m"] and words[2:3] in (["uv"], ["uvx"], ["pipx"]) else None


def _unwrap_pinwarden_run(words: list[str]) -> Unwrapped | None:
    """Unwrap ``pinwarden run -- COMMAND``. With a name before the dashes, the command starts a locked server."""
    if words[1:2] != ["run"] or "--" not in words:
        return None
    dashes = words.index("--")
    before = words[2:dashes]
    positional = [
        word for index, word in enumerate(before) if not word.startswith("-") and not _is_option_value(before, index)
    ]
    return None if positional else (words[dashes + 1 :], [])


def _unwrap_shell(words: list[str]) -> Unwrapped | None:
    """Unwrap ``sh -c "npx …"`` if the text has no shell syntax: a program and its arguments, and nothing else."""
    index = next((index for index in range(1, len(words)) if re.fullmatch(r"-[a-z]*c", words[index])), 0)
    if not index or len(words) != index + 2 or not all(word.startswith("-") for word in words[1:index]):
        return None
    if _SHELL_SYNTAX.search(words[index + 1]):
        return None
    inner = split_command_line(words[index + 1])
    while inner and inner[0] in _BEFORE_COMMAND:
        inner = inner[1:]
    if not inner or _ASSIGNMENT.fullmatch(inner[0]):
        return None
    # A shell that only starts a package launcher is no danger of its own.
    return inner, [] if program_name(inner[0]) in _PACKAGE_LAUNCHERS else ["shell_command"]


def _is_option_value(words: list[str], index: int) -> bool:
    return index > 0 and words[index - 1] in RUN_OPTIONS_WITH_VALUE


_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ash", "ksh", "fish"})
_BEFORE_COMMAND = frozenset({"exec", "command", "nohup"})
_PACKAGE_LAUNCHERS = parse_name_set("npx pnpx bunx uvx pipx docker podman")
_SHELL_SYNTAX = lazy_pattern(r"[|&;<>()$`\\*?~#!{}\[\]\r\n]")
_UNREPORTED_WRAPPERS = frozenset({"cmd", "uv", "python", "python3", "py", *_SHELLS})
"""Wrappers that `Launch.wrappers` leaves out, because they do not change how the launcher runs."""

_WRAPPERS: Mapping[str, Callable[[list[str]], Unwrapped | None]] = {
    "cmd": _unwrap_cmd,
    "env": _unwrap_env,
    "uv": _unwrap_uv,
    PROGRAM: _unwrap_pinwarden_run,
    **dict.fromkeys(("python", "python3", "py"), _unwrap_python_module),
    **dict.fromkeys(_SHELLS, _unwrap_shell),
    **dict.fromkeys(
        ("sudo", "doas", "nohup", "nice", "time", "timeout", "exec", "command", "stdbuf"), _unwrap_prefix_program
    ),
    **dict.fromkeys(("op", "doppler", "infisical", "dotenvx", "dotenv", "chamber", "aws-vault"), _unwrap_after_dashes),
}
"""Programs that only start another program, with the function that finds the inner command."""


def _parse_cmd(name: str, words: Sequence[str]) -> Launch:
    return launchers.build_shell_launch(name, " ".join(words))


_LAUNCHERS: Mapping[str, Callable[[str, Sequence[str]], Launch]] = {
    **dict.fromkeys(("npx", "pnpx", "bunx"), launchers.parse_npx),
    **dict.fromkeys(("npm", "pnpm", "yarn"), launchers.parse_npm),
    **dict.fromkeys(("node", "nodejs", "tsx", "ts-node", "bun"), launchers.parse_node),
    "deno": launchers.parse_deno,
    "uvx": launchers.parse_uvx,
    "pipx": launchers.parse_pipx,
    "dnx": launchers.parse_dnx,
    "dotnet": launchers.parse_dotnet,
    **dict.fromkeys(("docker", "podman", "nerdctl"), launchers.parse_docker),
    **dict.fromkeys(("sh", "bash", "zsh", "dash", "ash", "ksh", "fish", "csh", "tcsh"), launchers.parse_shell),
    **dict.fromkeys(("powershell", "pwsh"), launchers.parse_powershell),
    "cmd": _parse_cmd,
    **dict.fromkeys(("perl", "ruby", "php", "osascript", "lua"), launchers.parse_interpreter),
    **dict.fromkeys(("curl", "wget"), launchers.parse_download_program),
}
"""By program name, the function that parses the arguments of the launcher."""


_MAX_SHELLS = 3  # the depth up to which nested shells are unwrapped


class LockedStart(Record):
    """A ``pinwarden run NAME`` command."""

    name: str
    """The server's name in the lock."""
    client: str | None = None
    project: str | None = None
    file: str | None = None
    """The value of ``--file``: a lockfile other than that of the project."""
    scope: str | None = None
    requires_lock: bool = False
    arguments: tuple[str, ...] = ()
    """The words after ``--``."""


def parse_locked_start(command: Sequence[str]) -> LockedStart | None:
    """Parse a command that starts a locked server. Returns None for any other command."""
    words = find_pinwarden_arguments(command)
    if words is None or words[:1] != ["run"]:
        return None
    dashes = words.index("--") if "--" in words else len(words)
    options, rest = _parse_run_options(words[1:dashes])
    if not rest:
        return None
    return LockedStart(
        name=rest[0],
        client=options.get("--client"),
        scope=options.get("--scope"),
        project=options.get("--project"),
        file=options.get("--file"),
        requires_lock="--require-lock" in options,
        arguments=tuple(words[dashes + 1 :]),
    )


def find_pinwarden_arguments(command: Sequence[str]) -> list[str] | None:
    """Return the arguments that a command passes to Pinwarden; None if it runs another program.

    Recognises Pinwarden behind wrappers and shells, ``uvx pinwarden`` and ``python -m pinwarden``.
    """
    words = list(command)
    for _ in range(_MAX_SHELLS):
        words = unwrap_command(words)
        if not words or program_name(words[0]) not in _SHELLS:
            break
        text = next(
            (words[index + 1] for index in range(1, len(words) - 1) if re.fullmatch(r"-\w*c", words[index])), ""
        )
        inner = split_command_line(text)
        while inner and inner[0] in _BEFORE_COMMAND:
            inner = inner[1:]
        if not inner:
            break
        words = inner
    return _strip_pinwarden(words)


def _strip_pinwarden(words: list[str]) -> list[str] | None:
    if not words:
        return None
    program = program_name(words[0])
    if program == PROGRAM:
        return words[1:]
    if program == "uvx" or words[:2] == ["pipx", "run"]:
        options = parse_options(words[1:] if program == "uvx" else words[2:], UV_VALUES)
        requirement_words = list(options.rest)
        named = bool(requirement_words) and re.split(r"[\[=<>!~@;\s]", requirement_words[0])[0].lower() == PROGRAM
        return requirement_words[1:] if named else None
    if program.startswith(("python", "pypy")) or program == "py":
        return _strip_python(words[1:])
    return None


def _strip_python(words: list[str]) -> list[str] | None:
    """Return the arguments after ``python -m pinwarden`` or ``python PATH/pinwarden``; None for another program."""
    for index, word in enumerate(words):
        cluster = re.fullmatch(r"-[A-Za-z]*m(.*)", word) if not word.startswith(("--", "-X", "-W")) else None
        if cluster is not None:
            module, rest = (cluster[1], words[index + 1 :]) if cluster[1] else (words[index + 1 : index + 2], [])
            if isinstance(module, list):
                module, rest = "".join(module), words[index + 2 :]
            return rest if module.partition(".")[0] == PROGRAM else None
        if not word.startswith("-") and words[index - 1 : index] not in (["-X"], ["-W"]):
            return words[index + 1 :] if program_name(word) == PROGRAM else None
    return None


def _parse_run_options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Separate the options of ``pinwarden run`` from its other words. Options may come before or after the name."""
    options: dict[str, str] = {}
    rest: list[str] = []
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            rest.append(word)
        elif name in RUN_OPTIONS_WITH_VALUE and not equals:
            options[name] = remaining.pop(0) if remaining else ""
        else:
            options[name] = value
    return options, rest


def find_locked_server_name(command: Sequence[str]) -> str | None:
    """Return the name of the locked server that a command starts; None if it starts no locked server."""
    start = parse_locked_start(command)
    return None if start is None else start.name


def is_enforced_start(command: Sequence[str], name: str, program: str = PROGRAM) -> bool:
    """Whether a command is the one that ``pinwarden enforce`` writes for this server.

    Its first word must be ``pinwarden`` without a path, or exactly ``program``, the approved path. A program called
    ``pinwarden`` in another folder could be anything.
    """
    return command[0] in (PROGRAM, program) and find_locked_server_name(command) == name


class RunCommand(Record):
    """A ``pinwarden run`` command: either with the name of a locked server, or with a command after ``--``."""

    name: str | None
    """The server's name: the word after ``run``, or the value of ``--name``."""
    names_project: bool
    """Whether the command has ``--project``, ``--file`` or ``--scope``."""
    command: tuple[str, ...]
    """The words after ``--``."""


def parse_run_command(command: Sequence[str]) -> RunCommand | None:
    """Parse a command line that contains ``pinwarden run``. Returns None for any other command line."""
    words = split_command(command)
    for end in (*(index for index, word in enumerate(words) if word == "--"), len(words)):
        ours = find_pinwarden_arguments(words[:end]) if end else None
        if ours is not None and ours[:1] == ["run"]:
            options, rest = _parse_run_options(ours[1:])
            return RunCommand(
                name=rest[0] if rest else options.get("--name"),
                names_project=bool({"--project", "--file", "--scope"} & options.keys()),
                command=tuple(words[end + 1 :]),
            )
    return None
