"""Find and replace the argument of a command that names the release of a package or image.

Pinwarden replaces an argument only if the new command starts the same package with the same options and arguments. An
argument that only looks like the package or its version is therefore never changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pinwarden.clients.command_line import parse_launch
from pinwarden.clients.launchers import Launch
from pinwarden.core.record import Record, replace
from pinwarden.system.target import StdioTarget

_MAX_OCCURRENCES = 20  # occurrences of the package name in one word that are tried
_BEFORE = r"(?:(?<=^)|(?<=[\s\"'=:]))"
_AFTER = r"(?=$|[\s\"'])"


class PackageArgument(Record):
    """The argument of a command that names a package, and its replacement for another release."""

    index: int
    """The position of the argument in the command, in which the program is 0."""
    old: str
    new: str

    def replace_in(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return the command with the new argument."""
        return (*command[: self.index], self.new, *command[self.index + 1 :])


def find_package_argument(
    target: StdioTarget, version: str, digest: str | None, *, add_digest: bool = False
) -> PackageArgument | None:
    """Find the argument that names the package, and its replacement for a release; None unless exactly one fits.

    The command may name another release, a range, a tag, or none. An argument may be a complete command line, as for
    ``sh -c``. With ``add_digest``, an image is named with its digest even if the command named only a tag.
    """
    launch = parse_launch(target)
    package = launch.via or launch
    digest = digest if package.kind == "oci" and (package.digest or add_digest) else None
    wanted = _describe(launch, version, digest)
    candidates: list[PackageArgument] = []
    for index, word in enumerate(target.command):
        for replacement in _build_replacements(word, package, version, digest):
            candidate = PackageArgument(index=index, old=word, new=replacement)
            changed = parse_launch(replace(target, command=candidate.replace_in(target.command)))
            found = changed.via or changed
            if _describe(changed, found.version, found.digest) == wanted:
                candidates.append(candidate)
    return candidates[0] if len(candidates) == 1 else None


def replace_package_argument(entry: Any, argument: PackageArgument) -> dict[str, Any] | None:
    """Return a client's entry with the new argument in its command; None if ``argument.old`` is not at that place."""
    if not isinstance(entry, dict):
        return None
    command = entry.get("command")
    if isinstance(command, list) and "args" not in entry:
        changed = _replace_at(command, argument.index, argument)
        return None if changed is None else {**entry, "command": changed}
    if isinstance(command, dict):
        changed = _replace_at(command.get("args"), argument.index - 1, argument)
        return None if changed is None else {**entry, "command": {**command, "args": changed}}
    if argument.index == 0:  # a complete command line
        member = next((name for name in ("command", "cmd") if entry.get(name) == argument.old), None)
        return None if member is None else {**entry, member: argument.new}
    changed = _replace_at(entry.get("args"), argument.index - 1, argument)
    return None if changed is None else {**entry, "args": changed}


_Description = tuple[Launch, tuple[object, ...], str | None, str | None]


def _describe(launch: Launch, version: str | None, digest: str | None) -> _Description:
    """Return the properties of a launch that must be equal after the replacement, and its release."""
    package = launch.via or launch
    rest = replace(package, version=None, digest=None, pinned=False)
    outer = rest if launch.via is None else replace(launch, via=rest)
    details = (package.program, package.options, package.arguments, package.settings, launch.wrappers)
    return outer, details, version, digest


def _build_replacements(word: str, package: Launch, version: str, digest: str | None) -> Iterator[str]:
    """Yield the word with each occurrence of the package replaced by the package at the release."""
    if package.identity not in word:
        return
    build = {"npm": _build_npm_spec, "pypi": _build_python_spec, "oci": _build_image}.get(package.kind)
    if build is None:
        return
    pattern = re.compile(_BEFORE + _build_pattern(package) + _AFTER)
    for count, match in enumerate(pattern.finditer(word)):
        if count == _MAX_OCCURRENCES:
            return
        yield word[: match.start()] + build(match, package, version, digest) + word[match.end() :]


def _build_pattern(package: Launch) -> str:
    name, version = re.escape(package.identity), re.escape(package.version or "")
    if package.kind == "npm":
        return rf"(?P<name>{name})" + (f"@{version}" if version else "@?")
    if package.kind == "pypi":
        return rf"(?P<name>{name})(?P<extras>\s*\[[^\]]*\])?\s*(?P<operator>===?|@)?\s*{version}"
    tag = f":{version}" if version else ""
    return rf"(?P<name>{name}){tag}" + (f"@{re.escape(package.digest)}" if package.digest else "")


def _build_npm_spec(match: re.Match[str], package: Launch, version: str, digest: str | None) -> str:
    del package, digest
    return f"{match['name']}@{version}"


def _build_python_spec(match: re.Match[str], package: Launch, version: str, digest: str | None) -> str:
    """Write a Python package with its version: ``notes@1.0`` for ``uvx``, as uv documents it, otherwise with ``==``."""
    del digest
    before = match.string[: match.start()]
    is_option_value = before.endswith("=") or package.program is not None
    plain = package.runner == "uvx" and not is_option_value and not match["extras"]
    operator = match["operator"] or ("@" if plain else "==")
    return f"{match['name']}{match['extras'] or ''}{operator}{version}"


def _build_image(match: re.Match[str], package: Launch, version: str, digest: str | None) -> str:
    del package
    tag = f":{version}" if version else ""
    return f"{match['name']}{tag}" + (f"@{digest}" if digest else "")


def _replace_at(words: Any, index: int, argument: PackageArgument) -> list[Any] | None:
    if not isinstance(words, list) or index >= len(words) or words[index] != argument.old:
        return None
    return [*words[:index], argument.new, *words[index + 1 :]]
