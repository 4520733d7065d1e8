"""Which changes a decision is about.

There is no way to approve all that waits: who decides names what was looked at.
"""

from __future__ import annotations

from argparse import ArgumentParser


def add_names_argument(parser: ArgumentParser) -> None:
    """Names, each of which is a digest of what it stands for."""
    parser.add_argument("name", nargs="+", help="the names of changes, as pinwarden review list prints them")
