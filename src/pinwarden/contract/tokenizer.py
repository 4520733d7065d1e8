"""How many tokens a text is: counted by a real tokenizer if one is installed, else by the reference formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from pinwarden.contract.costs import estimated_tokens
from pinwarden.core.record import Record

_ENCODING = "o200k_base"


class Tokenizer(Record):
    """A way to count, and its name for the report."""

    name: str
    count: Callable[[str], int]


def tokenizer() -> Tokenizer:
    """The best one here. Counting contacts nobody: where tiktoken has no tables on this machine, it is not used."""
    try:
        import tiktoken
        import tiktoken.load

        usual, tiktoken.load.read_file = tiktoken.load.read_file, _refuse
        try:
            encoding = tiktoken.get_encoding(_ENCODING)
        finally:
            tiktoken.load.read_file = usual
    except Exception:  # noqa: BLE001 - not installed, or its tables are not here: either way there is a formula
        return Tokenizer(name="formula (length / 3.5)", count=estimated_tokens)
    return Tokenizer(name=f"tiktoken {_ENCODING}", count=lambda text: len(encoding.encode_ordinary(text)))


def _refuse(*_: object) -> NoReturn:
    raise OSError("nothing is downloaded in order to count")
