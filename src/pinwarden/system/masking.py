"""Mask secrets in commands, URLs, variables and headers before people see them.

All output goes through the ``mask_*`` functions. If in doubt, a value is masked: a diff that says only "changed" is
useful, a diff with a password is a leak. ``redaction.py`` decides what a lock may store.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pinwarden.core.text import lazy_pattern
from pinwarden.system.environment_variables import is_redirecting_variable

MASK = "<secret>"
MAX_SHOWN_CHARACTERS = 4096
"""Longer text is replaced by its length, because searching it for secrets takes too long."""

_REFERENCE = lazy_pattern(
    r"(?:[A-Za-z][A-Za-z-]{0,15} )?"  # the scheme of an Authorization header
    r"(?:<[^<>\s]+>|\$\{[^{}]+\}|\$\{\{[^{}]+\}\}|\{(?:env|file):[^{}]+\}|\$[A-Z_][A-Z0-9_]*|%[A-Za-z_]\w*%|"
    r"(?:op|vault|doppler|keychain|aws-sm|gcp-sm|azure-kv|bw|pass|infisical)://\S+)"
)
EXACT_REFERENCE = lazy_pattern(
    r"(?:(?:Bearer|Basic|Token) )?"
    r"(?:\$\{(?:env:|input:)?[A-Za-z_][\w-]*(?::-)?\}|\{env:[A-Za-z_]\w*\}|\$\{\{ ?secrets\.[A-Za-z_]\w* ?\}\})"
)
"""A reference that a lock may store: only a name, in a form that no password has by chance."""
_PLAIN_HEADER = lazy_pattern(r"accept(?:-[a-z]+)?|content-type|user-agent|mcp-protocol-version", re.IGNORECASE)
_HEADER_OPTION = lazy_pattern(r"-H|--?headers?", re.IGNORECASE)
_LONG_OPTION = lazy_pattern(r"--[a-z][a-z-]*(?:=.*)?", re.DOTALL)
_PLAIN_WORD = lazy_pattern(
    r"(?:true|false|yes|no|on|off|none|null|debug|info|warn|warning|error|trace|silent|stdio|http|sse|production|"
    r"development|staging|test|local|utf-?8|[a-z]{2}[_-][A-Z]{2}|[0-9]{1,5})",
    re.IGNORECASE,
)
_SWITCH_OR_FILE = lazy_pattern(
    r"none|true|false|on|off|(?:~|\.{1,2}|[A-Za-z]:)?(?:[/\\][\w.-]{1,60}){1,12}\.(?:pem|key|crt|cer|p12|pfx|pub|json)"
)
"""Values that are not secrets even if the name of their option sounds like one: switches and file names."""
_OPTION = lazy_pattern(r"(--?[A-Za-z][\w.-]*|[A-Za-z_][\w.]*)=(.*)", re.DOTALL)
_HEADER = lazy_pattern(r"((?:--?|/)?[A-Za-z][A-Za-z0-9-]*):\s*(\S.*)", re.DOTALL)
# Each assignment pattern begins at a word boundary, so that a long word is not searched from each of its letters.
_VALUE = r"(\"[^\"]*\"|'[^']*'|[^\s'\";&|]+)"
_ASSIGNMENTS = (
    lazy_pattern(r"(?<![\w-])(--?[A-Za-z][\w-]*)(=|\s+)" + _VALUE),
    lazy_pattern(r"(?<![\w.-])([\w.-]+)([\"']?(?:=|:\s*))" + _VALUE),
)
# Text that can contain several names with values: a command line, a connection string, a query or an object.
_COMPOUND_TEXT = lazy_pattern(r"[\s;&?{\"']")
_LOGIN_AT_HOST = lazy_pattern(
    r"(?<![^\s/@='\"])(:*[^\s/@:='\"]+):[^\s/@]+@(?=[A-Za-z0-9.-]+:[0-9]{1,5}(?:/|$))"
)  # user:password@host:port
_KNOWN_LOGIN = lazy_pattern(
    r"(\bcurl\s[^|;&]*?(?<=\s)(?:-u|-U|--user|--proxy-user)[\s=]*[\"']?[^\s:\"']+:|\bsshpass\s+-p\s*|\bmysql(?:dump|admin)?\s[^|;&]*?(?<=\s)-p)"
    r"([^\s\"']+)"
)
"""Passwords without a name before them, in common command lines."""
_SCHEME = lazy_pattern(r"\b(Bearer|Basic|Token)(\s+)" + _VALUE, re.IGNORECASE)
_URL_IN_TEXT = lazy_pattern(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"]+")
_KEY_LIKE_RUN = lazy_pattern(r"(sha(?:256|512):|[@#])?([A-Za-z0-9_+=-]{24,})")
_MAX_NESTED_OPTIONS = 8  # levels of options inside the value of an option; two levels are common
URL_START = lazy_pattern(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PATH = lazy_pattern(r"(?:~|\.{1,2})?[/\\]|[A-Za-z]:[/\\]")


def is_reference(value: str) -> bool:
    """Whether a value only refers to the real value: by a placeholder, a variable or a secret store."""
    return bool(_REFERENCE.fullmatch(value.strip()))


def is_exact_reference(value: str) -> bool:
    """Whether a value is only the name of a variable, so that a lock may store it."""
    return bool(EXACT_REFERENCE.fullmatch(value))


def looks_secret(name: str, value: str) -> bool:
    """Whether a value looks like a secret, by its form and its name."""
    if not value or is_reference(value) or _PLAIN_WORD.fullmatch(value):
        return False
    if len(value) > MAX_SHOWN_CHARACTERS:
        return True
    if TOKEN.search(value) or looks_random(value) or MASK in mask_url(value):
        return True
    return is_name_of_secret(name) and not _SWITCH_OR_FILE.fullmatch(value)


def is_secret_name(name: str) -> bool:
    """Whether a name is itself a secret. Other names are stored and printed unmasked.

    A name that begins like a token counts as a secret only if it also has a long run with a digit, which words do not.
    """
    runs = [run for run in re.findall(r"[A-Za-z0-9]{16,}", name[:MAX_SHOWN_CHARACTERS]) if re.search(r"[0-9]", run)]
    return bool(runs) and (bool(TOKEN.search(name[:MAX_SHOWN_CHARACTERS])) or any(map(looks_random, runs)))


def mask_name(name: str) -> str:
    """Return a name for output, masked if it is a secret."""
    return MASK if is_secret_name(name) else name


def is_safe_to_show(name: str, value: str) -> bool:
    """Whether a value is certainly not a secret: a plain word, a path, a URL without a key, or a common header."""
    if looks_secret(name, value):
        return False
    usual = is_reference(value) or _PLAIN_WORD.fullmatch(value) or _PLAIN_HEADER.fullmatch(name)
    return bool(usual or URL_START.match(value) or _PATH.match(value))


def mask_value(name: str, value: Any) -> Any:
    """Return the value of a variable or header for output, masked if it could be a secret."""
    if type(value) is not str:
        return value if value is None or type(value) is bool else MASK
    if is_reference(value) or _PLAIN_WORD.fullmatch(value):
        return value
    if is_redirecting_variable(name):
        return mask_text(value)  # reviewers must see it; it is a path, an option or a URL
    return MASK


def mask_words(words: Sequence[str]) -> list[str]:
    """Mask secrets in a program and its arguments, for output."""
    shown: list[str] = []
    before = ""
    for word in words:
        follows = _is_secret_option(before) and not _LONG_OPTION.fullmatch(word)
        if len(word) > MAX_SHOWN_CHARACTERS:
            shown.append(mask_text(word))
        elif follows and not is_reference(word) and not _SWITCH_OR_FILE.fullmatch(word):
            shown.append(MASK)
        elif _HEADER_OPTION.fullmatch(before):
            shown.append(_mask_header(word))
        else:
            shown.append(mask_word(word))
        before = "" if follows else word  # the value of an option is not an option itself
    return shown


def _is_secret_option(word: str) -> bool:
    """Whether a word is an option whose value, the next word, is a secret."""
    if len(word) > MAX_SHOWN_CHARACTERS or not word.startswith("-") or "=" in word:
        return False
    return is_name_of_secret(word.lstrip("-"))


def mask_word(word: str, nesting: int = 0) -> str:
    """Mask secrets in one argument of a command line. ``nesting`` counts options in the value of an option."""
    if nesting > _MAX_NESTED_OPTIONS:
        return MASK
    option = _OPTION.fullmatch(word)
    header = _HEADER.fullmatch(word)
    if option and looks_secret(option[1].lstrip("-"), option[2]):
        return f"{option[1]}={MASK}"
    if option and _HEADER_OPTION.fullmatch(option[1]):
        return f"{option[1]}={_mask_header(option[2])}"
    if option and word.startswith("-") and _OPTION.fullmatch(option[2]):
        return f"{option[1]}={mask_word(option[2], nesting + 1)}"  # --env=NAME=value
    if header and not URL_START.match(word) and looks_secret(header[1].lstrip("-/"), header[2]):
        return f"{header[1]}: {MASK}"
    return word if header and is_reference(header[2]) else mask_text(word)


def _mask_header(word: str) -> str:
    """Mask the value of a header that is an argument. A header's name says little about whether it is a secret."""
    header = _HEADER.fullmatch(word)
    if header is None or _PLAIN_HEADER.fullmatch(header[1]):
        return mask_word(word)
    return word if is_reference(header[2]) or _PLAIN_WORD.fullmatch(header[2]) else f"{header[1]}: {MASK}"


def mask_text(text: str) -> str:
    """Mask secrets in a word or a shell command, for output."""
    if len(text) > MAX_SHOWN_CHARACTERS:
        return f"<{len(text)} characters>"
    if URL_START.match(text) and not re.search(r"\s", text):
        return mask_url(text)
    if _COMPOUND_TEXT.search(text):
        text = _URL_IN_TEXT.sub(lambda match: mask_url(match[0]), text)
        text = _SCHEME.sub(lambda match: match[0] if is_reference(match[3]) else f"{match[1]}{match[2]}{MASK}", text)
        for pattern in _ASSIGNMENTS:
            text = pattern.sub(_mask_assignment, text)
        text = _KNOWN_LOGIN.sub(lambda match: match[0] if is_reference(match[2]) else f"{match[1]}{MASK}", text)
    return TOKEN.sub(MASK, _KEY_LIKE_RUN.sub(_mask_key_like_run, _LOGIN_AT_HOST.sub(rf"\1:{MASK}@", text)))


def _mask_assignment(match: re.Match[str]) -> str:
    name, between, value = match[1], match[2], match[3].strip("'\"")
    if between == ":" and value.startswith("//"):
        return match[0]  # the scheme of a URL, which is masked already and whose host must stay visible
    return f"{name}{between}{MASK}" if looks_secret(name.lstrip("-"), value) else match[0]


def _mask_key_like_run(match: re.Match[str]) -> str:
    """Mask a long run of letters and digits that looks random. Digests and commits stay visible."""
    named = match[1] is not None and re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}|[0-9a-f]{128}", match[2])
    return match[0] if named or not looks_random(match[2]) else (match[1] or "") + MASK


def mask_url(url: str) -> str:
    """Mask user name, password, query and key-like path segments of a URL, for output."""
    if len(url) > MAX_SHOWN_CHARACTERS:
        return f"<{len(url)} characters>"
    if not URL_START.match(url):
        return url
    scheme, _, rest = url.partition("://")
    rest, hashed, _ = rest.partition("#")
    rest, query, _ = rest.partition("?")
    host, slash, path = rest.partition("/")
    if "@" in host:
        host = f"{MASK}@{host.rpartition('@')[2]}"
    segments = [MASK if contains_key(part) else part for part in path.split("/")]
    tail = (f"?{MASK}" if query else "") + (f"#{MASK}" if hashed else "")
    return f"{scheme}://{host}{slash}{'/'.join(segments)}{tail}"


def mask_item_key(entity: str, key: str) -> str:
    """Return an item's key for the audit log, masked if it is a URI, which can contain a password or grant access."""
    return mask_url(key) if entity == "resource" and "://" in key else key


def contains_key(segment: str) -> bool:
    """Whether a path segment is or contains a key, as in ``bot1234:KEY``."""
    return bool(TOKEN.search(segment)) or _KEY_LIKE_RUN.sub(_mask_key_like_run, segment) != segment


TOKEN = re.compile(
    r"gh[opsur]_[A-Za-z0-9]{6,}|github_pat_\w{6,}|glpat-[\w-]{6,}|sk-[A-Za-z0-9_-]{8,}|sk_(?:live|test)_\w{6,}|"
    r"rk_(?:live|test)_\w{6,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|xox[abeprs]-[\w-]{6,}|xapp-[\w-]{6,}|AIza[\w-]{8,}|"
    r"ya29\.[\w.-]{6,}|npm_[A-Za-z0-9]{20,}|pypi-[\w-]{20,}|hf_[A-Za-z0-9]{10,}|dop_v1_\w{6,}|SG\.[\w.-]{10,}|"
    r"ntn_\w{10,}|secret_[A-Za-z0-9]{20,}|lin_api_\w{6,}|shpat_\w{6,}|dckr_pat_[\w-]{6,}|figd_[\w-]{6,}|"
    r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
"""Formats of keys of common services."""

_SECRET_NAME = lazy_pattern(
    r"(?:^|[_\-.])(?:api[_-]?)?(?:key|keys|token|secret|secrets|password|passwd|passphrase|passcode|passwort|kennwort|pass|pwd|pswd|pw|pat|sig|signature|auth|authorization|"
    r"bearer|cred|credential|credentials|cookie|dsn|private[_-]?key|access[_-]?key|connection[_-]?string)s?(?:$|[_\-.])|"
    r"apikey|accesstoken|authtoken|secretkey|privatekey|clientsecret|password|passwd|passphrase|sshpass",
    re.IGNORECASE,
)
_NOT_SECRET_NAME = lazy_pattern(
    r"^(?:max|min|num)[_-]|(?:^|[_-])(?:max|min|limit|count|ttl|timeout|length|size|budget|file|path|dir|id|url|header|type|name|"
    r"endpoint|uri|issuer|mode|method|provider|scheme|format|store)s?$",
    re.IGNORECASE,
)
_CAMEL_CASE_BOUNDARY = lazy_pattern(r"(?<=[a-z0-9])(?=[A-Z])")


def split_into_words(name: str) -> frozenset[str]:
    """Return the words in a name, in lower case."""
    return frozenset(re.split(r"[^a-z0-9]+", _CAMEL_CASE_BOUNDARY.sub("_", name).lower()))


def has_secret_word(name: str) -> bool:
    """Whether a name contains a word for secrets: ``db_password``, ``db-password``, ``dbPassword``."""
    return bool(_SECRET_NAME.search(_CAMEL_CASE_BOUNDARY.sub("_", name)))


def is_name_of_secret(name: str) -> bool:
    """Like `has_secret_word`, except for properties and locations of secrets: ``token_file``, ``maxTokens``."""
    return has_secret_word(name) and not _NOT_SECRET_NAME.search(_CAMEL_CASE_BOUNDARY.sub("_", name))


def looks_random(text: str) -> bool:
    """Whether a text is a long run without words: mixed-case letters with digits, or hexadecimal digits."""
    if re.fullmatch(r"[0-9a-fA-F]{32,}", text):
        return True
    plain = re.fullmatch(r"[A-Za-z0-9_+=-]{24,}", text)
    return bool(plain) and all(re.search(kind, text) for kind in (r"[a-z]", r"[A-Z]", r"[0-9]"))
