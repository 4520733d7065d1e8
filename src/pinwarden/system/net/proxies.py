"""The proxy of the environment, and what can be checked of an address whose name that proxy looks up."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from contextlib import suppress

from pinwarden.system.net.network_guard import IpAddress, NetworkRules, address_refused, is_public
from pinwarden.system.target import HttpAddress


def proxy_for(address: HttpAddress, variables: Mapping[str, str]) -> str | None:
    """The proxy that the environment names for an address."""
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
    """What can be said about an address whose name the proxy looks up."""
    place = _number(address.host)
    only_here = rules.allow_private and place is not None and place.is_loopback
    if address.scheme == "http" and not rules.allow_plain_http and not only_here:
        raise address_refused(f"{address} is not encrypted, so what it answers proves nothing", "plain-http")
    if place is not None and not rules.allow_private and not is_public(place):
        raise address_refused(f"{address.host} is not a public address", "private")


def _number(host: str) -> IpAddress | None:
    """The network address that a host is written as, also in the short and octal ways that resolvers take."""
    if host == "localhost" or host.endswith(".localhost"):
        return ipaddress.IPv4Address("127.0.0.1")
    with suppress(ValueError):
        return ipaddress.ip_address(host)
    with suppress(OSError):
        return ipaddress.IPv4Address(socket.inet_aton(host))
    return None
