"""What the classifier sees of a sentence: its words, pairs of words, and the roles of the words."""

from __future__ import annotations

import re
from functools import lru_cache

from pinwarden.surface.scan.roles import ROLES, find_roles, find_unspaced_roles

_TOKEN = re.compile(
    r"(?<![a-z])[a-z]{2,10}://[^\s'\"`<>)\]]+"  # link
    r"|(?<![\w.+\-])[\w.+\-]{1,64}@[\w\-]{1,63}(?:\.[\w\-]{1,63}){1,4}"  # e-mail address
    r"|(?:~|\$\w{1,32}|\.{1,2})?(?:/[\w.~*\-]+)+/?|(?<![\w)])\.[a-z]\w+"  # path
    r"|`[^`\s]{1,80}`|(?<!\w)\w{0,64}_\w{1,64}(?:\.\w{1,64}){0,4}"  # identifier
    r"|[^\W\d_]+(?:['\u2019-][^\W\d_]+)*|\d[\w.,:\-]*"
)
_EMPHASIS = re.compile(r"\b[A-Z]{4,}\b")
_NAME = re.compile(r"[A-Za-z][a-z0-9]*|[A-Z]+(?![a-z])|\d+")
_CLASSES = {"<link>": 1 << ROLES.index("link"), "<email>": 1 << ROLES.index("email")}
_IDENTIFIER, _PATH = 1 << ROLES.index("identifier"), 1 << ROLES.index("path")
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
        return "<link>", _CLASSES["<link>"], ""
    if "@" in token:
        return "<email>", _CLASSES["<email>"], ""
    if token[0] == "`" or "_" in token:
        roles = find_roles(token.strip("`"))
        return "<identifier>", roles | _IDENTIFIER, ""
    if "/" in token or token[0] == ".":
        roles = 0
        for part in re.findall(r"\.?\w+", token):
            roles |= find_roles(part)
        return "<path>", roles | _PATH, ""
    if token[0].isdigit():
        return "<number>", 0, ""
    plain = token.replace("\u2019", "'")
    return plain, find_roles(plain), ""


def extract_features(text: str) -> set[str]:
    """Return the features of a sentence."""
    tokens = tokenize(text)
    features: set[str] = set()
    sequence: list[int] = []
    previous = "<start>"
    for token in tokens:
        form, roles, stem = describe(token)
        if not form:
            sequence += find_unspaced_roles(token)
            features.update(token[index : index + 2] for index in range(len(token) - 1))
            previous = "<script>"
            continue
        features.add(form)
        features.add(f"{previous} {form}")
        if stem:
            features.add(stem)
        if roles:
            sequence.append(roles)
        previous = form
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
