"""Completion scripts in the real shells. No script starts pinwarden: completing is instant."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from pinwarden.cli.commands import COMMANDS
from pinwarden.cli.completion import SHELLS, render_completion_script
from pinwarden.cli.grammar import CommandSpec, read_grammar
from tests.cli.run import pinwarden
from tests.cli.terminal import typed
from tests.support.needs import needs

ALL = read_grammar(COMMANDS)
NAMES = {command.name: command for command in ALL}

# What is completed, and what must be among the offers. Files are those of the folder.
CASES: tuple[tuple[str, set[str]], ...] = (
    ("pinwarden ", {"inspect", "ci", "lock", "policy", "secrets", "completion", "help"}),
    ("pinwarden insp", {"inspect"}),
    ("pinwarden lock ", {"digest", "sign", "verify-signature"}),
    ("pinwarden policy ", {"init", "check", "digest"}),
    ("pinwarden lock --fo", {"--format"}),
    ("pinwarden lock digest --fo", {"--format"}),
    ("pinwarden digest --profile hangar-", {"hangar-1.2"}),
    ("pinwarden diff --format ", {"text", "json", "sarif", "markdown", "junit", "github"}),
    ("pinwarden diff --allow-execute --format j", {"json", "junit"}),
    ("pinwarden completion ", {"bash", "zsh", "fish"}),
    ("pinwarden digest too", {"tools one.json", "tools.json"}),
    ("pinwarden diff tools.json too", {"tools one.json", "tools.json"}),
    ("pinwarden inspect -o too", {"tools one.json", "tools.json"}),
    ("pinwarden inspect --allow-execute -- python", {"python3"}),
    ("pinwarden inspect -- python3 too", {"tools one.json", "tools.json"}),
)
NOTHING = (
    "pinwarden inspect --timeout ",
    "pinwarden inspect --client-name too",
    "pinwarden nonsense --form",
    "pinwarden digest tools.json -- --form",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("tools.json", "tools one.json", "other.txt"):
        (tmp_path / name).touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pinwarden").write_text("#!/bin/sh\necho started >> started\n")
    (tmp_path / "bin" / "pinwarden").chmod(0o755)
    for shell in SHELLS:
        (tmp_path / f"script.{shell}").write_text(render_completion_script(shell, ALL))
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    return {"PATH": f"{folder}/bin:{os.environ['PATH']}", "HOME": str(folder)}


def lines_for(command: CommandSpec) -> Iterable[tuple[str, set[str]]]:
    """Every option of a command, and every word that can follow one."""
    options = {name for option in command.options for name in option.long_names}
    yield f"pinwarden {command.name} --", options
    for option in command.options:
        if option.value is not None and option.value.kind == "words":
            for name in option.names:
                yield f"pinwarden {command.name} {name} ", set(option.value.words)
    for argument in command.positionals:
        if argument.value is not None and argument.value.kind == "words":
            yield f"pinwarden {command.name} ", set(argument.value.words)


class TestGrammar:
    def test_every_command_and_its_options_are_read_from_the_parsers(self) -> None:
        assert list(NAMES) == list(COMMANDS)
        inspect = NAMES["inspect"]
        assert inspect.takes_command
        (output,) = (option for option in inspect.options if "--output" in option.names)
        assert (output.names, output.value and output.value.kind) == (("--output", "-o"), "files")
        (target,) = NAMES["scan"].positionals
        assert (target.repeated, target.value and target.value.kind) == (True, "files")

    @pytest.mark.parametrize("shell", SHELLS)
    def test_the_command_prints_the_script(self, shell: str) -> None:
        outcome = pinwarden("completion", shell)
        assert (outcome.code, outcome.out, outcome.err) == (0, render_completion_script(shell, ALL), "")

    def test_another_shell_is_a_usage_error(self) -> None:
        assert pinwarden("completion", "tcsh").code == 2
        assert pinwarden("completion").code == 2


BASH = """
. ./script.bash
while IFS= read -r line; do
    eval "COMP_WORDS=($line)"
    [[ $line == *' ' ]] && COMP_WORDS+=('')
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
    _pinwarden
    printf '%s\\t' "${COMPREPLY[@]}"
    printf '\\n'
done
"""


@needs("bash", install="tools/system-packages.sh bash")
class TestBash:
    def offers(self, folder: Path, lines: Iterable[str]) -> list[set[str]]:
        given = "".join(f"{line}\n" for line in lines)
        done = subprocess.run(
            ["bash", "--norc", "-c", BASH],
            input=given.encode(),
            cwd=folder,
            env=environment(folder),
            capture_output=True,
            check=True,
        )
        assert done.stderr == b""
        assert not (folder / "started").exists(), "completing started pinwarden"
        return [set(line.split("\t")) - {""} for line in done.stdout.decode().splitlines()]

    def test_the_possible_next_words_are_offered(self, folder: Path) -> None:
        # Names of files are completed by readline, which only a terminal has.
        cases = [(line, offers) for line, offers in CASES if "too" not in line]
        for (line, offers), offered in zip(cases, self.offers(folder, (line for line, _ in cases)), strict=True):
            assert offers <= offered, line

    def test_nothing_is_offered_where_nothing_is_known(self, folder: Path) -> None:
        assert self.offers(folder, NOTHING) == [set()] * len(NOTHING)

    def test_every_option_and_word_of_every_command_is_offered(self, folder: Path) -> None:
        cases = [case for command in ALL for case in lines_for(command)]
        for (line, offers), offered in zip(cases, self.offers(folder, (line for line, _ in cases)), strict=True):
            assert offers <= offered, line

    @pytest.mark.parametrize(
        ("keys", "words"),
        [
            ("pinwarden insp\t--compare\t", ["inspect", "--compare-client"]),
            ("pinwarden diff --format sar\ta", ["diff", "--format", "sarif", "a"]),
            ("pinwarden diff --format=sar\ta", ["diff", "--format=sarif", "a"]),
            ("pinwarden lock verif\t--thres\t", ["lock", "verify-signature", "--threshold"]),
            ("pinwarden digest tools\\ o\t--prof\thangar-\t", ["digest", "tools one.json", "--profile", "hangar-1.2"]),
            ("pinwarden ci --project s\t", ["ci", "--project", "sub/"]),
            ("pinwarden inspect -- python3 oth\t", ["inspect", "--", "python3", "other.txt"]),
        ],
    )
    def test_a_line_is_completed_as_it_is_typed(self, folder: Path, keys: str, words: list[str]) -> None:
        assert typed(["bash", "--norc", "--noprofile", "-i"], ". ./script.bash", keys, folder) == words


@needs("zsh", install="tools/system-packages.sh zsh")
class TestZsh:
    @pytest.mark.parametrize(
        ("keys", "words"),
        [
            ("pinwarden insp\t--compare\t", ["inspect", "--compare-client"]),
            ("pinwarden diff --format sar\ta", ["diff", "--format", "sarif", "a"]),
            ("pinwarden diff --format=sar\ta", ["diff", "--format=sarif", "a"]),
            ("pinwarden poli\tche\t--form\tjun\t", ["policy", "check", "--format=junit"]),
            ("pinwarden lock verif\t--thres\t2", ["lock", "verify-signature", "--threshold=2"]),
            ("pinwarden lock --sco\tus\t", ["lock", "--scope=user"]),
            ("pinwarden digest tools\\ o\t--prof\thangar-\t", ["digest", "tools one.json", "--profile=hangar-1.2"]),
            ("pinwarden completion zs\t", ["completion", "zsh"]),
            ("pinwarden ci --project s\t", ["ci", "--project", "sub"]),
            ("pinwarden inspect -- python3 oth\t", ["inspect", "--", "python3", "other.txt"]),
        ],
    )
    @pytest.mark.parametrize("way", ["sourced", "autoloaded"])
    def test_a_line_is_completed_as_it_is_typed(self, folder: Path, keys: str, words: list[str], way: str) -> None:
        (folder / "functions").mkdir()
        (folder / "functions" / "_pinwarden").write_text((folder / "script.zsh").read_text())
        setup = {
            "sourced": "autoload -U compinit; compinit -u -D; . ./script.zsh",
            "autoloaded": 'fpath=("$PWD/functions" $fpath); autoload -U compinit; compinit -u -D',
        }
        assert typed(["zsh", "-f", "-i"], setup[way], keys, folder) == words


@needs("fish", install="tools/system-packages.sh fish")
class TestFish:
    def offers(self, folder: Path, lines: Iterable[str]) -> list[set[str]]:
        given = "\n".join(f"complete -C {_fish_quoted(line)}; echo =" for line in lines)
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"source script.fish\n{given}"],
            cwd=folder,
            env=environment(folder),
            capture_output=True,
            check=True,
        )
        assert done.stderr == b""
        assert not (folder / "started").exists(), "completing started pinwarden"
        blocks = done.stdout.decode().split("=\n")[:-1]
        return [{row.split("\t")[0] for row in block.splitlines()} for block in blocks]

    def test_the_possible_next_words_are_offered(self, folder: Path) -> None:
        for (line, offers), offered in zip(CASES, self.offers(folder, (line for line, _ in CASES)), strict=True):
            assert offers <= {offer.replace("\\ ", " ") for offer in offered}, line

    def test_a_value_after_an_equals_sign_is_completed(self, folder: Path) -> None:
        assert self.offers(folder, ["pinwarden diff --format=sar"]) == [{"--format=sarif"}]

    def test_nothing_is_offered_where_nothing_is_known(self, folder: Path) -> None:
        assert self.offers(folder, NOTHING) == [set()] * len(NOTHING)

    def test_every_option_and_word_of_every_command_is_offered(self, folder: Path) -> None:
        cases = [case for command in ALL for case in lines_for(command)]
        for (line, offers), offered in zip(cases, self.offers(folder, (line for line, _ in cases)), strict=True):
            assert offers <= offered, line


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
