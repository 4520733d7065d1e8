"""What the census knows about a server: how it is configured, what the last run remembers, and what a job found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.report import Row
from pinwarden.core.strict_json import parse_json
from pinwarden.surface.surface import Surface

ResultState = Literal["observed", "unchanged", "failed"]


class RegistryResponse(Record):
    """A document of a package registry that an observation rests on. If all are the same, so is the package."""

    url: str
    accept: str
    digest: str
    etag: str = ""


class ServerMemory(Record):
    """What the next run needs from the last observation of a server."""

    run: int = 0
    """The run that observed the server; 0 if none did."""
    checked_at: str = ""
    version: str = ""
    fingerprint: str = ""
    """A digest of the configuration, and of the files that a local command names."""
    responses: tuple[RegistryResponse, ...] = ()
    pins: Mapping[str, Any] | None = None
    """The lock entry of the last observation, with the pins of the verified bytes."""
    surface: str = ""
    is_repeatable: bool = False
    """Whether the last result still counts if nothing changed. A failure of the network does not."""

    def to_json(self) -> str:
        """Encode for the database."""
        members = {
            "run": self.run,
            "checkedAt": self.checked_at,
            "version": self.version,
            "fingerprint": self.fingerprint,
            "responses": [[row.url, row.accept, row.digest, row.etag] for row in self.responses],
            "pins": self.pins,
            "surface": self.surface,
            "repeatable": self.is_repeatable,
        }
        return json.dumps(members, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> ServerMemory:
        """Decode from the database; an empty text gives an empty memory. Raises DATABASE_CORRUPT."""
        if not text:
            return cls()
        try:
            members = parse_json(text.encode())
            return cls(
                run=members["run"],
                checked_at=members["checkedAt"],
                version=members["version"],
                fingerprint=members["fingerprint"],
                responses=tuple(
                    RegistryResponse(url=url, accept=accept, digest=digest, etag=etag)
                    for url, accept, digest, etag in members["responses"]
                ),
                pins=members["pins"],
                surface=members["surface"],
                is_repeatable=members["repeatable"],
            )
        except (PinwardenError, KeyError, TypeError, ValueError) as err:
            raise PinwardenError("DATABASE_CORRUPT", "the census has an unreadable memory of a server") from err


class CensusServer(Record):
    """A server of a source."""

    id: str
    """The source and the name, so that two sources may have servers of one name."""
    source: str
    name: str
    spec: Mapping[str, Any]
    """``{"config": ENTRY, "client": ID}`` from a client's file, or ``{"key": KEY, "entry": DOCUMENT}`` of a lock."""
    folder: str = ""
    """The folder in which a local command starts; empty for packages and remote servers."""


class ServerObservation(Record):
    """What a job found out about a server."""

    state: ResultState
    checked_at: str
    code: str = ""
    """The error code of a failure."""
    reason: str = ""
    """The kind of a failure, such as ``timeout`` or a limit."""
    message: str = ""
    version: str = ""
    artifact: str = ""
    publisher: str = ""
    provenance: str = ""
    surface: Surface | None = None
    tokens: int = 0
    findings: tuple[tuple[str, Row], ...] = ()
    """Each with its origin: ``drift``, ``scan`` or ``artifact``."""
    memory: ServerMemory | None = None
    """What to remember; None to keep what is remembered."""
    observed_run: int = 0
    """For an unchanged server, the run that observed it."""
    milliseconds: int = 0
    retry_seconds: float | None = None
    """When to try again after a temporary failure; None if a retry would not help."""
