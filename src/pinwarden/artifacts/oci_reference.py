"""Parses image references of the form ``host[:port]/name[:tag][@digest]``, with docker's defaults."""

from __future__ import annotations

import ipaddress
import re
from typing import NoReturn

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, replace

HUB = "docker.io"
"""The registry of image names without a host."""
HUB_NAMES = frozenset({HUB, "index.docker.io", "registry-1.docker.io"})
DEFAULT_TAG = "latest"

_MAX_TEXT = 255 + 1 + 255 + 1 + 128 + 1 + 7 + 128  # host, name, tag and a sha512 digest
_MAX_NAME = 255
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
# A path component as in the OCI distribution specification. It never matches ``..``.
_PATH_COMPONENT = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
"""Matches a tag as in the OCI distribution specification."""
_DIGEST = re.compile(r"(sha256):[0-9a-f]{64}|(sha512):[0-9a-f]{128}")
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
_IMAGE_ID = re.compile(r"[0-9a-f]{64}")


class ImageReference(Record):
    """A reference to an image. ``str()`` returns it with all defaults written out."""

    host: str
    """The registry's host, with the port if the reference has one. Docker Hub is always ``docker.io``."""
    name: str
    tag: str | None
    """The tag, which can be None only if there is a digest."""
    digest: Digest | None = None

    @property
    def tag_or_digest(self) -> str:
        """The digest if there is one, otherwise the tag."""
        return str(self.digest) if self.digest is not None else self.tag or DEFAULT_TAG

    @property
    def bare_host(self) -> str:
        """The host without port and brackets."""
        return _split_port(self.host)[0].strip("[]")

    @property
    def is_loopback(self) -> bool:
        """Whether the host is ``localhost`` or a loopback address."""
        host = self.bare_host
        if host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    def with_digest(self, digest: Digest) -> ImageReference:
        """Return a copy of the reference with this digest."""
        return replace(self, digest=parse_digest(str(digest)))

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.host}/{self.name}{tag}" + (f"@{self.digest}" if self.digest is not None else "")


def parse_reference(text: str) -> ImageReference:
    """Parse a reference. Raises ``IMAGE_INVALID`` if docker would not accept it or if it is ambiguous."""
    if not isinstance(text, str) or not text.isascii() or not 0 < len(text) <= _MAX_TEXT:
        _refuse(text, "it is empty, too long, or not ASCII")
    name_and_tag, at, digest_text = text.partition("@")
    digest = parse_digest(digest_text) if at else None
    host, path = _split_host(name_and_tag)
    name, colon, tag = path.partition(":")
    if colon and not TAG.fullmatch(tag):
        _refuse(text, "the tag is malformed")
    if not all(_PATH_COMPONENT.fullmatch(part) for part in name.split("/")):
        _refuse(text, "the name must consist of lower-case letters and digits with separators between them")
    if host == HUB:
        if "/" not in name and _IMAGE_ID.fullmatch(name):
            _refuse(text, "it looks like a local image ID")
        name = name if "/" in name else f"library/{name}"
    if len(name) > _MAX_NAME:
        _refuse(text, "the name is too long")
    if not colon and digest is None:
        tag = DEFAULT_TAG
    return ImageReference(host=host, name=name, tag=tag or None, digest=digest)


def parse_digest(text: object) -> Digest:
    """Parse a digest with the prefix ``sha256:`` or ``sha512:`` and lower-case hex."""
    if not isinstance(text, str) or not _DIGEST.fullmatch(text):
        raise PinwardenError("DIGEST_INVALID", f"{str(text)[:100]!a} is not a sha256 or sha512 digest")
    return Digest.parse(text)


def _split_host(text: str) -> tuple[str, str]:
    first, slash, name = text.partition("/")
    host = first.lower()
    # As in docker, the first component is a host if it contains a dot or a colon, or is localhost.
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        if slash and first != host:
            _refuse(text, "its first component contains a capital letter, so docker treats it as a host")
        return HUB, text
    _check_host(host, text)
    return (HUB if host in HUB_NAMES else host), name


def _check_host(text: str, reference: str) -> None:
    host, port = _split_port(text)
    if port is not None and not (_PORT.fullmatch(port) and int(port) <= 65535):
        _refuse(reference, "the port is malformed")
    if host.startswith("["):
        _check_ipv6(host, reference)
        return
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        _refuse(reference, "the host is malformed")
    if _NUMERIC_LABEL.fullmatch(labels[-1]):
        # Resolvers treat 127.1, 0x7f.1 and 017700000001 as IP addresses, but disagree about which address.
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            _refuse(reference, "the host is numeric but not a plain IPv4 address")


def _check_ipv6(host: str, reference: str) -> None:
    try:
        is_canonical = host.endswith("]") and "%" not in host and str(ipaddress.IPv6Address(host[1:-1])) == host[1:-1]
    except ValueError:
        is_canonical = False
    if not is_canonical:
        _refuse(reference, "the host is not an IPv6 address in canonical form")


def _split_port(host: str) -> tuple[str, str | None]:
    end = host.find("]") + 1
    inside, colon, port = host[end:].partition(":")
    return host[:end] + inside, port if colon else None


def _refuse(text: object, problem: str) -> NoReturn:
    raise PinwardenError("IMAGE_INVALID", f"{str(text)[:120]!a} is not an image reference: {problem}")
