"""``census``: observe every server of a source, again and again, on one machine or many."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.commands import command
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.server_arguments import add_log_arguments, probe_seconds
from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinwarden.census.census import Census, CensusAccess
    from pinwarden.census.examination import ExaminationOptions
    from pinwarden.census.job_queue import Job, WorkerOptions
    from pinwarden.census.observation import ServerObservation
    from pinwarden.census.sources import FleetServer

_MEMORY_MEGABYTES = 2048
_MIN_MEGABYTES, _MAX_MEGABYTES = 64, 1_048_576
_TIMEOUT_SECONDS = 60.0
_MAX_PER_SECOND = 10_000
_MAX_CONTACT = 200


def _add_database_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--database",
        metavar="PATH|URL",
        help="an SQLite file or a postgresql:// address (default: PINWARDEN_CENSUS, or a file in the state folder)",
    )


def _add_worker_arguments(parser: ArgumentParser) -> None:
    worker = parser.add_argument_group("work")
    worker.add_argument("--jobs", type=int, default=4, metavar="N", help="servers to examine at once (default: 4)")
    worker.add_argument(
        "--lost-after",
        type=probe_seconds,
        default=30.0,
        metavar="SECONDS",
        help="take over the jobs of a worker that gave no sign of life for this time (default: 30)",
    )
    worker.add_argument(
        "--max-age",
        type=float,
        default=20.0,
        metavar="HOURS",
        help="observe a server without a package again after this time (default: 20)",
    )
    worker.add_argument(
        "--retry-after",
        type=probe_seconds,
        default=5.0,
        metavar="SECONDS",
        help="pause before a temporary failure is tried again; it doubles (default: 5)",
    )
    worker.add_argument(
        "--per-second",
        type=float,
        default=10.0,
        metavar="N",
        help="requests to one host in a second, of all workers together (default: 10)",
    )
    worker.add_argument(
        "--contact", default="", metavar="ADDRESS", help="the operator: a mail or page address for the user agent"
    )
    allowed = parser.add_argument_group("what servers may do")
    allowed.add_argument("--allow-execute", action="store_true", help="allow Pinwarden to start servers, in a sandbox")
    allowed.add_argument("--allow-connect", action="store_true", help="allow Pinwarden to contact remote servers")
    allowed.add_argument("--allow-network", action="store_true", help="give started servers access to the network")
    allowed.add_argument("--no-sandbox", action="store_true", help="start servers without a sandbox")
    allowed.add_argument("--allow-private", action="store_true", help="allow connecting to private addresses")
    allowed.add_argument("--allow-plain-http", action="store_true", help="allow unencrypted http:// addresses")
    allowed.add_argument(
        "--timeout",
        type=probe_seconds,
        default=_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help=f"time limit for one server (default: {_TIMEOUT_SECONDS:g})",
    )
    allowed.add_argument(
        "--memory",
        type=int,
        default=_MEMORY_MEGABYTES,
        metavar="MEGABYTES",
        help=f"memory of each process of a server (default: {_MEMORY_MEGABYTES})",
    )


def _configure_run(parser: ArgumentParser) -> None:
    parser.add_argument(
        "source",
        help="a lockfile, a client's configuration file, a .txt file that lists such files, the address of a registry "
        "of servers or bundles, or 'fleet' for what machines report to your gateway",
    )
    parser.add_argument(
        "--audit",
        metavar="DATABASE",
        help="database of the gateway that machines report to, for the source fleet (default: PINWARDEN_DATABASE, or a "
        "file in your data folder)",
    )
    parser.add_argument("--refresh", action="store_true", help="observe unchanged servers, too")
    parser.set_defaults(log_level="error", log_format="text")  # its report has what a worker logs
    parser.add_argument("--queue-only", action="store_true", help="leave the work to pinwarden census worker")
    _add_database_argument(parser)
    _add_worker_arguments(parser)
    add_format_argument(parser)


@command(_configure_run)
def census_run(args: Namespace) -> int:
    """Observe every server of a source: verify its artifact, read its tools, and compare both with the last run.

    A server is one job. Its artifact is hashed and its provenance verified; it is started in a sandbox without network,
    or contacted; what it sends is compared with the last observation and scanned. A server that did not change is
    skipped. A run that was interrupted is continued. The exit code is 1 if a server drifted critically or its text
    looks like an attack, and 3 if a server could not be observed.

    Examples:
      pinwarden census run .mcp.json --allow-execute
      pinwarden census run .mcp.json --allow-execute --database census.sqlite --refresh
      pinwarden census run fleet --queue-only
    """
    from pinwarden.census.run_report import build_run_report

    with _open(args) as census:
        run, listing = census.start_run(
            args.source,
            _read_access(args),
            refresh=args.refresh,
            fleet=_read_fleet(args) if args.source == "fleet" else (),
        )
        if not args.queue_only:
            _work(census, args, run.run)
        return emit(build_run_report(census, "census run", run.run, listing.unusable), args.format)


def _configure_worker(parser: ArgumentParser) -> None:
    parser.add_argument("--stay", action="store_true", help="wait for later runs when there is nothing to do")
    parser.add_argument("--metrics", metavar="FILE", help="file for metrics in the text format of Prometheus")
    add_log_arguments(parser)
    _add_database_argument(parser)
    _add_worker_arguments(parser)


@command(_configure_worker, prints_report=False)
def census_worker(args: Namespace) -> int:
    """Work on the runs of a census, on this machine. Ends when no job is left, unless it stays.

    Any number of workers share a database on PostgreSQL, and several processes on one machine share an SQLite file. A
    worker starts and contacts servers only if its own options allow it.

    Examples:
      pinwarden census worker --database census.sqlite --allow-execute --jobs 16
    """
    with _open(args) as census:
        _work(census, args, None)
    return 0


def _configure_status(parser: ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", type=int, help="number of the run (default: the newest)")
    _add_database_argument(parser)
    add_format_argument(parser)


@command(_configure_status)
def census_status(args: Namespace) -> int:
    """Show how far a run is, what failed and why, and what was found.

    Examples:
      pinwarden census status
    """
    from pinwarden.census.run_report import build_run_report

    with _open(args) as census:
        return emit(build_run_report(census, "census status", args.run), args.format)


def _read_fleet(args: Namespace) -> list[FleetServer]:
    """Return what the machines of the fleet run. Machines whose tokens were revoked are left out."""
    from pinwarden.census.sources import FleetServer
    from pinwarden.cli.project_arguments import read_database

    with read_database(args, must_exist=True) as state:
        members = {device.id for device in state.devices.list_all() if device.revoked_at is None}
        return [
            FleetServer(name=server.server, runs=server.runs)
            for device, server in state.devices.list_servers()
            if device in members
        ]


@contextmanager
def _open(args: Namespace) -> Iterator[Census]:
    """Open the database of the census that the options or the environment name."""
    from pinwarden.census.census import Census

    with closing(Census(_find_database(args))) as census:
        yield census


def _find_database(args: Namespace) -> str:
    from pinwarden.system.state_folder import find_state_folder, prepare_state_folder

    named = args.database or os.environ.get("PINWARDEN_CENSUS")
    if named:
        return str(named)
    folder = find_state_folder(os.environ, Path.home())
    prepare_state_folder(folder)
    return str(folder / "census.sqlite")


def _read_access(args: Namespace) -> CensusAccess:
    from pinwarden.census.census import CensusAccess

    if not 0 < args.per_second <= _MAX_PER_SECOND:
        raise PinwardenError("USAGE", f"--per-second must be a number above 0, and at most {_MAX_PER_SECOND}")
    if not (args.contact.isascii() and args.contact.isprintable() and len(args.contact) <= _MAX_CONTACT):
        raise PinwardenError("USAGE", f"--contact must be at most {_MAX_CONTACT} printable ASCII characters")
    return CensusAccess(
        allow_private=args.allow_private,
        allow_plain_http=args.allow_plain_http,
        per_second=args.per_second,
        contact=args.contact,
    )


def _read_examination(args: Namespace) -> ExaminationOptions:
    from pinwarden.census.examination import ExaminationOptions, build_probe_options

    if not _MIN_MEGABYTES <= args.memory <= _MAX_MEGABYTES:
        raise PinwardenError("USAGE", f"--memory must be a number from {_MIN_MEGABYTES} to {_MAX_MEGABYTES}")
    probe = build_probe_options(
        allow_execute=args.allow_execute,
        allow_private=args.allow_private,
        allow_plain_http=args.allow_plain_http,
        seconds=args.timeout,
        memory_bytes=args.memory * 1024 * 1024,
        sandbox=not args.no_sandbox,
        allow_network=args.allow_network,
    )
    return ExaminationOptions(
        probe=probe,
        allow_connect=args.allow_connect,
        max_age_seconds=args.max_age * 3600,
        retry_seconds=args.retry_after,
    )


def _read_worker(args: Namespace, run: int | None) -> WorkerOptions:
    from pinwarden.census.job_queue import WorkerOptions

    if not 1 <= args.jobs <= 256:
        raise PinwardenError("USAGE", "--jobs must be a number from 1 to 256")
    return WorkerOptions(jobs=args.jobs, lost_seconds=args.lost_after, stays=getattr(args, "stay", False), run=run)


def _work(census: Census, args: Namespace, run: int | None) -> None:
    """Work with a progress bar on a terminal, and with a log line for each server."""
    from pinwarden.census.worker_progress import WorkerProgress
    from pinwarden.cli.project_arguments import find_current_project
    from pinwarden.cli.streams import Progress, print_notice
    from pinwarden.system.service_log import ServiceLog

    total = census.queue.count(run)
    log = ServiceLog(print_notice, level=args.log_level, log_format=args.log_format)
    metrics = getattr(args, "metrics", None)
    work = WorkerProgress(log, Path(metrics) if metrics else None, lambda: census.queue.count(None))
    with Progress("observing servers") as progress:

        def show(job: Job, observation: ServerObservation) -> None:
            work.record(job, observation)
            progress.update(min(work.done, total), total)
            progress.set_note(work.format_rate(total))

        try:
            census.work(
                find_current_project(), _read_access(args), _read_examination(args), _read_worker(args, run), show
            )
        finally:
            work.write_metrics()
            log.close(1.0)


def _configure_report(parser: ArgumentParser) -> None:
    parser.add_argument("folder", help="folder for the pages; files of an earlier report in it are replaced")
    parser.add_argument("--run", type=int, metavar="N", help="number of the run (default: the newest)")
    _add_database_argument(parser)


@command(_configure_report)
def census_report(args: Namespace) -> int:
    """Write the report of a run as a static site: charts, findings, questions, servers, and two feeds.

    The pages contain no script and load nothing from elsewhere. feed.json is a JSON Feed and feed.atom an Atom feed of
    the findings of the last seven days.

    Examples:
      pinwarden census report census-report --database census.sqlite
    """
    import sys

    from pinwarden.census.report import write_report
    from pinwarden.core.text import plural

    with _open(args) as census:
        count = write_report(census, args.run, Path(args.folder))
    sys.stdout.write(f"wrote {plural(count, 'file')} to {args.folder}\n")
    return 0


def _configure_diff(parser: ArgumentParser) -> None:
    parser.add_argument("before", nargs="?", type=int, help="number of a run (default: the one before the newest)")
    parser.add_argument("after", nargs="?", type=int, help="number of a later run (default: the newest)")
    _add_database_argument(parser)
    add_format_argument(parser)


@command(_configure_diff)
def census_diff(args: Namespace) -> int:
    """Show which servers differ between two runs: state, version, artifact, publisher, provenance or surface.

    The exit code is 1 if a server differs.

    Examples:
      pinwarden census diff --database census.sqlite
    """
    from pinwarden.census.export import compare_runs

    with _open(args) as census:
        return emit(compare_runs(census, args.before, args.after), args.format)


def _configure_export(parser: ArgumentParser) -> None:
    parser.add_argument("file", help="file to write")
    parser.add_argument("--as", dest="kind", choices=("csv", "parquet"), default="csv", help="format (default: csv)")
    parser.add_argument("--run", type=int, metavar="N", help="number of the run (default: the newest)")
    _add_database_argument(parser)


@command(_configure_export)
def census_export(args: Namespace) -> int:
    """Export the results of a run, a row for each server, for your own analysis.

    Examples:
      pinwarden census export results.csv --database census.sqlite
    """
    import sys

    from pinwarden.census.export import export_results
    from pinwarden.core.text import plural

    with _open(args) as census:
        count = export_results(census, args.run, args.kind, Path(args.file))
    sys.stdout.write(f"wrote {plural(count, 'row')} to {args.file}\n")
    return 0
