"""What keys, and the names that they are kept under, look like."""

from __future__ import annotations

import re

TOKEN = re.compile(
    r"gh[opsur]_[A-Za-z0-9]{6,}|github_pat_\w{6,}|glpat-[\w-]{6,}|sk-[A-Za-z0-9_-]{8,}|sk_(?:live|test)_\w{6,}|"
    r"rk_(?:live|test)_\w{6,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|xox[abeprs]-[\w-]{6,}|xapp-[\w-]{6,}|AIza[\w-]{8,}|"
    r"ya29\.[\w.-]{6,}|npm_[A-Za-z0-9]{20,}|pypi-[\w-]{20,}|hf_[A-Za-z0-9]{10,}|dop_v1_\w{6,}|SG\.[\w.-]{10,}|"
    r"ntn_\w{10,}|secret_[A-Za-z0-9]{20,}|lin_api_\w{6,}|shpat_\w{6,}|dckr_pat_[\w-]{6,}|figd_[\w-]{6,}|"
    r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
"""Forms that services give their keys, so that scanners can find them."""

_SECRET_NAME = re.compile(
    r"(?:^|[_\-.])(?:api[_-]?)?(?:key|keys|token|secret|secrets|password|passwd|passphrase|passcode|passwort|kennwort|pass|pwd|pswd|pw|pat|sig|signature|auth|authorization|"
    r"bearer|cred|credential|credentials|cookie|dsn|private[_-]?key|access[_-]?key|connection[_-]?string)s?(?:$|[_\-.])|"
    r"apikey|accesstoken|authtoken|secretkey|privatekey|clientsecret|password|passwd|passphrase|sshpass",
    re.IGNORECASE,
)
_NOT_SECRET_NAME = re.compile(
    r"^(?:max|min|num)[_-]|(?:^|[_-])(?:max|min|limit|count|ttl|timeout|length|size|budget|file|path|dir|id|url|header|type|name|"
    r"endpoint|uri|issuer|mode|method|provider|scheme|format|store)s?$",
    re.IGNORECASE,
)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def words_of(name: str) -> frozenset[str]:
    """The words that a name is made of, in lower case."""
    return frozenset(re.split(r"[^a-z0-9]+", _HUMP.sub("_", name).lower()))


def has_secret_word(name: str) -> bool:
    """Whether a name says that it stands for a secret: ``db_password``, ``db-password`` and ``dbPassword`` alike."""
    return bool(_SECRET_NAME.search(_HUMP.sub("_", name)))


def names_secret(name: str) -> bool:
    """The same, but for names that say what a secret is like or where it is kept: ``token_file``, ``maxTokens``."""
    return has_secret_word(name) and not _NOT_SECRET_NAME.search(_HUMP.sub("_", name))


def looks_random(text: str) -> bool:
    """A long run without words: letters of both cases with digits, or hexadecimal digits."""
    if re.fullmatch(r"[0-9a-fA-F]{32,}", text):
        return True
    plain = re.fullmatch(r"[A-Za-z0-9_+=-]{24,}", text)
    return bool(plain) and all(re.search(kind, text) for kind in (r"[a-z]", r"[A-Z]", r"[0-9]"))
