"""Finds package sources in NuGet's own settings: project and parent folders, user, default.

NuGet finds credentials by the name of a source. A repository could configure its own URL under the name of a source for
which the user has a credential. Pinwarden does not send the user's credential to such a URL, and does not expand
environment variables in a repository's files.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree.ElementTree import Element

from pinwarden.artifacts.nuget_package import find_children, parse_xml
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.system.files import read_file
from pinwarden.system.net.connections import Origin, ServiceEndpoint, SettingsSources
from pinwarden.system.target import HttpAddress

_MAX_BYTES = 1 << 20
_MAX_SOURCES = 100
_FILES = ("nuget.config", "NuGet.config", "NuGet.Config")
_VARIABLE = re.compile(r"%([^%]+)%")
_ESCAPED_CHARACTER = re.compile(r"_x([0-9A-Fa-f]{4})_")


class NugetSources(Record):
    """The first source, and all other sources that NuGet would use."""

    main: ServiceEndpoint
    extra: tuple[ServiceEndpoint, ...] = ()
    notes: tuple[str, ...] = ()
    """Messages about settings that Pinwarden ignored."""


class _SettingsFile(Record):
    configured_by: Origin
    path: Path
    sources: Mapping[str, str] = field(repr=False)
    clears_sources: bool
    """Whether the file discards the sources of lower-precedence files."""
    disabled: frozenset[str]
    credentials: Mapping[str, str] = field(repr=False)
    has_mapping: bool


def find_sources(settings: SettingsSources) -> NugetSources:
    """Return the configured package sources. Raises ``CONFIG_INVALID`` if none of them is usable."""
    files = list(_read_settings_files(settings))
    disabled = frozenset[str]().union(*(file.disabled for file in files))
    endpoints: dict[str, ServiceEndpoint] = {}
    notes = [f"{file.path} maps packages to sources; the mapping is ignored" for file in files if file.has_mapping]
    for file in files:
        for name, value in file.sources.items():
            if name in endpoints or name in disabled:
                continue
            url = _parse_source_url(value)
            if url is None:
                notes.append(f"{file.path} names a source that is not an http(s) URL; the source is ignored")
                continue
            authorization = _find_credential(name, file, files)
            endpoints[name] = ServiceEndpoint(
                url=url, configured_by=file.configured_by, source=str(file.path), authorization=authorization
            )
        if file.clears_sources:
            break
    if len(endpoints) > _MAX_SOURCES:
        raise PinwardenError("CONFIG_INVALID", f"NuGet's settings name more than {_MAX_SOURCES} sources")
    if not endpoints and any(file.sources or file.clears_sources for file in files):
        raise PinwardenError("CONFIG_INVALID", "NuGet's settings name no usable package source")
    default = ServiceEndpoint(url=get_default_source(), configured_by="default", source="NuGet's own default")
    main, *extra = list(endpoints.values()) or [default]
    return NugetSources(main=main, extra=tuple(extra), notes=tuple(notes))


def get_default_source() -> str:
    """Return the V2 feed of NuGet's default source, as the package ``packageurl`` knows it."""
    from packageurl.contrib.purl2url import get_download_url

    url: str = get_download_url("pkg:nuget/x@1")  # type: ignore[no-untyped-call]
    return url.partition("package/x/")[0]


def _parse_source_url(value: str) -> str | None:
    """Return the URL of a service index without ``index.json``, or the root of a V2 feed; None if invalid."""
    url = value.removesuffix("index.json")
    url = url if url.endswith("/") else f"{url}/"
    try:
        address = HttpAddress.parse(url)
    except PinwardenError:
        return None
    return None if "?" in address.path or "%" in address.host else url


def _find_credential(name: str, named_by: _SettingsFile, files: list[_SettingsFile]) -> str | None:
    for file in files:
        if name in file.credentials:
            # A project's source may use only the project's credential, and the user's source only the user's.
            is_same_origin = (file.configured_by == "project") == (named_by.configured_by == "project")
            return file.credentials[name] if is_same_origin else None
    return None


# Files


def _read_settings_files(settings: SettingsSources) -> Iterator[_SettingsFile]:
    """Read the settings files, highest precedence first."""
    home, variables = settings.home, settings.variables
    user_folders = [home / ".nuget" / "NuGet", home / ".config" / "NuGet"]
    if variables.get("APPDATA"):
        user_folders.insert(0, Path(variables["APPDATA"]) / "NuGet")
    if settings.project is not None:
        folder = settings.project.resolve()
        for parent in (folder, *folder.parents):
            yield from _read_settings_file(parent, "project", {})
    for user_folder in user_folders:
        yield from _read_settings_file(user_folder, "user", variables)


def _read_settings_file(folder: Path, configured_by: Origin, variables: Mapping[str, str]) -> Iterator[_SettingsFile]:
    path = next((folder / name for name in _FILES if (folder / name).is_file()), None)
    if path is None:
        return
    root = parse_xml(read_file(path, _MAX_BYTES))
    if root is None:
        raise PinwardenError("CONFIG_INVALID", f"{path} is not valid XML, or it has a DOCTYPE")
    sections = find_children(root, "packageSources")
    pairs = _parse_pairs(sections, variables)
    yield _SettingsFile(
        configured_by=configured_by,
        path=path,
        sources=pairs,
        clears_sources=any(find_children(section, "clear") for section in sections),
        disabled=frozenset(
            name
            for name, value in _parse_pairs(find_children(root, "disabledPackageSources"), {}).items()
            if value == "true"
        ),
        credentials=dict(_parse_credentials(root, configured_by, variables)),
        has_mapping=bool(find_children(root, "packageSourceMapping")),
    )


def _parse_credentials(root: Element, configured_by: Origin, variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for section in find_children(root, "packageSourceCredentials"):
        for source in section:
            values = _parse_pairs([source], variables)
            user, password = values.get("Username"), values.get("ClearTextPassword")
            if not user or not password or (configured_by == "project" and _VARIABLE.search(user + password)):
                continue
            name = _ESCAPED_CHARACTER.sub(lambda match: chr(int(match[1], 16)), source.tag.rpartition("}")[2])
            yield name, f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"


def _parse_pairs(sections: list[Element], variables: Mapping[str, str]) -> dict[str, str]:
    pairs = {}
    for section in sections:
        for element in find_children(section, "add"):
            key, value = element.get("key"), element.get("value")
            if key and value is not None:
                pairs[key] = _VARIABLE.sub(lambda name: variables.get(name[1], name[0]), value)
    return pairs
