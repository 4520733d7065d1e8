"""How many tokens a text is: counted by a real tokenizer if one is installed, else by the reference formula."""

from __future__ import annotations

from collections.abc import Callable

from pinwarden.core.record import Record
from pinwarden.rules.contract.costs import estimated_tokens

_ENCODING = "o200k_base"


class Tokenizer(Record):
    """A way to count, and its name for the report."""

    name: str
    count: Callable[[str], int]


def tokenizer() -> Tokenizer:
    """The best one here. tiktoken brings its tables from the network when it has none; then it is not used."""
    try:
        import tiktoken

        encoding = tiktoken.get_encoding(_ENCODING)
    except Exception:  # noqa: BLE001 - not installed, or its tables are not here: either way there is a formula
        return Tokenizer(name="formula (length / 3.5)", count=estimated_tokens)
    return Tokenizer(name=f"tiktoken {_ENCODING}", count=lambda text: len(encoding.encode_ordinary(text)))
