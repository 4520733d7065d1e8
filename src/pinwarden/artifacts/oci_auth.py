"""Parses credentials in the files of docker and podman, and ``WWW-Authenticate`` challenges of OCI registries."""

from __future__ import annotations

import ipaddress
import re
from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from collections.abc import Mapping
from typing import Any, NoReturn

from pinwarden.artifacts.oci_reference import HUB, HUB_NAMES, ImageReference
from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.strict_json import Limits
from pinwarden.system.target import HttpAddress

HUB_KEY = "https://index.docker.io/v1/"
"""The key of Docker Hub in docker's config file and in credential helpers."""
IDENTITY_TOKEN_USER = "<token>"  # noqa: S105 - a marker, not a secret
"""The user name by which docker marks a secret as a refresh token."""

_HELPER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LIMITS = Limits(max_bytes=1024 * 1024, max_depth=16)
_MAX_SECRET = 64 * 1024


class Credential(Record):
    """A user name and a password, or the user name ``<token>`` and a refresh token."""

    user: str = field(repr=False)
    secret: str = field(repr=False)

    @property
    def authorization(self) -> str:
        """The value of the ``Authorization`` header."""
        return "Basic " + b64encode(f"{self.user}:{self.secret}".encode()).decode()

    @classmethod
    def parse(cls, authorization: str | None) -> Credential | None:
        """Return the credential in a Basic ``Authorization`` header; None for other schemes."""
        scheme, _, encoded = (authorization or "").partition(" ")
        if scheme.lower() != "basic":
            return None
        user, _, secret = b64decode(encoded).decode().partition(":")
        return cls(user=user, secret=secret)


class DockerConfig(Record):
    """Credentials and credential helpers from one ``config.json`` or ``auth.json``."""

    credentials: Mapping[str, Credential]
    """Credentials by their key in ``auths``: a registry, a URL, or a registry with a part of the image name."""
    helpers: Mapping[str, str]
    """The name of the credential helper for each registry in ``credHelpers``."""
    default_helper: str = ""
    """The credential helper for all other registries, from ``credsStore``."""

    def find_credential(self, reference: ImageReference) -> Credential | None:
        """Find the credential of an image's registry. podman's keys may include part of the image name."""
        hosts = _list_host_aliases(reference.host)
        segments = reference.name.split("/")
        for length in range(len(segments), 0, -1):
            for host in hosts:
                if credential := self.credentials.get("/".join([host, *segments[:length]])):
                    return credential
        return next((self.credentials[key] for key in self.credentials if _parse_key_host(key) in hosts), None)

    def find_helper(self, reference: ImageReference) -> str:
        """Return the credential helper configured for this registry; empty if none."""
        hosts = _list_host_aliases(reference.host)
        return next((self.helpers[key] for key in self.helpers if _parse_key_host(key) in hosts), "")

    def has_entry_for(self, reference: ImageReference) -> bool:
        """Whether the file has a credential or a credential helper for the image's registry."""
        return bool(self.find_credential(reference) or self.find_helper(reference))


def parse_docker_config(data: bytes, source: str) -> DockerConfig:
    """Parse ``config.json`` or ``auth.json``. Errors name ``source`` and never quote its content."""
    try:
        value = strict_json.parse_json(data, _LIMITS)
    except PinwardenError as err:
        # The parser's message may quote the file.
        raise PinwardenError("CONFIG_INVALID", f"{source} is not valid JSON") from err
    members = _require_object(value, source, "the file")
    helpers = _require_object(members.get("credHelpers", {}), source, "credHelpers")
    default_helper = members.get("credsStore", "")
    for name in (*helpers.values(), *([default_helper] if default_helper != "" else [])):
        if not isinstance(name, str) or not _HELPER_NAME.fullmatch(name):
            _refuse(source, "a credential helper's name is malformed")
    credentials = {}
    for key, auth in _require_object(members.get("auths", {}), source, "auths").items():
        if credential := _parse_credential(_require_object(auth, source, "a member of auths"), source):
            credentials[key] = credential
    return DockerConfig(credentials=credentials, helpers=helpers, default_helper=default_helper)


def parse_helper_output(data: bytes, source: str) -> Credential | None:
    """Parse the output of the credential helper ``source``; None if the output has no secret."""
    try:
        members = _require_object(strict_json.parse_json(data, _LIMITS), source, "its output")
    except PinwardenError as err:
        raise PinwardenError("CONFIG_INVALID", f"the output of {source} is not a JSON object") from err
    user, secret = members.get("Username", ""), members.get("Secret", "")
    return _build_credential(user, secret, source) if secret else None


def _parse_credential(auth: dict[str, Any], source: str) -> Credential | None:
    if token := auth.get("identitytoken"):
        return _build_credential(IDENTITY_TOKEN_USER, token, source)
    if encoded := auth.get("auth"):
        try:
            text = b64decode(encoded, validate=True).decode().rstrip("\0")
        except (BinasciiError, ValueError, TypeError) as err:
            raise PinwardenError("CONFIG_INVALID", f"{source}: a value of auth is not user:password in base64") from err
        user, colon, secret = text.partition(":")
        if not colon:
            _refuse(source, "a value of auth is not user:password in base64")
        return _build_credential(user, secret, source)
    if auth.get("username"):
        return _build_credential(auth["username"], auth.get("password", ""), source)
    return None


def _build_credential(user: object, secret: object, source: str) -> Credential:
    if not isinstance(user, str) or not isinstance(secret, str) or len(user) + len(secret) > _MAX_SECRET:
        _refuse(source, "a credential is not a string, or too long")
    return Credential(user=user, secret=secret)


def _list_host_aliases(host: str) -> tuple[str, ...]:
    return tuple(sorted(HUB_NAMES)) if host == HUB else (host,)


def _parse_key_host(key: str) -> str:
    """Return the registry host of a key. Old files use URLs as keys.

    Returns a key with a path unchanged, because it is not for the entire registry.
    """
    scheme, separator, host_and_path = key.partition("://")
    if separator and scheme in ("http", "https"):
        return host_and_path.partition("/")[0].lower()
    return key.lower()


def _require_object(value: object, source: str, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(source, f"{name} is not an object")
    return value


def _refuse(source: str, problem: str) -> NoReturn:
    raise PinwardenError("CONFIG_INVALID", f"{source}: {problem}")


def may_receive_credential(registry: HttpAddress, realm: HttpAddress) -> bool:
    """Whether a registry's credential may be sent to a token service, the ``realm`` of a challenge.

    The realm must be the registry itself or a host of the same registrable domain.
    """
    if realm.host == registry.host:
        return realm.scheme == "https" or registry.scheme == "http"
    domain = _find_registrable_domain(registry.host)
    return realm.scheme == "https" and domain is not None and domain == _find_registrable_domain(realm.host)


def _find_registrable_domain(host: str) -> str | None:
    """Return the registrable domain of a host; None for an IP address or a public suffix.

    Guesses public suffixes by their form. If in doubt, returns the longer domain.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        labels = host.rstrip(".").split(".")
    else:
        return None
    # Anyone can register a name below a short second-level domain of a country, such as co.uk.
    has_shared_suffix = len(labels) >= 2 and len(labels[-1]) == 2 and len(labels[-2]) <= 3
    length = 3 if has_shared_suffix else 2
    return ".".join(labels[-length:]) if len(labels) >= length else None
