"""What docker's ``config.json`` and podman's ``auth.json`` say about credentials of registries."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from collections.abc import Mapping
from typing import Any, NoReturn

from pinwarden.artifacts.oci_reference import HUB, HUB_NAMES, Reference
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.limits import Limits
from pinwarden.core.record import Record, field

HUB_KEY = "https://index.docker.io/v1/"
"""How docker has always named Docker Hub in this file and to its credential helpers."""
IDENTITY = "<token>"
"""Stands for the user name where the secret is a token to be exchanged, as docker and its helpers write it."""

_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LIMITS = Limits(max_bytes=1024 * 1024, max_depth=16)
_MAX_SECRET = 64 * 1024


class Credential(Record):
    """Who one is to a registry."""

    user: str = field(repr=False)
    secret: str = field(repr=False)

    @property
    def authorization(self) -> str:
        """The header of a request."""
        return "Basic " + b64encode(f"{self.user}:{self.secret}".encode()).decode()

    @classmethod
    def of(cls, authorization: str | None) -> Credential | None:
        """The credential in a header that was made here."""
        scheme, _, encoded = (authorization or "").partition(" ")
        if scheme.lower() != "basic":
            return None
        user, _, secret = b64decode(encoded).decode().partition(":")
        return cls(user=user, secret=secret)


class DockerConfig(Record):
    """The credentials in one file, and the programs that have others."""

    stored: Mapping[str, Credential]
    """By the key under which the file has them."""
    helpers: Mapping[str, str]
    """Names of programs by registry."""
    store: str = ""
    """The program for all other registries."""

    def credential(self, reference: Reference) -> Credential | None:
        """What the file itself has for an image; podman's keys may name a part of a registry."""
        hosts = _keys(reference.host)
        parts = reference.name.split("/")
        for length in range(len(parts), 0, -1):
            for host in hosts:
                if found := self.stored.get("/".join([host, *parts[:length]])):
                    return found
        return next((self.stored[key] for key in self.stored if _host_of(key) in hosts), None)

    def helper(self, reference: Reference) -> str:
        """The program that was named for this very registry."""
        return next((self.helpers[key] for key in self.helpers if _host_of(key) in _keys(reference.host)), "")

    def knows(self, reference: Reference) -> bool:
        """Whether the user has named this registry."""
        return bool(self.credential(reference) or self.helper(reference))


def parse_docker_config(data: bytes, source: str) -> DockerConfig:
    """Read such a file. ``source`` names it in errors, which never hold what is in it."""
    try:
        value = strict_json.parse(data, _LIMITS)
    except PinwardenError as err:
        # The reader's message may quote the file.
        raise PinwardenError("CONFIG_INVALID", f"{source} is not strict JSON") from err
    members = _object(value, source, "the file")
    helpers = _object(members.get("credHelpers", {}), source, "credHelpers")
    store = members.get("credsStore", "")
    for name in (*helpers.values(), *([store] if store != "" else [])):
        if not isinstance(name, str) or not _HELPER.fullmatch(name):
            _refuse(source, "the name of a credential helper is malformed")
    stored = {}
    for key, entry in _object(members.get("auths", {}), source, "auths").items():
        if found := _credential(_object(entry, source, "an entry of auths"), source):
            stored[key] = found
    return DockerConfig(stored=stored, helpers=helpers, store=store)


def parse_helper_answer(data: bytes, source: str) -> Credential | None:
    """Read what a credential helper prints."""
    try:
        members = _object(strict_json.parse(data, _LIMITS), source, "the answer")
    except PinwardenError as err:
        raise PinwardenError("CONFIG_INVALID", f"{source} answered something that is not understood") from err
    user, secret = members.get("Username", ""), members.get("Secret", "")
    return _checked(user, secret, source) if secret else None


def _credential(entry: dict[str, Any], source: str) -> Credential | None:
    if token := entry.get("identitytoken"):
        return _checked(IDENTITY, token, source)
    if encoded := entry.get("auth"):
        try:
            text = b64decode(encoded, validate=True).decode().rstrip("\0")
        except (BinasciiError, ValueError, TypeError) as err:
            raise PinwardenError("CONFIG_INVALID", f"{source}: an auth is not user:password in base64") from err
        user, colon, secret = text.partition(":")
        if not colon:
            _refuse(source, "an auth is not user:password in base64")
        return _checked(user, secret, source)
    if entry.get("username"):
        return _checked(entry["username"], entry.get("password", ""), source)
    return None


def _checked(user: object, secret: object, source: str) -> Credential:
    if not isinstance(user, str) or not isinstance(secret, str) or len(user) + len(secret) > _MAX_SECRET:
        _refuse(source, "a credential is not text, or too long")
    return Credential(user=user, secret=secret)


def _keys(host: str) -> tuple[str, ...]:
    return tuple(sorted(HUB_NAMES)) if host == HUB else (host,)


def _host_of(key: str) -> str:
    """Old files have whole addresses as keys. A key for a part of a registry is not one for all of it."""
    scheme, mark, rest = key.partition("://")
    if mark and scheme in ("http", "https"):
        return rest.partition("/")[0].lower()
    return key.lower()


def _object(value: object, source: str, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(source, f"{where} is not an object")
    return value


def _refuse(source: str, why: str) -> NoReturn:
    raise PinwardenError("CONFIG_INVALID", f"{source}: {why}")
