"""Parses MCPB bundles: the signature block, ``manifest.json``, and the start command with the user's settings.

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
_BLOCK_OVERHEAD = len(_HEADER) + 4 + len(_FOOTER)
_ZIP_END = b"PK\x05\x06"
_MANIFEST_VERSIONS = ("0.1", "0.2", "0.3", "0.4")
_UNSAFE_PATH = re.compile(r"[\x00-\x1f\x7f\\]|(?:^|/)\.{0,2}(?:/|$)|^[A-Za-z]:")
_TEXT = re.compile(r"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*")
_SETTING_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_MAX_ITEMS = 5000

ServerType = Literal["node", "python", "binary", "uv"]
SettingType = Literal["string", "number", "boolean", "directory", "file"]
_SERVER_TYPES: tuple[ServerType, ...] = ("node", "python", "binary", "uv")
_SETTING_TYPES: tuple[SettingType, ...] = ("string", "number", "boolean", "directory", "file")
ReadAt = Callable[[int, int], bytes]
"""Reads bytes of a file, given offset and size."""


class McpbParts(Record):
    """Content and signature of a bundle file."""

    content_size: int
    """The size of the ZIP file, which is at the start of the bundle. The signature covers exactly these bytes."""
    signature: bytes | None = field(repr=False)
    """The CMS signature in DER."""


def split_signature(size: int, read: ReadAt) -> McpbParts:
    """Find the signature block. It must be unique, at the end of the file, and have the length it states.

    The official tool accepts a block anywhere in a file, so a reader could use bytes that the signature does not cover.
    """
    window = min(size, MAX_SIGNATURE + _BLOCK_OVERHEAD)
    tail = read(size - window, window)
    if len(tail) != window:
        _refuse_bundle("changed while it was read")
    if not tail.endswith(_FOOTER):
        if _find_blocks(tail):
            _refuse_bundle("has a signature block that is not at its end")
        return McpbParts(content_size=size, signature=None)
    starts = [start for start, end in _find_blocks(tail) if end == window]
    if len(starts) != 1:
        _refuse_bundle("ends with a signature footer but has no block of the stated length")
    start = starts[0]
    signature = tail[start + len(_HEADER) + 4 : -len(_FOOTER)]
    for mark in (_HEADER, _FOOTER, _ZIP_END):
        if mark in signature:
            _refuse_bundle("has a signature block that contains another one")
    if tail[:start].endswith(_FOOTER):
        _refuse_bundle("has two signature blocks")
    return McpbParts(content_size=size - window + start, signature=signature)


def _find_blocks(tail: bytes) -> list[tuple[int, int]]:
    """Return start and end of every signature block: a header and a footer whose distance is the stated length."""
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


class StartTemplate(Record):
    """The start command of a server, with placeholders such as ``${__dirname}``."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


class PlatformOverride(Record):
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


class UserSetting(Record):
    """A setting that the user provides."""

    kind: SettingType
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
    kind: ServerType
    entry_point: str
    """A path inside the bundle."""
    start: StartTemplate | None
    """The start command. None only for servers of type ``uv``, which have none in the manifest."""
    overrides: Mapping[str, PlatformOverride]
    """Overrides by platform: ``linux``, ``darwin`` or ``win32``."""
    platforms: tuple[str, ...]
    """Supported platforms; empty for all."""
    tools: tuple[ManifestItem, ...]
    prompts: tuple[ManifestItem, ...]
    settings: Mapping[str, UserSetting]
    repository: str | None
    document: Mapping[str, Any] = field(repr=False)
    """The complete document, including unknown members."""

    def get_start(self, platform: str) -> StartTemplate:
        """Return the start command on one platform, with the overrides for that platform."""
        if self.start is None:
            raise _build_error("server.mcp_config", "is missing")
        own = self.overrides.get(platform)
        if own is None:
            return self.start
        return StartTemplate(
            command=self.start.command if own.command is None else own.command,
            args=self.start.args if own.args is None else own.args,
            env=self.start.env if own.env is None else own.env,
        )


def parse_manifest(data: bytes) -> BundleManifest:
    """Parse a manifest. Raises ``BUNDLE_INVALID`` with the name of the member that is malformed or ambiguous."""
    try:
        document = strict_json.parse_json(data, LIMITS)
    except PinwardenError as err:
        raise PinwardenError(
            "BUNDLE_INVALID", f"the bundle's {MANIFEST_NAME} is not valid JSON: {err.message}"
        ) from err
    manifest = _ManifestObject(document, "")
    version = _parse_manifest_version(manifest)
    server = manifest.object("server")
    kind = server.one_of("type", _SERVER_TYPES)
    if kind == "uv" and version != "0.4":
        server.fail("type", "is uv, which needs manifest_version 0.4")
    start: StartTemplate | None = None
    overrides: Mapping[str, PlatformOverride] = {}
    if kind != "uv" or "mcp_config" in server:
        start, overrides = _parse_start(server.object("mcp_config"))
    compatibility, settings = manifest.optional_object("compatibility"), manifest.optional_object("user_config")
    return BundleManifest(
        manifest_version=version,
        name=manifest.text("name", filled=True),
        version=manifest.text("version", filled=True),
        description=manifest.text("description"),
        author=manifest.object("author").text("name"),
        kind=kind,
        entry_point=_parse_entry_point(server),
        start=start,
        overrides=overrides,
        platforms=() if compatibility is None else compatibility.texts("platforms"),
        tools=tuple(map(_parse_item, manifest.objects("tools", max_items=_MAX_ITEMS, default=[]))),
        prompts=tuple(map(_parse_item, manifest.objects("prompts", max_items=_MAX_ITEMS, default=[]))),
        settings={} if settings is None else _parse_settings(settings),
        repository=_parse_repository(manifest.value.get("repository")),
        document=document,
    )


def _parse_manifest_version(manifest: _ManifestObject) -> str:
    members = (manifest.value.get(member) for member in ("manifest_version", "dxt_version"))
    versions = {version for version in members if isinstance(version, str)}
    if len(versions) != 1 or not versions <= set(_MANIFEST_VERSIONS):
        manifest.fail("manifest_version", f"is not one of {', '.join(_MANIFEST_VERSIONS)}")
    return versions.pop()


def _parse_start(config: _ManifestObject) -> tuple[StartTemplate, Mapping[str, PlatformOverride]]:
    start = StartTemplate(
        command=config.text("command", filled=True),
        args=config.texts("args"),
        env=_parse_variables(config.object("env")) if "env" in config else {},
    )
    overrides: dict[str, PlatformOverride] = {}
    if "platform_overrides" in config:
        for platform, own in config.object("platform_overrides").members():
            overrides[platform] = PlatformOverride(
                command=own.text("command", filled=True) if "command" in own else None,
                args=own.texts("args") if "args" in own else None,
                env=_parse_variables(own.object("env")) if "env" in own else None,
            )
    return start, overrides


def _parse_variables(env: _ManifestObject) -> Mapping[str, str]:
    for name in env.value:
        if not name or "=" in name or not _TEXT.fullmatch(name):
            raise _build_error(env.path, f"has a variable named {name[:40]!a}")
    return {name: env.text(name) for name in env.value}


def _parse_item(item: _ManifestObject) -> ManifestItem:
    return ManifestItem(
        name=item.text("name", filled=True),
        description=item.text("description", default=""),
        arguments=item.texts("arguments"),
        text=item.text("text", default=""),
    )


def _parse_settings(settings: _ManifestObject) -> Mapping[str, UserSetting]:
    for name in settings.value:
        if not _SETTING_NAME.fullmatch(name):
            raise _build_error(settings.path, f"has a setting named {name[:40]!a}")
    return {name: _parse_setting(setting) for name, setting in settings.members()}


def _parse_setting(setting: _ManifestObject) -> UserSetting:
    return UserSetting(
        kind=setting.one_of("type", _SETTING_TYPES),
        title=setting.text("title"),
        description=setting.text("description"),
        required=setting.boolean("required", default=False),
        multiple=setting.boolean("multiple", default=False),
        sensitive=setting.boolean("sensitive", default=False),
        default=_parse_default(setting),
        minimum=setting.optional_number("min"),
        maximum=setting.optional_number("max"),
    )


def _parse_default(setting: _ManifestObject) -> str | tuple[str, ...] | None:
    value = setting.value.get("default")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value}"
    if isinstance(value, list):
        return setting.texts("default")
    return None if value is None else setting.text("default")


def _parse_repository(value: Any) -> str | None:
    url = value.get("url") if isinstance(value, dict) else None
    return url if isinstance(url, str) else None


def _parse_entry_point(server: _ManifestObject) -> str:
    path = server.text("entry_point")
    plain = path.removeprefix("./")
    if not plain or len(plain) > 1024 or _UNSAFE_PATH.search(plain):
        server.fail("entry_point", f"leaves the bundle or is not a valid file name: {path[:80]!a}")
    return plain


class _ManifestObject(JsonObject):
    """A reader of one object of the manifest, which refuses large objects and strings with control characters."""

    __slots__ = ()

    def __init__(self, value: Any, path: str) -> None:
        super().__init__(value, path, _build_error, separator=".")
        if len(self.value) > _MAX_ITEMS:
            raise _build_error(path, f"has more than {_MAX_ITEMS} members")

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


def _build_error(path: str, problem: str) -> PinwardenError:
    member = path[:200] or MANIFEST_NAME
    return PinwardenError("BUNDLE_INVALID", f"the bundle's manifest: {member} {problem}", data={"member": member})


def _refuse_bundle(problem: str) -> NoReturn:
    raise PinwardenError("BUNDLE_INVALID", f"the bundle {problem}")


_PLACEHOLDER = re.compile(r"\$\{([^{}]{1,200})\}")
_SETTING_PREFIX = "user_config."

SettingValues = Mapping[str, str | tuple[str, ...]]
"""Values by setting name; a tuple for settings with several values."""


class FilledStartCommand(Record):
    """A start command without placeholders. Arguments and variables may contain secrets, so ``repr`` hides them."""

    command: str
    args: tuple[str, ...] = field(repr=False)
    env: Mapping[str, str] = field(repr=False)


def fill_start_command(
    start: StartTemplate, manifest: BundleManifest, chosen: SettingValues, builtins: Mapping[str, str]
) -> FilledStartCommand:
    """Replace the placeholders with values.

    ``builtins`` contains the values that do not come from the user: ``__dirname``, ``HOME``, ``/`` and others. An
    argument or variable that consists only of an optional setting without a value is omitted.
    """
    values = {name: _choose_value(name, setting, chosen, builtins) for name, setting in manifest.settings.items()}
    if unknown := set(chosen) - set(values):
        _refuse_setting(f"the bundle has no setting {min(unknown)[:80]!a}", min(unknown))
    known: dict[str, str | tuple[str, ...] | None] = {**builtins}
    known |= {f"{_SETTING_PREFIX}{name}": value for name, value in values.items()}
    args: list[str] = []
    for argument in start.args:
        placeholder = _PLACEHOLDER.fullmatch(argument)
        value = known.get(placeholder[1], "") if placeholder else ""
        if isinstance(value, tuple):
            args += value
        elif value is not None:
            args.append(_fill_placeholders(argument, known))
    env = {name: _fill_placeholders(text, known) for name, text in start.env.items() if not _is_unset(text, known)}
    return FilledStartCommand(command=_fill_placeholders(start.command, known), args=tuple(args), env=env)


def _choose_value(
    name: str, setting: UserSetting, chosen: SettingValues, builtins: Mapping[str, str]
) -> str | tuple[str, ...] | None:
    value = chosen.get(name)
    if value is None or value in ("", ()):
        if setting.required and setting.default is None:
            _refuse_setting(f"the bundle requires the setting {name} ({setting.title[:80]!a})", name)
        default = setting.default
        if isinstance(default, tuple):
            return tuple(_fill_placeholders(item, dict(builtins)) for item in default)
        return None if default is None else _fill_placeholders(default, dict(builtins))
    if isinstance(value, tuple) and not setting.multiple:
        _refuse_setting(f"the bundle's setting {name} accepts only one value", name)
    for item in value if isinstance(value, tuple) else (value,):
        _check_value(name, setting, item)
    return value


def _check_value(name: str, setting: UserSetting, value: str) -> None:
    if "\0" in value:
        _refuse_setting(f"the bundle's setting {name} contains a NUL character", name)
    if setting.kind == "boolean" and value not in ("true", "false"):
        _refuse_setting(f"the bundle's setting {name} must be true or false", name)
    if setting.kind == "number" and not _is_in_range(value, setting):
        _refuse_setting(f"the bundle's setting {name} must be a number in its range", name)


def _is_in_range(value: str, setting: UserSetting) -> bool:
    try:
        parsed = float(value)
    except ValueError:
        return False
    low, high = setting.minimum, setting.maximum
    return isfinite(parsed) and (low is None or parsed >= low) and (high is None or parsed <= high)


def _is_unset(text: str, known: Mapping[str, str | tuple[str, ...] | None]) -> bool:
    placeholder = _PLACEHOLDER.fullmatch(text)
    return placeholder is not None and known.get(placeholder[1], "") is None


def _fill_placeholders(text: str, known: Mapping[str, str | tuple[str, ...] | None]) -> str:
    def fill(match: re.Match[str]) -> str:
        name = match[1]
        filled = known.get(name)
        if isinstance(filled, tuple):
            _refuse_setting(f"the bundle uses the list {name[:80]!a} inside a string", name)
        if filled is None:
            _refuse_setting(f"the bundle uses {name[:80]!a}, which has no value", name)
        return filled

    return _PLACEHOLDER.sub(fill, text)


def _refuse_setting(message: str, name: str) -> NoReturn:
    raise PinwardenError("VARIABLE_MISSING", message, data={"variable": name.removeprefix(_SETTING_PREFIX)})
