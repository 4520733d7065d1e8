"""``log verify`` and ``log monitor``: check a registry's transparency log as a third party."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.commands import command
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.registry_arguments import add_log_arguments, log_requirements_from, open_readable_registry


def _configure_log_verify(parser: ArgumentParser) -> None:
    add_log_arguments(parser)
    add_format_argument(parser)


@command(_configure_log_verify)
def log_verify(args: Namespace) -> int:
    """Verify a registry's whole transparency log: its signed checkpoint, every entry and every tile.

    Each entry has to be an event that the registry signed and that follows from the one before on its channel, and all
    entries together have to hash to the signed checkpoint. With --witness, the witnesses must have signed it too.

    Examples:
      pinwarden log verify export
    """
    from pinwarden.registry.log_client import verify_log

    with open_readable_registry(args) as files:
        return emit(verify_log(files, log_requirements_from(args)), args.format)


def _configure_log_monitor(parser: ArgumentParser) -> None:
    add_log_arguments(parser)
    parser.add_argument(
        "--state", required=True, metavar="FILE", help="file that remembers the last verified checkpoint"
    )
    parser.add_argument(
        "--watch", nargs="+", action="extend", default=[], metavar="NAME", help="tools or whole namespaces to watch"
    )
    add_format_argument(parser)


@command(_configure_log_monitor)
def log_monitor(args: Namespace) -> int:
    """Report new log entries for the names you watch, and prove that the log only grew since the last run.

    Only new entries are downloaded. A log that shows an older checkpoint or another history is refused. The exit code
    is 1 if there are new entries for a watched name, so that a scheduled job can alert you; the first run exits with 0.

    Examples:
      pinwarden log monitor export --state monitor.json --watch acme
    """
    from pinwarden.registry.log_client import monitor_log

    with open_readable_registry(args) as files:
        return emit(monitor_log(files, Path(args.state), log_requirements_from(args), args.watch), args.format)
