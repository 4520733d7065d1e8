"""``gateway backup`` and ``gateway restore``: the gateway's database as one verified file."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.commands import command
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_database_argument, find_person, open_database


def _configure_backup(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="new file for the backup")
    add_database_argument(parser)
    add_format_argument(parser)


@command(_configure_backup)
def gateway_backup(args: Namespace) -> int:
    """Back up the gateway's SQLite database while gateways run: tokens, reviews, approvals and the audit log.

    The backup is one file, and its audit log is verified. Do not copy the database file yourself: its last changes are
    in another file. For PostgreSQL, use pg_dump.

    Examples:
      pinwarden gateway backup gateway-backup.sqlite
    """
    from pinwarden.gateway.backup import back_up

    with open_database(args) as state:
        return emit(back_up(state, Path(args.file)), args.format)


def _configure_restore(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="file that pinwarden gateway backup wrote")
    parser.add_argument(
        "--head",
        action="append",
        default=[],
        metavar="NUMBER:HASH",
        help="head that the backup's audit log must contain, e.g. of the last backup; repeatable",
    )
    parser.add_argument("--digest", metavar="DIGEST", help="digest of the file, as pinwarden gateway backup printed it")
    add_database_argument(parser)
    add_format_argument(parser)


@command(_configure_restore)
def gateway_restore(args: Namespace) -> int:
    """Restore the gateway's SQLite database from a backup into an empty state folder, and verify its audit log.

    The restored log says that it was restored. Tokens that were revoked after the backup are valid again.

    Examples:
      pinwarden gateway restore gateway-backup.sqlite
    """
    from pinwarden.core.digest import Digest
    from pinwarden.gateway.audit.event import parse_head
    from pinwarden.gateway.backup import restore

    heads = [parse_head(text) for text in args.head]
    digest = None if args.digest is None else Digest.parse(args.digest)
    with open_database(args) as state:
        return emit(restore(state, Path(args.file), heads, find_person(), digest), args.format)
