"""Placeholders of a bundle's start command: ``${__dirname}``, the user's folders, and what the user was asked for.

Every text is gone through once, so that nothing that a user or a manifest fills in is taken for a placeholder again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import NoReturn

from pinwarden.artifacts.mcpb_manifest import BundleManifest, Setting, Start
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field

_PLACEHOLDER = re.compile(r"\$\{([^{}]{1,200})\}")
_OF_USER = "user_config."

Given = Mapping[str, str | tuple[str, ...]]
"""Values by the name of their setting; several where a setting takes several."""


class FilledStart(Record):
    """A start command without placeholders. It may hold the user's secrets, so it is not shown."""

    command: str
    args: tuple[str, ...] = field(repr=False)
    env: Mapping[str, str] = field(repr=False)


def fill(start: Start, manifest: BundleManifest, given: Given, places: Mapping[str, str]) -> FilledStart:
    """Put values in the place of placeholders.

    ``places`` has what does not come from the user: ``__dirname``, ``HOME``, ``/`` and so on. An argument or variable
    that is nothing but an optional setting without a value is left out.
    """
    values = {name: _value(name, setting, given, places) for name, setting in manifest.settings.items()}
    if unknown := set(given) - set(values):
        _missing(f"the bundle has no setting {min(unknown)[:80]!a}", min(unknown))
    known: dict[str, str | tuple[str, ...] | None] = {**places}
    known |= {f"{_OF_USER}{name}": value for name, value in values.items()}
    args: list[str] = []
    for argument in start.args:
        whole = _PLACEHOLDER.fullmatch(argument)
        found = known.get(whole[1], "") if whole else ""
        if isinstance(found, tuple):
            args += found
        elif found is not None:
            args.append(_filled(argument, known))
    env = {name: _filled(text, known) for name, text in start.env.items() if not _is_unset(text, known)}
    return FilledStart(command=_filled(start.command, known), args=tuple(args), env=env)


def _value(name: str, setting: Setting, given: Given, places: Mapping[str, str]) -> str | tuple[str, ...] | None:
    value = given.get(name)
    if value is None or value in ("", ()):
        if setting.required and setting.default is None:
            _missing(f"the bundle needs its setting {name} ({setting.title[:80]!a})", name)
        default = setting.default
        if isinstance(default, tuple):
            return tuple(_filled(each, dict(places)) for each in default)
        return None if default is None else _filled(default, dict(places))
    if isinstance(value, tuple) and not setting.multiple:
        _missing(f"the bundle's setting {name} takes one value", name)
    for each in value if isinstance(value, tuple) else (value,):
        _check_value(name, setting, each)
    return value


def _check_value(name: str, setting: Setting, value: str) -> None:
    if "\0" in value:
        _missing(f"the bundle's setting {name} holds a NUL character", name)
    if setting.kind == "boolean" and value not in ("true", "false"):
        _missing(f"the bundle's setting {name} is true or false", name)
    if setting.kind == "number" and not _in_range(value, setting):
        _missing(f"the bundle's setting {name} is a number in its range", name)


def _in_range(value: str, setting: Setting) -> bool:
    try:
        number = float(value)
    except ValueError:
        return False
    low, high = setting.minimum, setting.maximum
    return isfinite(number) and (low is None or number >= low) and (high is None or number <= high)


def _is_unset(text: str, known: Mapping[str, str | tuple[str, ...] | None]) -> bool:
    whole = _PLACEHOLDER.fullmatch(text)
    return whole is not None and known.get(whole[1], "") is None


def _filled(text: str, known: Mapping[str, str | tuple[str, ...] | None]) -> str:
    def value(found: re.Match[str]) -> str:
        name = found[1]
        filled = known.get(name)
        if isinstance(filled, tuple):
            _missing(f"the bundle puts several values of {name[:80]!a} into one text", name)
        if filled is None:
            _missing(f"the bundle uses {name[:80]!a}, which has no value", name)
        return filled

    return _PLACEHOLDER.sub(value, text)


def _missing(message: str, name: str) -> NoReturn:
    raise PinwardenError("VARIABLE_MISSING", message, data={"variable": name.removeprefix(_OF_USER)})
