"""The operator's file with the destinations of alerts. Secrets are placeholders for environment variables.

The file belongs to the operator, not to a repository: anyone who can change it decides where alerts are sent, and
the values of the variables that it names.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pinwarden.alerts.alert import TOPICS, WEB_MESSAGES
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field
from pinwarden.core.typed_json import JsonObject
from pinwarden.system.files import read_file
from pinwarden.system.net.connections import is_private_literal
from pinwarden.system.target import HttpAddress, expand_placeholders

_MAX_FILE_BYTES = 256 * 1024
_MAX_DESTINATIONS = 50
_GROUP_SECONDS = 30
EMAIL = "email"
_COMMON_KEYS = ("name", "kind", "topics")
_KEYS = {
    **{kind: (*_COMMON_KEYS, "url", *(("secret",) if web.signed else ())) for kind, web in WEB_MESSAGES.items()},
    EMAIL: (*_COMMON_KEYS, "server", "tls", "username", "password", "from", "to"),
}
_TLS_PORTS = {"tls": 465, "starttls": 587, "none": 25}


class WebDestination(Record):
    """An address that gets alerts by HTTP POST."""

    name: str
    kind: str
    topics: tuple[str, ...]
    url: str = field(repr=False)
    """May contain a secret, as the addresses of Slack and Teams do."""
    secret: str = field(default="", repr=False)
    """The key of the signature of a webhook."""


class MailDestination(Record):
    """A mail server and the people who get alerts."""

    name: str
    topics: tuple[str, ...]
    host: str
    port: int
    tls: str
    """``tls``, ``starttls``, or ``none`` for a server on this machine."""
    sender: str
    recipients: tuple[str, ...]
    username: str = ""
    password: str = field(default="", repr=False)
    kind: str = EMAIL


Destination = WebDestination | MailDestination


class AlertSettings(Record):
    """The destinations, and how long to wait for further changes that belong into the same alert."""

    destinations: tuple[Destination, ...]
    group_seconds: int = _GROUP_SECONDS


def load_alert_settings(path: Path, variables: Mapping[str, str]) -> AlertSettings:
    """Read the file. Raises ``ALERTS_INVALID`` for a mistake, ``VARIABLE_MISSING`` for a variable that is not set."""
    try:
        document = tomllib.loads(read_file(path, _MAX_FILE_BYTES).decode("utf-8"))
    except (ValueError, RecursionError) as err:
        raise PinwardenError("ALERTS_INVALID", f"{path}: the file is not TOML: {err}") from err
    return parse_alert_settings(document, variables)


def parse_alert_settings(document: Mapping[str, Any], variables: Mapping[str, str]) -> AlertSettings:
    """Parse the parsed file, and put the values of variables in the place of their placeholders."""
    table = JsonObject(document, "", _invalid, separator=".")
    table.refuse_unknown(("group-seconds", "destination"))
    rows = table.objects("destination", min_items=1, max_items=_MAX_DESTINATIONS)
    destinations = tuple(_parse_destination(row, variables) for row in rows)
    names = [destination.name for destination in destinations]
    for name in names:
        if names.count(name) > 1:
            table.fail("destination", f"has two entries with the name {name!a}")
    group = table.integer("group-seconds", maximum=3600) if "group-seconds" in table else _GROUP_SECONDS
    return AlertSettings(destinations=destinations, group_seconds=group)


def _parse_destination(row: JsonObject, variables: Mapping[str, str]) -> Destination:
    kind = row.one_of("kind", tuple(_KEYS))
    row.refuse_unknown(_KEYS[kind])
    name = row.string("name")
    if not name or len(name) > 100:
        row.fail("name", "is empty or longer than 100 characters")
    topics = row.strings("topics") if "topics" in row else TOPICS
    for topic in topics:
        if topic not in TOPICS:
            row.fail("topics", f"has {topic[:80]!a}, which is not one of {', '.join(TOPICS)}")
    if kind == EMAIL:
        return _parse_mail(row, name, topics, variables)
    url = expand_placeholders(row.string("url"), variables)
    address = _parse_address(row, url)
    if address.scheme != "https" and not is_private_literal(address.host):
        row.fail("url", "does not begin with https://")
    secret = expand_placeholders(row.string("secret", default=""), variables)
    if WEB_MESSAGES[kind].signed and len(secret) < 16:
        row.fail("secret", "is shorter than 16 characters")
    return WebDestination(name=name, kind=kind, topics=topics, url=url, secret=secret)


def _parse_address(row: JsonObject, url: str) -> HttpAddress:
    try:
        return HttpAddress.parse(url)
    except PinwardenError as err:  # its message may quote the address, which may be a secret
        raise _invalid(row.path_of("url"), "is not an http or https address") from err


def _parse_mail(row: JsonObject, name: str, topics: tuple[str, ...], variables: Mapping[str, str]) -> MailDestination:
    tls = row.one_of("tls", tuple(_TLS_PORTS), default="starttls")
    host, _, port = row.string("server").partition(":")
    if not host or (port and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536)):
        row.fail("server", "is not HOST or HOST:PORT")
    if tls == "none" and not is_private_literal(host) and host != "localhost":
        row.fail("tls", "is none, which is only for a mail server on this machine")
    addresses = (row.string("from"), *row.strings("to"))
    if len(addresses) < 2:
        row.fail("to", "is empty")
    for address in addresses:
        if not address.isascii() or not address.isprintable() or address.count("@") != 1 or " " in address:
            row.fail("to", f"has {address[:80]!a}, which is not an e-mail address")
    return MailDestination(
        name=name,
        topics=topics,
        host=host,
        port=int(port) if port else _TLS_PORTS[tls],
        tls=tls,
        sender=addresses[0],
        recipients=addresses[1:],
        username=expand_placeholders(row.string("username", default=""), variables),
        password=expand_placeholders(row.string("password", default=""), variables),
    )


def _invalid(path: str, problem: str) -> PinwardenError:
    return PinwardenError("ALERTS_INVALID", f"{path or 'the file'} {problem}")
