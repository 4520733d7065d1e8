"""Completion for fish 3.0 and later."""

from __future__ import annotations

from pinwarden.cli.grammar import Argument, Command, first_words, second_words

_HEAD = """\
# Completion of pinwarden for fish, made by: pinwarden completion fish
# Put it there: pinwarden completion fish > ~/.config/fish/completions/pinwarden.fish

function __pinwarden_first
    test (count (commandline -opc)) -eq 1
end

function __pinwarden_second
    set -l words (commandline -opc)
    test (count $words) -eq 2; and test "$words[2]" = "$argv[1]"
end

function __pinwarden_in
    set -l words (commandline -opc)
    contains -- -- $words; and return 1
    test (count $words) -ge 2; or return 1
    set -l name $words[2]
    if test (count $words) -ge 3; and contains -- "$words[2] $words[3]" TWO
        set name "$words[2] $words[3]"
    end
    test "$name" = "$argv[1]"
end

function __pinwarden_program
    set -l words (commandline -opc)
    test "$words[-1]" = --; and contains -- "$words[2]" TAKING
end

function __pinwarden_program_arguments
    set -l words (commandline -opc)
    contains -- -- $words; and test "$words[-1]" != --; and contains -- "$words[2]" TAKING
end

complete -c pinwarden -f
complete -c pinwarden -n __pinwarden_first -l help -s h -d 'show all commands'
complete -c pinwarden -n __pinwarden_first -l version -s V -d 'print the version'
complete -c pinwarden -n __pinwarden_program -a '(__fish_complete_command)'
complete -c pinwarden -n __pinwarden_program_arguments -F
"""


def script(commands: tuple[Command, ...]) -> str:
    """The completion script."""
    below = second_words(commands)
    two = " ".join(_quoted(command.name) for inner in below.values() for command in inner)
    taking = " ".join(_quoted(command.name) for command in commands if command.takes_command)
    lines = [_HEAD.replace("TWO", two).replace("TAKING", taking).rstrip()]
    for word, summary in {**first_words(commands), "help": "show all commands"}.items():
        lines.append(f"complete -c pinwarden -n __pinwarden_first -a {_quoted(word)} -d {_quoted(summary)}")
    for first, inner in below.items():
        when = _quoted(f"__pinwarden_second {first}")
        lines += [
            f"complete -c pinwarden -n {when} -a {_quoted(command.name.split()[1])} -d {_quoted(command.summary)}"
            for command in inner
        ]
    for command in commands:
        lines.append("")
        lines += [_line(command, argument) for argument in (*command.options, *command.positionals)]
    return "\n".join(lines) + "\n"


def _line(command: Command, argument: Argument) -> str:
    parts = ["complete -c pinwarden", "-n", _quoted(f"__pinwarden_in {_quoted(command.name)}")]
    parts += [f"-l {name[2:]}" for name in argument.long] + [f"-s {name[1:]}" for name in argument.short]
    parts += _value(argument)
    if argument.names and argument.help:
        parts += ["-d", _quoted(argument.help)]
    return " ".join(parts)


def _value(argument: Argument) -> list[str]:
    if argument.value is None:
        return []
    needed = ["-r"] if argument.names else []
    match argument.value.kind:
        case "words":
            return [*needed, "-f", "-a", _quoted(" ".join(argument.value.words))]
        case "files" | "folders":
            # Fish completes folders alone only by starting one of its functions; files include them.
            return [*needed, "-F"]
        case _:
            return [*needed, "-f"]


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
