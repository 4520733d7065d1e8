"""Which network addresses may be contacted, directly or through a proxy.

A host is resolved once, and the connection goes to exactly the addresses that were checked.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.system.target import HttpAddress

_NAT64 = ipaddress.ip_network("64:ff9b::/96")

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class HostNotFoundError(OSError):
    """The host could not be resolved."""


class Destination(Record):
    """A socket address that passed the check."""

    family: int
    sockaddr: Any
    """As returned by the resolver; its form depends on the family."""


class NetworkRules(Record):
    """What is allowed in addition to public addresses over TLS."""

    allow_private: bool = False
    allow_plain_http: bool = False
    allowed_places: frozenset[str] = frozenset()
    """Addresses that may be contacted although they are private."""


def resolve_destinations(address: HttpAddress, rules: NetworkRules) -> tuple[Destination, ...]:
    """Resolve and check a host. ``ADDRESS_REFUSED`` if any of its addresses is not allowed."""
    destinations = _look_up(address)
    ips = [_ip(str(destination.sockaddr[0])) for destination in destinations]
    if not rules.allow_private:
        for ip in ips:
            if not is_public(ip) and str(ip) not in rules.allowed_places:
                raise address_refused(f"{address.host} resolves to {ip}, which is not a public address", "private")
    if address.scheme == "http" and not rules.allow_plain_http:
        only_here = all(_unmapped(ip).is_loopback for ip in ips)
        if not (rules.allow_private and only_here):
            raise address_refused(f"{address} uses plain HTTP, so its response proves nothing", "plain-http")
    return destinations


def resolve_addresses(address: HttpAddress) -> frozenset[str]:
    """The IP addresses of a host, as text."""
    return frozenset(str(_ip(str(destination.sockaddr[0]))) for destination in _look_up(address))


def is_public(ip: IpAddress) -> bool:
    """Whether an address is public, including any IPv4 address embedded in it."""
    inner = _embedded(ip)
    return ip.is_global and not ip.is_multicast and all(is_public(ip) for ip in inner)


def address_refused(why: str, reason: str) -> PinwardenError:
    """The error for an address that may not be contacted."""
    return PinwardenError("ADDRESS_REFUSED", why, data={"reason": reason})


def _look_up(address: HttpAddress) -> tuple[Destination, ...]:
    try:
        answers = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as err:
        raise HostNotFoundError(f"the host {address.host} was not found") from err
    if not answers:
        raise HostNotFoundError(f"the host {address.host} was not found")
    return tuple(Destination(family=family, sockaddr=sockaddr) for family, _, _, _, sockaddr in answers)


def _ip(text: str) -> IpAddress:
    return ipaddress.ip_address(text.partition("%")[0])


def _unmapped(ip: IpAddress) -> IpAddress:
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return ip if mapped is None else mapped


def _embedded(ip: IpAddress) -> list[IpAddress]:
    """IPv4 addresses that a translator or tunnel would extract from an IPv6 address."""
    if not isinstance(ip, ipaddress.IPv6Address):
        return []
    embedded: list[IpAddress | None] = [ip.ipv4_mapped, ip.sixtofour]
    if ip.teredo is not None:
        embedded += ip.teredo
    if ip in _NAT64:
        embedded.append(ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF))
    return [ip for ip in embedded if ip is not None]


def proxy_for(address: HttpAddress, variables: Mapping[str, str]) -> str | None:
    """The proxy for an address, from the environment variables."""
    proxy = variables.get(f"{address.scheme}_proxy")
    if not proxy and address.scheme == "https":
        proxy = variables.get("HTTPS_PROXY")  # HTTP_PROXY in upper case can be set by a web request
    proxy = proxy or variables.get("all_proxy") or variables.get("ALL_PROXY")
    if not proxy:
        return None
    for rule in (variables.get("no_proxy") or variables.get("NO_PROXY") or "").split(","):
        name = rule.strip().lower().removeprefix("*").removeprefix(".")
        if rule.strip() == "*" or (name and (address.host == name or address.host.endswith("." + name))):
            return None
    return proxy if "://" in proxy else f"http://{proxy}"


def check_proxied_address(address: HttpAddress, rules: NetworkRules) -> None:
    """Check what can be checked if the proxy resolves the host: literal IP addresses and plain HTTP."""
    ip = _literal_ip(address.host)
    only_here = rules.allow_private and ip is not None and ip.is_loopback
    if address.scheme == "http" and not rules.allow_plain_http and not only_here:
        raise address_refused(f"{address} uses plain HTTP, so its response proves nothing", "plain-http")
    if ip is not None and not rules.allow_private and not is_public(ip):
        raise address_refused(f"{address.host} is not a public address", "private")


def _literal_ip(host: str) -> IpAddress | None:
    """The IP address that a host is written as, including the short and octal forms that resolvers accept."""
    if host == "localhost" or host.endswith(".localhost"):
        return ipaddress.IPv4Address("127.0.0.1")
    with suppress(ValueError):
        return ipaddress.ip_address(host)
    with suppress(OSError):
        return ipaddress.IPv4Address(socket.inet_aton(host))
    return None
