"""Running a resolver: in an empty folder, with a short environment, bounded in time and output, and never a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pinwarden.system.bounded_run import Task, run_bounded
from pinwarden.system.net.endpoint import Endpoint
from pinwarden.system.net.fetch_failures import unfetched
from pinwarden.system.net.network_guard import HostNotFoundError, NetworkRules, destinations
from pinwarden.system.net.proxies import proxy_for

RESOLVE_SECONDS = 300.0
"""The largest closures take a minute or two over a slow line."""


def run_resolver(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], *, seconds: float, secrets: Sequence[str] = ()
) -> bytes:
    """What the program wrote to its standard output. Its failure is ours, with the end of what it complained about."""
    task = Task(name=Path(command[0]).name, failure="RESOLVER_FAILED", seconds=seconds, secrets=tuple(secrets))
    return run_bounded(command, folder, environment, task)


def check_address(index: Endpoint, variables: Mapping[str, str], *, allow_plain_http: bool = False) -> None:
    """Refuse a registry that our own client would not ask: a resolver asks whatever address it is given."""
    if proxy_for(index.address, variables) is not None:
        return  # the proxy looks the name up
    rules = NetworkRules(allow_private=index.private_allowed, allow_plain_http=allow_plain_http)
    try:
        destinations(index.address, rules)
    except HostNotFoundError as err:
        raise unfetched("connect", f"the host {index.address.host} was not found") from err
