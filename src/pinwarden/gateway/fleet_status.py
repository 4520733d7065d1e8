"""What ``pinwarden fleet status`` reports: which machine runs which server at which version, and drift by group."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED
from pinwarden.core.record import Record
from pinwarden.core.report import Report
from pinwarden.core.text import plural
from pinwarden.gateway.store.devices import Device, Devices, DeviceServer


class GroupDrift(Record):
    """A server of which the machines of a group run different versions or approved surfaces."""

    group: str
    server: str
    version: str
    """What most machines of the group run; of several equally frequent ones, the last in alphabetical order."""
    surface: str
    devices: tuple[str, ...]
    """The machines that run something else."""


def build_fleet_report(devices: Devices, group: str | None = None) -> Report:
    """Return the report of ``pinwarden fleet status``. Machines whose tokens were revoked are left out."""
    members = [device for device in devices.list_all() if device.revoked_at is None and group in (None, device.team)]
    by_device: dict[str, list[DeviceServer]] = defaultdict(list)
    for device_id, server in devices.list_servers():
        by_device[device_id].append(server)
    drift = find_drift(members, by_device)
    differing = {(row.group, row.server, device) for row in drift for device in row.devices}
    machines = plural(len(members), "machine")
    return Report(
        command="fleet status",
        subject=group or "all groups",
        summary=f"{machines}, {plural(len(drift), 'server')} with drift within a group" if drift else machines,
        exit_code=EXIT_REFUSED if drift else EXIT_CLEAN,
        facts={
            "devices": [
                {
                    "name": device.name,
                    "group": device.team,
                    "host": device.host,
                    "program": device.program,
                    "policy": device.policy or None,
                    "last_seen": _format_time(device.seen),
                    "servers": [
                        _server_to_json(server, drifts=(device.team, server.server, device.name) in differing)
                        for server in by_device[device.id]
                    ],
                }
                for device in members
            ],
            "drift": [
                {
                    "group": row.group,
                    "server": row.server,
                    "version": row.version or None,
                    "surface": row.surface or None,
                    "devices": list(row.devices),
                }
                for row in drift
            ],
        },
    )


def find_drift(members: Sequence[Device], by_device: dict[str, list[DeviceServer]]) -> list[GroupDrift]:
    """Return the servers of which machines of one group run different versions or approved surfaces."""
    running: dict[tuple[str, str], dict[str, set[tuple[str, str]]]] = defaultdict(lambda: defaultdict(set))
    for device in members:
        for server in by_device[device.id]:
            running[device.team, server.server][device.name].add((server.version, server.surface))
    drift: list[GroupDrift] = []
    for (group, name), machines in sorted(running.items()):
        counts = Counter(version for versions in machines.values() for version in versions)
        if len(counts) < 2:
            continue
        usual = max(counts, key=lambda version: (counts[version], version))
        others = tuple(sorted(machine for machine, versions in machines.items() if versions != {usual}))
        drift.append(GroupDrift(group=group, server=name, version=usual[0], surface=usual[1], devices=others))
    return drift


def _server_to_json(server: DeviceServer, *, drifts: bool) -> dict[str, Any]:
    return {
        "server": server.server,
        "client": server.client or None,
        "version": server.version or None,
        "surface": server.surface or None,
        "lock": server.place or None,
        "pending_reviews": server.waiting,
        "started": server.started,
        "drift": drifts,
    }


def _format_time(seconds: int) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds else None
