"""Names that some file system takes for one and the same."""

from __future__ import annotations

from unicodedata import normalize

from pinwarden.core.visible import INVISIBLE


def folded_name(name: str) -> str:
    """What names have in common that name one file somewhere: Windows and macOS ignore case and how an accent is
    written, macOS passes over characters that nobody sees, Windows over dots and blanks at the end."""
    if name.isascii():
        return name.casefold().rstrip(". ")
    return normalize("NFC", INVISIBLE.sub("", normalize("NFD", name)).casefold()).rstrip(". ")
