"""Options of commands that download from package registries, and the fetch context that they define."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.streams import Progress
from pinwarden.core.record import Record, replace

if TYPE_CHECKING:
    from argparse import _ActionsContainer

    from pinwarden.project.api_surfaces import Permission
    from pinwarden.project.fetch_context import FetchContext
    from pinwarden.project.project import Project


class DownloadOptions(Record):
    """What a command may download, and with which trusted root it verifies attestations."""

    offline: bool = False
    """Whether only files may be used that are already on this machine."""
    allow_private: bool = False
    """Whether package registries may be at private addresses."""
    allow_plain_http: bool = False
    """Whether package registries may have unencrypted addresses."""
    trust_root: Path | None = None
    """The sigstore trusted root to use instead of the public one."""


def add_start_arguments(parser: _ActionsContainer) -> None:
    """Add ``--no-execute`` and ``--allow-execute``, for commands that start servers to record their API surfaces."""
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--no-execute", action="store_true", help="do not start servers; record their API surface as unknown"
    )
    choice.add_argument(
        "--allow-execute", action="store_true", help="start servers even without a sandbox, to record their API surface"
    )


def get_start_permission(args: Namespace) -> Permission:
    """Return where the options allow servers to be started. The default is a sandbox."""
    return "never" if args.no_execute else "anywhere" if args.allow_execute else "sandbox"


def ask_to_start(servers: int) -> bool:
    """Ask whether servers may be started without a sandbox. Without a terminal, the answer is no."""
    from pinwarden.cli.questions import ask, can_ask
    from pinwarden.core.text import plural

    if not can_ask():
        return False
    question = f"This machine has no sandbox. Start {plural(servers, 'server')} without one, to record the tools?"
    return ask(question, ("yes", "no"), "no") == "yes"


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


def read_download_options(args: Namespace) -> DownloadOptions:
    """Return the values of the options that `add_fetch_arguments` added."""
    options = read_network_options(args)
    return replace(options, trust_root=Path(args.trust_root) if args.trust_root else None)


def read_network_options(args: Namespace) -> DownloadOptions:
    """Return the values of the options that `add_network_arguments` added, and of ``--offline``."""
    return DownloadOptions(
        offline=args.offline, allow_private=args.allow_private, allow_plain_http=args.allow_plain_http
    )


@contextmanager
def open_fetch_context(options: DownloadOptions, project: Project, activity: str) -> Iterator[FetchContext]:
    """Open the network, package sources and store for downloading. Shows progress on a terminal."""
    from pinwarden.artifacts.environments.store import Store
    from pinwarden.project.fetch_context import FetchContext, PackageSources
    from pinwarden.project.project import locate_store
    from pinwarden.system.net.fetch import Fetcher, FetchRules

    rules = FetchRules(
        offline=options.offline, allow_private=options.allow_private, allow_plain_http=options.allow_plain_http
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
                trust_root=options.trust_root,
            )
        finally:
            fetcher.close()
