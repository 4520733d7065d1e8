"""Which hosts a value leads to: a server that is led to another host is another server, so a lock keeps them.

Of an address only what every reader takes for its host is kept. Where readers differ, nothing is: the change from a
host that was approved to such an address is then seen as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pinwarden.core.patterns import pattern
from pinwarden.system.key_forms import TOKEN, looks_random, names_secret

_WEB = ("http", "https", "ws", "wss")
_SCHEMES = frozenset(
    (
        *_WEB,
        *("grpc", "grpcs", "tcp", "tls", "udp", "ssh", "sftp", "ftp", "ftps", "git", "socks5", "socks5h"),
        *("postgres", "postgresql", "mysql", "mariadb", "mssql", "sqlserver", "oracle", "clickhouse", "cassandra"),
        *("mongodb", "mongodb+srv", "redis", "rediss", "bolt", "bolt+s", "neo4j", "neo4j+s"),
        *("amqp", "amqps", "mqtt", "mqtts", "nats", "kafka", "ldap", "ldaps", "smtp", "smtps", "imap", "imaps"),
    )
)
"""Schemes after which a host stands; of any other one, what stands there may be a secret itself."""

_HOST = pattern(
    r"(?:[A-Za-z0-9.-]|\$\{[A-Za-z_]\w*\}|\{env:[A-Za-z_]\w*\}){1,253}(?::[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](?::[0-9]{1,5})?"
)
_END = pattern(r"[/?#]")
_IN_TEXT = pattern(r"([A-Za-z][A-Za-z0-9+.-]{0,15})://([^ /?#,;|}\"')\]>]*)")
_SAYS_HOST = pattern(
    r"(?:^|[_-])(?:hosts?|hostname|servers?|brokers?|endpoints?|addr|address|addresses|ur[li]s?|domains?|peers|nodes|"
    r"upstream|proxy|gateway|base)$",
    re.IGNORECASE,
)
_DOTTED = pattern(r"(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|localhost)(?::[0-9]{1,5})?")
_MOST_TEXT = 4096
_MOST_HOSTS = 20


def origin_only(name: str, url: str) -> str:
    """An address without anything but its scheme and host; ``<name>`` where that may be a secret, or is in doubt."""
    scheme, _, rest = url.partition("://")
    authority = _END.split(rest, maxsplit=1)[0]
    host = _host(scheme, authority, rest[len(authority) :])
    return f"<{name}>" if host is None else f"{scheme}://{host}/<{name}>"


def hosts_in(text: str) -> Iterator[str]:
    """The origin of every address somewhere in a text, ``?`` for one whose host nobody can tell."""
    if len(text) > _MOST_TEXT:
        return
    for number, found in enumerate(_IN_TEXT.finditer(text)):
        if number == _MOST_HOSTS:
            yield "?"
            return
        if found[1].lower() in _SCHEMES:
            yield f"{found[1]}://{_host(found[1], found[2], text[found.end() :]) or '?'}/"


def host_list(name: str, text: str) -> str | None:
    """Hosts without a scheme, where the name of the variable says that it holds some."""
    if len(text) > _MOST_TEXT or not _SAYS_HOST.search(name) or names_secret(name):
        return None
    kept: list[str] = []
    for each in text.split(","):
        host, slash, _ = each.partition("/")
        if not _DOTTED.fullmatch(host) or _is_key(host):
            return None
        kept.append(f"{host}/<{name}>" if slash else host)
    return ",".join(kept)


def _host(scheme: str, authority: str, behind: str) -> str | None:
    """The host of an address, with its port. Readers differ about a backslash, and about blanks that some leave out."""
    # Some clients of databases take a password with a slash in it, and then the host stands further on.
    if "@" in behind and "@" not in authority and scheme.lower() not in _WEB:
        return None
    host = authority.rpartition("@")[2]
    plain = scheme.lower() in _SCHEMES and "\\" not in authority and not re.search(r"[\s\x00-\x1f]", authority)
    # Clients of databases take several hosts, and go to any of them.
    hosts = [host] if scheme.lower() in _WEB else host.split(",")[: _MOST_HOSTS + 1]
    known = plain and len(hosts) <= _MOST_HOSTS and all(_HOST.fullmatch(each) and not _is_key(each) for each in hosts)
    return host if known else None


def _is_key(host: str) -> bool:
    return looks_random(host) or bool(TOKEN.search(host))
