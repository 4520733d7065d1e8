"""Connections: which addresses may be contacted, through which proxy, with which TLS settings and which credential.

The three HTTP clients share these decisions: ``fetch.py`` for registries, ``http_client.py`` for probes and
``gateway/http/upstream_pool.py`` for the servers behind a gateway. A host is resolved once, and the connection goes to
exactly the addresses that were checked. Only registries are contacted through a proxy (`find_proxy`): a proxy resolves
the host again, and could reach another MCP server than the one that was checked. `ServiceEndpoint` is a registry with
its credential.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import unquote, urljoin

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.system.target import HttpAddress

if TYPE_CHECKING:
    import asyncio

REDIRECTS = frozenset({301, 302, 303, 307, 308})
ProtocolT = TypeVar("ProtocolT", bound="asyncio.BaseProtocol")


def is_private_literal(host: str) -> bool:
    """Whether a host is itself a private address, rather than a name that resolves to one. ``localhost`` counts."""
    if host == "localhost":
        return True
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return False


def create_tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """Create a TLS context with the system's certificate authorities, and those in a file."""
    context = ssl.create_default_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(cafile=ca_file)
        except (OSError, ssl.SSLError) as err:
            raise PinwardenError("FILE_UNREADABLE", f"{ca_file} has no usable CA certificates") from err
    return context


def connect_socket(
    destinations: Sequence[Destination],
    seconds: Callable[[], float],
    opened: Callable[[socket.socket], None] | None = None,
) -> socket.socket:
    """Connect to the first address that responds. Raises the ``OSError`` of the last attempt.

    ``seconds`` returns the timeout of the next attempt. ``opened`` is called with the connected socket.
    """
    last: OSError = ConnectionRefusedError("no address")
    for destination in destinations:
        connection = socket.socket(destination.family, socket.SOCK_STREAM)
        try:
            connection.settimeout(seconds())
            connection.connect(destination.sockaddr)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if opened is not None:
                opened(connection)
        except OSError as err:
            connection.close()
            last = err
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise last


async def connect_protocol(
    loop: asyncio.AbstractEventLoop,
    destinations: Sequence[Destination],
    make_protocol: Callable[[], ProtocolT],
    tls: ssl.SSLContext | None,
    host: str,
) -> ProtocolT:
    """Connect on an event loop like `connect_socket`, with TLS. The certificate is verified for ``host``."""
    last: OSError = ConnectionRefusedError("no address")
    for destination in destinations:
        try:
            # The loop creates the socket, so only the loop closes it.
            _, protocol = await loop.create_connection(
                make_protocol,
                _format_numeric_host(destination),
                destination.sockaddr[1],
                ssl=tls,
                family=destination.family,
                flags=socket.AI_NUMERICHOST,
                server_hostname=None if tls is None else host,
            )
        except OSError as err:
            last = err
        else:
            return protocol
    raise last


def _format_numeric_host(destination: Destination) -> str:
    """Return the checked address, with the zone of a link-local one."""
    host, _, *more = destination.sockaddr
    return f"{host}%{more[1]}" if len(more) > 1 and more[1] else str(host)


class ConnectionFailure(Record):
    """Why a connection failed."""

    reason: Literal["connect", "timeout", "tls"]
    """A stable word for programs."""
    message: str
    hint: str | None = None

    @property
    def text(self) -> str:
        """The message and the hint."""
        return f"{self.message}; {self.hint}" if self.hint else self.message


def describe_connection_failure(err: BaseException, address: HttpAddress) -> ConnectionFailure:
    """Return why a connection to this address failed. A TLS failure may have a hint about this machine's clock."""
    if isinstance(err, PinwardenError):
        return ConnectionFailure(reason="connect", message=err.message)
    if isinstance(err, HostNotFoundError):
        return ConnectionFailure(reason="connect", message=f"the host {address.host} was not found")
    if isinstance(err, ssl.SSLError):
        why = getattr(err, "verify_message", "") or err.reason or "TLS failed"
        return ConnectionFailure(
            reason="tls",
            message=f"{address} has no valid TLS certificate: {why}",
            hint=_CLOCK_HINT if getattr(err, "verify_code", None) in (_NOT_YET_VALID, _EXPIRED) else None,
        )
    if isinstance(err, TimeoutError):
        return ConnectionFailure(reason="timeout", message=f"{address} did not respond in time")
    why = (isinstance(err, OSError) and err.strerror) or type(err).__name__
    return ConnectionFailure(reason="connect", message=f"{address} could not be reached: {why}")


_NOT_YET_VALID, _EXPIRED = 9, 10  # OpenSSL error numbers
_CLOCK_HINT = "Check this machine's clock: the certificate is not valid at its current time."


def redirect_error(address: HttpAddress, status: int) -> PinwardenError:
    """Return the error for a redirect, for clients that do not follow redirects."""
    data = {"reason": "redirect", "status": status}
    return PinwardenError("ADDRESS_REFUSED", f"{address} redirects to another address", data=data)


def resolve_redirect(address: HttpAddress, location: str, status: int | None = None) -> HttpAddress:
    """Return the target of a redirect. Raises ADDRESS_REFUSED if it is malformed, or leads from HTTPS to HTTP."""
    data: dict[str, object] = {"reason": "redirect"} if status is None else {"reason": "redirect", "status": status}
    try:
        target = HttpAddress.parse(urljoin(f"{address.scheme}://{address.host_header}{address.path}", location))
    except (PinwardenError, ValueError) as err:
        message = f"{address} redirects to an address that is not a valid HTTP URL"
        raise PinwardenError("ADDRESS_REFUSED", message, data=data) from err
    if address.scheme == "https" and target.scheme != "https":
        raise PinwardenError("ADDRESS_REFUSED", f"{address} redirects to plain HTTP", data=data)
    return target


def is_compressed(content_encoding: str | None) -> bool:
    """Whether a body is compressed. Pinwarden refuses such bodies, because they can expand to an enormous size."""
    return (content_encoding or "").strip().lower() not in ("identity", "")


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
    """The addresses that may be contacted in addition to public ones over TLS."""

    allow_private: bool = False
    allow_plain_http: bool = False
    allowed_addresses: frozenset[str] = frozenset()
    """Addresses that may be contacted although they are private."""


def resolve_destinations(address: HttpAddress, rules: NetworkRules) -> tuple[Destination, ...]:
    """Resolve a host and check its addresses. Raises ADDRESS_REFUSED if one of them is not allowed."""
    destinations = _look_up(address)
    ips = [_parse_ip(str(destination.sockaddr[0])) for destination in destinations]
    if not rules.allow_private:
        for ip in ips:
            if not is_public(ip) and str(ip) not in rules.allowed_addresses:
                raise address_error(f"{address.host} resolves to {ip}, which is not a public address", "private")
    if address.scheme == "http" and not rules.allow_plain_http:
        is_loopback = all(_unmap_ipv4(ip).is_loopback for ip in ips)
        if not (rules.allow_private and is_loopback):
            raise address_error(f"{address} uses plain HTTP, so its response proves nothing", "plain-http")
    return destinations


def resolve_addresses(address: HttpAddress) -> frozenset[str]:
    """Return the IP addresses of a host, as text."""
    return frozenset(str(_parse_ip(str(destination.sockaddr[0]))) for destination in _look_up(address))


def is_public(ip: IpAddress) -> bool:
    """Whether an address is public, including any IPv4 address embedded in it."""
    inner = _find_embedded_ipv4(ip)
    return ip.is_global and not ip.is_multicast and all(is_public(ip) for ip in inner)


def address_error(why: str, reason: str) -> PinwardenError:
    """Return the error for an address that may not be contacted."""
    return PinwardenError("ADDRESS_REFUSED", why, data={"reason": reason})


def _look_up(address: HttpAddress) -> tuple[Destination, ...]:
    try:
        answers = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as err:
        raise HostNotFoundError(f"the host {address.host} was not found") from err
    if not answers:
        raise HostNotFoundError(f"the host {address.host} was not found")
    return tuple(Destination(family=family, sockaddr=sockaddr) for family, _, _, _, sockaddr in answers)


def _parse_ip(text: str) -> IpAddress:
    return ipaddress.ip_address(text.partition("%")[0])


def _unmap_ipv4(ip: IpAddress) -> IpAddress:
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return ip if mapped is None else mapped


def _find_embedded_ipv4(ip: IpAddress) -> list[IpAddress]:
    """Return the IPv4 addresses that a translator or tunnel would extract from an IPv6 address."""
    if not isinstance(ip, ipaddress.IPv6Address):
        return []
    embedded: list[IpAddress | None] = [ip.ipv4_mapped, ip.sixtofour]
    if ip.teredo is not None:
        embedded += ip.teredo
    if ip in _NAT64:
        embedded.append(ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF))
    return [ip for ip in embedded if ip is not None]


def find_proxy(address: HttpAddress, variables: Mapping[str, str]) -> str | None:
    """Return the proxy for an address, from the environment variables."""
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
    """Refuse private IP addresses and plain HTTP. The proxy resolves host names, so they cannot be checked here."""
    ip = _parse_literal_ip(address.host)
    is_loopback = rules.allow_private and ip is not None and ip.is_loopback
    if address.scheme == "http" and not rules.allow_plain_http and not is_loopback:
        raise address_error(f"{address} uses plain HTTP, so its response proves nothing", "plain-http")
    if ip is not None and not rules.allow_private and not is_public(ip):
        raise address_error(f"{address.host} is not a public address", "private")


def _parse_literal_ip(host: str) -> IpAddress | None:
    """Return the IP address that a host is written as, including the short and octal forms that resolvers accept."""
    if host == "localhost" or host.endswith(".localhost"):
        return ipaddress.IPv4Address("127.0.0.1")
    with suppress(ValueError):
        return ipaddress.ip_address(host)
    with suppress(OSError):
        return ipaddress.IPv4Address(socket.inet_aton(host))
    return None


Origin = Literal["environment", "user", "system", "project", "default", "argument"]


class ServiceEndpoint(Record):
    """A base URL that ends with a slash, and where it was configured."""

    url: str
    configured_by: Origin
    source: str = ""
    """The file or variable that configures the URL, for display."""
    authorization: str | None = field(default=None, repr=False)
    """The ``Authorization`` header. Sent only to URLs below ``url`` on the same host and port."""
    ca_file: Path | None = None
    """Additional CA certificates from the client's settings."""

    @property
    def address(self) -> HttpAddress:
        """The parsed base URL."""
        return HttpAddress.parse(self.url)

    @property
    def private_allowed(self) -> bool:
        """Whether the endpoint may be in a private network. An endpoint from a project's files may not."""
        return self.configured_by != "project"

    def owns(self, address: HttpAddress) -> bool:
        """Whether the credential may be sent to an address: below the base URL, without ``..``."""
        mine = self.address
        below = address.path.startswith(f"{mine.path.rstrip('/')}/")
        steps = unquote(address.path.partition("?")[0]).replace("\\", "/").split("/")
        return address.origin == mine.origin and below and not {".", ".."} & set(steps)


class SettingsSources(Record):
    """Where a client's settings are read from: home folder, project folder and environment."""

    home: Path
    project: Path | None
    """The project folder; None to use only the user's settings."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment variables. Their values may be credentials and are never stored."""
