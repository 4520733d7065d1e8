"""The options of commands that fetch from registries, and what comes of them."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.progress import Progress

if TYPE_CHECKING:
    from pinwarden.project.fetch_context import Workshop
    from pinwarden.project.project import Project


def add_fetch_arguments(parser: ArgumentParser) -> None:
    """``--offline``, ``--allow-private`` and ``--allow-plain-http``."""
    group = parser.add_argument_group("fetching")
    group.add_argument("--offline", action="store_true", help="ask no registry; only what is here already")
    group.add_argument("--allow-private", action="store_true", help="allow any host in a private network")
    group.add_argument("--trust-root", metavar="FILE", help="a sigstore trusted root, instead of the public one")
    group.add_argument("--allow-plain-http", action="store_true", help="allow addresses without encryption")


@contextmanager
def workshop(args: Namespace, project: Project, what: str) -> Iterator[Workshop]:
    """All that fetching takes, with a sign of life on the terminal."""
    from pinwarden.artifacts.environments.store import Store
    from pinwarden.project.fetch_context import Sources, Workshop
    from pinwarden.project.project import store_folder
    from pinwarden.system.net.fetch import Fetcher, FetchRules

    rules = FetchRules(
        offline=args.offline,
        allow_private=args.allow_private,
        allow_plain_http=getattr(
            args, "allow_plain_http", False
        ),  # where probes are made, too, there is no such option
    )
    fetcher = Fetcher(rules, os.environ)
    with Progress(what) as progress:
        try:
            yield Workshop(
                project=project,
                sources=Sources.of(project),
                fetcher=fetcher,
                store=Store(store_folder(project)),
                on_progress=progress.at,
                trust_root=Path(named) if (named := getattr(args, "trust_root", None)) else None,
            )
        finally:
            fetcher.close()
