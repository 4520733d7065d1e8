"""Which network addresses may be contacted. A name is looked up once, and exactly what was checked is contacted."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.system.target import HttpAddress

_NAT64 = ipaddress.ip_network("64:ff9b::/96")

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class HostNotFoundError(OSError):
    """The resolver knows no such host."""


class Destination(Record):
    """One socket address that was checked."""

    family: int
    sockaddr: Any
    """As the resolver gave it; its form depends on the family."""


class NetworkRules(Record):
    """What the caller allows beyond public addresses over TLS."""

    allow_private: bool = False
    allow_plain_http: bool = False
    allowed_places: frozenset[str] = frozenset()
    """Addresses that may be contacted although they are not public."""


def resolve_destinations(address: HttpAddress, rules: NetworkRules) -> tuple[Destination, ...]:
    """Where the host of an address is. One forbidden answer of the resolver forbids them all."""
    found = _look_up(address)
    places = [_ip(str(destination.sockaddr[0])) for destination in found]
    if not rules.allow_private:
        for place in places:
            if not is_public(place) and str(place) not in rules.allowed_places:
                raise address_refused(f"{address.host} is at {place}, which is not a public address", "private")
    if address.scheme == "http" and not rules.allow_plain_http:
        only_here = all(_unmapped(place).is_loopback for place in places)
        if not (rules.allow_private and only_here):
            raise address_refused(f"{address} is not encrypted, so what it answers proves nothing", "plain-http")
    return found


def resolve_addresses(address: HttpAddress) -> frozenset[str]:
    """The network addresses of a host, as text."""
    return frozenset(str(_ip(str(destination.sockaddr[0]))) for destination in _look_up(address))


def is_public(place: IpAddress) -> bool:
    """Whether an address belongs to the open internet, also if it hides an IPv4 address inside."""
    inner = _embedded(place)
    return place.is_global and not place.is_multicast and all(is_public(each) for each in inner)


def address_refused(why: str, reason: str) -> PinwardenError:
    """An address that may not be contacted."""
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


def _unmapped(place: IpAddress) -> IpAddress:
    mapped = place.ipv4_mapped if isinstance(place, ipaddress.IPv6Address) else None
    return place if mapped is None else mapped


def _embedded(place: IpAddress) -> list[IpAddress]:
    """IPv4 addresses that a translator or tunnel would take from an IPv6 one."""
    if not isinstance(place, ipaddress.IPv6Address):
        return []
    found: list[IpAddress | None] = [place.ipv4_mapped, place.sixtofour]
    if place.teredo is not None:
        found += place.teredo
    if place in _NAT64:
        found.append(ipaddress.IPv4Address(int(place) & 0xFFFF_FFFF))
    return [each for each in found if each is not None]
