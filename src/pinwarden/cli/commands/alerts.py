"""``alerts``: tell people by webhook, Slack, Teams or e-mail what needs a decision."""

from __future__ import annotations

import os
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.commands import command
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_database_argument, open_database
from pinwarden.cli.streams import print_notice
from pinwarden.core.errors import PinwardenError
from pinwarden.core.report import Report
from pinwarden.core.text import plural

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinwarden.alerts.config import AlertSettings
    from pinwarden.alerts.outbox import Outbox, StoredAlert
    from pinwarden.alerts.sources import AlertSource
    from pinwarden.gateway.state import GatewayState
    from pinwarden.registry.registry import Registry


def add_alerts_argument(parser: ArgumentParser) -> None:
    """Add ``--alerts`` to a command that serves."""
    parser.add_argument(
        "--alerts", metavar="FILE", help="also send alerts to the destinations in this file (pinwarden alerts test)"
    )


@contextmanager
def send_gateway_alerts(file: str | None, state: GatewayState, log: Callable[[str], None]) -> Iterator[None]:
    """Send the alerts of a gateway's database on a thread, if there is a file with destinations."""
    if file is None:
        yield
        return
    from pinwarden.alerts.sources import AuditFaults, PendingReviews
    from pinwarden.gateway.state import GatewayState

    settings = _load_settings(file)
    with GatewayState(state.folder, state.url) as own:  # the thread must not share what the gateway opens on first use
        sources: list[AlertSource] = [PendingReviews(own), AuditFaults(own)]
        with _send_alerts(settings, state.url, sources, log):
            yield


@contextmanager
def send_registry_alerts(
    file: str | None, registry: Registry, database: str, log: Callable[[str], None]
) -> Iterator[None]:
    """Send the alerts of a registry on a thread, if there is a file with destinations."""
    if file is None:
        yield
        return
    from pinwarden.alerts.sources import RefusedPublishes

    with _send_alerts(_load_settings(file), database, [RefusedPublishes(registry)], log):
        yield


def _configure_alerts_run(parser: ArgumentParser) -> None:
    _add_config_argument(parser)
    parser.add_argument("--once", action="store_true", help="send what is due now, then exit")
    add_database_argument(parser)


@command(_configure_alerts_run, prints_report=False)
def alerts_run(args: Namespace) -> int:
    """Send alerts about pending reviews and faults of the audit log until it is stopped.

    A gateway does the same with pinwarden gateway --alerts FILE, and a registry with pinwarden registry serve --alerts
    FILE. Several processes with the same database send each alert once. An alert is about one server, and waits 30
    seconds for further changes. If it does not arrive, it is sent again for about a day.

    Examples:
      pinwarden alerts run --config alerts.toml --once
    """
    settings = _load_settings(args.config)
    with open_database(args) as state, _open_outbox(state.url) as outbox:
        from pinwarden.alerts.sender import AlertSender
        from pinwarden.alerts.sources import AuditFaults, PendingReviews

        sender = AlertSender(settings, outbox, [PendingReviews(state), AuditFaults(state)], print_notice)
        if args.once:
            sender.run_once()
        else:
            sender.run(threading.Event())
    return 0


def _configure_alerts_test(parser: ArgumentParser) -> None:
    _add_config_argument(parser)
    add_format_argument(parser)


@command(_configure_alerts_test)
def alerts_test(args: Namespace) -> int:
    """Check the file with the destinations of alerts, and send a test alert to each.

    Examples:
      pinwarden alerts test --config alerts.toml
    """
    from uuid import uuid4

    from pinwarden.alerts.alert import REVIEW, AlertItem, build_alert
    from pinwarden.alerts.delivery import DeliveryError, deliver
    from pinwarden.system.clock import wall_clock

    settings = _load_settings(args.config)
    item = AlertItem(name="test", level="info", reason="This is a test. Nothing needs a decision.")
    alert = build_alert(REVIEW, "test", [item], "pinwarden review")
    failed: dict[str, str] = {}
    for destination in settings.destinations:
        try:
            deliver(alert, destination, uuid4().hex, wall_clock())
        except DeliveryError as err:
            failed[destination.name] = str(err)
    if failed:
        text = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
        raise PinwardenError("ALERT_UNDELIVERED", text, data={"failed": failed})
    facts = {"destinations": [destination.name for destination in settings.destinations]}
    summary = f"{plural(len(settings.destinations), 'destination')} got a test alert"
    return emit(
        Report(command="alerts test", subject=args.config, summary=summary, exit_code=0, facts=facts), args.format
    )


def _configure_alerts_list(parser: ArgumentParser) -> None:
    add_database_argument(parser)
    add_format_argument(parser)


@command(_configure_alerts_list)
def alerts_list(args: Namespace) -> int:
    """List the alerts that are waiting for their delivery, and those that failed.

    Examples:
      pinwarden alerts list
    """
    with open_database(args) as state, _open_outbox(state.url) as outbox:
        alerts = outbox.select()
    if args.format == "text" and alerts:
        from pinwarden.cli.render.text import render_table

        headings = ("ID", "DESTINATION", "STATE", "ATTEMPTS", "CREATED", "ALERT", "PROBLEM")
        rows = [
            (
                alert.id,
                alert.destination,
                alert.state,
                str(alert.attempts),
                _format_time(alert.created),
                *_describe(alert),
            )
            for alert in alerts
        ]
        sys.stdout.write(render_table(headings, rows))
    failed = sum(alert.state == "failed" for alert in alerts)
    summary = f"{plural(len(alerts) - failed, 'alert')} waiting, {failed} failed"
    facts = {"alerts": [_alert_to_json(alert) for alert in alerts]}
    return emit(Report(command="alerts list", subject="", summary=summary, exit_code=0, facts=facts), args.format)


def _configure_alerts_retry(parser: ArgumentParser) -> None:
    parser.add_argument("id", nargs="*", metavar="ID", help="alerts to send again (default: all that failed)")
    add_database_argument(parser)
    add_format_argument(parser)


@command(_configure_alerts_retry)
def alerts_retry(args: Namespace) -> int:
    """Send alerts again that failed, with the next round of pinwarden alerts run or of the gateway.

    Examples:
      pinwarden alerts retry
    """
    with open_database(args) as state, _open_outbox(state.url) as outbox:
        known = {alert.id for alert in outbox.select(("failed",))}
        for identifier in args.id:
            if identifier not in known:
                raise PinwardenError(
                    "USAGE", f"{identifier[:80]!a} is not an alert that failed", hint="run: pinwarden alerts list"
                )
        count = outbox.retry(args.id, int(time.time()))
    summary = f"{plural(count, 'alert')} will be sent again"
    report = Report(command="alerts retry", subject="", summary=summary, exit_code=0, facts={"retried": count})
    return emit(report, args.format)


def _add_config_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--config", required=True, metavar="FILE", help="file with the destinations (docs/guides/alerts.md)"
    )


def _load_settings(file: str) -> AlertSettings:
    from pinwarden.alerts.config import load_alert_settings

    return load_alert_settings(Path(file), os.environ)


@contextmanager
def _open_outbox(database: str) -> Iterator[Outbox]:
    from pinwarden.alerts.outbox import Outbox, load_alert_schema
    from pinwarden.system.database import open_database as open_tables

    tables = open_tables(database, load_alert_schema())
    try:
        yield Outbox(tables)
    finally:
        tables.close()


@contextmanager
def _send_alerts(
    settings: AlertSettings, database: str, sources: list[AlertSource], log: Callable[[str], None]
) -> Iterator[None]:
    from pinwarden.alerts.sender import AlertSender, send_in_background

    with _open_outbox(database) as outbox, send_in_background(AlertSender(settings, outbox, sources, log)):
        yield


def _describe(alert: StoredAlert) -> tuple[str, str]:
    return alert.alert.title, alert.problem or "-"


def _alert_to_json(alert: StoredAlert) -> dict[str, object]:
    from pinwarden.alerts.alert import alert_to_json

    return {
        "id": alert.id,
        "destination": alert.destination,
        "state": alert.state,
        "attempts": alert.attempts,
        "created": _format_time(alert.created),
        "due": _format_time(alert.due),
        "problem": alert.problem,
        "alert": alert_to_json(alert.alert),
    }


def _format_time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
