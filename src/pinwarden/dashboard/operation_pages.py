"""The pages about who uses the gateway and by which rules: clients, gateways, and the effective policy."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from pinwarden.core.record import Record
from pinwarden.dashboard.overview import read_part
from pinwarden.dashboard.sources import DashboardRequest, Sources, Values
from pinwarden.gateway.gated_server import load_gateway_policy
from pinwarden.html.pages import PageContent
from pinwarden.lock.gateway_policy import KEYS, GatewayPolicy, describe_setting


class RunningGateway(Record):
    """A gateway that reported within the last minutes which servers it has."""

    place: str
    servers: tuple[str, ...]
    seen: str


def list_gateways(sources: Sources) -> list[RunningGateway]:
    """Return the gateways that use the database and run now, by place."""
    found: dict[str, list[tuple[str, int]]] = {}
    for follower in sources.state.approvals.list_followers(int(time.time())):
        found.setdefault(follower.place, []).append((follower.server, follower.seen))
    return [
        RunningGateway(
            place=place,
            servers=tuple(server for server, _ in rows),
            seen=datetime.fromtimestamp(max(seen for _, seen in rows), UTC).isoformat(),
        )
        for place, rows in found.items()
    ]


def build_clients_page(sources: Sources, _: DashboardRequest) -> PageContent:
    """Build the page of the clients with a token, and of the gateways that run now."""
    values: Values = {
        "tokens": read_part(sources.state.tokens.list_all),
        "gateways": read_part(lambda: list_gateways(sources)),
    }
    return PageContent(template="clients.html", values=values)


def build_policy_page(sources: Sources, _: DashboardRequest) -> PageContent:
    """Build the page of the policy that gateways of this project apply."""
    policy = read_part(lambda: load_gateway_policy(sources.project))
    values: Values = {
        "gateway_policy": policy,
        "settings": [] if policy.problem else list_settings(policy.value),
        "describe_setting": describe_setting,
        "place": str(sources.project.policy_file),
    }
    return PageContent(template="policy.html", values=values)


def list_settings(policy: GatewayPolicy) -> list[tuple[str, str, bool]]:
    """Return each setting with its effective value, and whether the policy sets it."""
    return [(key.name, describe_setting(key.name, policy.get(key.name)), key.name in policy.settings) for key in KEYS]
