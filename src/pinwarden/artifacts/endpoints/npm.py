"""Finds the npm registry of a package in npm's own settings.

Settings apply in this order: command line, environment, project, user, machine, npm's default.

A repository can name a registry in its ``.npmrc``, and a malicious repository could do so to steal a token. Pinwarden
therefore does not trust certificate authorities named in a repository's ``.npmrc``. If a credential in that file refers
to an environment variable, Pinwarden sends the variable only to hosts that the user's own settings name.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from pinwarden.artifacts.npm_package import parse_name
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.strict_json import parse_json
from pinwarden.system.files import find_program, read_file
from pinwarden.system.net.connections import Origin, ServiceEndpoint, SettingsSources
from pinwarden.system.target import HttpAddress

_SCOPE_KEY = re.compile(r"@[A-Za-z0-9~-][A-Za-z0-9._~-]*:registry")
_MAX_BYTES = 1 << 20  # settings files have a few lines
_LINE = re.compile(r"\[[^\]]*\]\s*|([^=]+)(?:=(.*))?", re.DOTALL)
_PLACEHOLDER = re.compile(r"(?<!\\)(\\*)\$\{([^${}?]+)(\?)?\}")
_LAST_SEGMENT = re.compile(r"([^/]+|/)$")


class NpmRegistry(Record):
    """The registry npm would use for a package."""

    endpoint: ServiceEndpoint
    notes: tuple[str, ...] = ()
    """Messages about settings that Pinwarden ignored."""


class _SettingsLayer(Record):
    """The settings from one file or from the environment."""

    configured_by: Origin
    source: str
    values: Mapping[str, str] = field(repr=False)


class _Setting(Record):
    """The value of a setting, and the layer that it comes from."""

    value: str = field(repr=False)
    layer: _SettingsLayer


class _NpmSettings:
    """All layers of npm's settings, highest precedence first."""

    def __init__(self, layers: list[_SettingsLayer], variables: Mapping[str, str]) -> None:
        self.layers = layers
        self.variables = variables
        self.notes: list[str] = []

    def find(self, key: str, *, include_project: bool = True) -> _Setting | None:
        for layer in self.layers:
            if key in layer.values and (include_project or layer.configured_by != "project"):
                return _Setting(value=layer.values[key], layer=layer)
        return None

    def list_user_layers(self) -> Iterator[_SettingsLayer]:
        """Return all layers except the project's."""
        return (layer for layer in self.layers if layer.configured_by != "project")

    def add_note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def find_registry(name: str, settings: SettingsSources, *, argument: str | None = None) -> NpmRegistry:
    """Return the registry for one package. ``argument`` is a registry from the command line."""
    scope = parse_name(name).scope
    layers = _NpmSettings(list(_read_layers(settings)), settings.variables)
    setting = _find_registry(scope, layers, argument)
    url = _parse_registry_url(setting)
    configured_by, source = _find_origin(url, setting, layers)
    endpoint = ServiceEndpoint(
        url=url,
        configured_by=configured_by,
        source=source,
        authorization=_find_authorization(url, configured_by, layers),
        ca_file=_find_ca_file(layers, settings),
    )
    return NpmRegistry(endpoint=endpoint, notes=tuple(layers.notes))


def list_project_scopes(settings: SettingsSources) -> tuple[str, ...]:
    """Return the scopes for which a project's settings name a registry.

    Pinwarden must pass these registries to npm, because npm ignores a project's settings if it runs in another folder.
    """
    scopes = {
        key.removesuffix(":registry")
        for layer in _read_layers(settings)
        if layer.configured_by == "project"
        for key, value in layer.values.items()
        if _SCOPE_KEY.fullmatch(key) and value
    }
    return tuple(sorted(scopes))


def get_default_registry() -> str:
    """Return the registry that npm uses by default, as the package ``packageurl`` knows it."""
    from packageurl.contrib.purl2url import get_download_url

    url: str = get_download_url("pkg:npm/x@1")  # type: ignore[no-untyped-call]
    return url.partition("x/-/")[0]


# Which registry


def _find_registry(scope: str, layers: _NpmSettings, argument: str | None) -> _Setting:
    if argument is not None:
        return _Setting(
            value=argument, layer=_SettingsLayer(configured_by="argument", source="the command line", values={})
        )
    keys = [f"{scope}:registry"] if scope else []
    default_scope = layers.find("scope")
    if default_scope and default_scope.value:
        keys.append(f"@{default_scope.value.lstrip('@')}:registry")
    for key in (*keys, "registry"):
        setting = layers.find(key)
        if setting and setting.value:
            return setting
    return _Setting(
        value=get_default_registry(),
        layer=_SettingsLayer(configured_by="default", source="npm's own default", values={}),
    )


def _parse_registry_url(setting: _Setting) -> str:
    source = setting.layer.source
    if "${" in setting.value:
        raise PinwardenError("CONFIG_INVALID", f"the registry URL in {source} contains an unset variable")
    url = setting.value if setting.value.endswith("/") else f"{setting.value}/"
    try:
        address = HttpAddress.parse(url)
    except PinwardenError as err:  # the value may contain a password
        raise PinwardenError("CONFIG_INVALID", f"the registry URL in {source} is invalid") from err
    if "?" in address.path:
        raise PinwardenError("CONFIG_INVALID", f"the registry URL in {source} contains a query")
    return url


def _find_origin(url: str, setting: _Setting, layers: _NpmSettings) -> tuple[Origin, str]:
    """Find who configured the registry. A registry that both the project and the user name is the user's."""
    if setting.layer.configured_by == "project":
        for layer in layers.list_user_layers():
            for key, value in layer.values.items():
                if (key == "registry" or key.endswith(":registry")) and f"{value.rstrip('/')}/" == url:
                    return layer.configured_by, layer.source
    return setting.layer.configured_by, setting.layer.source


# Credentials


def _find_authorization(url: str, configured_by: Origin, layers: _NpmSettings) -> str | None:
    """Return the ``Authorization`` header for a registry, from the most specific setting."""
    parts = urlsplit(url)
    if parts.scheme == "http" and configured_by == "project":
        return None  # with plain HTTP for a known host, a malicious project could intercept the credential
    address = HttpAddress.parse(url)
    key_prefix = f"//{address.host_header}{address.path}"
    while len(key_prefix) > 2:
        credential = _find_credential(key_prefix, address, layers)
        if credential is not None:
            return credential
        key_prefix = _LAST_SEGMENT.sub("", key_prefix)
    return None


def _find_credential(key_prefix: str, address: HttpAddress, layers: _NpmSettings) -> str | None:
    token = _find_secret(f"{key_prefix}:_authToken", address, layers)
    if token:
        return _check_header(f"Bearer {token}", key_prefix, layers)
    pair = _find_secret(f"{key_prefix}:_auth", address, layers)
    if pair:
        return _check_header(f"Basic {pair}", key_prefix, layers)
    user = _find_secret(f"{key_prefix}:username", address, layers)
    password = _find_secret(f"{key_prefix}:_password", address, layers)
    if not user or not password:
        return None
    try:
        password_bytes = b64decode(password, validate=False)
    except (BinasciiError, ValueError):
        layers.add_note(f"{key_prefix}:_password is not base64; the password is not used")
        return None
    return f"Basic {b64encode(user.encode() + b':' + password_bytes).decode()}"


def _check_header(value: str, key_prefix: str, layers: _NpmSettings) -> str | None:
    if value.isascii() and value.isprintable():
        return value
    layers.add_note(f"the credential for {key_prefix} is not used: it contains characters that a header cannot have")
    return None


def _find_secret(key: str, address: HttpAddress, layers: _NpmSettings) -> str | None:
    setting = layers.find(key)
    if setting is None:
        return None
    value = setting.value
    if setting.layer.configured_by == "project" and "${" in value:
        if not _is_user_host(address, layers):
            layers.add_note(
                f"{setting.layer.source} has a credential for {address.host_header} with an environment variable; the "
                "credential is not sent, because your own settings do not name this host"
            )
            return None
        value = _expand_variables(value, layers.variables)
    if "${" in value:
        layers.add_note(
            f"{setting.layer.source} has a credential for {address.host_header} with a variable that is not set"
        )
        return None
    return value


def _is_user_host(address: HttpAddress, layers: _NpmSettings) -> bool:
    """Whether the user's own settings mention a host, as a registry or with a credential."""
    for layer in layers.list_user_layers():
        for key, value in layer.values.items():
            if key.startswith(f"//{address.host_header}/"):
                return True
            if (key == "registry" or key.endswith(":registry")) and urlsplit(value).netloc == address.host_header:
                return True
    return False


# Certificates


def _find_ca_file(layers: _NpmSettings, settings: SettingsSources) -> Path | None:
    own_cafile = layers.find("cafile", include_project=False)
    any_cafile = layers.find("cafile")
    if any_cafile and any_cafile.layer.configured_by == "project":
        layers.add_note(f"{any_cafile.layer.source} sets cafile; Pinwarden does not trust these certificates")
    for key in ("ca", "strict-ssl", "proxy", "https-proxy", "noproxy"):
        setting = layers.find(key)
        if setting and setting.value not in ("", "true", "null"):
            layers.add_note(f"{setting.layer.source} sets {key}; Pinwarden ignores this setting")
    if own_cafile and own_cafile.value not in ("", "null"):
        return _resolve_path(own_cafile.value, settings)
    extra = settings.variables.get("NODE_EXTRA_CA_CERTS")
    return _resolve_path(extra, settings) if extra else None


def _resolve_path(text: str, settings: SettingsSources) -> Path:
    if text.startswith("~/"):
        return settings.home / text[2:]
    return (settings.project or settings.home) / text


# Layers


def _read_layers(settings: SettingsSources) -> Iterator[_SettingsLayer]:
    environment = _parse_environment(settings.variables)
    yield _SettingsLayer(configured_by="environment", source="the environment", values=environment)
    user_config = environment.get("userconfig")
    user_file = _resolve_path(user_config, settings) if user_config else settings.home / ".npmrc"
    if settings.project is not None:
        project_file = settings.project / ".npmrc"
        if project_file.resolve() != user_file.resolve():
            yield from _read_file(project_file, "project", {})
    yield from _read_file(user_file, "user", settings.variables)
    builtin = list(_read_builtin_config(settings))
    yield from _read_file(_find_global_config(environment, builtin, settings), "system", settings.variables)
    yield from builtin


def _parse_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Parse ``npm_config_`` variables as npm does: names are case-insensitive unless they start with a host."""
    values = {}
    for name, value in variables.items():
        if not name.lower().startswith("npm_config_") or not value:
            continue
        key = name[len("npm_config_") :]
        if not key.startswith("//"):
            key = (key[:1] + key[1:].replace("_", "-")).lower()
        values[key] = _expand_variables(value, variables)
    return values


def _find_global_config(
    environment: Mapping[str, str], builtin: list[_SettingsLayer], settings: SettingsSources
) -> Path | None:
    """Return the path of the machine-wide settings file, which is near ``node`` unless configured otherwise."""
    for values in (environment, *(layer.values for layer in builtin)):
        if path := values.get("globalconfig"):
            return _resolve_path(path, settings)
        if prefix := values.get("prefix"):
            return _resolve_path(prefix, settings) / "etc" / "npmrc"
    if prefix := settings.variables.get("PREFIX"):
        return Path(prefix) / "etc" / "npmrc"
    node = find_program("node", settings.variables.get("PATH", ""))
    return None if node is None else node.resolve().parent.parent / "etc" / "npmrc"


def _read_builtin_config(settings: SettingsSources) -> Iterator[_SettingsLayer]:
    """Yield the built-in settings file that distributions put next to npm."""
    npm = find_program("npm", settings.variables.get("PATH", ""))
    if npm is not None:
        yield from _read_file(npm.resolve().parent.parent / "npmrc", "system", settings.variables)


def _read_file(path: Path | None, configured_by: Origin, variables: Mapping[str, str]) -> Iterator[_SettingsLayer]:
    if path is None or not path.is_file():
        return
    try:
        text = read_file(path, _MAX_BYTES).decode()
    except UnicodeDecodeError as err:
        raise PinwardenError("CONFIG_INVALID", f"{path} is not UTF-8") from err
    values = parse_npmrc(text)
    if configured_by != "project":
        values = {
            _expand_variables(key, variables): _expand_variables(value, variables) for key, value in values.items()
        }
    yield _SettingsLayer(configured_by=configured_by, source=str(path), values=values)


def parse_npmrc(text: str) -> dict[str, str]:
    """Parse an ``.npmrc`` file as npm does. Keys below a ``[section]`` are ignored."""
    values: dict[str, str] = {}
    for line in re.split(r"[\r\n]+", text.removeprefix("\ufeff")):
        stripped = line.strip()
        if not stripped or stripped[0] in ";#":
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        if match[1] is None:
            break
        key = _unquote(match[1])
        if not key.endswith("[]"):
            values[key] = "true" if match[2] is None else _unquote(match[2])
    return values


def _unquote(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        inner = text[1:-1]
        try:
            value = json.loads(f'"{inner}"' if text[0] == '"' else inner)
        except ValueError:
            return inner if text[0] == "'" else text
        return value if isinstance(value, str) else inner
    characters: list[str] = []
    escaped = False
    for character in text:
        if escaped:
            characters.append(character if character in "\\;#" else f"\\{character}")
            escaped = False
        elif character in ";#":
            break
        elif character == "\\":
            escaped = True
        else:
            characters.append(character)
    return ("".join(characters) + ("\\" if escaped else "")).strip()


def _expand_variables(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``${NAME}`` by the variable's value.

    If the variable is not set, ``${NAME}`` stays as it is and ``${NAME?}`` becomes empty.
    """

    def expand(match: re.Match[str]) -> str:
        escapes, name, optional = match[1], match[2], match[3]
        if len(escapes) % 2:
            return match[0][(len(escapes) + 1) // 2 :]
        return escapes[len(escapes) // 2 :] + variables.get(name, "" if optional else f"${{{name}}}")

    return _PLACEHOLDER.sub(expand, text)


_MAX_MANIFEST_BYTES = 4 * 1024 * 1024


def find_npx_release(spec: str, name: str, project: Path, home: Path, variables: Mapping[str, str]) -> str | None:
    """Return the version in npx's cache for a spec such as ``notes`` or ``notes@latest``.

    npx keeps one folder per list of packages, named after the list's digest. Returns None if the cache has no such
    folder, or if the project has the package installed: npx then starts the project's copy.
    """
    if (project / "node_modules" / name).exists():
        return None
    cache = Path(variables.get("npm_config_cache") or variables.get("NPM_CONFIG_CACHE") or home / ".npm")
    folder = hashlib.sha512(spec.encode()).hexdigest()[:16]
    try:
        manifest = parse_json(
            read_file(cache / "_npx" / folder / "node_modules" / name / "package.json", _MAX_MANIFEST_BYTES)
        )
    except PinwardenError:
        return None
    version = manifest.get("version") if type(manifest) is dict and manifest.get("name") == name else None
    return version if type(version) is str else None
