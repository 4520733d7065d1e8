"""The container registries of this user, for commands that bring bundles there or fetch them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinwarden.bundle.oci_transfer import OciNetwork


@contextmanager
def oci_network() -> Iterator[OciNetwork]:
    """The network with the settings and logins that docker or podman has."""
    from pinwarden.bundle.oci_transfer import OciNetwork
    from pinwarden.system.net.endpoint import Settings
    from pinwarden.system.net.fetch import Fetcher, FetchRules

    fetcher = Fetcher(FetchRules(), os.environ)
    try:
        yield OciNetwork(fetcher, Settings(home=Path.home(), project=None, variables=os.environ))
    finally:
        fetcher.close()
