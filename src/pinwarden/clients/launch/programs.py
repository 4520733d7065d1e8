"""Launchers that run what is there already or what they are told: containers, interpreters, shells."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pinwarden.clients.launch.values import Launched, is_address, script
from pinwarden.core.lazy_regex import pattern
from pinwarden.system.command_words import name_set, parse_options

_IMAGE = pattern(
    r"(?P<name>[^@]+?)(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>[a-z0-9]+:[0-9a-f]+))?"
)
_SHA256 = pattern(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_DOCKER_VALUES = name_set("-H --host -c --context --config -l --log-level")
_RUN_FLAGS = name_set(
    "--rm --init --privileged --detach --interactive --tty --read-only --no-healthcheck --oom-kill-disable "
    "--publish-all --sig-proxy --disable-content-trust --tls-verify --quiet --help --rmi --replace --env-host "
    "--no-hosts --http-proxy --use-api-socket"
)
_RUN_SHORT_FLAGS = frozenset("itdPq")
_RUN_LONG = {
    "-i": "--interactive",
    "-t": "--tty",
    "-d": "--detach",
    "-P": "--publish-all",
    "-q": "--quiet",
    "-e": "--env",
    "-v": "--volume",
    "-p": "--publish",
    "-u": "--user",
    "-w": "--workdir",
    "-m": "--memory",
    "-c": "--cpu-shares",
    "-l": "--label",
    "-h": "--hostname",
    "-a": "--attach",
    "--net": "--network",
}
_RUN_IGNORED = name_set("--rm --interactive --quiet")
_CLUSTER = pattern(r"-[itdPq]+[^itdPq]")  # flags before an option with a value, such as -ie NAME
_HOST_PATHS = pattern(
    r"(?:^|source=|src=)(?:/|~/?|/etc|/root|/home|[A-Za-z]:[\\/]?)(?::|,|$)|(?:docker|podman|containerd)\.sock"
)
_HOST_SPACES = ("--network", "--net", "--pid", "--ipc", "--uts", "--userns")

_FETCHES = pattern(r"\b(?:curl|wget|iwr|irm|invoke-webrequest|invoke-restmethod|certutil|bitsadmin)\b", re.IGNORECASE)
_RUNS = pattern(
    r"\|\s{0,99}(?:sudo\s{1,99})?(?:[^\s|]{0,200}/)?(?:sh|bash|zsh|dash|python[0-9.]*|node|perl|ruby|iex|invoke-expression)\b|"
    r"\b(?:iex|invoke-expression|eval|source)\b|<\(|\$\(|`|"
    r"(?:&&|;)\s{0,99}(?:chmod|(?:[^\s;&]{0,200}/)?(?:sh|bash|python[0-9.]*|node)\b|\./|/)",
    re.IGNORECASE,
)
_OPERATORS = pattern(r"&&|\|\||[|;`\n]|\$\(|(?:^|\s)&(?:\s|$)|(?:^|\s)(?:>>?|<<?)\s*\S")
_LONE_OPERATORS = frozenset({"|", "||", "&", "&&", ";", ">", ">>", "<"})
# A command after an operator: "a; b" and "x && y", but neither "text/html;q=1" nor a|b in a pattern.
_COMMAND_AFTER = pattern(r"&&|\|\||\$\([^)]|`[^`]+`|;\s{1,99}\S|\s\|\s|\n\s{0,99}\S")


def docker(name: str, words: Sequence[str]) -> Launched:
    """``docker run`` and ``podman run``."""
    engine = parse_options(words, _DOCKER_VALUES)
    rest = list(engine.rest)
    if rest[:1] == ["container"]:
        rest = rest[1:]
    if rest[:1] != ["run"]:
        return Launched(kind="path", identity=" ".join([name, *rest[:2]]), runner=name)
    image, options, place = _image_and_options(rest[1:])
    is_plain = not engine.values and not any(map(_CLUSTER.match, rest[1 : 1 + place]))
    dangers = ["container_privileges"] if any(_reaches_machine(*option) for option in options) else []
    found = _IMAGE.fullmatch(image)
    digest = found["digest"] if found else None
    return Launched(
        kind="oci",
        identity=found["name"] if found else image,
        version=found["tag"] if found else None,
        digest=digest,
        pinned=bool(digest and _SHA256.fullmatch(digest)),
        runner=name,
        options=tuple(rest[1 : 1 + place]),
        settings=tuple(_container_settings(options)) if is_plain else None,
        arguments=tuple(rest[2 + place :]),
    ).and_dangers(dangers)


def python(name: str, words: Sequence[str]) -> Launched:
    """``python -m module``, ``python file``, ``python -c code``."""
    place = 0
    while place < len(words) and words[place].startswith("-") and words[place] != "-":
        word = words[place]
        # Python ends its own options at -m and -c, which may stand in a cluster: -um module.
        cluster = re.fullmatch(r"-[A-Za-z]*?([mc])(.*)", word, re.DOTALL)
        if cluster and not word.startswith(("-X", "-W", "--")):
            if cluster[1] == "c":
                return Launched(kind="shell", identity=name, runner=name, dangers=("inline_code",))
            module = cluster[2] or (words[place + 1] if place + 1 < len(words) else "")
            return Launched(kind="module", identity=module, runner=name)
        place += 2 if word in ("-X", "-W") else 1
    return script(name, words[place:])


def interpreter(name: str, words: Sequence[str]) -> Launched:
    """Perl, Ruby and the like: a file, or code in the command."""
    if any(re.fullmatch(r"-[A-Za-z]*[erE]", word) for word in words[:3]):
        return Launched(kind="shell", identity=name, runner=name, dangers=("inline_code",))
    return script(name, [word for word in words if not word.startswith("-")])


def shell(name: str, words: Sequence[str]) -> Launched:
    """``sh -c text``, or a script file."""
    for place, word in enumerate(words):
        if re.fullmatch(r"-[A-Za-z]*c", word):
            return text_in_shell(name, words[place + 1] if place + 1 < len(words) else "")
        if not word.startswith("-"):
            return script(name, words[place:])
    return text_in_shell(name, "")


def powershell(name: str, words: Sequence[str]) -> Launched:
    """PowerShell takes everything as text unless it is told of a file."""
    for place, word in enumerate(words):
        if word.lower() in ("-file", "-f", "/file"):
            return script(name, words[place + 1 :])
    return text_in_shell(name, " ".join(words))


def fetcher(name: str, _: Sequence[str]) -> Launched:
    """A program that fetches, where a server was expected."""
    return Launched(kind="path", identity=name, runner=name, dangers=("download_and_run",))


def text_in_shell(name: str, text: str) -> Launched:
    """A shell with text to run."""
    dangers = ["shell_command"]
    if _OPERATORS.search(text):
        dangers.append("shell_text")
    if _fetches_and_runs(text):
        dangers.append("download_and_run")
    return Launched(kind="shell", identity=name, runner=name).and_dangers(dangers)


def dangers_in_arguments(words: Sequence[str]) -> list[str]:
    """Operators matter where a client starts commands through a shell; an address with & in it is no command."""
    suspects = [word for word in words if not is_address(word)]
    if not any(word.strip() in _LONE_OPERATORS or _COMMAND_AFTER.search(word) for word in suspects):
        return []
    return ["shell_text", "download_and_run"] if _fetches_and_runs(" ".join(suspects)) else ["shell_text"]


def _fetches_and_runs(text: str) -> bool:
    return bool(_FETCHES.search(text) and _RUNS.search(text))


def _image_and_options(words: Sequence[str]) -> tuple[str, list[tuple[str, str]], int]:
    """The image, the options before it, and its place among the words."""
    options: list[tuple[str, str]] = []
    place = 0
    while place < len(words) and words[place].startswith("-"):
        word = words[place]
        place += 1
        if word == "--":
            break
        name, complete, value = word.partition("=") if word.startswith("--") else _short_option(word)
        if not complete and name not in _RUN_FLAGS:
            value = words[place] if place < len(words) else ""
            place += 1
        options.append((name, value))
    return (words[place] if place < len(words) else ""), options, place


def _short_option(word: str) -> tuple[str, str, str]:
    """The last option of a cluster such as ``-ite``, whether it needs no more words, and its attached value."""
    for place, letter in enumerate(word[1:], start=1):
        if letter not in _RUN_SHORT_FLAGS:
            attached = word[place + 1 :].removeprefix("=")
            return f"-{letter}", attached[:1], attached
    return word, "=", ""


def _container_settings(options: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The options of a container in one spelling and order, without those that every server has."""
    spelled = [pair for name, value in options for pair in _separate_flags(name, value)]
    for name, value in sorted(spelled, key=_without_value):  # of one variable or option, a later value overrules
        if name not in _RUN_IGNORED:
            yield f"{name}={value}"


def _without_value(option: tuple[str, str]) -> tuple[str, str]:
    name, value = option
    return name, value.partition("=")[0] if name == "--env" else ""


def _separate_flags(name: str, value: str) -> Iterator[tuple[str, str]]:
    if name.startswith("--") or len(name) == 2:
        yield _RUN_LONG.get(name, name), value
        return
    for letter in name[1:]:
        yield _RUN_LONG.get(f"-{letter}", f"-{letter}"), ""


def _reaches_machine(name: str, value: str) -> bool:
    if name == "--privileged":
        return value != "false"
    if name in _HOST_SPACES:
        return value == "host"
    if name in ("-v", "--volume", "--mount"):
        return bool(_HOST_PATHS.search(value))
    return name in ("--cap-add", "--device") or (name == "--security-opt" and "unconfined" in value)
