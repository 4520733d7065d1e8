"""Sign a document of a bundle or of the log: a pointer, an attestation, an event or a checkpoint.

The signature is put into the document, beside those of other keys; a second one by the same key takes the place of the
first. What is covered depends on the kind of document. A lockfile is signed with pinwarden lock sign.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.key_arguments import add_signer_arguments
from pinwarden.cli.output import add_format_argument, emit


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("file", metavar="FILE", help="the document")
    add_signer_arguments(parser)
    parser.add_argument("--output", "-o", metavar="FILE", help="(the document itself)")
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Sign and report."""
    from pinwarden.bundle.sign import sign_file
    from pinwarden.cli.key_arguments import signer_of

    path = Path(args.file)
    return emit(sign_file(path, signer_of(args), Path(args.output) if args.output else path), args.format)
