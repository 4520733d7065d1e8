"""Completion for bash 3.2 and later, without bash-completion."""

from __future__ import annotations

from collections.abc import Iterable

from pinwarden.cli.completion import quoted
from pinwarden.cli.grammar import Command, Value, first_words, second_words

_HEAD = """\
# Completion of pinwarden for bash, made by: pinwarden completion bash
# Put this into ~/.bashrc:  source <(pinwarden completion bash)

_pinwarden_words() {
    COMPREPLY=($(compgen -P "$prefix" -W "$1" -- "$cur"))
}

# Readline completes file names best; bash before 4 cannot delegate to it.
_pinwarden_files() {
    compopt -o default 2>/dev/null || COMPREPLY=($(compgen -P "$prefix" -f -- "$cur"))
}

_pinwarden_folders() {
    compopt -o dirnames 2>/dev/null || COMPREPLY=($(compgen -P "$prefix" -d -- "$cur"))
}

_pinwarden() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} prefix= name= at
    local more= options= words= files=
    COMPREPLY=()
    # In --option=value the equals sign is a word of its own, unless COMP_WORDBREAKS was changed.
    if [[ $cur == = ]]; then
        cur=
    elif [[ $prev == = ]] && ((COMP_CWORD > 2)); then
        prev=${COMP_WORDS[COMP_CWORD - 2]}
    elif [[ $cur == --*=* ]]; then
        prev=${cur%%=*} prefix=${cur%%=*}= cur=${cur#*=}
    fi
"""

_TAIL = """\
    if [[ $cur == -* ]]; then
        _pinwarden_words "$options"
        return
    fi
    _pinwarden_words "$more $words"
    ((${#COMPREPLY[@]} == 0)) || return
    if [[ $files ]]; then
        _pinwarden_files
    elif [[ -z $cur ]]; then
        _pinwarden_words "$options"
    fi
}

complete -F _pinwarden pinwarden
"""


def script(commands: tuple[Command, ...]) -> str:
    """The completion script."""
    return "\n".join([_HEAD + _first(commands), _name(commands), _after_dashes(commands), _arguments(commands), _TAIL])


def _first(commands: tuple[Command, ...]) -> str:
    words = _words((*first_words(commands), "help", "--help", "--version"))
    return f"""\
    if ((COMP_CWORD == 1)); then
        _pinwarden_words {words}
        return
    fi
"""


def _name(commands: tuple[Command, ...]) -> str:
    """Find the command, and offer second words."""
    below = second_words(commands)
    two = "|".join(quoted(command.name) for inner in below.values() for command in inner)
    rows = "\n".join(
        f"            {quoted(first)}) more={_words(command.name.split()[1] for command in inner)} ;;"
        for first, inner in below.items()
    )
    return f"""\
    name=${{COMP_WORDS[1]}}
    if ((COMP_CWORD == 2)); then
        case $name in
{rows}
            *) ;;
        esac
    else
        case "$name ${{COMP_WORDS[2]}}" in
            {two or "''"}) name="$name ${{COMP_WORDS[2]}}" ;;
            *) ;;
        esac
    fi
"""


def _after_dashes(commands: tuple[Command, ...]) -> str:
    taking = "|".join(quoted(command.name) for command in commands if command.takes_command) or "''"
    return f"""\
    for ((at = 2; at < COMP_CWORD; at++)); do
        [[ ${{COMP_WORDS[at]}} == -- ]] || continue
        case $name in
            {taking}) ;;
            *) return ;;
        esac
        if ((at == COMP_CWORD - 1)); then
            COMPREPLY=($(compgen -c -- "$cur"))
        else
            _pinwarden_files
        fi
        return
    done
"""


def _arguments(commands: tuple[Command, ...]) -> str:
    rows = "\n".join(_command(command) for command in commands)
    return f"    case $name in\n{rows}\n        *) ;;\n    esac"


def _command(command: Command) -> str:
    lines = [f"        {quoted(command.name)})", "            case $prev in"]
    lines += [
        f"                {'|'.join(option.names)}) {_complete(option.value)}return ;;"
        for option in command.options
        if option.value is not None
    ]
    lines += ["                *) ;;", "            esac"]
    names = [name for option in command.options for name in option.names] + ["--"] * command.takes_command
    lines.append(f"            options={_words(names)}")
    values = [argument.value for argument in command.positionals if argument.value]
    lines.append(f"            words={_words(word for value in values for word in value.words)}")
    if any(value.kind in ("files", "folders") for value in values):
        lines.append("            files=1")
    return "\n".join([*lines, "            ;;"])


def _complete(value: Value) -> str:
    match value.kind:
        case "words":
            return f"_pinwarden_words {_words(value.words)}; "
        case "files":
            return "_pinwarden_files; "
        case "folders":
            return "_pinwarden_folders; "
        case _:
            return ""


def _words(words: Iterable[str]) -> str:
    return quoted(" ".join(words))
