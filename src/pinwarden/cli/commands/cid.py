"""Print the content identifier (CID) of a JSON document, a bundle manifest or any file."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from pinwarden.cli.inputs import read_input
from pinwarden.core.cid import blob_cid, document_cid, manifest_root_cid
from pinwarden.core.errors import EXIT_CLEAN

_KINDS = {"document": document_cid, "manifest-root": manifest_root_cid, "blob": blob_cid}


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("file", help="file, or - for standard input")
    parser.add_argument("--kind", default="document", choices=list(_KINDS), help="default: document")


def run(args: Namespace) -> int:
    """Compute and print the CID."""
    sys.stdout.write(f"{_KINDS[args.kind](read_input(args.file))}\n")
    return EXIT_CLEAN
