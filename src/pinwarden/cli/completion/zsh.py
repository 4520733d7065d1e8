"""Completion for zsh: a file for a folder in ``fpath``, which can also be sourced after ``compinit``."""

from __future__ import annotations

from collections.abc import Mapping

from pinwarden.cli.completion import quoted
from pinwarden.cli.grammar import Argument, Command, Value, first_words, second_words

_HEAD = """\
#compdef pinwarden
# Completion of pinwarden for zsh, made by: pinwarden completion zsh
# Write this to a file _pinwarden in a folder of $fpath, or put into ~/.zshrc, after compinit:
#   source <(pinwarden completion zsh)

_pinwarden() {
    local name=$words[2]
    local -i at=${words[(i)--]} code=1
    local -a found
"""

_TAIL = """\
    return code
}

# A sourced script registers the function; an autoloaded one is called.
if [[ $funcstack[1] == _pinwarden ]]; then
    _pinwarden "$@"
else
    compdef _pinwarden pinwarden
fi
"""


def script(commands: tuple[Command, ...]) -> str:
    """The completion script."""
    return _HEAD + "\n".join(
        [_first(commands), _name(commands), _after_dashes(commands), _arguments(commands), _TAIL],
    )


def _first(commands: tuple[Command, ...]) -> str:
    words = {**first_words(commands), "help": "show all commands"}
    return f"""\
    if ((CURRENT == 2)); then
        found=({_described(words)})
        _describe -t commands command found && code=0
        found=('--help:show all commands' '--version:print the version')
        _describe -o -t options option found && code=0
        return code
    fi
"""


def _name(commands: tuple[Command, ...]) -> str:
    """Find the command, and offer second words."""
    below = second_words(commands)
    two = "|".join(quoted(command.name) for inner in below.values() for command in inner)
    rows = "\n".join(
        f"            ({quoted(first)}) "
        f"found=({_described({command.name.split()[1]: command.summary for command in inner})}) ;;"
        for first, inner in below.items()
    )
    return f"""\
    if ((CURRENT == 3)); then
        case $name in
{rows}
        esac
        (($#found)) && _describe -t commands command found && code=0
    else
        case "$name $words[3]" in
            ({two or "''"}) name="$name $words[3]" ;;
        esac
    fi
"""


def _after_dashes(commands: tuple[Command, ...]) -> str:
    taking = "|".join(quoted(command.name) for command in commands if command.takes_command)
    return f"""\
    if ((at < CURRENT)); then
        case $name in
            ({taking or "''"})
                shift at words
                ((CURRENT -= at))
                _normal && code=0
                ;;
        esac
        return code
    fi
    # What follows the name is completed as if the name were one word.
    found=(${{=name}})
    at=$#found
    shift at words
    ((CURRENT -= at))
"""


def _arguments(commands: tuple[Command, ...]) -> str:
    rows = "\n".join(_command(command) for command in commands)
    return f"    case $name in\n{rows}\n    esac"


def _command(command: Command) -> str:
    specs = [spec for option in command.options for spec in _option(option)]
    specs += [_positional(argument) for argument in command.positionals]
    lines = " \\\n".join(f"                {quoted(spec)}" for spec in specs)
    return f"        ({quoted(command.name)})\n            _arguments -S : \\\n{lines} && code=0\n            ;;"


def _option(option: Argument) -> list[str]:
    others = " ".join(option.names)
    exclusive = "*" if option.repeated else f"({others})"
    about = f"[{_escaped(option.help)}]" if option.help else ""
    if option.value is None:
        return [f"{exclusive}{name}{about}" for name in option.names]
    action = f":{_escaped(option.value.label)}:{_action(option.value)}"
    return [f"{exclusive}{name}{'=' if name.startswith('--') else '+'}{about}{action}" for name in option.names]


def _positional(argument: Argument) -> str:
    value = argument.value or Value(label="", kind="free")
    return f"{'*' if argument.repeated else ''}:{_escaped(value.label.lower())}:{_action(value)}"


def _action(value: Value) -> str:
    match value.kind:
        case "words":
            return f"({' '.join(value.words)})"
        case "files":
            return "_files"
        case "folders":
            return "_files -/"
        case _:
            return "()"  # a blank, which would show the label, keeps options from being completed in its place


def _described(words: Mapping[str, str]) -> str:
    return " ".join(quoted(f"{word}:{summary}") for word, summary in words.items())


def _escaped(text: str) -> str:
    for mark in "\\:[]":
        text = text.replace(mark, f"\\{mark}")
    return text
