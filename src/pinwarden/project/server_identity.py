"""Which server a configuration means, in whatever client's words: one value that every command compares.

Two entries are the same server if they have the same package, version, arguments and variables, or the same address and
headers. How a client spells that makes no difference: a line or a list, ``npx`` or ``pnpm dlx``, ``${NAME}`` or
``{env:NAME}``, the order of variables. What is not understood for certain is compared word by word.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pinwarden.bundle.bundle_pin import find_bundle_pin
from pinwarden.clients.command_line import Launch, command_words, parse_launch
from pinwarden.clients.config import configured_server
from pinwarden.clients.drift import in_usual_words
from pinwarden.clients.table import Client, client_of
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.lock.launch_choice import variable_name
from pinwarden.lock.locked_config import configured_in, locked_config
from pinwarden.lock.locked_launch import is_enforced, locked_launch
from pinwarden.system.redaction import UNNAMED_REFERENCE, redact_entry
from pinwarden.system.target import HttpTarget, StdioTarget, Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pinwarden.lock.entry import Entry

RELEASE = 2
"""The place of the release in what a package starts."""
_INPUT = re.compile(r"\$\{input:([^{}]+)\}")
_MASKED = re.compile(r"<([^<>\s]+)>")
_PROJECT_FOLDERS = ("", ".", "./", "${workspaceFolder}")
"""Where clients start a server of a project anyway."""


class ServerIdentity(Record):
    """What makes two configurations the same server."""

    starts: tuple[str, ...]
    """Package, release, program and settings of the launcher; the words of another command; or the address."""
    arguments: tuple[str, ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    """Variables or headers by name. A value that the lock does not hold counts as that of its name."""
    folder: str | None = None


def entry_identity(entry: Entry) -> ServerIdentity | None:
    """Which server a lock entry means; None if its configuration cannot be understood.

    An entry whose client starts it through ``pinwarden run`` means the command that this stands for.
    """
    where = configured_in(entry)
    client = client_of(where.client if where else entry.client)
    approved = locked_config(entry.key, entry.document).entry
    target = configured_server(entry.name, redact_entry(approved), client).target
    bundle = find_bundle_pin(entry)
    if isinstance(target, StdioTarget) and bundle is not None:
        return ServerIdentity(starts=("bundle", bundle.tool), values=_values(target.env))
    if isinstance(target, StdioTarget) and is_enforced(entry):
        try:
            launch = locked_launch(entry)
        except PinwardenError:
            return None
        target = replace(target, command=launch.command, cwd=launch.cwd)
    return None if target is None else target_identity(target)


def configured_identity(name: str, entry: Any, client: Client) -> ServerIdentity | None:
    """Which server an entry of a client's file means, compared as a lock would hold it: without secrets."""
    target = configured_server(name, redact_entry(entry), client).target
    return None if target is None else target_identity(target)


def target_identity(target: Target) -> ServerIdentity:
    """Which server is started or contacted."""
    if isinstance(target, HttpTarget):
        # A server that is reached in two ways at one address is one server, so the transport is no part of it.
        headers = {name.lower(): value for name, value in target.headers.items()}
        return ServerIdentity(starts=("url", in_usual_words(target.url)), values=_values(headers))
    runs = parse_launch(target)
    package = runs.via or runs
    folder = None if target.cwd in (None, *_PROJECT_FOLDERS) else in_usual_words(target.cwd or "")
    if package.settings is None or package.purl is None or runs.wrappers:
        words = (_plain(word) for word in command_words(target.command))
        return ServerIdentity(starts=("command", *words), values=_values(target.env), folder=folder)
    return ServerIdentity(
        starts=(package.kind, _package(package), _release(package), _program(package), *_extra(runs, package)),
        arguments=tuple(_plain(word) for word in package.arguments),
        values=_values(target.env),
        folder=folder,
    )


def _package(package: Launch) -> str:
    if package.kind == "oci":
        return package.identity.removeprefix("docker.io/").removeprefix("library/")
    if package.kind == "pypi":  # capitals, dots and underscores make no difference
        return (package.purl or "").removeprefix("pkg:pypi/").partition("@")[0]
    return package.identity


def _release(package: Launch) -> str:
    """The version or digest; without any, what is newest is started, which every kind of registry calls latest."""
    if package.digest:
        return package.digest
    version = package.version or "latest"
    if package.kind == "npm" and package.pinned:
        return version.removeprefix("v")
    if package.kind == "pypi" and package.pinned:
        from pinwarden.artifacts.python_package import same_version

        # 1.0 and 1.0.0 are one release; a text that is no version stays as it is written.
        shorter = version
        while shorter.endswith(".0") and same_version(shorter.removesuffix(".0"), version):
            shorter = shorter.removesuffix(".0")
        return shorter
    return version


def _program(package: Launch) -> str:
    """The program of the package. A Python package that names none is started by its own name."""
    return package.program or (_package(package) if package.kind == "pypi" else "")


def _extra(runs: Launch, package: Launch) -> tuple[str, ...]:
    """What else decides what is started: the launcher's settings, and what is dangerous about the command."""
    return (*(_plain(setting) for setting in package.settings or ()), *runs.dangers)


def _plain(word: str) -> str:
    """A word of a command with its placeholders in one spelling."""
    return in_usual_words(_MASKED.sub(lambda match: f"${{{variable_name(match[1])}}}", word))


def _values(values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, _value(name, value)) for name, value in values.items()))


def _value(name: str, value: str) -> str:
    """A value that only its user knows, asked for or left out of the lock, counts as that of the variable's name."""
    if _INPUT.fullmatch(value) or value == f"<{name}>{UNNAMED_REFERENCE}":
        return f"${{{variable_name(name)}}}"
    if match := _MASKED.fullmatch(value):
        return f"${{{variable_name(match[1])}}}"
    return in_usual_words(_INPUT.sub(lambda match: f"${{{variable_name(match[1])}}}", value))
