"""The pages about who uses the gateway and by which rules: clients, gateways, and the effective policy."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from threading import Lock

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.report import Report
from pinwarden.dashboard.sources import DashboardRequest, Sources, Values, read_part
from pinwarden.gateway.policy_what_if import DEFAULT_DAYS, MAX_DAYS, describe_outcome, parse_proposed, report_what_if
from pinwarden.html.pages import PageContent
from pinwarden.lock.gateway_policy import KEYS, GatewayPolicy, describe_setting
from pinwarden.project.project import load_policies


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
    policy = read_part(lambda: load_policies(sources.project).gateway)
    values: Values = {
        "gateway_policy": policy,
        "settings": [] if policy.problem else list_settings(policy.value),
        "describe_setting": describe_setting,
        "place": str(sources.project.policy_file),
    }
    return PageContent(template="policy.html", values=values)


def build_what_if_page(sources: Sources, request: DashboardRequest) -> PageContent:
    """Build the page that tries a pasted policy on the recorded calls. Stores nothing."""
    text = request.get("policy")
    report = read_part(lambda: try_policy(sources, text, request.get("days"))) if request.form else None
    values: Values = {
        "text": text,
        "days": request.get("days") or str(DEFAULT_DAYS),
        "report": report,
        "describe": describe_outcome,
    }
    return PageContent(template="what_if.html", values=values)


def try_policy(sources: Sources, text: str, days: str) -> Report:
    """Report what a policy would have done with the calls of the last days. Raises ``USAGE`` if it is invalid."""
    number = int(days) if days.isascii() and days.isdigit() and len(days) < 4 else 0
    if not 1 <= number <= MAX_DAYS:
        raise PinwardenError("USAGE", f"the number of days is not between 1 and {MAX_DAYS}")
    policy = text.encode("utf-8", "surrogatepass")
    try:
        parse_proposed(policy)
    except PinwardenError as err:  # unlike an invalid policy of the project, this is what the request got wrong
        raise PinwardenError("USAGE", f"the policy cannot be applied: {err.message}") from err
    if not _comparing.acquire(blocking=False):
        raise PinwardenError("LOCK_BUSY", "another policy is being tried", hint="Try again in a few seconds.")
    try:
        check = _make_time_check()
        return report_what_if(sources.project, sources.state, policy, number, time.time(), check=check)
    finally:
        _comparing.release()


_comparing = Lock()
"""One at a time: the pages with decisions must not wait for what viewers try."""
_TRY_SECONDS = 10.0


def _make_time_check() -> Callable[[], None]:
    end = time.monotonic() + _TRY_SECONDS

    def check() -> None:
        if time.monotonic() > end:
            raise PinwardenError(
                "INPUT_LIMIT",
                f"trying this policy takes more than {_TRY_SECONDS:.0f} seconds",
                hint="Give fewer days, or run pinwarden policy what-if where the gateway has its database.",
            )

    return check


def list_settings(policy: GatewayPolicy) -> list[tuple[str, str, bool]]:
    """Return each setting with its effective value, and whether the policy sets it."""
    return [(key.name, describe_setting(key.name, policy.get(key.name)), key.name in policy.settings) for key in KEYS]
