"""Show the newest events of the audit log, and with --follow those that come."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.progress import Progress
from pinwarden.cli.state_arguments import add_state_argument, state_to_read_from
from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from pinwarden.gateway.audit.entry import Entry
    from pinwarden.gateway.audit.report import Wanted
    from pinwarden.gateway.state import GatewayState

_LOOK_SECONDS = 0.5


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("--count", "-n", type=int, default=20, metavar="N", help="how many (20)")
    parser.add_argument("--server", default="", metavar="NAME", help="only events of this server")
    parser.add_argument("--kind", action="append", default=[], metavar="KIND", help="only blocked, called, approved, …")
    parser.add_argument("--follow", "-f", action="store_true", help="go on with new events until interrupted")
    add_state_argument(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Show, and go on."""
    from pinwarden.gateway.audit.chain import head_of
    from pinwarden.gateway.audit.report import Wanted, last_entries, tail_report
    from pinwarden.gateway.event import KINDS

    for kind in args.kind:
        if kind not in KINDS:
            raise PinwardenError("USAGE", f"no event is of the kind {kind[:40]!a}", hint=f"Kinds: {', '.join(KINDS)}.")
    if args.count < 0:
        raise PinwardenError("USAGE", f"--count is how many events, not {args.count}")
    if args.follow and args.format != "text":
        raise PinwardenError("USAGE", "--follow prints lines of text", hint="Leave --format out.")
    wanted = Wanted(server=args.server, kinds=tuple(args.kind))
    with state_to_read_from(args) as state:
        head = head_of(state.audit_database).number  # before the look, so that nothing falls between the two
        with Progress("looking through the audit log"):
            entries = last_entries(state, args.count, wanted)
        if args.format != "text":
            return emit(tail_report(entries), args.format)
        for entry in entries:
            sys.stdout.write(shown(entry))
        if not entries:
            sys.stderr.write("no such event is recorded\n" if args.kind or args.server else "nothing is recorded yet\n")
        if args.follow:
            _follow(state, wanted, max(head, entries[-1].number if entries else 0))
    return 0


def _follow(state: GatewayState, wanted: Wanted, reached: int) -> None:
    from pinwarden.cli.streams import reader_left
    from pinwarden.gateway.audit.report import later_entries

    sys.stdout.flush()
    while not reader_left(sys.stdout.fileno(), _LOOK_SECONDS):
        for entry in later_entries(state, reached):
            reached = entry.number
            if wanted.fits(entry):
                sys.stdout.write(shown(entry))
        sys.stdout.flush()


def shown(entry: Entry) -> str:
    """An event as a line for people."""
    from pinwarden.core.visible import inert_in_log, show_invisible

    fact = entry.fact
    said = [entry.at, f"{fact.kind:9}", fact.server]
    said += [text for text in (f"{fact.item_kind} {fact.item}".strip() or fact.method, fact.level, fact.code) if text]
    said += [f"by {fact.by}"] if fact.by else []
    said += [f"for {fact.client}"] if fact.client else []
    said += [fact.reason] if fact.reason else []
    said += [f"[{fact.call}]"] if fact.call else []
    return inert_in_log(f"{show_invisible('  '.join(said))}\n")
