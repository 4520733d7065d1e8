"""A bundle on the command line: its archive, and its documents if they are not beside it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinwarden.bundle.bundle_files import BundleFiles


def add_bundle_arguments(parser: ArgumentParser) -> None:
    """The arguments that name a bundle."""
    parser.add_argument("archive", metavar="FILE", help="the archive, ending in .car or .tar.zst")
    parser.add_argument("--descriptor", metavar="FILE", help="(beside the archive)")
    parser.add_argument("--manifest", metavar="FILE", help="(beside the archive)")


def bundle_of(args: Namespace) -> BundleFiles:
    """The files that the arguments name."""
    from pinwarden.bundle.bundle_files import bundle_files

    return bundle_files(Path(args.archive), args.descriptor, args.manifest)
