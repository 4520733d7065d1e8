"""The host of an address as a browser or Node.js understands it (WHATWG URL Standard), as far as remotes need it.

Lockfiles hash the hosts that a JavaScript program found, so this reader is as generous as that one. It only describes:
what is contacted is decided by ``target.Address``, which refuses whatever two readers could understand differently.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from pinwarden.core.record import Record

_PORTS = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21"}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(.*)", re.DOTALL)
_FORBIDDEN = re.compile(r"[\x00-\x20#/:<>?@\[\\\]^|%\x7f]")
_IPV6 = re.compile(r"\[[0-9A-Fa-f:.]+\]")
_NUMBER = re.compile(r"0[xX][0-9A-Fa-f]*|[0-9]+")


class RemoteAddress(Record):
    """Scheme and host of an address; the host has its port where that is not the usual one."""

    scheme: str
    host: str


def remote_address(url: str) -> RemoteAddress | None:
    """The scheme and host, or None if no address can be made out."""
    text = re.sub(r"[\t\n\r]", "", url.strip("".join(map(chr, range(0x21)))))
    found = _SCHEME.fullmatch(text)
    if found is None:
        return None
    scheme, rest = found[1].lower(), found[2]
    if scheme not in _PORTS:
        authority = re.match(r"//([^/?#]*)", rest)
        return RemoteAddress(scheme=scheme, host=authority[1].rpartition("@")[2] if authority else "")
    authority_text = re.split(r"[/\\?#]", rest.lstrip("/\\"), maxsplit=1)[0].rpartition("@")[2]
    host = _host_and_port(authority_text, _PORTS[scheme])
    return None if host is None else RemoteAddress(scheme=scheme, host=host)


def _host_and_port(text: str, usual: str) -> str | None:
    bracketed = _IPV6.match(text)
    if bracketed:
        name, rest = bracketed[0], text[bracketed.end() :]
        if rest and not rest.startswith(":"):
            return None
        port = rest[1:]
    else:
        name, _, port = text.partition(":")
    if port and (not port.isascii() or not port.isdigit() or int(port) > 65535):
        return None
    host = _ipv6(name) if bracketed else _domain(name)
    if host is None:
        return None
    plain = str(int(port)) if port else ""
    return host if plain in ("", usual) else f"{host}:{plain}"


def _domain(name: str) -> str | None:
    decoded = unquote(name)
    if not decoded.isascii():
        try:
            decoded = decoded.encode("idna").decode("ascii")
        except UnicodeError:
            return None
    host = decoded.lower()
    if not host or _FORBIDDEN.search(host):
        return None
    labels = host.removesuffix(".").split(".")
    return _ipv4(labels) if _NUMBER.fullmatch(labels[-1]) else host


def _ipv4(labels: list[str]) -> str | None:
    """Fewer than four parts, octal and hexadecimal count too: 127.1 is 127.0.0.1."""
    if len(labels) > 4 or not all(_NUMBER.fullmatch(label) for label in labels):
        return None
    try:
        numbers = [_ipv4_number(label) for label in labels]
    except ValueError:
        return None
    last = 256 ** (5 - len(numbers))
    if any(number > 255 for number in numbers[:-1]) or numbers[-1] >= last:
        return None
    value = numbers[-1] + sum(number * 256 ** (3 - place) for place, number in enumerate(numbers[:-1]))
    return ".".join(str(value >> shift & 255) for shift in (24, 16, 8, 0))


def _ipv4_number(label: str) -> int:
    if label[:2] in ("0x", "0X"):
        return int(label[2:] or "0", 16)
    return int(label, 8 if len(label) > 1 and label[0] == "0" else 10)


def _ipv6(bracketed: str) -> str | None:
    from ipaddress import AddressValueError, IPv6Address

    try:
        return f"[{IPv6Address(bracketed[1:-1])}]"
    except AddressValueError:
        return None
