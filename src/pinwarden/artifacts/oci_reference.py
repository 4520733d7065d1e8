"""The name of a container image: ``host[:port]/name[:tag][@digest]``, with the defaults that docker fills in."""

from __future__ import annotations

import ipaddress
import re
from typing import NoReturn

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace

HUB = "docker.io"
"""Where a name without a host leads."""
HUB_NAMES = frozenset({HUB, "index.docker.io", "registry-1.docker.io"})
DEFAULT_TAG = "latest"

_MAX_TEXT = 255 + 1 + 255 + 1 + 128 + 1 + 7 + 128  # host, name, tag and a sha512 digest
_MAX_NAME = 255
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
# A part of a name, as the distribution specification has it; its separators cannot make a path climb.
_PART = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
"""What the distribution specification takes for a tag."""
_DIGEST = re.compile(r"(sha256):[0-9a-f]{64}|(sha512):[0-9a-f]{128}")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_ID = re.compile(r"[0-9a-f]{64}")


class Reference(Record):
    """One image in one registry. ``str()`` is the canonical text: nothing is left to a default."""

    host: str
    """With the port, where one is given. Docker Hub is always ``docker.io``."""
    name: str
    tag: str | None
    """None only where there is a digest."""
    digest: Digest | None = None

    @property
    def asked(self) -> str:
        """What a client asks the registry for. A digest goes before a tag, which is then only a remark."""
        return str(self.digest) if self.digest is not None else self.tag or DEFAULT_TAG

    @property
    def bare_host(self) -> str:
        """The host without port and brackets."""
        return _split_port(self.host)[0].strip("[]")

    @property
    def is_loopback(self) -> bool:
        """Whether the registry is on this machine, by its very name."""
        host = self.bare_host
        if host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    def at(self, digest: Digest) -> Reference:
        """The same image by digest."""
        return replace(self, digest=parse_digest(str(digest)))

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.host}/{self.name}{tag}" + (f"@{self.digest}" if self.digest is not None else "")


def parse_reference(text: str) -> Reference:
    """Read a reference; whatever docker itself would not take, or read in two ways, is refused."""
    if not isinstance(text, str) or not text.isascii() or not 0 < len(text) <= _MAX_TEXT:
        _refuse(text, "it is empty, too long, or not ASCII")
    rest, at, digest_text = text.partition("@")
    digest = parse_digest(digest_text) if at else None
    host, path = _split_host(rest)
    name, colon, tag = path.partition(":")
    if colon and not TAG.fullmatch(tag):
        _refuse(text, "its tag is malformed")
    if not all(_PART.fullmatch(part) for part in name.split("/")):
        _refuse(text, "its name is not lower-case letters, digits and single separators")
    if host == HUB:
        if "/" not in name and _ID.fullmatch(name):
            _refuse(text, "it looks like the id of a local image")
        name = name if "/" in name else f"library/{name}"
    if len(name) > _MAX_NAME:
        _refuse(text, "its name is too long")
    if not colon and digest is None:
        tag = DEFAULT_TAG
    return Reference(host=host, name=name, tag=tag or None, digest=digest)


def parse_digest(text: str) -> Digest:
    """A digest as registries write it: sha256 or sha512 in lower-case hex, and no other algorithm."""
    if not isinstance(text, str) or not _DIGEST.fullmatch(text):
        raise PinwardenError("DIGEST_INVALID", f"{str(text)[:100]!a} is not a sha256 or sha512 digest of a registry")
    return Digest.parse(text)


def _split_host(text: str) -> tuple[str, str]:
    first, slash, rest = text.partition("/")
    host = first.lower()
    # Docker's own rule for what is a host and what is the beginning of a name.
    if not slash or not (any(mark in host for mark in ".:") or host == "localhost"):
        if slash and first != host:
            _refuse(text, "docker takes its first part for a host, because of a capital letter")
        return HUB, text
    _check_host(host, text)
    return (HUB if host in HUB_NAMES else host), rest


def _check_host(text: str, whole: str) -> None:
    host, port = _split_port(text)
    if port is not None and not (_PORT.fullmatch(port) and int(port) <= 65535):
        _refuse(whole, "its port is malformed")
    if host.startswith("["):
        _check_ipv6(host, whole)
        return
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        _refuse(whole, "its host is malformed")
    if _NUMBER.fullmatch(labels[-1]):
        # Resolvers read 127.1, 0x7f.1 and 017700000001 as addresses, each in its own way.
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            _refuse(whole, "its host is a number that is not a plain IPv4 address")


def _check_ipv6(host: str, whole: str) -> None:
    try:
        plain = host.endswith("]") and "%" not in host and str(ipaddress.IPv6Address(host[1:-1])) == host[1:-1]
    except ValueError:
        plain = False
    if not plain:
        _refuse(whole, "its host is not an IPv6 address in its usual spelling")


def _split_port(host: str) -> tuple[str, str | None]:
    end = host.find("]") + 1
    inside, colon, port = host[end:].partition(":")
    return host[:end] + inside, port if colon else None


def _refuse(text: object, why: str) -> NoReturn:
    raise PinwardenError("IMAGE_INVALID", f"{str(text)[:120]!a} is not the name of a container image: {why}")
