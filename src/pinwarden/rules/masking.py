"""How to speak of a configuration without telling its secrets.

Whatever of a command, address, variable or header is shown to people or written down goes through ``shown_*``. When in
doubt a value is masked: a diff that says only "changed" is useful, a diff with a password in it is a leak.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pinwarden.documents.redirecting_variables import redirects

MASK = "<secret>"

LONGEST_SHOWN = 4096
"""Longer text is not shown, nor searched for secrets in every way: nobody reads it, and searching takes its time."""

_TOKEN = re.compile(
    r"gh[opsur]_[A-Za-z0-9]{6,}|github_pat_\w{6,}|glpat-[\w-]{6,}|sk-[A-Za-z0-9_-]{8,}|sk_(?:live|test)_\w{6,}|"
    r"rk_(?:live|test)_\w{6,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|xox[abeprs]-[\w-]{6,}|xapp-[\w-]{6,}|AIza[\w-]{8,}|"
    r"ya29\.[\w.-]{6,}|npm_[A-Za-z0-9]{20,}|pypi-[\w-]{20,}|hf_[A-Za-z0-9]{10,}|dop_v1_\w{6,}|SG\.[\w.-]{10,}|"
    r"ntn_\w{10,}|secret_[A-Za-z0-9]{20,}|lin_api_\w{6,}|shpat_\w{6,}|dckr_pat_[\w-]{6,}|figd_[\w-]{6,}|"
    r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
"""Forms that services give their keys, so that scanners can find them."""

_SECRET_NAME = re.compile(
    r"(?:^|[_\-.])(?:api[_-]?)?(?:key|keys|token|secret|secrets|password|passwd|passphrase|pwd|pat|auth|authorization|"
    r"bearer|credential|credentials|cookie|dsn|private[_-]?key|access[_-]?key|connection[_-]?string)s?(?:$|[_\-.])|"
    r"apikey|accesstoken|authtoken|secretkey|privatekey|clientsecret",
    re.IGNORECASE,
)
_NOT_SECRET_NAME = re.compile(
    r"(?:^|[_-])(?:max|min|limit|count|ttl|timeout|length|size|budget|file|path|dir|id|url|header|type|name)s?$",
    re.IGNORECASE,
)
_REFERENCE = re.compile(
    r"(?:[A-Za-z][A-Za-z-]{0,15} )?"  # the scheme of an Authorization header
    r"(?:<[^<>\s]+>|\$\{[^{}]+\}|\$\{\{[^{}]+\}\}|\{(?:env|file):[^{}]+\}|\$[A-Za-z_]\w*|%[A-Za-z_]\w*%|"
    r"(?:op|vault|doppler|keychain|aws-sm|gcp-sm|azure-kv|bw|pass|infisical)://\S+)"
)
_PLAIN_WORD = re.compile(
    r"(?:true|false|yes|no|on|off|none|null|debug|info|warn|warning|error|trace|silent|stdio|http|sse|production|"
    r"development|staging|test|local|utf-?8|[a-z]{2}[_-][A-Z]{2}|[0-9]{1,5})",
    re.IGNORECASE,
)
_OPTION = re.compile(r"(--?[A-Za-z][\w-]*|[A-Za-z_]\w*)=(.*)", re.DOTALL)
_HEADER = re.compile(r"([A-Za-z][A-Za-z0-9-]*):\s*(\S.*)", re.DOTALL)
_VALUE = r"(\"[^\"]*\"|'[^']*'|[^\s'\";&|]+)"
_IN_TEXT = (
    re.compile(r"(--?[A-Za-z][\w-]*)(=|\s+)" + _VALUE),
    re.compile(r"(\b[A-Za-z_][\w-]*)(=|:\s*)" + _VALUE),
)
_SCHEME = re.compile(r"\b(Bearer|Basic|Token)(\s+)" + _VALUE, re.IGNORECASE)
_ADDRESS_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"]+")
_RUN = re.compile(r"(sha(?:256|512):|[@#])?([A-Za-z0-9_+=-]{24,})")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_reference(value: str) -> bool:
    """Whether a value only says where the real one is: a placeholder, a variable or a secret store."""
    return bool(_REFERENCE.fullmatch(value.strip()))


def looks_secret(name: str, value: str) -> bool:
    """Whether a value, by its own form or by its name, is one that must not lie open."""
    if not value or is_reference(value) or _PLAIN_WORD.fullmatch(value):
        return False
    if len(value) > LONGEST_SHOWN:
        return True
    if _TOKEN.search(value) or _looks_random(value) or MASK in shown_address(value):
        return True
    return bool(_SECRET_NAME.search(name)) and not _NOT_SECRET_NAME.search(name)


def shown_value(name: str, value: Any) -> Any:
    """The value of a variable or header for people: itself only where it cannot be a secret."""
    if type(value) is not str:
        return value if value is None or type(value) is bool else MASK
    if is_reference(value) or _PLAIN_WORD.fullmatch(value):
        return value
    if redirects(name):
        return shown_text(value)  # it has to be judged, and it is a path, an option or an address
    return MASK


def shown_words(words: Sequence[str]) -> list[str]:
    """Program and arguments for people, secrets masked."""
    shown: list[str] = []
    secret_follows = False
    for word in words:
        if len(word) > LONGEST_SHOWN:
            shown.append(shown_text(word))
            continue
        option = _OPTION.fullmatch(word)
        header = _HEADER.fullmatch(word)
        if secret_follows and not word.startswith("-") and not is_reference(word):
            shown.append(MASK)
        elif option and looks_secret(option[1].lstrip("-"), option[2]):
            shown.append(f"{option[1]}={MASK}")
        elif header and not _ADDRESS.match(word) and looks_secret(header[1], header[2]):
            shown.append(f"{header[1]}: {MASK}")
        elif header and is_reference(header[2]):
            shown.append(word)
        else:
            shown.append(shown_text(word))
        secret_follows = word.startswith("-") and "=" not in word and bool(_SECRET_NAME.search(word.lstrip("-")))
        secret_follows = secret_follows and not _NOT_SECRET_NAME.search(word)
    return shown


def shown_text(text: str) -> str:
    """One word or a line of shell for people, secrets masked."""
    if len(text) > LONGEST_SHOWN:
        return f"<{len(text)} characters>"
    if _ADDRESS.match(text) and not re.search(r"\s", text):
        return shown_address(text)
    if re.search(r"\s", text):
        text = _ADDRESS_IN_TEXT.sub(lambda found: shown_address(found[0]), text)
        text = _SCHEME.sub(lambda found: found[0] if is_reference(found[3]) else f"{found[1]}{found[2]}{MASK}", text)
        for pattern in _IN_TEXT:
            text = pattern.sub(_masked_assignment, text)
    return _TOKEN.sub(MASK, _RUN.sub(_masked_run, text))


def _masked_assignment(found: re.Match[str]) -> str:
    name, between, value = found[1], found[2], found[3].strip("'\"")
    return f"{name}{between}{MASK}" if looks_secret(name.lstrip("-"), value) else found[0]


def _masked_run(found: re.Match[str]) -> str:
    """Digests and commits say what is run and are no secrets."""
    named = found[1] is not None and re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}|[0-9a-f]{128}", found[2])
    return found[0] if named or not _looks_random(found[2]) else (found[1] or "") + MASK


def shown_address(url: str) -> str:
    """An address for people: no user name, no password, no query, and no path segment that looks like a key."""
    if len(url) > LONGEST_SHOWN:
        return f"<{len(url)} characters>"
    if not _ADDRESS.match(url):
        return url
    scheme, _, rest = url.partition("://")
    rest, hashed, _ = rest.partition("#")
    rest, query, _ = rest.partition("?")
    host, slash, path = rest.partition("/")
    if "@" in host:
        host = f"{MASK}@{host.rpartition('@')[2]}"
    segments = [MASK if _looks_random(part) or _TOKEN.search(part) else part for part in path.split("/")]
    tail = (f"?{MASK}" if query else "") + (f"#{MASK}" if hashed else "")
    return f"{scheme}://{host}{slash}{'/'.join(segments)}{tail}"


def _looks_random(text: str) -> bool:
    """A long run without words: letters of both cases with digits, or hexadecimal digits."""
    if re.fullmatch(r"[0-9a-fA-F]{32,}", text):
        return True
    plain = re.fullmatch(r"[A-Za-z0-9_+=-]{24,}", text)
    return bool(plain) and all(re.search(kind, text) for kind in (r"[a-z]", r"[A-Z]", r"[0-9]"))
