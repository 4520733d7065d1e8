"""Which values of variables are no secrets by their form, so that a lock keeps them and a change of them is seen.

The name alone does not decide: a server has its own names for the folders that it may touch. A path, a list of paths
or a number is kept under any name that does not speak of a secret. A word could be a password, so words are kept only
under a name that says what they choose: a mode, a list of tools, a module, a relative path. In doubt a value is left
out.
"""

from __future__ import annotations

import re

from pinwarden.core.patterns import pattern
from pinwarden.system.key_forms import TOKEN, has_secret_word, looks_random, names_secret, words_of

_MOST_TEXT = 1000
_MOST_PARTS = 50
_SEPARATOR = pattern(r"[,;]|(?<!^[A-Za-z])(?<![,;:][A-Za-z]):")  # not the one behind the letter of a drive
_AROUND = " \t\r\n\"'[]"
"""What may stand around the parts of a list, as in JSON."""
_ROOTED = pattern(r"(?:~|\.{1,2}|[A-Za-z]:|\$\{[A-Za-z_]\w*\}|\$[A-Z_]+|%[A-Za-z_]\w*%)?[/\\](.*)|~|\.{1,2}|[A-Za-z]:")
_BELOW = pattern(r"[A-Za-z0-9_.][\w. +-]*(?:[/\\][\w. +-]+)*[/\\]?")
_SEGMENT = pattern(r"[\w. +@-]{0,80}")
_NUMBER = pattern(r"[+-]?[0-9]{1,9}(?:\.[0-9]{1,6})?(?:%|ms|s|m|h|d|[KMGT]i?B?|kb|mb|gb)?")
_WORD = pattern(r"(?:@[a-z0-9-]+/)?[A-Za-z*][A-Za-z0-9_.@*+-]{0,60}")
_YAML = pattern(r":\s")  # names with values behind them, of which any may be a secret
_PRIVATE_NUMBERS = frozenset(
    (
        *("pin", "otp", "totp", "mfa", "twofa", "code", "passcode", "cvv", "phone", "account", "ssn", "iban", "seed"),
        *("salt", "nonce", "card", "unlock", "license", "licence"),
    )
)
_SAYS_PATH = frozenset(
    (
        *("path", "paths", "file", "files", "dir", "dirs", "directory", "directories", "folder", "folders"),
        *("workspace", "workspaces", "cache"),
    )
)
"""Words of a name under which a text without a root, even a single word, is a path."""
_SAYS_CHOICE = frozenset(
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
_HUMPS = pattern(r"[a-z](?=[A-Z0-9])|[0-9](?=[A-Za-z])|[A-Z](?=[0-9])")


def is_plain_value(name: str, text: str) -> bool:
    """Whether a variable's value is no secret: a path, a number, or words under a name that says what they choose."""
    if not text or len(text) > _MOST_TEXT or TOKEN.search(text) or _YAML.search(text) or names_secret(name):
        return False
    parts = [part.strip(_AROUND) for part in _SEPARATOR.split(text)]
    if len(parts) > _MOST_PARTS:
        return False
    words = words_of(name)
    if all(_is_path(part, words) for part in parts):
        return True
    if has_secret_word(name):
        return False
    if all(_NUMBER.fullmatch(part) for part in parts):
        return not words & _PRIVATE_NUMBERS
    return bool(words & _SAYS_CHOICE) and all(_is_word(word) for part in parts for word in part.split())


def _is_path(text: str, words: frozenset[str]) -> bool:
    if _ROOTED.fullmatch(text) is None and not _is_relative_path(text, words):
        return False
    segments = re.split(r"[/\\]", re.sub(r"^(?:\$\{\w+\}|\$\w+|%\w+%|[A-Za-z]:|~)", "", text))
    return all(_SEGMENT.fullmatch(segment) and is_made_of_words(segment) for segment in segments)


def _is_relative_path(text: str, words: frozenset[str]) -> bool:
    """Whether a text is a path that begins nowhere in particular, by its form and the words of its name."""
    return bool(words & _SAYS_PATH) and _BELOW.fullmatch(text) is not None


def _is_word(text: str) -> bool:
    return _WORD.fullmatch(text) is not None and all(map(is_made_of_words, re.split(r"[/@]", text)))


def is_made_of_words(text: str) -> bool:
    """Whether a text reads like words and numbers; a key changes between letters and digits all the time.

    >>> is_made_of_words("My Project v2.10"), is_made_of_words("kX9pQ2mZ7vL4")
    (True, False)
    """
    if looks_random(text):
        return False
    runs = re.split(r"[ ._+@-]+", text)
    return all(len(_HUMPS.findall(run)) <= 1 + len(run) // 8 and len(run) <= 40 for run in runs)
