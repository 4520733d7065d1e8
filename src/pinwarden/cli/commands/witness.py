"""``witness serve`` and ``witness cosign``: watch the logs of registries, so that they cannot show two histories."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.commands import command
from pinwarden.cli.key_arguments import add_signer_arguments, load_signer
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.server_arguments import add_log_arguments
from pinwarden.cli.streams import print_notice
from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from pinwarden.registry.witness import Witness


def _add_witness_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--name", required=True, metavar="NAME", help="the witness's name, such as witness.example")
    parser.add_argument(
        "--log",
        action="append",
        required=True,
        metavar="VKEY",
        help="verifier key of a log to watch, as registry serve prints it; repeatable, also for a log's new key",
    )
    parser.add_argument(
        "--state", required=True, metavar="DIR", help="folder that remembers the last checkpoint of each log"
    )
    add_signer_arguments(parser)


def _configure_witness_serve(parser: ArgumentParser) -> None:
    _add_witness_arguments(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8480, help="port to listen on; 0 picks a free one (default: 8480)")
    add_log_arguments(parser)


@command(_configure_witness_serve, prints_report=False)
def witness_serve(args: Namespace) -> int:
    """Serve a witness of transparency logs (C2SP tlog-witness), at /add-checkpoint.

    A witness cosigns a checkpoint only if the log grew since the one that it cosigned before. Prints its address and
    its verifier key. Keep the state folder: without it, the witness could cosign another history.

    Examples:
      pinwarden witness serve --name witness.example --key witness.pem --state witness-state --log VKEY --port 0
    """
    try:
        from pinwarden.registry.http.server import open_listening_socket, serve_app
        from pinwarden.registry.http.witness_app import build_witness_app
    except ImportError as err:
        raise PinwardenError(
            "USAGE",
            f"serving a witness needs the package {err.name}, which is not installed",
            hint='Install it from a checkout of Pinwarden: pip install ".[registry]"',
        ) from err
    from pinwarden.system.service_log import ServiceLog

    witness = _open_witness(args)
    listening, address = open_listening_socket(args.host, args.port)
    sys.stdout.write(f"{address}\n{witness.key}\n")
    sys.stdout.flush()
    log = ServiceLog(print_notice, level=args.log_level, log_format=args.log_format)
    try:
        serve_app(build_witness_app(witness), listening, log)
    finally:
        log.close(2.0)
    return 0


def _configure_witness_cosign(parser: ArgumentParser) -> None:
    parser.add_argument("registry", metavar="REGISTRY", help="a registry's address, or the folder of an export")
    _add_witness_arguments(parser)
    parser.add_argument("--submit", action="store_true", help="send the cosignature to the registry")
    parser.add_argument("--allow-plain-http", action="store_true", help="allow an unencrypted http:// address")
    add_format_argument(parser)


@command(_configure_witness_cosign)
def witness_cosign(args: Namespace) -> int:
    """Cosign the current checkpoint of a registry once, if its log only grew since the last time.

    For a scheduled job of a witness that does not run a server. --submit sends the cosignature to the registry, which
    must know the witness (registry serve --witness).

    Examples:
      pinwarden witness cosign https://registry.example.org --name witness.example --key witness.pem \
        --state witness-state --log VKEY --submit
    """
    from pinwarden.cli.registry_arguments import open_readable_registry
    from pinwarden.registry.witness_command import cosign_once

    with open_readable_registry(args) as files:
        return emit(cosign_once(_open_witness(args), files, submit=args.submit), args.format)


def _open_witness(args: Namespace) -> Witness:
    from time import time

    from pinwarden.core.signed_note import NoteKey
    from pinwarden.registry.witness import Witness

    logs = tuple(NoteKey.parse(text) for text in args.log)
    return Witness(args.name, load_signer(args), logs, Path(args.state), lambda: int(time()))
