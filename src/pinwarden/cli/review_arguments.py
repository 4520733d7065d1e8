"""Which changes a decision is about, and who may not make it.

There is no way to approve all that waits: who decides names what was looked at.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinwarden.flows.gateway.state import GatewayState


def add_names_argument(parser: ArgumentParser) -> None:
    """Names, each of which is a digest of what it stands for."""
    parser.add_argument("name", nargs="+", help="the names of changes, as pinwarden review list prints them")


def refuse_inside(state: GatewayState) -> None:
    """Nobody decides from inside a server, or from inside the client that talks to it."""
    from pinwarden.adapters.inside_server import refuse_inside_server

    refuse_inside_server(state.running, os.environ)
