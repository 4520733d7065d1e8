"""`Launch`, what a command starts, and the table of its risks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal
from urllib.parse import quote

from pinwarden.core.lazy_regex import pattern
from pinwarden.core.record import Record, field, replace
from pinwarden.system.command_words import is_absolute
from pinwarden.system.target import url_without_query

LaunchKind = Literal["npm", "pypi", "oci", "nuget", "jsr", "source", "url", "module", "script", "path", "shell"]

DANGERS: Mapping[str, str] = MappingProxyType(
    {
        "shell_command": "The command is a shell with a script as text; the shell runs whatever the text says.",
        "shell_text": "An argument has shell operators. If a client starts it through a shell, they run commands.",
        "download_and_run": "The command downloads code and runs it immediately, so it cannot be reviewed first.",
        "inline_code": "The program is given as text in the configuration.",
        "preload": "Other code is loaded into the program before it starts.",
        "other_index": "The package comes from an index that the command names.",
        "redirecting_variable": "A variable decides where code, packages or responses come from.",
        "temporary_path": "The program is in a folder to which every user can write.",
        "container_privileges": "The container has access to the host machine.",
        "unencrypted_address": "The address is not encrypted, so anyone on the network path can respond.",
        "relative_path": "The working folder of the client decides which program runs.",
    }
)
"""Risks of a command that a reviewer must know, by code."""

_TEMPORARY = pattern(
    r"^(?:/private)?/(?:var/)?tmp/|^/dev/shm/|^%te?mp%|^\$\{?TE?MP|\\appdata\\local\\temp\\", re.IGNORECASE
)
_WEB = pattern(r"(?:https?|wss?)://", re.IGNORECASE)
_LOOPBACK = pattern(r"(?:http|ws)://(?:localhost|127\.0\.0\.1|\[::1\])(?:[:/?#]|$)", re.IGNORECASE)


class Launch(Record):
    """What a command starts, as far as its text shows."""

    kind: LaunchKind
    identity: str
    """Name of the package or image, the address without its query, the module or the path."""
    version: str | None = None
    """As written: a version, a range, a tag such as ``latest``, or a commit."""
    digest: str | None = None
    pinned: bool = False
    """Whether the text alone names one release (a digest for images, a commit for sources)."""
    runner: str = ""
    """The launcher: npx, uvx, docker, node."""
    via: Launch | None = None
    """The package that connects to the address, where ``kind`` is ``url`` and a package does that."""
    dangers: tuple[str, ...] = ()
    """Codes of ``DANGERS``, in the order of that table."""
    program: str | None = field(default=None, compare=False)
    """The program of the package, if the command names one."""
    options: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The options of the container engine."""
    arguments: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The arguments of the server itself."""
    settings: tuple[str, ...] | None = field(default=None, compare=False, repr=False)
    """Options that change what the launcher installs or how it runs it, normalised in spelling and order.

    None if the options of the launcher are not fully understood; such commands are compared word by word.
    """
    wrappers: tuple[str, ...] = field(default=(), compare=False)
    """Programs around the launcher that change how it runs, such as ``env`` and ``sudo``."""

    @property
    def purl(self) -> str | None:
        """The package URL, which is the same for all spellings of one package."""
        if self.kind == "oci":
            name = quote(self.identity.rpartition("/")[2], safe="")
            version = f"@{quote(self.digest, safe='')}" if self.digest else ""
            tag = f"&tag={quote(self.version, safe='')}" if self.version else ""
            return f"pkg:oci/{name}{version}?repository_url={quote(self.identity, safe='/')}{tag}"
        if self.kind in ("npm", "pypi", "nuget", "jsr"):
            # Underscores, dots and capitals make no difference in the name of a Python package.
            name = re.sub(r"[-_.]+", "-", self.identity).lower() if self.kind == "pypi" else self.identity
            version = f"@{quote(self.version, safe='')}" if self.version and self.pinned else ""
            return f"pkg:{self.kind}/{quote(name, safe='/')}{version}"
        return None

    def with_dangers(self, dangers: Iterable[str]) -> Launch:
        """A copy with more dangers, each once and in the order of the table."""
        codes = {*self.dangers, *dangers}
        return replace(self, dangers=tuple(code for code in DANGERS if code in codes))


def launch_of_url(url: str, runner: str) -> Launch:
    """The launch for a remote server at an address."""
    plain = url.lower().startswith(("http://", "ws://")) and not _LOOPBACK.match(url)
    dangers = ("unencrypted_address",) if plain else ()
    return Launch(kind="url", identity=url_without_query(url), runner=runner, dangers=dangers)


def is_address(word: str) -> bool:
    """Whether a word is a web address."""
    return bool(_WEB.match(word))


def launch_of_script(runner: str, words: Sequence[str]) -> Launch:
    """The launch of a script: the first word is the file."""
    path = words[0] if words else ""
    if is_address(path):
        found = Launch(kind="source", identity=url_without_query(path), runner=runner)
        return found.with_dangers(["download_and_run", *launch_of_url(path, runner).dangers])
    found = Launch(kind="script", identity=path, runner=runner)
    return found.with_dangers(["relative_path"] if path and not is_absolute(path) else []).with_dangers(
        temporary_path_risk(path)
    )


def temporary_path_risk(path: str) -> list[str]:
    """The risk of a path that every user can write to."""
    return ["temporary_path"] if _TEMPORARY.search(path) else []
