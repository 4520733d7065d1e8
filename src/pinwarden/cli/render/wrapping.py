"""Wrap sentences to the terminal without breaking what a person pastes: commands, paths and addresses."""

from __future__ import annotations

import re
import textwrap

_GLUE = "\x00"
"""Stands for a space inside a command while the text is wrapped. Text for output never contains it."""
_PROGRAMS = r"(?:pinwarden|python3|uv|pipx|pip|mkdir|chmod|git|apt-get)"
_COMMAND_AFTER_COLON = re.compile(rf"(?<=: )(?<!note: )(?<!error: ){_PROGRAMS} .+?(?=\Z|\n|\.\Z|[.,;] | \(| or: )")
_COMMAND_IN_SENTENCE = re.compile(
    r"\bpinwarden(?: (?:--?[a-z][\w-]*|[a-z][a-z-]+))(?: (?:--?[a-z][\w-]*|[A-Z]{2,}\b))*"
)
_PASTED = re.compile(r"[\"'(]*(?:~|\.{1,2})?/|[\"'(]*[A-Za-z][A-Za-z0-9+.-]*://|[\"'(]*[A-Za-z]:\\")


def wrap_sentence(text: str, width: int, *, indent: str = "", hanging: str = "") -> list[str]:
    """Return the lines of a sentence, the first with ``indent`` and the others with ``hanging`` before them.

    A command stays on one line, and so does a path or an address, even if it is wider than the terminal. Any other word
    that is wider is broken.
    """
    if indent.strip():  # a label such as "hint: " is a part of the sentence
        text, indent = f"{indent}{text}", ""
    glued = _COMMAND_AFTER_COLON.sub(_glue, text)
    glued = _COMMAND_IN_SENTENCE.sub(_glue, glued)
    lines = textwrap.wrap(
        glued, width, initial_indent=indent, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )
    return [part.replace(_GLUE, " ") for line in lines for part in _break_long_word(line, width, hanging)]


def _glue(match: re.Match[str]) -> str:
    return match[0].replace(" ", _GLUE)


def _break_long_word(line: str, width: int, hanging: str) -> list[str]:
    """Break a line that is one word wider than the terminal, unless it is something to paste."""
    word = line.strip()
    if len(line) <= width or _GLUE in line or " " in word or _PASTED.match(word):
        return [line]
    room = max(1, width - len(hanging))
    rest = line[width:]
    return [line[:width], *(hanging + rest[start : start + room] for start in range(0, len(rest), room))]
