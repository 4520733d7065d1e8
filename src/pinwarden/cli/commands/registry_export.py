"""Write a whole registry as files: any web server or CDN can serve them, and the installer takes them for a registry.

What a CID names is written once, so exporting again into the same folder writes only what is new.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.registry_arguments import add_operator_arguments, operated_registry


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("folder", metavar="DIR", help="where the files go")
    parser.add_argument("--base-url", metavar="URL", help="where they will be served; adds the official registry API")
    add_operator_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Write and report."""
    from pinwarden.registry.export import export

    with operated_registry(args) as registry:
        return emit(export(registry, Path(args.folder), args.base_url), args.format)
