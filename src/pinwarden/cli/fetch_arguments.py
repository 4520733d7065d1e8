"""Options of commands that download from package registries, and the fetch context that they define."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.streams import Progress

if TYPE_CHECKING:
    from argparse import _ActionsContainer

    from pinwarden.project.fetch_context import FetchContext
    from pinwarden.project.project import Project


def add_fetch_arguments(parser: ArgumentParser) -> None:
    """Add ``--offline``, ``--allow-private``, ``--trust-root`` and ``--allow-plain-http``."""
    group = parser.add_argument_group("downloading")
    group.add_argument("--offline", action="store_true", help="use only files that are already on this machine")
    add_network_arguments(group)
    group.add_argument("--trust-root", metavar="FILE", help="sigstore trusted root to use instead of the public one")


def add_network_arguments(parser: _ActionsContainer) -> None:
    """Add ``--allow-private`` and ``--allow-plain-http``."""
    parser.add_argument("--allow-private", action="store_true", help="allow package registries at private addresses")
    parser.add_argument("--allow-plain-http", action="store_true", help="allow unencrypted http:// addresses")


@contextmanager
def open_fetch_context(args: Namespace, project: Project, activity: str) -> Iterator[FetchContext]:
    """Open the network, package sources and store for downloading. Shows progress on a terminal."""
    from pinwarden.artifacts.environments.store import Store
    from pinwarden.project.fetch_context import FetchContext, PackageSources
    from pinwarden.project.project import locate_store
    from pinwarden.system.net.fetch import Fetcher, FetchRules

    rules = FetchRules(
        offline=args.offline,
        allow_private=args.allow_private,
        # Commands with probe options lack this option.
        allow_plain_http=getattr(args, "allow_plain_http", False),
    )
    fetcher = Fetcher(rules, os.environ)
    with Progress(activity) as progress:
        try:
            yield FetchContext(
                project=project,
                sources=PackageSources.from_project(project),
                fetcher=fetcher,
                store=Store(locate_store(project)),
                on_progress=progress.update,
                on_servers=progress.update_servers,
                trust_root=Path(trust_root_file) if (trust_root_file := getattr(args, "trust_root", None)) else None,
            )
        finally:
            fetcher.close()
