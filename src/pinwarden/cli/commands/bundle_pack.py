"""Pack a server's folder into a bundle: NAME-VERSION.car, and its .manifest.json and .descriptor.json beside it.

The folder has a server.json with name, version, runtime and entry; description, author, license, display_name and
security.policy may be there too. The same folder gives the same bytes on every machine: no times, no owners, no links,
and files in one order. With --compress a tar+zstd archive is smaller, and its bytes depend on the version of zstd.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.core.errors import PinwardenError

_ARCHIVES = ("car", "tar+zstd")
_PERMISSIONS = {
    "network": ("deny", "allow"),
    "filesystem": ("deny", "read_only", "read_write"),
    "exec": ("deny", "allow"),
}


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("folder", metavar="DIR", help="the server's folder, with its server.json")
    parser.add_argument("--output", "-o", default=".", metavar="DIR", help="where the three files go (here)")
    parser.add_argument("--archive", default="car", choices=_ARCHIVES, help="the kind of archive (car)")
    parser.add_argument("--compress", action="store_true", help="with tar+zstd: smaller, not the same everywhere")
    for name, words in _PERMISSIONS.items():
        parser.add_argument(f"--{name}", choices=words, help="what the server asks for (deny)")
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Pack and report."""
    from pinwarden.bundle.descriptor import CAR, TAR_ZSTD
    from pinwarden.bundle.pack import Packing, pack

    if args.compress and args.archive == "car":
        raise PinwardenError("USAGE", "a CAR archive is not compressed", hint="Add --archive tar+zstd.")
    packing = Packing(
        folder=Path(args.folder),
        output=Path(args.output),
        media_type=CAR if args.archive == "car" else TAR_ZSTD,
        permissions={name: getattr(args, name) for name in _PERMISSIONS if getattr(args, name) is not None},
        compress=args.compress,
    )
    return emit(pack(packing), args.format)
