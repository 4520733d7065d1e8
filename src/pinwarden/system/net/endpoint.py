"""A registry from a client's settings, with the credential for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from pinwarden.core.record import Record, field
from pinwarden.system.target import HttpAddress

Origin = Literal["environment", "user", "system", "project", "default", "argument"]


class Endpoint(Record):
    """A base URL that ends with a slash, and where it was configured."""

    url: str
    said_by: Origin
    source: str = ""
    """The file or variable it comes from, for display."""
    authorization: str | None = field(default=None, repr=False)
    """The ``Authorization`` header. Sent only to URLs below ``url`` on the same host and port."""
    ca_file: Path | None = None
    """Additional CA certificates from the client's settings."""

    @property
    def address(self) -> HttpAddress:
        """The parsed base URL."""
        return HttpAddress.parse(self.url)

    @property
    def private_allowed(self) -> bool:
        """Whether it may be in a private network. Not if a project's files name it, which others may have written."""
        return self.said_by != "project"

    def owns(self, address: HttpAddress) -> bool:
        """Whether the credential may be sent to an address: below the base URL, without ``..``."""
        mine = self.address
        below = address.path.startswith(f"{mine.path.rstrip('/')}/")
        steps = unquote(address.path.partition("?")[0]).replace("\\", "/").split("/")
        return address.origin == mine.origin and below and not {".", ".."} & set(steps)


class SettingsSources(Record):
    """Where a client's settings are read from: home folder, project folder and environment."""

    home: Path
    project: Path | None
    """The project folder; None to use only the user's settings."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment variables. Their values may be credentials and are never stored."""
