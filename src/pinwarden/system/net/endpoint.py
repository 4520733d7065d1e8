"""One registry as a client's settings name it, with the credential that is meant for it and for nobody else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from pinwarden.core.record import Record, field
from pinwarden.system.target import HttpAddress

Origin = Literal["environment", "user", "system", "project", "default", "argument"]


class Endpoint(Record):
    """A base address, which ends with a slash, and who named it."""

    url: str
    said_by: Origin
    source: str = ""
    """The file or variable that names it, for people."""
    authorization: str | None = field(default=None, repr=False)
    """The value of the header. It is sent below ``url`` on the very same host and port, and nowhere else."""
    ca_file: Path | None = None
    """A file of certificate authorities that the client's settings add."""

    @property
    def address(self) -> HttpAddress:
        """The base, taken apart."""
        return HttpAddress.parse(self.url)

    @property
    def private_allowed(self) -> bool:
        """Whether it may lie in a private network, as mirrors do under public names: not if a repository says so."""
        return self.said_by != "project"

    def owns(self, address: HttpAddress) -> bool:
        """Whether the credential may go to an address: below the base, and not out of it again by ``..``."""
        mine = self.address
        below = address.path.startswith(f"{mine.path.rstrip('/')}/")
        steps = unquote(address.path.partition("?")[0]).replace("\\", "/").split("/")
        return address.origin == mine.origin and below and not {".", ".."} & set(steps)


class SettingsSources(Record):
    """Where settings are looked for. Everything outside is reached through this value."""

    home: Path
    project: Path | None
    """The folder whose own settings count, too; none where only the user's are wanted."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment. Its values may be credentials and are never stored."""
