"""What a file proposes as answers to its own questions, where the answer decides what is started or contacted.

VS Code asks its user for ``${input:id}`` and fills in what the file proposes: whoever confirms it starts that. Answers
that only fill headers and other variables are secrets by their nature, and are left to the user.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pinwarden.clients.config import ConfiguredServer, DeclaredInput
from pinwarden.core.lazy_regex import pattern
from pinwarden.system.environment_variables import is_redirecting
from pinwarden.system.masking import looks_secret, mask_words
from pinwarden.system.redaction import entry_command_lines, entry_urls

_ASKED = pattern(r"\$\{input:([^{}]{1,200})\}")
_LONGEST = 400


def proposed_answers(server: ConfiguredServer, inputs: Iterable[DeclaredInput]) -> dict[str, list[str]]:
    """By the question, what its file proposes. Nothing that may be a secret is among it."""
    if not inputs:
        return {}
    words = [word for words in entry_command_lines(server.entry) for word in words]
    texts = (*words, *entry_urls(server.entry), *_redirecting(server.entry))
    asked = {name for text in texts for name in _ASKED.findall(text)}
    found: dict[str, list[str]] = {}
    for each in inputs:
        answers = [_kept(each, text) for text in each.literals]
        if each.command is not None:
            answers.append(f"command {each.command}")
        if each.id in asked and answers:
            found.setdefault(each.id, []).extend(answers)
    return found


def _redirecting(entry: Any) -> Iterator[str]:
    """Values of variables that decide which code is loaded, or from where."""
    variables = entry.get("env") if type(entry) is dict else None
    for name, value in variables.items() if type(variables) is dict else ():
        if is_redirecting(name) and type(value) is str:
            yield value


def _kept(declared: DeclaredInput, text: str) -> str:
    secret = declared.password or len(text) > _LONGEST or looks_secret(declared.id, text)
    return f"<{declared.id}>" if secret or mask_words([text]) != [text] else text
