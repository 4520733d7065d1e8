"""The container registries of this user, for commands that bring bundles there or fetch them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinwarden.flows.bundle.oci import OciNetwork


@contextmanager
def oci_network() -> Iterator[OciNetwork]:
    """The network with the settings and logins that docker or podman has."""
    from pinwarden.adapters.endpoints.endpoint import Settings
    from pinwarden.adapters.net.fetch import Fetcher, FetchRules
    from pinwarden.flows.bundle.oci import OciNetwork

    fetcher = Fetcher(FetchRules(), os.environ)
    try:
        yield OciNetwork(fetcher, Settings(home=Path.home(), project=None, variables=os.environ))
    finally:
        fetcher.close()
