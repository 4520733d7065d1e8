"""Telling quickly that a command line holds no secret.

Finding secrets (``system/masking.py``) takes patterns that take longer to load than a server may take to start.
Nearly every command line lacks what all of them need.
"""

from __future__ import annotations

from collections.abc import Sequence

_SYNTAX = frozenset("=: \t\r\n\v\f")
"""One of these is in every assignment, header and address."""
_MARKS = (
    *("gho_", "ghp_", "ghs_", "ghu_", "ghr_", "github_pat_", "glpat-", "sk-", "sk_", "rk_", "AKIA", "ASIA", "xox"),
    *("xapp-", "AIza", "ya29.", "npm_", "pypi-", "hf_", "dop_v1_", "SG.", "ntn_", "secret_", "lin_api_", "shpat_"),
    *("dckr_pat_", "figd_", "eyJ"),
)
"""One of these is in every key of a form that services give their keys."""
_RANDOM = 24  # characters without a dot or slash: from there on a word may be taken for a key
_LONGEST = 4096


def surely_plain(words: Sequence[str]) -> bool:
    """Whether no word can be, hold or name a secret. If in doubt, it is not sure."""
    return all(_is_plain(word) for word in words)


def _is_plain(word: str) -> bool:
    if not word.isascii() or len(word) > _LONGEST or not _SYNTAX.isdisjoint(word):
        return False
    if word.startswith("-") and len(word) > 2:  # the name of an option; its value may be the next word
        return False
    if any(mark in word for mark in _MARKS):
        return False
    return all(len(part) < _RANDOM for part in word.replace("/", ".").split("."))
