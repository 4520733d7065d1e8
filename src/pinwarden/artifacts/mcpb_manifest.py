"""MCPB bundles: the signature block, ``manifest.json``, and the start command with the user's settings filled in.

A bundle is a ZIP file; a signature may be appended to it. https://github.com/anthropics/mcpb specifies the
format (README and MANIFEST, manifest versions 0.1 to 0.4).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Literal, NoReturn, Self

from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.strict_json import Limits
from pinwarden.core.typed_json import JsonObject

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
_TEXT = re.compile(r"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*")
_SETTING_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_MAX_ITEMS = 5000

Kind = Literal["node", "python", "binary", "uv"]
SettingKind = Literal["string", "number", "boolean", "directory", "file"]
_KINDS: tuple[Kind, ...] = ("node", "python", "binary", "uv")
_SETTING_KINDS: tuple[SettingKind, ...] = ("string", "number", "boolean", "directory", "file")
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
            raise _error("server.mcp_config", "is missing")
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
    manifest = _Object(document, "")
    version = _manifest_version(manifest)
    server = manifest.object("server")
    kind = server.one_of("type", _KINDS)
    if kind == "uv" and version != "0.4":
        server.fail("type", "is uv, which needs manifest_version 0.4")
    start: Start | None = None
    overrides: Mapping[str, Override] = {}
    if kind != "uv" or "mcp_config" in server:
        start, overrides = _start(server.object("mcp_config"))
    compatibility, settings = manifest.optional_object("compatibility"), manifest.optional_object("user_config")
    return BundleManifest(
        manifest_version=version,
        name=manifest.text("name", filled=True),
        version=manifest.text("version", filled=True),
        description=manifest.text("description"),
        author=manifest.object("author").text("name"),
        kind=kind,
        entry_point=_inner_path(server),
        start=start,
        overrides=overrides,
        platforms=() if compatibility is None else compatibility.texts("platforms"),
        tools=tuple(map(_manifest_item, manifest.objects("tools", max_items=_MAX_ITEMS, default=[]))),
        prompts=tuple(map(_manifest_item, manifest.objects("prompts", max_items=_MAX_ITEMS, default=[]))),
        settings={} if settings is None else _settings(settings),
        repository=_repository(manifest.value.get("repository")),
        document=document,
    )


def _manifest_version(manifest: _Object) -> str:
    members = (manifest.value.get(member) for member in ("manifest_version", "dxt_version"))
    versions = {version for version in members if isinstance(version, str)}
    if len(versions) != 1 or not versions <= set(_VERSIONS):
        manifest.fail("manifest_version", f"is not one of {', '.join(_VERSIONS)}")
    return versions.pop()


def _start(config: _Object) -> tuple[Start, Mapping[str, Override]]:
    start = Start(
        command=config.text("command", filled=True),
        args=config.texts("args"),
        env=_variables(config.object("env")) if "env" in config else {},
    )
    overrides: dict[str, Override] = {}
    if "platform_overrides" in config:
        for platform, own in config.object("platform_overrides").members():
            overrides[platform] = Override(
                command=own.text("command", filled=True) if "command" in own else None,
                args=own.texts("args") if "args" in own else None,
                env=_variables(own.object("env")) if "env" in own else None,
            )
    return start, overrides


def _variables(env: _Object) -> Mapping[str, str]:
    for name in env.value:
        if not name or "=" in name or not _TEXT.fullmatch(name):
            raise _error(env.path, f"has a variable named {name[:40]!a}")
    return {name: env.text(name) for name in env.value}


def _manifest_item(item: _Object) -> ManifestItem:
    return ManifestItem(
        name=item.text("name", filled=True),
        description=item.text("description", default=""),
        arguments=item.texts("arguments"),
        text=item.text("text", default=""),
    )


def _settings(settings: _Object) -> Mapping[str, Setting]:
    for name in settings.value:
        if not _SETTING_NAME.fullmatch(name):
            raise _error(settings.path, f"has a setting named {name[:40]!a}")
    return {name: _setting(setting) for name, setting in settings.members()}


def _setting(setting: _Object) -> Setting:
    return Setting(
        kind=setting.one_of("type", _SETTING_KINDS),
        title=setting.text("title"),
        description=setting.text("description"),
        required=setting.boolean("required", default=False),
        multiple=setting.boolean("multiple", default=False),
        sensitive=setting.boolean("sensitive", default=False),
        default=_default(setting),
        minimum=setting.optional_number("min"),
        maximum=setting.optional_number("max"),
    )


def _default(setting: _Object) -> str | tuple[str, ...] | None:
    value = setting.value.get("default")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value}"
    if isinstance(value, list):
        return setting.texts("default")
    return None if value is None else setting.text("default")


def _repository(value: Any) -> str | None:
    url = value.get("url") if isinstance(value, dict) else None
    return url if isinstance(url, str) else None


def _inner_path(server: _Object) -> str:
    path = server.text("entry_point")
    plain = path.removeprefix("./")
    if not plain or len(plain) > 1024 or _UNSAFE_PATH.search(plain):
        server.fail("entry_point", f"leaves the bundle or is not a valid file name: {path[:80]!a}")
    return plain


class _Object(JsonObject):
    """An object of the manifest, of limited size and without control characters in its texts."""

    __slots__ = ()

    def __init__(self, value: Any, path: str) -> None:
        super().__init__(value, path, _error, separator=".")
        if len(self.value) > _MAX_ITEMS:
            raise _error(path, f"has more than {_MAX_ITEMS} members")

    def text(self, name: str, *, filled: bool = False, default: str | None = None) -> str:
        value = self.string(name, _TEXT, kind="a string without control characters", default=default)
        if filled and not value:
            self.fail(name, "is empty")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        values = self.strings(name, max_items=_MAX_ITEMS, default=[])
        if not all(map(_TEXT.fullmatch, values)):
            self.fail(name, "has control characters")
        return values

    def _wrap(self, value: Any, path: str) -> Self:
        return type(self)(value, path)


def _error(path: str, problem: str) -> PinwardenError:
    member = path[:200] or MANIFEST_NAME
    return PinwardenError("BUNDLE_INVALID", f"the bundle's manifest: {member} {problem}", data={"member": member})


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
