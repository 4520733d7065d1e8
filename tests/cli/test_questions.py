"""Questions at a terminal: letters and words, the default, unknown answers, Ctrl-C and Ctrl-D."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pinwarden.cli.questions import choice_letters
from tests.cli.terminal import AtTerminal

_CHOICES = "[y]es [s]how s[k]ip a[l]l [q]uit (Enter = yes): "
_PROGRAM = (
    "from pinwarden.cli.questions import ask; "
    "print('answer:', ask('Pin notes?', ['yes', 'show', 'skip', 'all', 'quit'], 'yes'))"
)


def _asked(folder: Path) -> AtTerminal:
    return AtTerminal(cwd=folder, env=dict(os.environ), program=_PROGRAM)


@pytest.mark.parametrize(
    ("typed", "answer"),
    [("\n", "yes"), ("y\n", "yes"), ("s\n", "show"), ("K\n", "skip"), (" all \n", "all"), ("\x04", "quit")],
)
def test_a_letter_a_word_nothing_and_the_end_of_the_input_are_answers(typed: str, answer: str, tmp_path: Path) -> None:
    with _asked(tmp_path) as terminal:
        terminal.until(f"Pin notes? {_CHOICES}")
        terminal.types(typed)
        terminal.until(f"answer: {answer}")
        assert terminal.ends() == 0


def test_an_unknown_answer_asks_again_and_decides_nothing(tmp_path: Path) -> None:
    with _asked(tmp_path) as terminal:
        terminal.until(_CHOICES)
        terminal.types("yesterday\n")
        terminal.until(f"Answer with one of these: {_CHOICES}")
        terminal.types("q\n")
        terminal.until("answer: quit")
        assert terminal.ends() == 0


def test_an_interrupt_ends_the_line_and_reaches_the_caller(tmp_path: Path) -> None:
    with _asked(tmp_path) as terminal:
        terminal.until(_CHOICES)
        terminal.types(AtTerminal.INTERRUPT)
        assert "\r\n" in terminal.until("KeyboardInterrupt")
        assert terminal.ends() != 0


def test_keys_pressed_before_the_question_are_no_answer(tmp_path: Path) -> None:
    program = f"print('busy', flush=True); sys.stdin.readline(); {_PROGRAM}"
    with AtTerminal(cwd=tmp_path, env=dict(os.environ), program=program) as terminal:
        terminal.until("busy")
        terminal.types("go on\ny\n")
        terminal.until(_CHOICES)
        terminal.types("skip\n")
        terminal.until("answer: skip")
        assert terminal.ends() == 0


def test_a_text_longer_than_the_terminal_is_shown_after_one_key_or_page_by_page(tmp_path: Path) -> None:
    text = "''.join(f'<{n}>\\n' for n in range(50))"
    shown = f"print('outcome', show_in_pages({text}, can_go_back=CAN_GO_BACK))"
    lines = f"from pinwarden.cli.questions import show_in_pages; {shown}".replace("CAN_GO_BACK", "False")
    with AtTerminal(cwd=tmp_path, env=dict(os.environ), program=lines) as terminal:
        first = terminal.until("Line 22 of 50. [m]ore [r]est [q]uit (Enter = rest): ")
        assert ("<21>" in first, "<22>" in first) == (True, False)
        terminal.types("m\n")
        second = terminal.until("Line 44 of 50. [m]ore [r]est [q]uit (Enter = rest): ")
        assert ("<43>" in second, "<44>" in second) == (True, False)
        terminal.types("\n")
        assert "<49>" in terminal.until("outcome all")
    with AtTerminal(cwd=tmp_path, env=dict(os.environ), program=lines) as terminal:
        terminal.until("(Enter = rest): ")
        terminal.types("q\n")
        assert "<22>" not in terminal.until("outcome quit")
    with AtTerminal(cwd=tmp_path, env=dict(os.environ), program=lines.replace("False", "True")) as terminal:
        terminal.until("[m]ore [r]est [b]ack [q]uit (Enter = rest): ")
        terminal.types("b\n")
        assert "<22>" not in terminal.until("outcome back")


def test_a_letter_means_the_same_in_every_question() -> None:
    assert choice_letters(["approve", "skip", "quit"]) == {"approve": "a", "skip": "k", "quit": "q"}
    assert choice_letters(["approve", "all", "show", "skip"]) == {"approve": "a", "all": "l", "show": "s", "skip": "k"}
    with pytest.raises(ValueError, match="same letter"):
        choice_letters(["skip", "show", "stop"])


def test_no_spinner_is_written_over_a_question(tmp_path: Path) -> None:
    program = (
        "import time; from pinwarden.cli import questions; from pinwarden.cli.streams import Progress\n"
        "wait = questions._wait_for_line\n"
        "questions._wait_for_line = lambda: (time.sleep(0.7), wait())  # a person who thinks for longer than a frame\n"
        "with Progress('working'):\n"
        "    time.sleep(1.3)\n"
        "    print('answer:', questions.ask('Go on?', ('yes', 'quit'), 'yes'))"
    )
    with AtTerminal(cwd=tmp_path, env=dict(os.environ), program=program) as terminal:
        terminal.until("working")
        terminal.until("Go on?")
        terminal.types("\n")
        assert "working" not in terminal.until("answer: yes")
