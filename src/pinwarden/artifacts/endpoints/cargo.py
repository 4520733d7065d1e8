"""Finds the registry that Cargo would use, in Cargo's own settings: environment, project, user, default.

A repository can configure its own URL under the name of a registry that the user logged in to. Pinwarden does not send
the user's token to such a URL.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.system.files import read_file
from pinwarden.system.net.connections import Origin, ServiceEndpoint, SettingsSources
from pinwarden.system.target import HttpAddress

DEFAULT_NAME = "crates-io"
_MAX_BYTES = 1 << 20
_MAX_REPLACEMENTS = 10


class _SettingsLayer(Record):
    configured_by: Origin
    source: str
    values: Mapping[str, Any] = field(repr=False)

    def get_table(self, *path: str) -> Mapping[str, Any]:
        value: Any = self.values
        for name in path:
            value = value.get(name, {}) if isinstance(value, dict) else {}
        return value if isinstance(value, dict) else {}


class _Setting(Record):
    value: str = field(repr=False)
    layer: _SettingsLayer


def find_registry(settings: SettingsSources, *, registry: str | None = None) -> ServiceEndpoint:
    """Return the sparse index of a registry named in ``[registries]``, or of the default registry.

    Raises ``CONFIG_INVALID`` if the index is a Git repository or a folder.
    """
    layers = list(_read_layers(settings))
    name = registry or _find_default_name(layers)
    setting = _find_index(name, layers)
    url = setting.value.removeprefix("sparse+")
    if setting.layer.configured_by != "default" and url == setting.value:
        raise PinwardenError("CONFIG_INVALID", f"the registry in {setting.layer.source} is not a sparse index")
    url = url if url.endswith("/") else f"{url}/"
    configured_index = _find_setting(layers, "index", "registries", name)
    is_from_user = setting == configured_index and setting.layer.configured_by != "project"
    try:
        HttpAddress.parse(url)
    except PinwardenError as err:  # the value may contain a password
        message = f"the registry URL in {setting.layer.source} is invalid"
        raise PinwardenError("CONFIG_INVALID", message) from err
    return ServiceEndpoint(
        url=url,
        configured_by=setting.layer.configured_by,
        source=setting.layer.source,
        authorization=_find_token(name, settings) if is_from_user else None,
        ca_file=_find_ca_file(layers, settings),
    )


def get_default_index() -> str:
    """Return the index that Cargo uses by default, derived from a URL of the package ``packageurl``."""
    from packageurl.contrib.purl2url import get_download_url

    parts = urlsplit(get_download_url("pkg:cargo/x@1"))  # type: ignore[no-untyped-call]
    return f"{parts.scheme}://index.{parts.netloc}/"


def _find_default_name(layers: list[_SettingsLayer]) -> str:
    setting = _find_setting(layers, "default", "registry")
    return setting.value if setting else DEFAULT_NAME


def _find_index(name: str, layers: list[_SettingsLayer]) -> _Setting:
    """Find a registry's index, following source replacements."""
    setting: _Setting | None = None if name == DEFAULT_NAME else _find_setting(layers, "index", "registries", name)
    if setting is None and name != DEFAULT_NAME:
        raise PinwardenError("CONFIG_INVALID", f"Cargo's settings do not name the registry {name[:80]!a}")
    source = name if setting is None else _find_source_name(setting.value, layers)
    for _ in range(_MAX_REPLACEMENTS):
        replaced = _find_setting(layers, "replace-with", "source", source) if source else None
        if replaced is None:
            default = _SettingsLayer(configured_by="default", source="Cargo's own default", values={})
            return setting or _Setting(value=get_default_index(), layer=default)
        source = replaced.value
        setting = _find_setting(layers, "registry", "source", source) or _find_setting(
            layers, "index", "registries", source
        )
        if setting is None:
            raise PinwardenError(
                "CONFIG_INVALID", f"{replaced.layer.source} replaces a source by {source[:80]!a}, which has no index"
            )
    raise PinwardenError("CONFIG_INVALID", "Cargo's settings have a cycle of source replacements")


def _find_source_name(index: str, layers: list[_SettingsLayer]) -> str:
    """Return the name of an index in ``[source]``; empty if it has none."""
    for layer in layers:
        for name, table in layer.get_table("source").items():
            if isinstance(table, dict) and table.get("registry") == index:
                return name
    return ""


def _find_setting(layers: list[_SettingsLayer], member: str, *path: str) -> _Setting | None:
    for layer in layers:
        value = layer.get_table(*path).get(member)
        if isinstance(value, str) and value:
            return _Setting(value=value, layer=layer)
    return None


def _find_token(name: str, settings: SettingsSources) -> str | None:
    """Return the token of a named registry.

    The default registry's token is never used: it is for publishing, and mirrors must not receive it.
    """
    token = settings.variables.get(f"CARGO_REGISTRIES_{name.upper().replace('-', '_')}_TOKEN")
    for file in ("credentials.toml", "credentials"):
        for layer in _read_file(_find_cargo_home(settings) / file, "user"):
            token = token or layer.get_table("registries", name).get("token")
    usable = isinstance(token, str) and token.isascii() and token.isprintable()
    return token if usable and token else None


def _find_ca_file(layers: list[_SettingsLayer], settings: SettingsSources) -> Path | None:
    setting = _find_setting([layer for layer in layers if layer.configured_by != "project"], "cainfo", "http")
    return settings.home / setting.value if setting else None


# Layers


def _read_layers(settings: SettingsSources) -> Iterator[_SettingsLayer]:
    yield _SettingsLayer(
        configured_by="environment", source="the environment", values=_parse_environment(settings.variables)
    )
    home = _find_cargo_home(settings)
    if settings.project is not None:
        folder = settings.project.resolve()
        for parent in (folder, *folder.parents):
            if (parent / ".cargo").resolve() != home.resolve():
                yield from _read_config(parent / ".cargo", "project")
    yield from _read_config(home, "user")


def _parse_environment(variables: Mapping[str, str]) -> dict[str, Any]:
    registries = {}
    for variable, value in variables.items():
        if variable.startswith("CARGO_REGISTRIES_") and variable.endswith("_INDEX"):
            # Cargo treats - and _ as equal in the names of these variables.
            name = variable[len("CARGO_REGISTRIES_") : -len("_INDEX")].lower()
            registries[name] = registries[name.replace("_", "-")] = {"index": value}
    return {
        "registries": registries,
        "registry": {"default": variables.get("CARGO_REGISTRY_DEFAULT", "")},
        "http": {"cainfo": variables.get("CARGO_HTTP_CAINFO", "")},
    }


def _find_cargo_home(settings: SettingsSources) -> Path:
    return Path(settings.variables.get("CARGO_HOME") or settings.home / ".cargo")


def _read_config(folder: Path, configured_by: Origin) -> Iterator[_SettingsLayer]:
    # If both files exist, Cargo reads the one without an extension.
    for name in ("config", "config.toml"):
        layers = list(_read_file(folder / name, configured_by))
        if layers:
            yield from layers
            return


def _read_file(path: Path, configured_by: Origin) -> Iterator[_SettingsLayer]:
    if not path.is_file():
        return
    try:
        values = tomllib.loads(read_file(path, _MAX_BYTES).decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as err:
        raise PinwardenError("CONFIG_INVALID", f"{path} is not TOML") from err  # its text may contain a token
    yield _SettingsLayer(configured_by=configured_by, source=str(path), values=values)
