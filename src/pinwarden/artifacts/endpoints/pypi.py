"""Finds package indexes and their credentials in the settings of pip and uv.

An extra index can serve a package under a name that also exists on the main index (dependency confusion). The main
index and the extra indexes are therefore kept apart.
"""

from __future__ import annotations

import configparser
import os
import re
import sys
import tomllib
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.system.files import read_file
from pinwarden.system.net.connections import Origin, ServiceEndpoint, SettingsSources
from pinwarden.system.target import HttpAddress

PythonInstaller = Literal["any", "uv", "pip"]
_MAX_BYTES = 1 << 20  # settings files have a few lines
_MAX_INDEXES = 100


class PackageIndexes(Record):
    """The main index, and the extra indexes that an installer would also use."""

    main: ServiceEndpoint
    extra: tuple[ServiceEndpoint, ...] = ()
    notes: tuple[str, ...] = ()
    """Messages about ignored settings, such as folders, pages of links, and credentials that were not sent."""


class _IndexSetting(Record):
    """One configured index. The URL may contain a credential."""

    url: str = field(repr=False)
    configured_by: Origin
    source: str
    name: str = ""


class _IndexCollector:
    """Collects indexes. Settings must be added in order of precedence, highest first."""

    def __init__(self) -> None:
        self.main: _IndexSetting | None = None
        self.extra: list[_IndexSetting] = []
        self.notes: list[str] = []
        self.certificates: Path | None = None

    def add_main(self, setting: _IndexSetting) -> None:
        if _is_web_url(setting.url):
            self.main = self.main or setting
        else:
            self.notes.append(f"{setting.source} names an index that is not an http(s) URL; the index is ignored")

    def add_extra(self, setting: _IndexSetting) -> None:
        if len(self.extra) >= _MAX_INDEXES:
            raise PinwardenError("CONFIG_INVALID", f"{setting.source} names more than {_MAX_INDEXES} indexes")
        if _is_web_url(setting.url):
            self.extra.append(setting)
        else:
            self.notes.append(f"{setting.source} names an extra index that is not an http(s) URL; the index is ignored")


def find_indexes(
    settings: SettingsSources, *, installer: PythonInstaller = "any", system: Path = Path("/")
) -> PackageIndexes:
    """Return the indexes that an installer is configured to use.

    With ``any``, uv's settings take precedence over pip's. ``system`` is the root folder of machine-wide settings.
    """
    collector = _IndexCollector()
    if installer != "pip":
        _add_uv_settings(collector, settings, system)
    if installer != "uv":
        _add_pip_settings(collector, settings, system)
    for variable in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        if value := settings.variables.get(variable):
            collector.certificates = collector.certificates or Path(value)
    main = collector.main or _IndexSetting(
        url=get_default_index(), configured_by="default", source="the default of pip and uv"
    )
    passwords = _read_netrc(settings)
    endpoints = [
        _build_endpoint(setting, collector, passwords, settings.variables) for setting in (main, *collector.extra)
    ]
    extra_by_url = {endpoint.url: endpoint for endpoint in reversed(endpoints[1:]) if endpoint.url != endpoints[0].url}
    return PackageIndexes(main=endpoints[0], extra=tuple(reversed(extra_by_url.values())), notes=tuple(collector.notes))


def get_default_index() -> str:
    """Return the index that installers use by default, as the package ``packageurl`` knows it."""
    from packageurl.contrib.purl2url import get_repo_url

    parts = urlsplit(str(get_repo_url("pkg:pypi/pip")))  # type: ignore[no-untyped-call]
    return urlunsplit((parts.scheme, parts.netloc, "/simple/", "", ""))


def get_index_parent(index: ServiceEndpoint) -> ServiceEndpoint:
    """Return the endpoint one level above the index, which serves files and other APIs.

    Installers send the index's credential there too.
    """
    base = index.url.rstrip("/")
    path = urlsplit(base).path
    return index if not path.strip("/") else replace(index, url=base.rpartition("/")[0] + "/")


def get_json_api_url(index: ServiceEndpoint) -> str | None:
    """Return the URL of the JSON API, if the index's URL has the usual form."""
    return f"{get_index_parent(index).url}pypi/" if index.url.endswith("/simple/") else None


# uv


def _add_uv_settings(collector: _IndexCollector, settings: SettingsSources, system: Path) -> None:
    variables = settings.variables
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        if value := variables.get(variable, "").strip():
            collector.add_main(_parse_uv_index(value, "environment", variable))
    for variable in ("UV_INDEX", "UV_EXTRA_INDEX_URL"):
        for word in variables.get(variable, "").split():
            collector.add_extra(_parse_uv_index(word, "environment", variable))
    if variables.get("UV_FIND_LINKS"):
        collector.notes.append("UV_FIND_LINKS is ignored")
    for configured_by, path, tables in _find_uv_files(settings, system):
        document = _read_toml(path)
        for table in tables:
            document = document.get(table, {}) if isinstance(document, dict) else {}
        if isinstance(document, dict):
            _add_uv_document(collector, document, configured_by, str(path))


def _parse_uv_index(text: str, configured_by: Origin, source: str) -> _IndexSetting:
    name, equals, url = text.partition("=")
    has_name = bool(equals) and re.fullmatch(r"[A-Za-z0-9._-]+", name) is not None
    return _IndexSetting(
        url=url if has_name else text, configured_by=configured_by, source=source, name=name if has_name else ""
    )


def _find_uv_files(settings: SettingsSources, system: Path) -> Iterator[tuple[Origin, Path, tuple[str, ...]]]:
    """Yield the files uv reads, highest precedence first."""
    variables = settings.variables
    if variables.get("UV_NO_CONFIG", "").lower() in ("1", "true"):
        return
    if config_file := variables.get("UV_CONFIG_FILE"):
        yield "user", _require_file(Path(config_file)), ()
        return
    if settings.project is not None:
        if (settings.project / "uv.toml").is_file():
            yield "project", settings.project / "uv.toml", ()
        elif (settings.project / "pyproject.toml").is_file():
            yield "project", settings.project / "pyproject.toml", ("tool", "uv")
    files: list[tuple[Origin, Path]] = [("user", folder / "uv" / "uv.toml") for folder in _list_user_folders(settings)]
    files.append(("system", system / "etc" / "uv" / "uv.toml"))
    for configured_by, path in files:
        if path.is_file():
            yield configured_by, path, ()


def _add_uv_document(
    collector: _IndexCollector, document: Mapping[str, Any], configured_by: Origin, source: str
) -> None:
    indexes = document.get("index", [])
    for index in indexes if isinstance(indexes, list) else []:
        if not isinstance(index, dict) or not isinstance(index.get("url"), str):
            _refuse(source, "an index without a URL")
        setting = _IndexSetting(
            url=index["url"], configured_by=configured_by, source=source, name=str(index.get("name", ""))
        )
        if index.get("format") == "flat":
            collector.notes.append(f"{source} names a page of links (format = flat); the page is ignored")
        elif index.get("explicit") is True:
            collector.notes.append(
                f"{source} names an index with explicit = true, which is for selected packages; the index is ignored"
            )
        elif index.get("default") is True:
            collector.add_main(setting)
        else:
            collector.add_extra(setting)
    for table in (document, document.get("pip", {})):
        if isinstance(table, dict):
            _add_uv_legacy_keys(collector, table, configured_by, source)


def _add_uv_legacy_keys(
    collector: _IndexCollector, table: Mapping[str, Any], configured_by: Origin, source: str
) -> None:
    if isinstance(table.get("index-url"), str):
        collector.add_main(_IndexSetting(url=table["index-url"], configured_by=configured_by, source=source))
    extra = table.get("extra-index-url", [])
    for url in extra if isinstance(extra, list) else []:
        if isinstance(url, str):
            collector.add_extra(_IndexSetting(url=url, configured_by=configured_by, source=source))
    if table.get("find-links"):
        collector.notes.append(f"{source} sets find-links; Pinwarden ignores this setting")


def _read_toml(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(read_file(path, _MAX_BYTES).decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise PinwardenError("CONFIG_INVALID", f"{path} is not TOML") from None  # the cause may quote a credential


# pip


def _add_pip_settings(collector: _IndexCollector, settings: SettingsSources, system: Path) -> None:
    variables = settings.variables
    values: dict[str, tuple[str, Origin, str]] = {}
    by_section: dict[str, dict[str, tuple[str, Origin, str]]] = {"global": {}, "install": {}}
    for configured_by, path in _find_pip_files(settings, system):  # later files take precedence
        for section, name, value in _read_pip_file(path):
            by_section[section][name] = (value, configured_by, str(path))
    for section in ("global", "install"):
        values |= by_section[section]
    for name in ("index-url", "extra-index-url", "find-links", "cert", "no-index"):
        variable = f"PIP_{name.upper().replace('-', '_')}"
        if variables.get(variable):
            values[name] = (variables[variable], "environment", variable)
    if "index-url" in values:
        url, configured_by, source = values["index-url"]
        collector.add_main(_IndexSetting(url=url.strip(), configured_by=configured_by, source=source))
    text, configured_by, source = values.get("extra-index-url", ("", "user", ""))
    for word in text.split():
        collector.add_extra(_IndexSetting(url=word, configured_by=configured_by, source=source))
    if "find-links" in values:
        collector.notes.append(f"{values['find-links'][2]} sets find-links; Pinwarden ignores this setting")
    if values.get("no-index", ("",))[0].lower() in ("1", "true", "yes", "on"):
        collector.notes.append(f"{values['no-index'][2]} sets no-index; Pinwarden ignores this setting")
    if "cert" in values and values["cert"][1] != "project":
        collector.certificates = collector.certificates or Path(values["cert"][0])


def _find_pip_files(settings: SettingsSources, system: Path) -> Iterator[tuple[Origin, Path]]:
    """Yield the files pip reads, highest precedence last."""
    variables, name = settings.variables, "pip.ini" if sys.platform == "win32" else "pip.conf"
    config_file = variables.get("PIP_CONFIG_FILE")
    if config_file == os.devnull:
        return
    folders = filter(None, variables.get("XDG_CONFIG_DIRS", "").split(os.pathsep))
    paths: list[tuple[Origin, Path]] = [("system", Path(folder) / "pip" / name) for folder in folders]
    paths.append(("system", system / "etc" / name))
    if variables.get("PROGRAMDATA"):
        paths.append(("system", Path(variables["PROGRAMDATA"]) / "pip" / name))
    if not (config_file and Path(config_file).exists()):
        paths.append(("user", settings.home / ("pip" if sys.platform == "win32" else ".pip") / name))
        paths += [("user", folder / "pip" / name) for folder in reversed(_list_user_folders(settings))]
    if variables.get("VIRTUAL_ENV"):
        site = Path(variables["VIRTUAL_ENV"])
        inside = settings.project is not None and site.is_relative_to(settings.project)
        paths.append(("project" if inside else "user", site / name))
    yield from ((configured_by, path) for configured_by, path in paths if path.is_file())
    if config_file:
        yield "user", _require_file(Path(config_file))


def _list_user_folders(settings: SettingsSources) -> list[Path]:
    """Return the user's configuration folders, highest precedence first."""
    variables = settings.variables
    folders = [Path(variables["XDG_CONFIG_HOME"])] if variables.get("XDG_CONFIG_HOME") else [settings.home / ".config"]
    if sys.platform == "darwin":
        folders.insert(0, settings.home / "Library" / "Application Support")
    if variables.get("APPDATA"):
        folders.insert(0, Path(variables["APPDATA"]))
    return folders


def _read_pip_file(path: Path) -> Iterator[tuple[str, str, str]]:
    reader = configparser.RawConfigParser()
    try:
        reader.read_string(read_file(path, _MAX_BYTES).decode("utf-8-sig"))
    except (configparser.Error, UnicodeDecodeError) as err:
        # The parser's message may quote a line with a credential, so only the error's type is reported.
        raise PinwardenError("CONFIG_INVALID", f"{path} is malformed: {type(err).__name__}") from None
    for section in ("global", "install"):
        if reader.has_section(section):
            for name, value in reader.items(section):
                yield section, name.lower().replace("_", "-").removeprefix("--"), value


def _require_file(path: Path) -> Path:
    """Raise if a settings file named in the environment is missing, rather than use other settings silently."""
    if not path.is_file():
        raise PinwardenError("FILE_UNREADABLE", f"{path}, the settings file named in the environment, does not exist")
    return path


# URLs and credentials


def _is_web_url(url: str) -> bool:
    return re.match(r"https?://", url, re.IGNORECASE) is not None


def _build_endpoint(
    setting: _IndexSetting,
    collector: _IndexCollector,
    passwords: Mapping[str, tuple[str, str]],
    variables: Mapping[str, str],
) -> ServiceEndpoint:
    try:
        parts = urlsplit(setting.url)
        userinfo, _, host = parts.netloc.rpartition("@")
        url = urlunsplit((parts.scheme.lower(), host, f"{parts.path.rstrip('/')}/", parts.query, ""))
        HttpAddress.parse(url)
    except (ValueError, PinwardenError):
        _refuse(setting.source, "an index with a malformed URL")
    if parts.query:
        _refuse(setting.source, "an index whose URL has a query")
    user, colon, password = userinfo.partition(":")
    pair = (unquote(user), unquote(password)) if userinfo else None
    if pair is None or not colon:
        pair = (
            _find_named_credential(setting, collector, variables)
            or pair
            or _find_netrc_credential(setting, parts, passwords)
        )
    return ServiceEndpoint(
        url=url,
        configured_by=setting.configured_by,
        source=setting.source,
        authorization=None if pair is None else _build_basic_header(*pair),
        ca_file=collector.certificates,
    )


def _find_netrc_credential(
    setting: _IndexSetting, parts: SplitResult, passwords: Mapping[str, tuple[str, str]]
) -> tuple[str, str] | None:
    """Return the user's netrc credential for a host.

    None if a project names the index, and its URL has plain HTTP or a port other than 443.
    """
    if setting.configured_by == "project" and (parts.scheme.lower() != "https" or parts.port not in (None, 443)):
        return None
    return passwords.get(parts.hostname or "")


def _find_named_credential(
    setting: _IndexSetting, collector: _IndexCollector, variables: Mapping[str, str]
) -> tuple[str, str] | None:
    """Return uv's credential for a named index, from the environment."""
    if not setting.name:
        return None
    stem = f"UV_INDEX_{re.sub(r'[^A-Z0-9]', '_', setting.name.upper())}"
    user, password = variables.get(f"{stem}_USERNAME", ""), variables.get(f"{stem}_PASSWORD", "")
    if not user and not password:
        return None
    if setting.configured_by == "project":
        # The project chose the name and the URL, so a malicious project could choose who receives the password.
        collector.notes.append(
            f"{stem}_PASSWORD is not sent to the index {setting.name[:80]!a}, because {setting.source} names it"
        )
        return None
    return user, password


def _build_basic_header(user: str, password: str) -> str:
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


def _read_netrc(settings: SettingsSources) -> Mapping[str, tuple[str, str]]:
    """Read the credential of each host from netrc. The ``default`` entry is ignored, because it is for any host."""
    import netrc

    netrc_file = settings.variables.get("NETRC")
    paths = [Path(netrc_file)] if netrc_file else [settings.home / ".netrc", settings.home / "_netrc"]
    for path in paths:
        if path.is_file():
            try:
                hosts = netrc.netrc(str(path)).hosts
            except (netrc.NetrcParseError, OSError, UnicodeDecodeError):
                return {}  # like pip and uv; the index will then respond with status 401
            return {host: (entry[0], entry[2]) for host, entry in hosts.items() if host != "default"}
    return {}


def _refuse(source: str, problem: str) -> NoReturn:
    raise PinwardenError("CONFIG_INVALID", f"{source} names {problem}") from None
