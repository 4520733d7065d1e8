"""``fleet``: machines whose gateways follow the company's gateway."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.commands import command
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import (
    add_database_argument,
    find_current_project,
    find_person,
    open_database,
    read_database,
)
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.report import Report

if TYPE_CHECKING:
    from pinwarden.gateway.fleet_client import FleetSettings
    from pinwarden.gateway.state import GatewayState

_TOKEN_VARIABLE = "PINWARDEN_DEVICE_TOKEN"  # noqa: S105 - the name of a variable, not its value
_FAIL_CLOSED_SECONDS = 300
_MAX_FAIL_CLOSED = 30 * 86_400
_HEADINGS = ("MACHINE", "GROUP", "LAST SEEN", "SERVER", "VERSION", "PENDING", "DRIFT")


def _configure_fleet_device(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=["add", "revoke"], help="add a machine, or revoke its token")
    parser.add_argument("name", help="name of the machine")
    parser.add_argument("--group", default="all", metavar="NAME", help="group of the machine (default: all)")
    add_database_argument(parser)
    add_format_argument(parser)


@command(_configure_fleet_device)
def fleet_device(args: Namespace) -> int:
    """Add a machine to the fleet, or revoke its token.

    The new device token is printed once; the database stores only its hash. Run the command where the company's gateway
    has its database, and `pinwarden fleet join` with the token on the machine.

    Examples:
      pinwarden fleet device add ada-laptop --group engineering
      pinwarden fleet device revoke ada-laptop
    """
    from pinwarden.gateway.audit.event import TOKEN_ADDED, TOKEN_REVOKED, AuditEvent
    from pinwarden.system.clock import now

    with open_database(args) as state:
        if args.action == "revoke":
            device, token = state.devices.revoke(args.name, now()), ""
        else:
            device, token = state.devices.invite(args.name, args.group, now())
        state.record_events(
            AuditEvent(
                kind=TOKEN_ADDED if token else TOKEN_REVOKED,
                client=device.name,
                item_kind="device",
                item=device.id,
                by=find_person(),
            )
        )
    facts = {"name": device.name, "group": device.team, "revoked_at": device.revoked_at}
    summary = f"the token of {device.name} is revoked" if not token else f"{device.name} may join"
    report = Report(
        command="fleet device",
        subject=device.name,
        summary=summary,
        exit_code=EXIT_CLEAN,
        notes=("copy the token now: only its hash is stored, and it cannot be shown again",) if token else (),
        facts={**facts, **({"token": token} if token else {})},
    )
    if token and args.format == "text":
        sys.stdout.write(f"{token}\n")
        sys.stdout.flush()
        sys.stderr.write(f"{report.summary}: {report.notes[0]}\n")
        return report.exit_code
    return emit(report, args.format)


def _configure_fleet_join(parser: ArgumentParser) -> None:
    parser.add_argument("url", help="address of the company's gateway, such as https://gateway.example")
    parser.add_argument(
        "--token-env",
        default=_TOKEN_VARIABLE,
        metavar="NAME",
        help=f"environment variable with the device token (default: {_TOKEN_VARIABLE})",
    )
    parser.add_argument(
        "--ca-file", metavar="FILE", help="certificates of your own certificate authority, in PEM format"
    )
    parser.add_argument(
        "--fail-closed",
        nargs="?",
        type=_parse_fail_closed,
        const=_FAIL_CLOSED_SECONDS,
        default=0,
        metavar="SECONDS",
        help="block everything after this time without contact (default: continue with the last known policy; without "
        f"a number: {_FAIL_CLOSED_SECONDS})",
    )
    add_format_argument(parser)


@command(_configure_fleet_join)
def fleet_join(args: Namespace) -> int:
    """Let the gateways of this machine follow the company's gateway.

    From now on, `pinwarden run` applies the company's policy where it is stricter than yours, and its approvals. It
    sends the company the servers that it starts, what they serve, and every event of its audit log from now on.

    Examples:
      pinwarden fleet join https://gateway.example --fail-closed
    """
    from pinwarden.gateway.fleet_client import FleetSettings, join
    from pinwarden.system.target import HttpAddress

    token = os.environ.get(args.token_env, "").strip()
    if not token:
        raise PinwardenError(
            "VARIABLE_MISSING",
            f"the variable {args.token_env[:80]!a} is not set, or empty",
            hint="Set it to the token that pinwarden fleet device add printed.",
        )
    HttpAddress.parse(args.url)  # a malformed address is a usage error
    settings = FleetSettings(
        url=args.url.rstrip("/"),
        token=token,
        installation=os.urandom(12).hex(),
        fail_closed=args.fail_closed,
        ca_file=str(Path(args.ca_file).resolve()) if args.ca_file else "",
    )
    with _open_own_state() as state:
        response = join(state, settings, os.environ)
    facts = {"url": settings.url, "name": response["device"], "group": response["group"]}
    facts |= {"has_policy": response["policy"] is not None, "fail_closed": settings.fail_closed or None}
    summary = f"this machine is {response['device']} in the group {response['group']}"
    return emit(
        Report(command="fleet join", subject=settings.url, summary=summary, exit_code=EXIT_CLEAN, facts=facts),
        args.format,
    )


@command(add_format_argument)
def fleet_leave(args: Namespace) -> int:
    """Stop following the company's gateway: forget its policy, its approvals and the device token.

    Examples:
      pinwarden fleet leave
    """
    from pinwarden.gateway.fleet_client import get_fleet_folder, leave, read_settings

    with _open_own_state() as state:
        folder = get_fleet_folder(state.folder)
        settings = read_settings(folder)
        leave(folder)
    summary = "this machine is in no fleet" if settings is None else f"this machine no longer follows {settings.url}"
    facts = {"left": None if settings is None else settings.url}
    return emit(
        Report(command="fleet leave", subject="this machine", summary=summary, exit_code=EXIT_CLEAN, facts=facts),
        args.format,
    )


@command(add_format_argument)
def fleet_sync(args: Namespace) -> int:
    """Exchange everything with the company's gateway now. Running gateways do so every ten seconds.

    Examples:
      pinwarden fleet sync
    """
    from pinwarden.core.text import plural
    from pinwarden.gateway.fleet_client import synchronize

    with _open_own_state() as state:
        count = synchronize(state, _require_settings(state), os.environ)
    return emit(
        Report(
            command="fleet sync",
            subject="this machine",
            summary=f"{plural(count, 'event')} sent",
            exit_code=EXIT_CLEAN,
            facts={"events": count},
        ),
        args.format,
    )


def _configure_fleet_status(parser: ArgumentParser) -> None:
    parser.add_argument("--group", metavar="NAME", help="show only the machines of this group")
    add_database_argument(parser)
    add_format_argument(parser)


@command(_configure_fleet_status)
def fleet_status(args: Namespace) -> int:
    """Show which machine runs which server at which version, when it was last seen, and where a group differs.

    The exit code is 1 if machines of one group run different versions or approved surfaces of a server.

    Examples:
      pinwarden fleet status
      pinwarden fleet status --group engineering --json
    """
    from pinwarden.cli.render.text import render_table
    from pinwarden.gateway.fleet_status import build_fleet_report

    with read_database(args) as state:
        report = build_fleet_report(state.devices, args.group)
    if args.format == "text" and report.facts["devices"]:
        rows = [
            (
                device["name"],
                device["group"],
                device["last_seen"] or "never",
                server.get("server", "-"),
                server.get("version") or "-",
                str(server.get("pending_reviews") or "-"),
                "yes" if server.get("drift") else "-",
            )
            for device in report.facts["devices"]
            for server in device["servers"] or [{}]
        ]
        sys.stdout.write(render_table(_HEADINGS, rows))
    return emit(report, args.format)


def _open_own_state() -> GatewayState:
    from pinwarden.gateway.state import open_state

    return open_state(find_current_project())


def _require_settings(state: GatewayState) -> FleetSettings:
    from pinwarden.gateway.fleet_client import get_fleet_folder, read_settings

    settings = read_settings(get_fleet_folder(state.folder))
    if settings is None:
        raise PinwardenError("FLEET_NOT_JOINED", "this machine has not joined a fleet")
    return settings


def _parse_fail_closed(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 8 or not 10 <= int(text) <= _MAX_FAIL_CLOSED:
        raise ArgumentTypeError(f"{text[:40]!a} is not a number of seconds from 10 to {_MAX_FAIL_CLOSED}")
    return int(text)
