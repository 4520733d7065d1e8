"""``registry``, for operators of a bundle registry, and ``log``, for third parties that check its transparency log."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.commands import command
from pinwarden.cli.commands.alerts import add_alerts_argument, send_registry_alerts
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.registry_arguments import (
    add_operator_arguments,
    add_transparency_log_arguments,
    build_log_requirements,
    build_registry_settings,
    open_readable_registry,
    open_registry_storage,
)
from pinwarden.cli.server_arguments import add_log_arguments
from pinwarden.cli.streams import print_notice
from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from pinwarden.core.report import Report


_MAX_LOG_LINES_PER_SECOND = 200
_FLUSH_SECONDS = 2.0  # how long shutdown waits until queued log lines are written to stderr


def _configure_registry_serve(parser: ArgumentParser) -> None:
    from pinwarden.registry.registry import RegistryLimits

    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8470, help="port to listen on; 0 picks a free one (default: 8470)")
    parser.add_argument(
        "--name",
        default="Pinwarden registry",
        help="the registry's name in its documents (default: Pinwarden registry)",
    )
    parser.add_argument(
        "--origin", metavar="NAME", help="origin in the log's checkpoints, such as registry.example/log"
    )
    parser.add_argument("--public-url", metavar="URL", help="public address, if the registry is behind a reverse proxy")
    parser.add_argument(
        "--probe",
        default="auto",
        choices=("auto", "required", "never"),
        help="start published servers in a sandbox to record their tools: if bubblewrap is installed (auto), always "
        "(required: refuse bundles that cannot be started), or never (default: auto)",
    )
    parser.add_argument(
        "--witness",
        action="append",
        default=[],
        metavar="VKEY[@URL]",
        help="verifier key of a witness whose cosignatures are accepted, with the URL of its server if the registry is "
        "to ask it for them; repeatable",
    )
    parser.add_argument(
        "--witness-wait",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="how long a publish waits for the cosignatures of witnesses (default: 5)",
    )
    limits = RegistryLimits()
    parser.add_argument(
        "--max-archive", type=int, metavar="BYTES", help=f"maximum size of an archive (default: {limits.archive_bytes})"
    )
    parser.add_argument(
        "--max-requests",
        type=int,
        metavar="N",
        help=f"maximum requests per token and hour (default: {limits.requests_per_hour})",
    )
    add_alerts_argument(parser)
    add_log_arguments(parser)
    add_operator_arguments(parser)


@command(_configure_registry_serve, prints_report=False)
def registry_serve(args: Namespace) -> int:
    """Serve a registry of bundles with its transparency log.

    By default, the registry's key, database and archives are created in your data folder. Prints the address, the
    registry's key and the verifier key of its log; give the last one to your users. Several processes can serve the
    same PostgreSQL database and blob storage with the same key.

    Examples:
      pinwarden registry serve --data registry-data --port 0
    """
    try:
        from pinwarden.registry.http.server import open_listening_socket, serve
    except ImportError as err:
        raise _build_missing_package_error("serving", err) from err
    from pinwarden.core.record import replace
    from pinwarden.registry.registry import RegistryLimits, locate_registry_database
    from pinwarden.system.service_log import ServiceLog

    limits = RegistryLimits()
    if args.max_archive is not None:
        limits = replace(limits, archive_bytes=args.max_archive)
    if args.max_requests is not None:
        limits = replace(limits, requests_per_hour=args.max_requests)
    settings = replace(
        build_registry_settings(args),
        name=args.name,
        log_id=args.origin,
        probing=args.probe,
        witnesses=tuple(args.witness),
        witness_seconds=args.witness_wait,
        public_url=args.public_url,
        limits=limits,
    )
    with open_registry_storage(args, settings) as registry:
        listening, address = open_listening_socket(args.host, args.port)
        sys.stdout.write(f"{address}\n{registry.identity.key.did}\n{registry.identity.note_key}\n")
        sys.stdout.flush()
        log = ServiceLog(
            print_notice, level=args.log_level, log_format=args.log_format, max_per_second=_MAX_LOG_LINES_PER_SECOND
        )
        try:
            with send_registry_alerts(args.alerts, registry, locate_registry_database(settings), log):
                serve(registry, listening, log)
        finally:
            log.close(_FLUSH_SECONDS)
    return 0


def _configure_registry_export(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="folder to write the files to")
    parser.add_argument(
        "--base-url",
        metavar="URL",
        help="URL at which the files will be served; also exports the API of the official MCP registry",
    )
    add_operator_arguments(parser)
    add_format_argument(parser)


@command(_configure_registry_export)
def registry_export(args: Namespace) -> int:
    """Export a registry as static files, which any web server can serve and pinwarden install can use.

    The files include the pages for people; search needs a live registry. Exporting into the same folder again writes
    only what is new.

    Examples:
      pinwarden registry export --data registry-data static
    """
    try:
        from pinwarden.registry.export import export_registry
    except ImportError as err:
        raise _build_missing_package_error("exporting", err) from err
    with open_registry_storage(args) as registry:
        return emit(export_registry(registry, Path(args.folder), args.base_url), args.format)


def _configure_registry_namespace(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=("add", "list"), help="add a namespace, or list all")
    parser.add_argument("name", nargs="?", metavar="NAME", help="with add: the namespace")
    parser.add_argument("--owner", metavar="KEY", help="with add: public key of the owner, a file or did:key:…")
    add_operator_arguments(parser)
    add_format_argument(parser)


@command(_configure_registry_namespace)
def registry_namespace(args: Namespace) -> int:
    """Assign a namespace to the key of its owner, or list all namespaces.

    A namespace is the first part of tool names: acme.notes is in the namespace acme. Its owner adds further keys with
    pinwarden registry keys.

    Examples:
      pinwarden registry namespace add example --owner release.pem.pub --data registry-data
      pinwarden registry namespace list --data registry-data
    """
    from pinwarden.registry.access import add_namespace, list_namespaces

    if args.action == "add":
        if not args.name or not args.owner:
            raise PinwardenError("USAGE", "registry namespace add needs a name and --owner")
        from pinwarden.cli.key_arguments import read_public_keys

        owner = next(iter(read_public_keys([args.owner]).values()))
        with open_registry_storage(args) as registry:
            return emit(add_namespace(registry, args.name, owner.did), args.format)
    with open_registry_storage(args) as registry:
        report = list_namespaces(registry)
    if args.format == "text" and report.facts["namespaces"]:
        from pinwarden.cli.render.text import render_table

        rows = [
            (namespace["namespace"], role, key)
            for namespace in report.facts["namespaces"]
            for key, role in namespace["keys"].items()
        ]
        sys.stdout.write(render_table(("NAMESPACE", "ROLE", "KEY"), rows))
    return emit(report, args.format)


def _configure_registry_token(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=("add", "list", "revoke"), help="add, list or revoke tokens")
    parser.add_argument(
        "subject", nargs="?", metavar="NAME", help="with add: the namespace; with revoke: the id of the token"
    )
    parser.add_argument("--label", default="", metavar="TEXT", help="with add: note on what the token is for")
    parser.add_argument(
        "--days", type=int, default=90, metavar="N", help="with add: days until it expires (default: 90)"
    )
    add_operator_arguments(parser)
    add_format_argument(parser)


@command(_configure_registry_token)
def registry_token(args: Namespace) -> int:
    """Create, list or revoke the tokens with which publishers upload to their namespace.

    A new token is printed once; the registry stores only its digest. To publish, a token is not enough: a key of the
    namespace has to sign as well.

    Examples:
      pinwarden registry token add acme --label ci --data registry-data
      pinwarden registry token list --data registry-data
    """
    from pinwarden.registry.access import add_token, list_tokens, revoke_token

    if args.action != "list" and not args.subject:
        subject = "a namespace" if args.action == "add" else "the id of a token"
        raise PinwardenError("USAGE", f"registry token {args.action} needs {subject}")
    with open_registry_storage(args) as registry:
        if args.action == "add":
            report = add_token(registry, args.subject, args.label, args.days)
        elif args.action == "list":
            report = list_tokens(registry)
        else:
            report = revoke_token(registry, args.subject)
    if args.format == "text":
        return _print_tokens(args.action, report)
    return emit(report, args.format)


def _configure_registry_rotate_key(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--new-key", metavar="FILE", help="the new private key (default: created in the data folder); needs --key"
    )
    parser.add_argument("--new-key-env", metavar="NAME", help="environment variable with the new key in PEM format")
    parser.add_argument(
        "--why", default="rotation", metavar="TEXT", help="reason to record in the public log (default: rotation)"
    )
    add_operator_arguments(parser)
    add_format_argument(parser)


@command(_configure_registry_rotate_key)
def registry_rotate_key(args: Namespace) -> int:
    """Replace the registry's key. Clients that follow the log switch to the new key automatically.

    The change is a log entry that both keys sign; from then on the old key is refused. Stop all processes of the
    registry first, start them with the new key afterwards, and export again. If the old key was stolen, also tell your
    users directly: those who have not seen the log entry yet still accept the old key.

    Examples:
      pinwarden registry rotate-key --data registry-data --why "yearly rotation"
    """
    from pinwarden.cli.key_arguments import load_signer
    from pinwarden.registry.log_writer import build_rotation_report, rotate_key
    from pinwarden.registry.registry import activate_next_key, prepare_next_key

    settings = build_registry_settings(args)
    has_new_key = args.new_key or args.new_key_env
    if args.new_key and args.new_key_env:
        raise PinwardenError("USAGE", "--new-key and --new-key-env cannot be used together")
    if bool(args.key or args.key_env) != bool(has_new_key):
        raise PinwardenError(
            "USAGE",
            "give both the current key (--key or --key-env) and the new one (--new-key or --new-key-env), or neither",
        )
    with open_registry_storage(args, settings) as registry:
        new_key = (
            load_signer(Namespace(key=args.new_key, key_env=args.new_key_env))
            if has_new_key
            else prepare_next_key(settings.folder)
        )
        _, change, count = rotate_key(registry, new_key, args.why)
        if not has_new_key:
            activate_next_key(settings.folder)
        return emit(build_rotation_report(change, count), args.format)


def _configure_registry_audit(parser: ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, default=100, metavar="N", help="maximum number of requests (default: 100)")
    add_operator_arguments(parser)
    add_format_argument(parser)


@command(_configure_registry_audit)
def registry_audit(args: Namespace) -> int:
    """List the requests to change a registry, newest first: by which token, about what, and the outcome.

    Examples:
      pinwarden registry audit --data registry-data
    """
    from pinwarden.registry.access import report_audit_log

    with open_registry_storage(args) as registry:
        report = report_audit_log(registry, args.limit)
    if args.format == "text" and report.facts["requests"]:
        from pinwarden.cli.render.text import render_table

        rows = [
            (
                _format_time(request["at_ms"]),
                request["action"],
                request["outcome"],
                request["namespace"] or "-",
                request["subject"] or "-",
            )
            for request in report.facts["requests"]
        ]
        sys.stdout.write(render_table(("AT", "ACTION", "OUTCOME", "NAMESPACE", "ABOUT"), rows))
    return emit(report, args.format)


def _configure_log_verify(parser: ArgumentParser) -> None:
    add_transparency_log_arguments(parser)
    add_format_argument(parser)


@command(_configure_log_verify)
def log_verify(args: Namespace) -> int:
    """Verify a registry's complete transparency log: its signed checkpoint, every entry and every tile.

    Each entry must be an event that the registry signed and that continues the previous event of its channel, and all
    entries together must hash to the signed checkpoint. With --witness, the witnesses must have signed it too.

    Examples:
      pinwarden log verify export
    """
    from pinwarden.registry.log_client import verify_log

    with open_readable_registry(args) as files:
        return emit(verify_log(files, build_log_requirements(args)), args.format)


def _configure_log_monitor(parser: ArgumentParser) -> None:
    add_transparency_log_arguments(parser)
    parser.add_argument(
        "--state", required=True, metavar="FILE", help="file that remembers the last verified checkpoint"
    )
    parser.add_argument(
        "--watch", nargs="+", action="extend", default=[], metavar="NAME", help="tools or namespaces to watch"
    )
    add_format_argument(parser)


@command(_configure_log_monitor)
def log_monitor(args: Namespace) -> int:
    """Report new log entries for the names you watch, and prove that the log only grew since the last run.

    Only new entries are downloaded. A log that shows an older checkpoint or another history is refused. The exit code
    is 1 if there are new entries for a watched name, so that a scheduled job can alert you; the first run exits with 0.

    Examples:
      pinwarden log monitor export --state monitor.json --watch acme
    """
    from pinwarden.registry.log_client import monitor_log

    with open_readable_registry(args) as files:
        return emit(monitor_log(files, Path(args.state), build_log_requirements(args), args.watch), args.format)


def _build_missing_package_error(action: str, err: ImportError) -> PinwardenError:
    return PinwardenError(
        "USAGE",
        f"{action} a registry needs the package {err.name}, which is not installed",
        hint='Install it from a checkout of Pinwarden: pip install ".[registry]"',
    )


def _configure_log_show(parser: ArgumentParser) -> None:
    add_transparency_log_arguments(parser)
    parser.add_argument("name", nargs="*", metavar="NAME", help="tools or namespaces (default: all)")
    add_format_argument(parser)


@command(_configure_log_show)
def log_show(args: Namespace) -> int:
    """Verify a registry's log, and show its entries about some names: moved pointers and actions of the operator.

    Actions of the operator are takedowns, transfers and recoveries of namespaces, and requirements.

    Examples:
      pinwarden log show export acme
    """
    from pinwarden.registry.log_client import show_log

    with open_readable_registry(args) as files:
        return emit(show_log(files, build_log_requirements(args), args.name), args.format)


def _print_tokens(action: str, report: Report) -> int:
    if action == "add":  # only the token, so that a script can read it
        sys.stdout.write(f"{report.facts['token']}\n")
        sys.stderr.write("".join(f"note: {note}\n" for note in report.notes))
        return report.exit_code
    if action == "list" and report.facts["tokens"]:
        from pinwarden.cli.render.text import render_table

        rows = [
            (token["id"], token["namespace"], "revoked" if token["revoked"] else "valid", token["label"] or "-")
            for token in report.facts["tokens"]
        ]
        sys.stdout.write(render_table(("ID", "NAMESPACE", "STATE", "LABEL"), rows))
    return emit(report, "text")


def _format_time(milliseconds: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(milliseconds // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
