"""Serve a registry of bundles with its transparency log. Without options everything it needs is made in a folder.

The address and the registry's key are printed first; give the key to whoever installs. Any number of processes may
serve the same PostgreSQL database and the same blobs, with the same key. Servers that are published are started in a
sandbox (bubblewrap, no network) to learn what they tell the model: --probe auto does so where bubblewrap is installed,
required refuses a bundle whose server could not be asked, never starts none.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from pinwarden.cli.registry_arguments import add_operator_arguments, operated_registry, settings_of
from pinwarden.core.errors import PinwardenError


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8470, help="the port; 0 for a free one (8470)")
    parser.add_argument("--name", default="Pinwarden registry", help="what it is called in its documents")
    parser.add_argument("--origin", metavar="NAME", help="the origin of its log, such as registry.example/log")
    parser.add_argument(
        "--public-url", metavar="URL", help="where everybody reaches it, if a web server stands before it"
    )
    parser.add_argument("--probe", default="auto", choices=("auto", "required", "never"), help="start servers (auto)")
    parser.add_argument("--witness", action="append", default=[], metavar="VKEY", help="take cosignatures of this key")
    parser.add_argument("--max-archive", type=int, metavar="BYTES", help="the largest archive (268435456)")
    parser.add_argument("--max-requests", type=int, metavar="N", help="requests of one token in an hour (600)")
    add_operator_arguments(parser)


def run(args: Namespace) -> int:
    """Open the registry, say who it is, and serve until interrupted."""
    try:
        from pinwarden.registry.http.server import listening_socket, serve
    except ImportError as err:
        raise PinwardenError(
            "USAGE",
            f"serving needs the package {err.name}, which is not installed",
            hint='Install it from the checkout of Pinwarden, which is in no package index: pip install ".[registry]"',
        ) from err
    from pinwarden.core.record import replace
    from pinwarden.registry.registry import RegistryLimits

    limits = RegistryLimits()
    if args.max_archive is not None:
        limits = replace(limits, archive_bytes=args.max_archive)
    if args.max_requests is not None:
        limits = replace(limits, requests_per_hour=args.max_requests)
    settings = replace(
        settings_of(args),
        name=args.name,
        log_id=args.origin,
        probing=args.probe,
        witnesses=tuple(args.witness),
        public_url=args.public_url,
        limits=limits,
    )
    with operated_registry(args, settings) as registry:
        listening, address = listening_socket(args.host, args.port)
        sys.stdout.write(f"{address}\n{registry.identity.key.did}\n{registry.identity.note_key}\n")
        sys.stdout.flush()
        serve(registry, listening)
    return 0
