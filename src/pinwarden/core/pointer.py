"""JSON Pointer (RFC 6901), strictly: what is malformed or names nothing is an error."""

from __future__ import annotations

from typing import Any, NoReturn

from pinwarden.core.errors import PinwardenError


def resolve(document: Any, pointer: str) -> Any:
    """The value that ``pointer`` names in ``document``."""
    value = document
    for step in steps_of(pointer):
        value = _step(value, step, pointer)
    return value


def pointer_step(name: str | int) -> str:
    """A name or a number as one step of a pointer."""
    return str(name).replace("~", "~0").replace("/", "~1")


def steps_of(pointer: str) -> list[str]:
    """The names and numbers that a pointer leads through, unescaped; none for the whole document."""
    if type(pointer) is not str:
        raise PinwardenError("POINTER_PATH_INVALID", "a JSON Pointer is a string")
    if pointer == "":
        return []
    if not pointer.startswith("/"):
        _invalid(pointer, "does not begin with /")
    return [_unescape(step, pointer) for step in pointer[1:].split("/")]


def _unescape(step: str, pointer: str) -> str:
    pieces = step.split("~")
    if any(piece[:1] not in ("0", "1") for piece in pieces[1:]):
        _invalid(pointer, "holds ~ without 0 or 1 after it")
    return step.replace("~1", "/").replace("~0", "~")


def _step(value: Any, step: str, pointer: str) -> Any:
    if type(value) is dict and step in value:
        return value[step]
    if type(value) is list and _is_index(step, len(value)):
        return value[int(step)]
    _invalid(pointer, "names nothing in the document")


def _is_index(step: str, length: int) -> bool:
    plain = step.isascii() and step.isdigit() and (step == "0" or step[0] != "0")
    return plain and len(step) <= len(str(length)) and int(step) < length


def _invalid(pointer: str, why: str) -> NoReturn:
    raise PinwardenError("POINTER_PATH_INVALID", f"the pointer {pointer[:100]!a} {why}")
