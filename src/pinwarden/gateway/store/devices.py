"""The tables of machines that follow a gateway over HTTPS, and of what they report."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field_names
from pinwarden.gateway.store.tokens import hash_token
from pinwarden.system.database import ConflictError, Database, Row, Transaction

TOPIC = "devices"
"""The topic of notifications about devices."""
TOKEN_PREFIX = "pwd_"  # noqa: S105 - lets secret scanners recognize a device token
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_SIGHTINGS = 5_000  # of one device


class Device(Record):
    """A machine with a device token."""

    id: str
    name: str
    team: str
    made_at: str
    revoked_at: str | None
    installation: str
    """Identifies the state folder that uses the token; empty before it joined."""
    host: str
    program: str
    """The version of Pinwarden on the machine."""
    policy: str
    """The digest of the company's policy that the machine enforces; empty if none."""
    seen: int
    """When it last reported, in seconds since 1970; 0 for never."""


class DeviceServer(Record):
    """A server that a machine started through its gateway."""

    place: str
    """The lockfile on the machine; empty for a server without a lock entry."""
    server: str
    client: str
    version: str
    surface: str
    """The digest of the approved surface; empty if it was trusted on first use."""
    waiting: int
    """Number of its changes that are pending review on the machine."""
    started: str
    runs: str = ""
    """The package URL or address of the server; empty for a program of the machine."""


class DeviceSighting(Record):
    """A definition that a server on a machine served."""

    server: str
    entity: str
    item: str
    digest: str
    definition: str
    action: str
    first_seen: str
    last_seen: str


_DEVICE = ", ".join(field_names(Device))
_SERVER = ", ".join(field_names(DeviceServer))
_SIGHTING = ", ".join(field_names(DeviceSighting))


class Devices:
    """The devices in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def invite(self, name: str, team: str, at: str) -> tuple[Device, str]:
        """Create a device and its token, of which only the hash is stored."""
        for text in (name, team):
            if not _NAME.fullmatch(text):
                raise PinwardenError(
                    "USAGE",
                    f"{text[:80]!a} is not a valid name of a device or group",
                    hint="Use at most 64 letters, digits, dots, dashes and underscores.",
                )
        token, device_id = TOKEN_PREFIX + secrets.token_urlsafe(32), secrets.token_hex(8)
        try:
            with self._database.transaction() as transaction:
                for table in ("device_sighting", "device_server"):
                    transaction.run(
                        f"DELETE FROM {table} WHERE device IN"  # noqa: S608
                        " (SELECT id FROM device WHERE name = ? AND revoked_at IS NOT NULL)",
                        (name,),
                    )
                transaction.run("DELETE FROM device WHERE name = ? AND revoked_at IS NOT NULL", (name,))
                transaction.run(
                    "INSERT INTO device (id, digest, name, team, made_at, installation, host, program, policy, seen)"
                    " VALUES (?, ?, ?, ?, ?, '', '', '', '', 0)",
                    (device_id, hash_token(token), name, team, at),
                )
                transaction.notify(TOPIC)
        except ConflictError as err:
            raise PinwardenError(
                "USAGE",
                f"there is a device {name} already",
                hint=f"Revoke it: pinwarden fleet device revoke {name}",
            ) from err
        return self._get(device_id), token

    def revoke(self, name: str, at: str) -> Device:
        """Revoke the token of a device. Its reports are kept until another device gets the name."""
        with self._database.transaction() as transaction:
            if not transaction.run(
                "UPDATE device SET revoked_at = ? WHERE name = ? AND revoked_at IS NULL", (at, name)
            ):
                raise PinwardenError(
                    "DEVICE_UNKNOWN",
                    f"there is no device {name[:80]!a} with a valid token",
                    hint="See pinwarden fleet status.",
                )
            transaction.notify(TOPIC)
            row = transaction.row(f"SELECT {_DEVICE} FROM device WHERE name = ?", (name,))  # noqa: S608
        assert row is not None  # noqa: S101 - it was updated above
        return _to_device(row)

    def find(self, token: str) -> Device | None:
        """Return the device with this token; None if there is none or the token was revoked."""
        if not token.startswith(TOKEN_PREFIX):
            return None
        row = self._database.row(
            f"SELECT {_DEVICE} FROM device WHERE digest = ? AND revoked_at IS NULL",  # noqa: S608
            (hash_token(token),),
        )
        return None if row is None else _to_device(row)

    def record_contact(  # noqa: PLR0913 - the members of one row
        self, device: Device, *, installation: str, host: str, program: str, policy: str, now: int
    ) -> None:
        """Store that a device reported. Raises ``DEVICE_TOKEN_USED`` if its token belongs to another installation."""
        with self._database.transaction() as transaction:
            changed = transaction.run(
                "UPDATE device SET installation = ?, host = ?, program = ?, policy = ?, seen = ?"
                " WHERE id = ? AND revoked_at IS NULL AND installation IN ('', ?)",
                (installation, host, program, policy, now, device.id, installation),
            )
        if not changed:
            raise PinwardenError("DEVICE_TOKEN_USED", f"the token of {device.name} is used by another installation")

    def replace_servers(self, device: Device, servers: Sequence[DeviceServer]) -> None:
        """Store which servers a device runs."""
        marks = ", ".join("?" for _ in field_names(DeviceServer))
        rows = {(row.place, row.server, row.client): row for row in servers}
        with self._database.transaction() as transaction:
            transaction.run("DELETE FROM device_server WHERE device = ?", (device.id,))
            transaction.run_many(
                f"INSERT INTO device_server (device, {_SERVER}) VALUES (?, {marks})",  # noqa: S608
                [(device.id, *(getattr(row, name) for name in field_names(DeviceServer))) for row in rows.values()],
            )

    def record_sightings(self, device: Device, sightings: Sequence[DeviceSighting]) -> None:
        """Store or update what a device observed, up to the limit for one device."""
        marks = ", ".join("?" for _ in field_names(DeviceSighting))
        with self._database.transaction() as transaction:
            for row in sightings:
                key = (device.id, row.server, row.entity, row.item, row.digest)
                known = transaction.run(
                    "UPDATE device_sighting SET last_seen = ?, action = ?"
                    " WHERE device = ? AND server = ? AND entity = ? AND item = ? AND digest = ?",
                    (row.last_seen, row.action, *key),
                )
                if not known and _count_sightings(transaction, device) < _MAX_SIGHTINGS:
                    transaction.run(
                        f"INSERT INTO device_sighting (device, {_SIGHTING}) VALUES (?, {marks})",  # noqa: S608
                        (device.id, *(getattr(row, name) for name in field_names(DeviceSighting))),
                    )

    def list_all(self) -> list[Device]:
        """Return all devices by name, including revoked ones."""
        return [_to_device(row) for row in self._database.rows(f"SELECT {_DEVICE} FROM device ORDER BY name")]  # noqa: S608

    def list_servers(self) -> list[tuple[str, DeviceServer]]:
        """Return the servers of all devices, each with the id of its device."""
        rows = self._database.rows(
            f"SELECT device, {_SERVER} FROM device_server ORDER BY server, device, place, client"  # noqa: S608
        )
        return [(row[0], DeviceServer(**dict(zip(field_names(DeviceServer), row[1:], strict=True)))) for row in rows]

    def list_sightings(self, device: str) -> list[DeviceSighting]:
        """Return what a device observed."""
        rows = self._database.rows(
            f"SELECT {_SIGHTING} FROM device_sighting WHERE device = ? ORDER BY server, entity, item, first_seen",  # noqa: S608
            (device,),
        )
        return [DeviceSighting(**dict(zip(field_names(DeviceSighting), row, strict=True))) for row in rows]

    def _get(self, device_id: str) -> Device:
        row = self._database.row(f"SELECT {_DEVICE} FROM device WHERE id = ?", (device_id,))  # noqa: S608
        assert row is not None  # noqa: S101 - the caller has just inserted it
        return _to_device(row)


def _to_device(row: Row) -> Device:
    return Device(**dict(zip(field_names(Device), row, strict=True)))


def _count_sightings(transaction: Transaction, device: Device) -> int:
    row = transaction.row("SELECT COUNT(*) FROM device_sighting WHERE device = ?", (device.id,))
    return 0 if row is None else int(row[0])
