"""What a command was found to run, and the table of what can be dangerous about that."""

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
        "shell_command": "A shell is started with text to run; whatever the text says is run.",
        "shell_text": "An argument holds shell operators; where a client passes it through a shell, they run commands.",
        "download_and_run": "Something is fetched and run at once, so nobody can know beforehand what it is.",
        "inline_code": "The program is given as text in the configuration.",
        "preload": "Code is loaded into the program before its own begins.",
        "other_index": "The package is taken from an index that the command names.",
        "redirecting_variable": "A variable is set that decides where code, packages or answers come from.",
        "temporary_path": "What runs lies in a folder where anybody can put files.",
        "container_privileges": "The container can reach the machine that it should be kept from.",
        "unencrypted_address": "The address is not encrypted, so anybody on the way can answer.",
        "relative_path": "What runs depends on the folder in which the client was started.",
    }
)
"""What a command can do that a reviewer must know, by code."""

_TEMPORARY = pattern(
    r"^(?:/private)?/(?:var/)?tmp/|^/dev/shm/|^%te?mp%|^\$\{?TE?MP|\\appdata\\local\\temp\\", re.IGNORECASE
)
_WEB = pattern(r"(?:https?|wss?)://", re.IGNORECASE)
_LOOPBACK = pattern(r"(?:http|ws)://(?:localhost|127\.0\.0\.1|\[::1\])(?:[:/?#]|$)", re.IGNORECASE)


class Launch(Record):
    """What a command runs, as far as its text says."""

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
    """Which of a package's programs, where the command names one."""
    options: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The launcher's own words about how to run it, for containers."""
    arguments: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """What the server itself is given."""
    settings: tuple[str, ...] | None = field(default=None, compare=False, repr=False)
    """Options that change what a package's launcher installs or how it runs it, in one spelling and order.

    None where the launcher's words are not understood that well: such commands are compared word by word.
    """
    wrappers: tuple[str, ...] = field(default=(), compare=False)
    """Programs around the launcher that change more than how it is found, such as ``env`` and ``sudo``."""

    @property
    def purl(self) -> str | None:
        """A package URL, which two spellings of the same thing share."""
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
        """The same with more dangers: each once, in the order of the table."""
        codes = {*self.dangers, *dangers}
        return replace(self, dangers=tuple(code for code in DANGERS if code in codes))


def launch_of_url(url: str, runner: str) -> Launch:
    """What answers at an address."""
    plain = url.lower().startswith(("http://", "ws://")) and not _LOOPBACK.match(url)
    dangers = ("unencrypted_address",) if plain else ()
    return Launch(kind="url", identity=url_without_query(url), runner=runner, dangers=dangers)


def is_address(word: str) -> bool:
    """Whether a word is a web address."""
    return bool(_WEB.match(word))


def launch_of_script(runner: str, words: Sequence[str]) -> Launch:
    """A file that an interpreter runs: the first of the words."""
    path = words[0] if words else ""
    if is_address(path):
        found = Launch(kind="source", identity=url_without_query(path), runner=runner)
        return found.with_dangers(["download_and_run", *launch_of_url(path, runner).dangers])
    found = Launch(kind="script", identity=path, runner=runner)
    return found.with_dangers(["relative_path"] if path and not is_absolute(path) else []).with_dangers(
        temporary_path_risk(path)
    )


def temporary_path_risk(path: str) -> list[str]:
    """The danger of a path that anybody can write to."""
    return ["temporary_path"] if _TEMPORARY.search(path) else []
