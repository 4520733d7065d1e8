"""What the classifier sees of a sentence: its words, the roles of the words, and pairs of both."""

from __future__ import annotations

import re
from functools import lru_cache

from pinwarden.surface.scan.roles import ROLES, find_roles, find_unspaced_roles

_TOKEN = re.compile(
    r"(?<![a-z])[a-z]{2,10}://[^\s'\"`<>)\]]+"  # link
    r"|(?<![\w.+\-])[\w.+\-]{1,64}@[\w\-]{1,63}(?:\.[\w\-]{1,63}){1,4}"  # e-mail address
    r"|(?<![\w@./\-])(?:[a-z0-9][a-z0-9\-]{0,62}\.){1,4}(?:com|net|org|io|dev|app|ai|co|me|info|biz|site|online|xyz|top"
    r"|cloud|link|live|click|shop|store|tech|space|email|center|host|support|services?|systems|network|tools?|cc|ru|cn|tk"
    r"|de|uk|fr|eu|us|example|invalid|test)(?![\w.\-]*\w)(?:/[^\s'\"`<>)\]]*)?"  # host
    r"|(?<![\w\-])--[a-z][\w\-]+"  # option of a command
    r"|(?:~|\$\w{1,32}|\.{1,2})?(?:/[\w.~*\-]+)+/?|(?<![\w)])\.[a-z]\w+"  # path
    r"|`[^`\s]{1,80}`|(?<!\w)\w{0,64}_\w{1,64}(?:\.\w{1,64}){0,4}"  # identifier
    r"|[^\W\d_]+(?:['\u2019-][^\W\d_]+)*|\d[\w.,:\-]*"
)
_SECRET_FILE = re.compile(
    r"\.(?:env|ssh|aws|kube|gnupg|pem|p12|netrc|npmrc|pypirc|pgpass)\b|id_(?:rsa|ed25519|ecdsa)|tfvars|kubeconfig"
    r"|/etc/(?:passwd|shadow)|keychain|wallet\.dat|git-credentials|cookies\.(?:sqlite|txt)|\.docker/config|_history\b"
    r"|(?:credentials?|secrets?)(?:\.(?:json|db|ya?ml|toml))?$"
)
_EMPHASIS = re.compile(r"\b[A-Z]{4,}\b")
_NAME = re.compile(r"[A-Za-z][a-z0-9]*|[A-Z]+(?![a-z])|\d+")
_LINK, _EMAIL, _IDENTIFIER, _PATH, _SECRET, _COMMAND = (
    1 << ROLES.index(role) for role in ("link", "email", "identifier", "path", "secret", "command")
)
_FIRST_UNSPACED = "\u2e80"
_STEM_LENGTH = 5


def tokenize(text: str) -> list[str]:
    """Split a sentence into lower-case words, links, addresses, paths and identifiers.

    A lone name is split into its words.
    """
    if " " not in text and text.isascii() and text.replace("_", "").replace("-", "").isalnum():
        return ["<name>", *(part.lower() for part in _NAME.findall(text))]
    return _TOKEN.findall(text.lower())


@lru_cache(maxsize=16_384)
def describe(token: str) -> tuple[str, int, str]:
    """Return the form in which a token is a feature, its roles as a bit set, and the beginning of a long word."""
    if token.isalpha():
        if token >= _FIRST_UNSPACED:
            return "", 0, ""
        return token, find_roles(token), f"{token[:_STEM_LENGTH]}*" if len(token) > _STEM_LENGTH + 1 else ""
    if "://" in token:
        return "<link>", _LINK, ""
    if "@" in token:
        return "<email>", _EMAIL, ""
    if token.startswith("--"):
        return "<option>", _COMMAND, ""
    if token[0] == "`" or "_" in token or "/" in token or token[0] == ".":
        return _describe_name(token)
    if "." in token and not token[0].isdigit():
        return "<host>", _LINK, ""
    if token[0].isdigit():
        return "<number>", 0, ""
    plain = token.replace("\u2019", "'")
    return plain, find_roles(plain), ""


def _describe_name(token: str) -> tuple[str, int, str]:
    """Describe an identifier or a path."""
    is_identifier = token[0] == "`" or "_" in token
    roles = _IDENTIFIER if is_identifier else _PATH
    for part in [token.strip("`")] if is_identifier else re.findall(r"\.?\w+", token):
        roles |= find_roles(part)
    if _SECRET_FILE.search(token.strip("`")):
        return "<secret file>", roles | _SECRET, ""
    return ("<identifier>" if is_identifier else "<path>"), roles, ""


def extract_features(text: str) -> set[str]:
    """Return the features of a sentence."""
    tokens = tokenize(text)
    features: set[str] = set()
    sequence: list[int] = []
    previous, previous_roles = "<start>", 0
    for token in tokens:
        form, roles, stem = describe(token)
        if not form:
            sequence += find_unspaced_roles(token)
            features.update(token[index : index + 2] for index in range(len(token) - 1))
            features.update(token[index : index + 3] for index in range(len(token) - 2))
            previous, previous_roles = "<script>", 0
            continue
        features.add(form)
        features.add(f"{previous} {form}")
        if stem:
            features.add(stem)
        if roles:
            sequence.append(roles)
            features.update([f"{previous} :{role}" for role in list_roles(roles)])
        if previous_roles:
            features.update([f"{role}: {form}" for role in list_roles(previous_roles)])
        previous, previous_roles = form, roles
    _add_role_features(sequence, features)
    if _EMPHASIS.search(text):
        features.add("<capitals>")
    features.add(f"<length {min(len(tokens).bit_length(), 7)}>")
    if tokens and tokens[0].endswith("s") and len(tokens[0]) > 3:
        features.add("<third person>")
    return features


def _add_role_features(sequence: list[int], features: set[str]) -> None:
    present = 0
    before: list[str] = []
    for roles in sequence:
        present |= roles
        names = list_roles(roles)
        features.update(f"{first}>{second}" for first in before for second in names)
        before = names
    names = list_roles(present)
    for index, first in enumerate(names):
        features.add(f"={first}")
        features.update(f"{first}+{second}" for second in names[index + 1 :])
    if sequence:
        features.update(f"^{name}" for name in list_roles(sequence[0]))


@lru_cache(maxsize=4_096)
def list_roles(roles: int) -> list[str]:
    """Return the names of the roles in a bit set."""
    return [name for index, name in enumerate(ROLES) if roles >> index & 1]
