"""``audit verify``, ``audit tail`` and ``audit export``: the gateway's audit log."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.commands import command
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_approval_arguments, add_database_argument, open_database, read_database
from pinwarden.cli.streams import Progress, wait_for_closed_pipe
from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from pinwarden.gateway.audit.event import AuditHead, LogEntry
    from pinwarden.gateway.audit.report import EntryFilter
    from pinwarden.gateway.state import GatewayState

_POLL_SECONDS = 0.5
_MAX_ENTRY_NUMBER = 2**63 - 1  # the largest integer in the database


def _configure_audit_verify(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--head",
        action="append",
        default=[],
        metavar="HEAD",
        help="head that an earlier run printed, as NUMBER:sha256:HEX; the log must contain it; repeatable",
    )
    parser.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="FILE",
        help="earlier export, which the log must contain line by line; repeatable",
    )
    parser.add_argument("--file", metavar="FILE", help="verify this export instead of the database")
    add_database_argument(parser)
    add_format_argument(parser)


@command(_configure_audit_verify)
def audit_verify(args: Namespace) -> int:
    """Verify that the audit log is complete, in order and unchanged. The exit code is 1 if it is not.

    Each entry includes the hash of the one before, so a change in the middle is always found. To find out whether the
    end was cut off or the whole log was replaced, store the head that this command prints in another place, and
    give it with --head the next time; or give an earlier export with --against.

    Examples:
      pinwarden audit verify
      pinwarden audit verify --against audit.jsonl
    """
    from pinwarden.gateway.audit.event import parse_head
    from pinwarden.gateway.audit.report import verify_export, verify_log

    try:
        heads = [parse_head(text) for text in args.head]
    except PinwardenError as err:
        raise PinwardenError("USAGE", f"--head: {err.message}", hint="Write NUMBER:sha256:HEX.") from err
    exports = [Path(name) for name in args.against]
    if args.file is not None:
        with Progress("verifying the export"):
            report = verify_export(Path(args.file), heads, exports)
        return emit(report, args.format)
    with read_database(args, must_exist=True) as state, Progress("verifying the audit log"):
        report = verify_log(state, heads, exports)
    return emit(report, args.format)


def _configure_audit_tail(parser: ArgumentParser) -> None:
    parser.add_argument("--count", "-n", type=int, default=20, metavar="N", help="number of events (default: 20)")
    parser.add_argument("--server", default="", metavar="NAME", help="only events of this server")
    parser.add_argument(
        "--kind",
        action="append",
        default=[],
        metavar="KIND",
        help="only events of this kind, such as blocked, called or approved; repeatable",
    )
    parser.add_argument("--follow", "-f", action="store_true", help="keep printing new events until interrupted")
    add_database_argument(parser)
    add_format_argument(parser)


@command(_configure_audit_tail, prints_report=False)
def audit_tail(args: Namespace) -> int:
    """Show the newest events of the audit log, and with --follow, new events as they are recorded.

    Examples:
      pinwarden audit tail
      pinwarden audit tail --kind blocked --server notes
    """
    from pinwarden.gateway.audit.chain import read_head
    from pinwarden.gateway.audit.event import KINDS
    from pinwarden.gateway.audit.report import EntryFilter, build_tail_report, read_last_entries

    for kind in args.kind:
        if kind not in KINDS:
            raise PinwardenError("USAGE", f"--kind: unknown kind {kind[:40]!a}", hint=f"Kinds: {', '.join(KINDS)}.")
    if args.count < 0:
        raise PinwardenError("USAGE", f"--count must not be negative: {args.count}")
    if args.follow and args.format != "text":
        raise PinwardenError("USAGE", "--follow prints text only", hint="Leave out --format.")
    entry_filter = EntryFilter(values={"server": (args.server,) if args.server else (), "kind": args.kind})
    with read_database(args) as state:
        head = read_head(state.audit_database).number  # read first, so that --follow misses no entry
        with Progress("reading the audit log"):
            entries = read_last_entries(state, args.count, entry_filter)
        if args.format != "text":
            return emit(build_tail_report(entries), args.format)
        for entry in entries:
            sys.stdout.write(_format_entry(entry))
        if not entries:
            filtered = args.kind or args.server
            sys.stderr.write("no matching events are recorded\n" if filtered else "no events are recorded yet\n")
        if args.follow:
            _follow_events(state, entry_filter, max(head, entries[-1].number if entries else 0))
    return 0


def _configure_audit_export(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--after", type=_parse_entry_number, default=0, metavar="NUMBER", help="only entries with a higher number"
    )
    parser.add_argument("--output", "-o", default="-", metavar="FILE", help="new file to write (default: stdout)")
    add_database_argument(parser)
    add_format_argument(parser)


@command(_configure_audit_export)
def audit_export(args: Namespace) -> int:
    """Export the audit log as JSON Lines: each line is one entry as it is stored, with the hash of the entry before.

    Also prints the head of the log, which commits to all entries: to stderr, or to stdout with --output. Store it
    somewhere other than the log, for use with pinwarden audit verify --head.

    Examples:
      pinwarden audit export --output export.jsonl
      pinwarden audit verify --file export.jsonl
    """
    from pinwarden.gateway.audit.report import build_export_report, export_entries

    if args.output == "-" and args.format != "text":
        raise PinwardenError("USAGE", "--format needs --output, because the entries are printed to stdout")
    with read_database(args) as state:
        if args.output != "-":
            head = _export_to_file(state, Path(args.output), args.after)
            return emit(build_export_report(args.output, args.after, head), args.format)
        head = export_entries(state, sys.stdout.buffer.write, args.after)
        sys.stdout.flush()
    sys.stderr.write(f"{build_export_report('standard output', args.after, head).summary}\n")
    return 0


def _configure_audit_archive(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--older-than",
        type=_parse_days,
        required=True,
        metavar="DAYS",
        help="archive entries older than this, e.g. 90d",
    )
    parser.add_argument("--to", default=".", metavar="DIR", help="folder for the archive (default: current folder)")
    add_approval_arguments(parser)
    add_database_argument(parser)
    add_format_argument(parser)


@command(_configure_audit_archive)
def audit_archive(args: Namespace) -> int:
    """Move the oldest entries of the audit log into a file, so that the database stays small.

    The file is verified like any export: pinwarden audit verify --against FILE. The log records what was archived, and
    its chain continues from the last archived entry. Gateways may run meanwhile.

    Examples:
      pinwarden audit archive --older-than 90d --to .
    """
    from datetime import UTC, datetime

    from pinwarden.cli.project_arguments import approver_from
    from pinwarden.gateway.audit.archive import archive_entries

    folder = Path(args.to)
    if not folder.is_dir():
        raise PinwardenError("USAGE", f"--to: {args.to[:200]!a} is not a folder")
    before = (datetime.now(UTC) - args.older_than).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    with open_database(args) as state, Progress("archiving the audit log"):
        report = archive_entries(state, before, folder, approver_from(args))
    return emit(report, args.format)


def _parse_days(text: str) -> timedelta:
    number = text.removesuffix("d")
    if not number.isascii() or not number.isdigit() or len(number) > 5:
        raise ArgumentTypeError(f"{text[:40]!a} is not a number of days, such as 90d")
    return timedelta(days=int(number))


def _follow_events(state: GatewayState, entry_filter: EntryFilter, last_number: int) -> None:
    from pinwarden.gateway.audit.report import read_later_entries

    sys.stdout.flush()
    while not wait_for_closed_pipe(sys.stdout.fileno(), _POLL_SECONDS):
        for entry in read_later_entries(state, last_number):
            last_number = entry.number
            if entry_filter.matches(entry):
                sys.stdout.write(_format_entry(entry))
        sys.stdout.flush()


def _format_entry(entry: LogEntry) -> str:
    """Return an event as one line."""
    from pinwarden.core.text import neutralize_log_commands, show_invisible

    fact = entry.event
    parts = [entry.at, f"{fact.kind:9}", fact.server]
    parts += [text for text in (f"{fact.item_kind} {fact.item}".strip() or fact.method, fact.level, fact.code) if text]
    parts += [f"by {fact.by}"] if fact.by else []
    parts += [f"for {fact.client}"] if fact.client else []
    parts += [fact.reason] if fact.reason else []
    parts += [f"[{fact.call}]"] if fact.call else []
    return neutralize_log_commands(f"{show_invisible('  '.join(parts))}\n")


def _export_to_file(state: GatewayState, path: Path, after: int) -> AuditHead:
    from pinwarden.gateway.audit.report import export_entries
    from pinwarden.system.files import open_new_file

    with open_new_file(path) as stream:  # an incomplete export never gets the file's name
        return export_entries(state, stream.write, after)


def _parse_entry_number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > _MAX_ENTRY_NUMBER:
        raise ArgumentTypeError(f"{text[:40]!a} is not the number of an entry")
    return int(text)
