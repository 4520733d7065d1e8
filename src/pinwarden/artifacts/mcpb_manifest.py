"""MCPB bundles: the signature block, ``manifest.json``, and the start command with the user's settings filled in.

A bundle is a ZIP file; a signature may be appended to it. https://github.com/anthropics/mcpb specifies the
format (README and MANIFEST, manifest versions 0.1 to 0.4).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Literal, NoReturn

from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.strict_json import Limits

MANIFEST_NAME = "manifest.json"
LIMITS = Limits(max_bytes=4 * 1024 * 1024, max_depth=100)
"""Manifests have a few kilobytes; some include every tool with a long description."""
MAX_SIGNATURE = 1024 * 1024
"""A signature with its certificate chain has a few kilobytes."""

_HEADER, _FOOTER = b"MCPB_SIG_V1", b"MCPB_SIG_END"
_FRAME = len(_HEADER) + 4 + len(_FOOTER)
_ZIP_END = b"PK\x05\x06"
_VERSIONS = ("0.1", "0.2", "0.3", "0.4")
_UNSAFE_PATH = re.compile(r"[\x00-\x1f\x7f\\]|(?:^|/)\.{0,2}(?:/|$)|^[A-Za-z]:")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SETTING_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_MAX_ITEMS = 5000

Kind = Literal["node", "python", "binary", "uv"]
SettingKind = Literal["string", "number", "boolean", "directory", "file"]
Read = Callable[[int, int], bytes]
"""Reads bytes of a file, given offset and size."""


class Parts(Record):
    """Content and signature of a bundle file."""

    content_size: int
    """The ZIP file is the first ``content_size`` bytes; the signature covers exactly these."""
    signature: bytes | None = field(repr=False)
    """A CMS structure in DER."""


def split(size: int, read: Read) -> Parts:
    """Find the signature block. It must be unique, at the end of the file, and have the length it states.

    The official tool accepts the last block anywhere in a file, so other bytes could be read than were signed.
    """
    window = min(size, MAX_SIGNATURE + _FRAME)
    tail = read(size - window, window)
    if len(tail) != window:
        _refuse("changed while it was read")
    if not tail.endswith(_FOOTER):
        if _blocks(tail):
            _refuse("has a signature block that is not at its end")
        return Parts(content_size=size, signature=None)
    starts = [start for start, end in _blocks(tail) if end == window]
    if len(starts) != 1:
        _refuse("ends with a signature footer but has no block of the stated length")
    start = starts[0]
    signature = tail[start + len(_HEADER) + 4 : -len(_FOOTER)]
    for mark in (_HEADER, _FOOTER, _ZIP_END):
        if mark in signature:
            _refuse("has a signature block that contains another one")
    if tail[:start].endswith(_FOOTER):
        _refuse("has two signature blocks")
    return Parts(content_size=size - window + start, signature=signature)


def _blocks(tail: bytes) -> list[tuple[int, int]]:
    """Start and end of every block whose length connects a header with a footer."""
    blocks: list[tuple[int, int]] = []
    start = tail.find(_HEADER)
    while start >= 0:
        length_at = start + len(_HEADER)
        body_at = length_at + 4
        footer_at = body_at + int.from_bytes(tail[length_at:body_at], "little")
        if tail[footer_at : footer_at + len(_FOOTER)] == _FOOTER:
            blocks.append((start, footer_at + len(_FOOTER)))
        start = tail.find(_HEADER, start + 1)
    return blocks


# The manifest


class Start(Record):
    """How a server is started, with placeholders."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


class Override(Record):
    """Overrides for one platform; None for fields that are not overridden."""

    command: str | None
    args: tuple[str, ...] | None
    env: Mapping[str, str] | None


class ManifestItem(Record):
    """A tool or prompt in the manifest. The running server may have others."""

    name: str
    description: str
    arguments: tuple[str, ...] = ()
    text: str = ""


class Setting(Record):
    """A setting that the user provides."""

    kind: SettingKind
    title: str
    description: str
    required: bool
    multiple: bool
    sensitive: bool
    default: str | tuple[str, ...] | None
    minimum: float | None
    maximum: float | None


class BundleManifest(Record):
    """A parsed ``manifest.json``."""

    manifest_version: str
    name: str
    version: str
    description: str
    author: str
    kind: Kind
    entry_point: str
    """A path inside the bundle."""
    start: Start | None
    """None only for type ``uv``, which determines it itself."""
    overrides: Mapping[str, Override]
    """By platform: ``linux``, ``darwin``, ``win32``."""
    platforms: tuple[str, ...]
    """Supported platforms; empty for all."""
    tools: tuple[ManifestItem, ...]
    prompts: tuple[ManifestItem, ...]
    settings: Mapping[str, Setting]
    repository: str | None
    document: Mapping[str, Any] = field(repr=False)
    """The complete document, including unknown members."""

    def start_on(self, platform: str) -> Start:
        """The start on one platform, with its overrides."""
        if self.start is None:
            _invalid("server.mcp_config", "is missing")
        own = self.overrides.get(platform)
        if own is None:
            return self.start
        return Start(
            command=self.start.command if own.command is None else own.command,
            args=self.start.args if own.args is None else own.args,
            env=self.start.env if own.env is None else own.env,
        )


def parse_manifest(data: bytes) -> BundleManifest:
    """Parse a manifest. ``BUNDLE_INVALID`` names the member that is malformed or ambiguous."""
    try:
        document = strict_json.parse_json(data, LIMITS)
    except PinwardenError as err:
        raise PinwardenError(
            "BUNDLE_INVALID", f"the bundle's {MANIFEST_NAME} is not valid JSON: {err.message}"
        ) from err
    if not isinstance(document, dict):
        _invalid(MANIFEST_NAME, "is not an object")
    version = _manifest_version(document)
    server = _object(document, "server", "server")
    kind = server.get("type")
    if kind not in ("node", "python", "binary", "uv") or (kind == "uv" and version != "0.4"):
        _invalid("server.type", "is not node, python, binary or, from 0.4 on, uv")
    start: Start | None = None
    overrides: Mapping[str, Override] = {}
    if kind != "uv" or "mcp_config" in server:
        start, overrides = _start(_object(server, "mcp_config", "server.mcp_config"))
    return BundleManifest(
        manifest_version=version,
        name=_text(document, "name", "name", filled=True),
        version=_text(document, "version", "version", filled=True),
        description=_text(document, "description", "description"),
        author=_text(_object(document, "author", "author"), "name", "author.name"),
        kind=kind,
        entry_point=_inner_path(_text(server, "entry_point", "server.entry_point"), "server.entry_point"),
        start=start,
        overrides=overrides,
        platforms=_platforms(document.get("compatibility")),
        tools=tuple(_manifest_item(item, "tools") for item in _items(document, "tools")),
        prompts=tuple(_manifest_item(item, "prompts") for item in _items(document, "prompts")),
        settings=_settings(document.get("user_config")),
        repository=_repository(document.get("repository")),
        document=document,
    )


def _manifest_version(document: Mapping[str, Any]) -> str:
    versions = {document[member] for member in ("manifest_version", "dxt_version") if _is_text(document.get(member))}
    if len(versions) != 1 or not versions <= set(_VERSIONS):
        _invalid("manifest_version", f"is not one of {', '.join(_VERSIONS)}")
    return str(versions.pop())


def _start(config: Mapping[str, Any]) -> tuple[Start, Mapping[str, Override]]:
    location = "server.mcp_config"
    start = Start(
        command=_text(config, "command", f"{location}.command", filled=True),
        args=_texts(config.get("args", []), f"{location}.args"),
        env=_variables(config.get("env", {}), f"{location}.env"),
    )
    overrides: dict[str, Override] = {}
    for platform, own in _mapping(config.get("platform_overrides", {}), f"{location}.platform_overrides").items():
        path = f"{location}.platform_overrides.{platform[:40]}"
        row = _mapping(own, path)
        overrides[platform] = Override(
            command=_text(row, "command", f"{path}.command", filled=True) if "command" in row else None,
            args=_texts(row["args"], f"{path}.args") if "args" in row else None,
            env=_variables(row["env"], f"{path}.env") if "env" in row else None,
        )
    return start, overrides


def _variables(value: Any, location: str) -> Mapping[str, str]:
    variables = _mapping(value, location)
    for name in variables:
        if not name or "=" in name or _CONTROL.search(name):
            _invalid(location, f"has a variable named {name[:40]!a}")
    return {name: _text(variables, name, f"{location}.{name[:40]}") for name in variables}


def _platforms(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    return _texts(_mapping(value, "compatibility").get("platforms", []), "compatibility.platforms")


def _manifest_item(value: Any, location: str) -> ManifestItem:
    row = _mapping(value, location)
    return ManifestItem(
        name=_text(row, "name", f"{location}.name", filled=True),
        description=_text(row, "description", f"{location}.description") if "description" in row else "",
        arguments=_texts(row.get("arguments", []), f"{location}.arguments"),
        text=_text(row, "text", f"{location}.text") if "text" in row else "",
    )


def _settings(value: Any) -> Mapping[str, Setting]:
    settings: dict[str, Setting] = {}
    for name, row in _mapping({} if value is None else value, "user_config").items():
        location = f"user_config.{name[:40]}"
        if not _SETTING_NAME.fullmatch(name):
            _invalid("user_config", f"has a setting named {name[:40]!a}")
        settings[name] = _setting(_mapping(row, location), location)
    return settings


def _setting(row: Mapping[str, Any], location: str) -> Setting:
    kind = row.get("type")
    if kind not in ("string", "number", "boolean", "directory", "file"):
        _invalid(f"{location}.type", "is not a known type")
    return Setting(
        kind=kind,
        title=_text(row, "title", f"{location}.title"),
        description=_text(row, "description", f"{location}.description"),
        required=_flag(row, "required", location),
        multiple=_flag(row, "multiple", location),
        sensitive=_flag(row, "sensitive", location),
        default=_default(row.get("default"), f"{location}.default"),
        minimum=_number(row.get("min"), f"{location}.min"),
        maximum=_number(row.get("max"), f"{location}.max"),
    )


def _default(value: Any, location: str) -> str | tuple[str, ...] | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value}"
    if isinstance(value, list):
        return _texts(value, location)
    return None if value is None else _checked(value, location)


def _repository(value: Any) -> str | None:
    url = value.get("url") if isinstance(value, dict) else None
    return url if _is_text(url) else None


def _inner_path(path: str, location: str) -> str:
    plain = path.removeprefix("./")
    if not plain or len(plain) > 1024 or _UNSAFE_PATH.search(plain):
        _invalid(location, f"leaves the bundle or is not a valid file name: {path[:80]!a}")
    return plain


def _object(document: Mapping[str, Any], member: str, location: str) -> Mapping[str, Any]:
    return _mapping(document.get(member), location)


def _mapping(value: Any, location: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or len(value) > _MAX_ITEMS:
        _invalid(location, "is not an object, or has too many members")
    return value


def _items(document: Mapping[str, Any], member: str) -> list[Any]:
    value = document.get(member, [])
    if not isinstance(value, list) or len(value) > _MAX_ITEMS:
        _invalid(member, "is not a list, or is too long")
    return value


def _text(document: Mapping[str, Any], member: str, location: str, *, filled: bool = False) -> str:
    value = _checked(document.get(member), location)
    return value if value or not filled else _invalid(location, "is empty")


def _checked(value: Any, location: str) -> str:
    if not isinstance(value, str) or _CONTROL.search(value):
        _invalid(location, "is not a string, or has control characters")
    return value


def _texts(value: Any, location: str) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > _MAX_ITEMS:
        _invalid(location, "is not a list of strings, or is too long")
    return tuple(_checked(item, location) for item in value)


def _flag(row: Mapping[str, Any], member: str, location: str) -> bool:
    value = row.get(member, False)
    return value if isinstance(value, bool) else _invalid(f"{location}.{member}", "is not true or false")


def _number(value: Any, location: str) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        _invalid(location, "is not a number")
    return value


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _invalid(location: str, problem: str) -> NoReturn:
    raise PinwardenError("BUNDLE_INVALID", f"the bundle's manifest: {location} {problem}", data={"member": location})


def _refuse(problem: str) -> NoReturn:
    raise PinwardenError("BUNDLE_INVALID", f"the bundle {problem}")


_PLACEHOLDER = re.compile(r"\$\{([^{}]{1,200})\}")
_OF_USER = "user_config."

SettingValues = Mapping[str, str | tuple[str, ...]]
"""Values by setting name; a tuple for settings with several values."""


class FilledStart(Record):
    """A start command with all values filled in. It may contain secrets, so its repr hides them."""

    command: str
    args: tuple[str, ...] = field(repr=False)
    env: Mapping[str, str] = field(repr=False)


def fill(start: Start, manifest: BundleManifest, chosen: SettingValues, builtins: Mapping[str, str]) -> FilledStart:
    """Replace the placeholders with values.

    ``builtins`` has the values that do not come from the user: ``__dirname``, ``HOME``, ``/`` and so on. An argument or
    variable that consists only of an optional setting without a value is omitted.
    """
    values = {name: _value(name, setting, chosen, builtins) for name, setting in manifest.settings.items()}
    if unknown := set(chosen) - set(values):
        _missing(f"the bundle has no setting {min(unknown)[:80]!a}", min(unknown))
    known: dict[str, str | tuple[str, ...] | None] = {**builtins}
    known |= {f"{_OF_USER}{name}": value for name, value in values.items()}
    args: list[str] = []
    for argument in start.args:
        placeholder = _PLACEHOLDER.fullmatch(argument)
        value = known.get(placeholder[1], "") if placeholder else ""
        if isinstance(value, tuple):
            args += value
        elif value is not None:
            args.append(_filled(argument, known))
    env = {name: _filled(text, known) for name, text in start.env.items() if not _is_unset(text, known)}
    return FilledStart(command=_filled(start.command, known), args=tuple(args), env=env)


def _value(
    name: str, setting: Setting, chosen: SettingValues, builtins: Mapping[str, str]
) -> str | tuple[str, ...] | None:
    value = chosen.get(name)
    if value is None or value in ("", ()):
        if setting.required and setting.default is None:
            _missing(f"the bundle requires the setting {name} ({setting.title[:80]!a})", name)
        default = setting.default
        if isinstance(default, tuple):
            return tuple(_filled(item, dict(builtins)) for item in default)
        return None if default is None else _filled(default, dict(builtins))
    if isinstance(value, tuple) and not setting.multiple:
        _missing(f"the bundle's setting {name} accepts only one value", name)
    for item in value if isinstance(value, tuple) else (value,):
        _check_value(name, setting, item)
    return value


def _check_value(name: str, setting: Setting, value: str) -> None:
    if "\0" in value:
        _missing(f"the bundle's setting {name} contains a NUL character", name)
    if setting.kind == "boolean" and value not in ("true", "false"):
        _missing(f"the bundle's setting {name} must be true or false", name)
    if setting.kind == "number" and not _in_range(value, setting):
        _missing(f"the bundle's setting {name} must be a number in its range", name)


def _in_range(value: str, setting: Setting) -> bool:
    try:
        parsed = float(value)
    except ValueError:
        return False
    low, high = setting.minimum, setting.maximum
    return isfinite(parsed) and (low is None or parsed >= low) and (high is None or parsed <= high)


def _is_unset(text: str, known: Mapping[str, str | tuple[str, ...] | None]) -> bool:
    placeholder = _PLACEHOLDER.fullmatch(text)
    return placeholder is not None and known.get(placeholder[1], "") is None


def _filled(text: str, known: Mapping[str, str | tuple[str, ...] | None]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1]
        filled = known.get(name)
        if isinstance(filled, tuple):
            _missing(f"the bundle uses the list {name[:80]!a} inside a string", name)
        if filled is None:
            _missing(f"the bundle uses {name[:80]!a}, which has no value", name)
        return filled

    return _PLACEHOLDER.sub(value, text)


def _missing(message: str, name: str) -> NoReturn:
    raise PinwardenError("VARIABLE_MISSING", message, data={"variable": name.removeprefix(_OF_USER)})
