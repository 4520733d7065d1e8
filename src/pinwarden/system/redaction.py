"""Redact a configured entry for the lock: keep what decides which code runs, and never a secret.

`redact_entry` replaces each literal that may be a secret by ``<its path>``. It keeps commands, URLs without secrets,
references to variables, hosts, and values that are plainly not secrets, so that a change of these is visible:

- A path, a list of paths or a number is kept unless its name suggests a secret.
- A word could be a password, so it is kept only if its name says what it selects: a mode, a list of tools, a module.
- Of a URL, scheme and host are kept, but only a host that every parser would find. If parsers differ, nothing is kept,
  so that a change from an approved host to such a URL is visible too.

If in doubt, a value is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from pinwarden.core.text import lazy_pattern
from pinwarden.system.environment_variables import is_redirecting_variable
from pinwarden.system.masking import (
    EXACT_REFERENCE,
    MASK,
    MAX_SHOWN_CHARACTERS,
    TOKEN,
    URL_START,
    contains_key,
    has_secret_word,
    is_exact_reference,
    is_name_of_secret,
    looks_random,
    looks_secret,
    mask_text,
    mask_url,
    mask_value,
    mask_word,
    mask_words,
    split_into_words,
)

UNNAMED_REFERENCE = "${?}"
"""Stored in a lock for a reference that could also be part of a secret, such as ``$NAME``."""

_URL_MEMBERS = ("url", "serverUrl", "httpUrl")
_UNREDACTED_MEMBERS = (
    *("command", "args", "cwd", "type", "name", "transport", "envFile"),
    *("env_vars", "env_keys", "env_http_headers", "bearer_token_env_var"),
    *("alwaysAllow", "autoApprove", "trust", "tools", "includeTools"),
    *("excludeTools", "enabled_tools", "disabled_tools", "disabledTools"),
)
"""Members that decide what runs, which host is contacted or which calls need no consent: changes must be visible."""
_DECIDING_MEMBERS = frozenset(
    (
        *("command", "args", "shell", "script", "run", "exec", "program", "entrypoint", "runtime", "interpreter"),
        *("image", "package", "module", "version", "path", "cwd", "registry", "source", "host", "proxy", "transport"),
        *("permissions", "allow", "deny", "allowed", "denied", "sandbox", "scopes", "roots", "mounts", "volumes"),
    )
)
"""Names of members, at any depth and of any client, that say what is started, from where, or with which permissions."""
_RUNNING_WORDS = frozenset(
    ("command", "cmd", "script", "helper", "exec", "executable", "hook", "program", "shell", "run")
)
_LOCATION_WORDS = frozenset(("url", "uri", "endpoint", "host", "issuer", "path", "file", "image", "package"))
"""Together with `_RUNNING_WORDS`, words that mean the same inside a longer name, as in ``authServerMetadataUrl``."""
_PLAIN_TEXT = lazy_pattern(r"[\w./:@\\ -]{1,120}")
_CREDENTIALS = lazy_pattern(r"(?<![^\s/@=]):*[^\s/@:=]+:[^\s/@]*@|^[^\s@/.~\\-][^\s]*@(?=[^\s@]*$)")


def redact_entry(entry: Any) -> Any:
    """Return a configured entry without secrets, as the lock stores it.

    Entries that differ only in secrets become equal, so this is also the form that is compared with the lock.
    """
    return {name: _redact_member(name, value) for name, value in entry.items()} if type(entry) is dict else entry


def list_command_lines(entry: Any) -> list[list[str]]:
    """Return all command lines of an entry, whichever of them its client uses. A lock stores them unredacted."""
    if type(entry) is not dict:
        return []
    command = entry.get("command")
    parts = command if type(command) is dict else {"path": command}
    lists = [_as_list(parts.get("path")) + _as_list(parts.get("args")), _as_list(entry.get("args"))]
    if type(command) is not dict:
        lists = [lists[0] + lists[1]]
    return [[word for word in words if type(word) is str] for words in (*lists, _as_list(entry.get("cwd")))]


def list_urls(entry: Any) -> list[str]:
    """Return all URLs of an entry, whichever of them its client uses."""
    urls = [entry.get(member) for member in _URL_MEMBERS] if type(entry) is dict else []
    return [url for url in urls if type(url) is str]


def _as_list(value: Any) -> list[Any]:
    return value if type(value) is list else [] if value is None else [value]


def _redact_member(name: str, value: Any) -> Any:
    if name in _URL_MEMBERS and type(value) is str:
        return _redact_url(name, value)
    if name == "command" and type(value) is dict:
        return {
            key: part if key in ("path", "args") and _is_text(part) else _redact_value(f"command.{key}", key, part)
            for key, part in value.items()
        }
    if name == "env_http_headers" and type(value) is dict:
        return {key: _redact_word(key, part) for key, part in value.items()}
    if name in ("command", "args", "cwd") and _is_text(value):
        return value
    if name in _UNREDACTED_MEMBERS and _is_text(value):
        return [_redact_word(name, word) for word in value] if type(value) is list else _redact_word(name, value)
    return _redact_value(name, name, value)


def _is_text(value: Any) -> bool:
    return type(value) is str or (type(value) is list and all(type(word) in (str, int, float, bool) for word in value))


def _redact_word(name: str, word: Any) -> Any:
    """Redact the name of a tool, variable, file or type if it looks like a key."""
    return f"<{name}>" if type(word) is str and looks_secret("", word) else word


def _redact_value(path: str, name: str, value: Any) -> Any:
    if type(value) is dict:
        if name in NAMED_VALUES:
            header = name.endswith("headers")  # most header values are secrets
            return {key: _redact_variable(key, part, header=header) for key, part in value.items()}
        return {key: _redact_value(f"{path}.{key}", key, part) for key, part in value.items()}
    if type(value) is list:
        lockable = [_redact_value(f"{path}.{index}", name, part) for index, part in enumerate(value)]
        if not all(type(part) is str for part in value):
            return lockable
        # One word may say what the next one is: --token, and then the token.
        pairs = zip(value, mask_words(value), lockable, strict=True)
        return [
            redacted if shown == part else f"<{path}.{index}>" for index, (part, shown, redacted) in enumerate(pairs)
        ]
    if type(value) is str:
        return value if not value or is_exact_reference(value) else _redact_text(path, name, value)
    number = type(value) in (int, float)
    return f"<{path}>" if number and looks_secret(name, f"{value}-") else value


def _redact_text(path: str, name: str, text: str) -> str:
    """Return the text if it decides what is started, from where, or with which permissions.

    Otherwise return a placeholder, or only the origin of a URL.
    """
    words = split_into_words(name)
    if name.lower() not in _DECIDING_MEMBERS and not words & (_RUNNING_WORDS | _LOCATION_WORDS):
        return f"<{path}>"
    if words & _RUNNING_WORDS and not looks_secret(name, text) and mask_text(text) == text:
        return text  # a command line, like that of the server itself
    plain = _PLAIN_TEXT.fullmatch(text) and not looks_secret(name, text) and not _CREDENTIALS.search(text)
    if plain and mask_words([text]) == [text]:
        return text
    return keep_origin(path, text) if URL_START.match(text) and not re.search(r"\s", text) else f"<{path}>"


def _redact_variable(name: str, value: Any, *, header: bool = False) -> Any:
    """Redact a variable or header. References stay, and so do literals that are not secrets by form and name."""
    if value is None or type(value) is bool:
        return value
    if type(value) in (dict, list):
        return _redact_value(name, name, value)
    text = str(value)
    if not text or is_exact_reference(text) or _SWITCH.fullmatch(text):
        return value
    secret_name = has_secret_word(name) and not name.upper().startswith("GIT_CONFIG_")
    if is_redirecting_variable(name) and not secret_name and not name.upper().endswith("HEADERS"):
        if "://" in text:
            return mask_text(text)
        has_more_values = text.startswith("-") and re.search(
            r"\s", text
        )  # the value of one option must not hide the others
        return (mask_text if has_more_values else mask_word)(_CREDENTIALS.sub(f"<{name}>@", text))
    if URL_START.match(text) and not re.search(r"\s", text):
        return _redact_url_value(name, text)
    if _is_plain_path(name, text) or (not header and _is_plain(name, text)):
        return text
    return keep_host_list(name, text) or _keep_references(name, text)


def _redact_url_value(name: str, url: str) -> str:
    """Keep the origin of a URL, further origins inside it, and the variables it refers to."""
    origin = keep_origin(name, url)
    if origin == f"<{name}>":
        return _keep_references(name, url)
    return " ".join((f"{origin}{_find_references(url)}", *list(find_origins(url))[1:]))


def _is_plain(name: str, text: str) -> bool:
    return is_plain_value(name, text) and not looks_secret(name, text) and not _CREDENTIALS.search(text)


def _is_plain_path(name: str, text: str) -> bool:
    """Whether a value is a path by its name and form. The path of a settings file is not a secret, and the file often
    decides what is started."""
    plain = _FILE_NAME_SUFFIX.search(name) and _PLAIN_PATH.fullmatch(text) and not looks_secret(name, text)
    return bool(plain) and not _CREDENTIALS.search(text) and not any(map(contains_key, re.split(r"[/\\]", text)))


_FILE_NAME_SUFFIX = lazy_pattern(
    r"(?:^|_)(?:path|file|dir|dirs|directory|folder|home|root|config|conf|prefix|store|cache|bin|exe|executable|program|"
    r"command|shell|socket|cert|certs|bundle|profile|workspace|virtual_env|install)$|^[a-z]+config$",
    re.IGNORECASE,
)
_PLAIN_PATH = lazy_pattern(
    r"(?=.{1,400}$)(?!.*:\s)(?:"
    r"(?:~[\w.-]*|\.{1,2}|[A-Za-z]:|\$\{[\w:./\\~-]+\}|\$[A-Z_]+|%\w+%)?[/\\][\w./\\:${}~ +@-]*|"
    r"\$\{[A-Za-z_]\w*:-[\w./\\~ +-]*[/\\][\w./\\~ +-]*\}|"
    r"[a-z0-9_.-]+(?:[/\\][a-z0-9_. -]+)+|[\w.-]+(?:[/\\][\w. -]+)*[/\\][\w. -]+\.[a-z]{2,5})"
)
"""Text that begins like a path or consists of words. Other text with a slash can be a key or a login."""
_SWITCH = lazy_pattern(r"true|false|yes|no|on|off|enabled|disabled|0|1", re.IGNORECASE)
"""Values that cannot be secrets. Redacting them would hide that a read-only server was switched to writing."""
_NAMED_REFERENCE = lazy_pattern(
    r"\$\{(?:env:|input:)?[A-Za-z_][\w.-]*(?=:-[^{}]*\}|\})|\{env:[A-Za-z_]\w*\}|\$\{\{ ?secrets\.[A-Za-z_]\w* ?\}\}"
)
_POSSIBLE_REFERENCE = lazy_pattern(
    r"\$\{|\{(?:env|file):|\$[A-Z_][A-Z0-9_]{2,}|^\s*\$[A-Za-z_]\w*\s*$|%[A-Za-z_]\w{2,}%"
)


def _keep_references(name: str, text: str) -> str:
    """Keep the references and hosts in a value and drop its literal text: ``user:${OTHER}`` becomes ``<USER>${OTHER}``.

    A reference in a form that a password could have by chance is replaced by `UNNAMED_REFERENCE`.
    """
    if len(text) > MAX_SHOWN_CHARACTERS:
        return f"<{name}>"
    return " ".join((f"<{name}>{_find_references(text)}", *find_origins(text)))


def _find_references(text: str) -> str:
    """Return the variables that a text refers to. Of a default value, only its presence is kept."""
    if len(text) > MAX_SHOWN_CHARACTERS:
        return ""
    named = "".join(map(_format_reference, _NAMED_REFERENCE.finditer(text)))
    return named + (UNNAMED_REFERENCE if _POSSIBLE_REFERENCE.search(_NAMED_REFERENCE.sub(" ", text)) else "")


def _format_reference(match: re.Match[str]) -> str:
    if not match[0].startswith("${") or match[0].endswith("}"):
        return match[0]
    return f"{match[0]}:-}}" if match.string.startswith(":-", match.end()) else f"{match[0]}}}"


def _redact_url(member: str, url: str) -> str:
    base, mark, query = url.partition("?")
    if not URL_START.match(base) and not _begins_with_reference(base):
        return url if is_exact_reference(url) else _keep_references(member, url)
    query = query.partition("#")[0]
    base = base.partition("#")[0]
    return f"{base}{mark}{'&'.join(_redact_parameter(part) for part in query.split('&'))}" if query else base


def _begins_with_reference(url: str) -> bool:
    """Whether a URL is a variable followed by a plain path: ``${BASE}/mcp``."""
    reference = EXACT_REFERENCE.match(url)
    rest = url[reference.end() :] if reference and len(url) <= MAX_SHOWN_CHARACTERS else " "
    plain = re.fullmatch(r"(?::[0-9]{1,5})?(?:/[\w.~-]*)*", rest)
    return bool(plain) and MASK not in mask_url(f"https://host{rest}")


def _redact_parameter(text: str) -> str:
    name, mark, value = text.partition("=")
    if not mark:
        return text if is_exact_reference(text) or not text else "<query>"
    if not value or is_exact_reference(value) or _SWITCH.fullmatch(value):
        return text
    plain = unquote(value)
    whole = URL_START.match(plain) and not re.search(r"\s", plain)
    return f"{name}={(_redact_url_value if whole else _keep_references)(name, plain).replace(' ', '+')}"


def iter_names(entry: Any) -> Iterator[str]:
    """Yield all names of members, variables, headers and URL parameters in an entry, at any depth."""
    pending = [entry]
    while pending:
        value = pending.pop()
        if type(value) is dict:
            yield from value
            pending += value.values()
        elif type(value) is list:
            pending += value
    for url in list_urls(entry):
        yield from (part.partition("=")[0] for part in url.partition("?")[2].split("&"))


def mask_configured_value(name: str, value: Any) -> Any:
    """Like `mask_value`, but shows what a lock may store, so that a changed host, path or variable is visible."""
    masked = mask_value(name, value)
    redacted = _redact_variable(name, value) if masked == MASK and type(value) is str else masked
    return masked if redacted == f"<{name}>" else redacted


_MAX_VALUE = 1000
_MAX_PARTS = 50
_SEPARATOR = lazy_pattern(
    r"[,;]|(?<!^[A-Za-z])(?<![,;:][A-Za-z]):"
)  # a comma, a semicolon, or a colon that does not follow a drive letter
_LIST_DELIMITERS = " \t\r\n\"'[]"
"""Characters around the parts of a list, as in JSON."""
_ABSOLUTE_PATH = lazy_pattern(
    r"(?:~|\.{1,2}|[A-Za-z]:|\$\{[A-Za-z_]\w*\}|\$[A-Z_]+|%[A-Za-z_]\w*%)?[/\\](.*)|~|\.{1,2}|[A-Za-z]:"
)
_RELATIVE_PATH = lazy_pattern(r"[A-Za-z0-9_.][\w. +-]*(?:[/\\][\w. +-]+)*[/\\]?")
_SEGMENT = lazy_pattern(r"[\w. +@-]{0,80}")
_NUMBER = lazy_pattern(r"[+-]?[0-9]{1,9}(?:\.[0-9]{1,6})?(?:%|ms|s|m|h|d|[KMGT]i?B?|kb|mb|gb)?")
_WORD = lazy_pattern(r"(?:@[a-z0-9-]+/)?[A-Za-z*][A-Za-z0-9_.@*+-]{0,60}")
_YAML = lazy_pattern(r":\s")  # names with values, any of which may be a secret
_PRIVATE_NUMBER_WORDS = frozenset(
    (
        *("pin", "otp", "totp", "mfa", "twofa", "code", "passcode", "cvv", "phone", "account", "ssn", "iban", "seed"),
        *("salt", "nonce", "card", "unlock", "license", "licence"),
    )
)
_PATH_WORDS = frozenset(
    (
        *("path", "paths", "file", "files", "dir", "dirs", "directory", "directories", "folder", "folders"),
        *("workspace", "workspaces", "cache"),
    )
)
"""If the name of a variable has one of these words, even a value without a slash counts as a path."""
_CHOICE_WORDS = frozenset(
    (
        *("mode", "level", "policy", "profile", "env", "environment", "region", "role", "roles", "transport", "format"),
        *("lang", "language", "locale", "tz", "timezone", "scope", "scopes", "permission", "permissions", "provider"),
        *("model", "models", "type", "types", "backend", "driver", "engine", "feature", "features", "tool", "tools"),
        *("toolset", "toolsets", "plugin", "plugins", "module", "modules", "package", "packages", "extension"),
        *("extensions", "loader", "entrypoint", "preload", "command", "commands", "allow", "allowed", "allowlist"),
        *("deny", "denied", "denylist", "block", "blocked", "enable", "enabled", "disable", "disabled", "include"),
        *("exclude", "included", "excluded", "sandbox", "branch", "database", "schema", "schemas", "table", "tables"),
    )
)
_CHARACTER_CHANGES = lazy_pattern(r"[a-z](?=[A-Z0-9])|[0-9](?=[A-Za-z])|[A-Z](?=[0-9])")


def is_plain_value(name: str, text: str) -> bool:
    """Whether a variable's value is not a secret: a path, a number, or words whose name says what they select."""
    if not text or len(text) > _MAX_VALUE or TOKEN.search(text) or _YAML.search(text) or is_name_of_secret(name):
        return False
    parts = [part.strip(_LIST_DELIMITERS) for part in _SEPARATOR.split(text)]
    if len(parts) > _MAX_PARTS:
        return False
    words = split_into_words(name)
    if all(_is_path(part, words) for part in parts):
        return True
    if has_secret_word(name):
        return False
    if all(_NUMBER.fullmatch(part) for part in parts):
        return not words & _PRIVATE_NUMBER_WORDS
    return bool(words & _CHOICE_WORDS) and all(_is_word(word) for part in parts for word in part.split())


def _is_path(text: str, words: frozenset[str]) -> bool:
    if _ABSOLUTE_PATH.fullmatch(text) is None and not _is_relative_path(text, words):
        return False
    segments = re.split(r"[/\\]", re.sub(r"^(?:\$\{\w+\}|\$\w+|%\w+%|[A-Za-z]:|~)", "", text))
    return all(_SEGMENT.fullmatch(segment) and is_made_of_words(segment) for segment in segments)


def _is_relative_path(text: str, words: frozenset[str]) -> bool:
    """Whether a text is a relative path, by its form and the words of its name."""
    return bool(words & _PATH_WORDS) and _RELATIVE_PATH.fullmatch(text) is not None


def _is_word(text: str) -> bool:
    return _WORD.fullmatch(text) is not None and all(map(is_made_of_words, re.split(r"[/@]", text)))


def is_made_of_words(text: str) -> bool:
    """Whether a text consists of words and numbers. Keys change between letters and digits much more often.

    >>> is_made_of_words("My Project v2.10"), is_made_of_words("kX9pQ2mZ7vL4")
    (True, False)
    """
    if looks_random(text):
        return False
    runs = re.split(r"[ ._+@-]+", text)
    return all(len(_CHARACTER_CHANGES.findall(run)) <= 1 + len(run) // 8 and len(run) <= 40 for run in runs)


_WEB_SCHEMES = ("http", "https", "ws", "wss")
_SCHEMES = frozenset(
    (
        *_WEB_SCHEMES,
        *("grpc", "grpcs", "tcp", "tls", "udp", "ssh", "sftp", "ftp", "ftps", "git", "socks5", "socks5h"),
        *("postgres", "postgresql", "mysql", "mariadb", "mssql", "sqlserver", "oracle", "clickhouse", "cassandra"),
        *("mongodb", "mongodb+srv", "redis", "rediss", "bolt", "bolt+s", "neo4j", "neo4j+s"),
        *("amqp", "amqps", "mqtt", "mqtts", "nats", "kafka", "ldap", "ldaps", "smtp", "smtps", "imap", "imaps"),
    )
)
"""Schemes that are followed by a host. After other schemes, the same position can be a secret."""

_HOST = lazy_pattern(
    r"(?:[A-Za-z0-9.-]|\$\{[A-Za-z_]\w*\}|\{env:[A-Za-z_]\w*\}){1,253}(?::[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](?::[0-9]{1,5})?"
)
_END_OF_AUTHORITY = lazy_pattern(r"[/?#]")
_URL_IN_TEXT = lazy_pattern(r"([A-Za-z][A-Za-z0-9+.-]{0,15})://([^ /?#,;|}\"')\]>]*)")
_HOST_NAME_SUFFIX = lazy_pattern(
    r"(?:^|[_-])(?:hosts?|hostname|servers?|brokers?|endpoints?|addr|address|addresses|ur[li]s?|domains?|peers|nodes|"
    r"upstream|proxy|gateway|base)$",
    re.IGNORECASE,
)
_DOTTED = lazy_pattern(r"(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|localhost)(?::[0-9]{1,5})?")
_MAX_TEXT = 4096
_MAX_HOSTS = 20


def keep_origin(name: str, url: str) -> str:
    """Return a URL reduced to scheme and host, or ``<name>`` if the host may be a secret or is ambiguous."""
    scheme, _, rest = url.partition("://")
    authority = _END_OF_AUTHORITY.split(rest, maxsplit=1)[0]
    host = _find_host(scheme, authority, rest[len(authority) :])
    return f"<{name}>" if host is None else f"{scheme}://{host}/<{name}>"


def find_origins(text: str) -> Iterator[str]:
    """Yield the origin of every URL in a text, with ``?`` for an ambiguous host."""
    if len(text) > _MAX_TEXT:
        return
    for index, match in enumerate(_URL_IN_TEXT.finditer(text)):
        if index == _MAX_HOSTS:
            yield "?"
            return
        if match[1].lower() in _SCHEMES:
            yield f"{match[1]}://{_find_host(match[1], match[2], text[match.end() :]) or '?'}/"


def keep_host_list(name: str, text: str) -> str | None:
    """Return a list of hosts as the lock stores it, with ``<name>`` instead of paths.

    None unless the name of the variable says that it has hosts, and every part is a plain host.
    """
    if len(text) > _MAX_TEXT or not _HOST_NAME_SUFFIX.search(name) or is_name_of_secret(name):
        return None
    kept: list[str] = []
    for address in text.split(","):
        host, slash, _ = address.partition("/")
        if not _DOTTED.fullmatch(host) or _looks_like_key(host):
            return None
        kept.append(f"{host}/<{name}>" if slash else host)
    return ",".join(kept)


def _find_host(scheme: str, authority: str, behind: str) -> str | None:
    """Return the host of a URL with its port; None if parsers differ about it, as with backslashes and blanks."""
    # Some database clients accept a slash in a password, and then the host is further right.
    if "@" in behind and "@" not in authority and scheme.lower() not in _WEB_SCHEMES:
        return None
    host = authority.rpartition("@")[2]
    plain = scheme.lower() in _SCHEMES and "\\" not in authority and not re.search(r"[\s\x00-\x1f]", authority)
    # Database clients accept several hosts and use any of them.
    hosts = [host] if scheme.lower() in _WEB_SCHEMES else host.split(",")[: _MAX_HOSTS + 1]
    known = (
        plain
        and len(hosts) <= _MAX_HOSTS
        and all(_HOST.fullmatch(single_host) and not _looks_like_key(single_host) for single_host in hosts)
    )
    return host if known else None


def _looks_like_key(host: str) -> bool:
    return looks_random(host) or bool(TOKEN.search(host))


NAMED_VALUES = ("env", "environment", "headers", "http_headers")
"""Members with named values: variables and headers."""


def list_redacted_members(lockable: Any) -> list[str]:
    """Return the paths of redacted members, whose changes are invisible.

    Variables and headers are not listed, because a lock never stores their values.
    """
    if type(lockable) is not dict:
        return []
    return [path for name, value in lockable.items() for path in _iter_redacted(name, name, value)]


def _iter_redacted(path: str, name: str, value: Any) -> Iterator[str]:
    if type(value) is dict and name not in NAMED_VALUES:
        for key, part in value.items():
            yield from _iter_redacted(f"{path}.{key}", key, part)
    elif type(value) is list:
        for index, part in enumerate(value):
            yield from _iter_redacted(f"{path}.{index}", name, part)
    elif type(value) is str and (value.startswith(f"<{path}>") or value.endswith(f"/<{path}>")):
        yield path
