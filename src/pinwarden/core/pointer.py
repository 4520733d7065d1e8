"""JSON Pointer (RFC 6901), strictly: what is malformed or names nothing is an error."""

from __future__ import annotations

from typing import Any, NoReturn

from pinwarden.core.errors import PinwardenError


def resolve(document: Any, pointer: str) -> Any:
    """The value that ``pointer`` names in ``document``."""
    if type(pointer) is not str:
        raise PinwardenError("POINTER_PATH_INVALID", "a JSON Pointer is a string")
    if pointer == "":
        return document
    if not pointer.startswith("/"):
        _invalid(pointer, "does not begin with /")
    value = document
    for token in pointer[1:].split("/"):
        value = _step(value, _unescape(token, pointer), pointer)
    return value


def _unescape(token: str, pointer: str) -> str:
    pieces = token.split("~")
    if any(piece[:1] not in ("0", "1") for piece in pieces[1:]):
        _invalid(pointer, "holds ~ without 0 or 1 after it")
    return token.replace("~1", "/").replace("~0", "~")


def _step(value: Any, token: str, pointer: str) -> Any:
    if type(value) is dict:
        if token in value:
            return value[token]
    elif type(value) is list and token.isascii() and token.isdigit() and (token == "0" or token[0] != "0"):
        if len(token) <= len(str(len(value))) and int(token) < len(value):
            return value[int(token)]
    _invalid(pointer, "names nothing in the document")


def _invalid(pointer: str, why: str) -> NoReturn:
    raise PinwardenError("POINTER_PATH_INVALID", f"the pointer {pointer[:100]!a} {why}")
