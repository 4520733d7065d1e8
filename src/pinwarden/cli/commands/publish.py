"""``publish``, and later changes by publishers: ``registry point``, ``yank``, ``attest``, ``keys`` and ``object``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwarden.cli.bundle_arguments import add_attestation_argument, add_bundle_arguments, get_bundle_files
from pinwarden.cli.commands import command
from pinwarden.cli.key_arguments import add_signer_arguments, load_signer
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.registry_arguments import add_publisher_arguments, open_writable_registry, parse_registry_key

if TYPE_CHECKING:
    from pinwarden.core.report import Report

_REASON_HELP = "reason to record in the public log"


def _configure_publish(parser: ArgumentParser) -> None:
    add_bundle_arguments(parser)
    add_signer_arguments(parser)
    parser.add_argument(
        "--channel", default="stable", metavar="NAME", help="channel that will point to the bundle (default: stable)"
    )
    parser.add_argument(
        "--allow-older", action="store_true", help="allow the channel to move from a newer version back to this one"
    )
    add_attestation_argument(parser)
    add_publisher_arguments(parser)
    add_format_argument(parser)


@command(_configure_publish)
def publish(args: Namespace) -> int:
    """Check every byte of a bundle, upload it to a registry, and point a channel to it.

    You need a publish token for the namespace (PINWARDEN_REGISTRY_TOKEN) and one of the namespace's keys. The registry
    checks the archive itself, starts the server in a sandbox to record its tools, and adds an entry to its log. A
    published version can never be replaced by other content.

    Examples:
      pinwarden publish acme.notes-1.0.0.car --key release.pem --registry https://registry.example.org
    """
    from pinwarden.registry.publish_client import PublishOptions, publish_bundle

    with open_writable_registry(args) as registry:
        options = PublishOptions(
            registry=registry,
            files=get_bundle_files(args),
            signer=load_signer(args),
            attestations=tuple(Path(name) for name in args.attestation),
            channel=args.channel,
            allow_older=args.allow_older,
            registry_key=parse_registry_key(args),
        )
        return emit(publish_bundle(options), args.format)


def _configure_registry_point(parser: ArgumentParser) -> None:
    parser.add_argument("tool", metavar="TOOL", help="name of the tool")
    parser.add_argument("version", metavar="VERSION", help="version that the channel will point to")
    parser.add_argument("--channel", default="stable", metavar="NAME", help="the channel to move (default: stable)")
    parser.add_argument("--reason", default="point", metavar="TEXT", help=_REASON_HELP)
    parser.add_argument("--allow-older", action="store_true", help="allow the channel to move back to an older version")
    _add_change_arguments(parser)


@command(_configure_registry_point)
def registry_point(args: Namespace) -> int:
    """Move a channel to another published version. The registry's log records every move.

    Examples:
      pinwarden registry point acme.notes 1.1.0 --key release.pem --registry https://registry.example.org
      pinwarden registry point acme.notes 1.0.0 --allow-older --key release.pem --registry https://registry.example.org
    """
    from pinwarden.registry.registry_documents import POINT

    body = {"tool": args.tool, "version": args.version, "channel": args.channel, "reason": args.reason}
    body |= {"allow_older": True} if args.allow_older else {}
    return emit(_request_change(args, "registry point", POINT, body), args.format)


def _configure_registry_yank(parser: ArgumentParser) -> None:
    parser.add_argument("tool", metavar="TOOL", help="name of the tool")
    parser.add_argument("version", metavar="VERSION", help="version to yank")
    parser.add_argument("--reason", default="yank", metavar="TEXT", help=_REASON_HELP)
    parser.add_argument("--undo", action="store_true", help="make a yanked version available again")
    _add_change_arguments(parser)


@command(_configure_registry_yank)
def registry_yank(args: Namespace) -> int:
    """Yank a version: channels no longer point to it, and the log records the yank.

    The bundle stays available for users who locked it. --undo does not restore the channels.

    Examples:
      pinwarden registry yank acme.notes 1.0.0 --key release.pem --registry https://registry.example.org
      pinwarden registry yank acme.notes 1.0.0 --undo --key release.pem --registry https://registry.example.org
    """
    from pinwarden.registry.registry_documents import UNYANK, YANK

    body = {"tool": args.tool, "version": args.version, "reason": args.reason}
    return emit(_request_change(args, "registry yank", UNYANK if args.undo else YANK, body), args.format)


def _configure_registry_attest(parser: ArgumentParser) -> None:
    parser.add_argument("file", nargs="+", metavar="FILE", help="attestations, as pinwarden attest writes them")
    add_publisher_arguments(parser)
    add_format_argument(parser)


@command(_configure_registry_attest)
def registry_attest(args: Namespace) -> int:
    """Add attestations to a bundle that is already published.

    Anyone with a token can add them, because each attestation is signed; users decide whose signatures they trust.

    Examples:
      pinwarden registry attest notes.attestation.json --registry https://registry.example.org
    """
    from pinwarden.registry.publish_client import send_attestations

    with open_writable_registry(args) as registry:
        return emit(send_attestations(registry, [Path(name) for name in args.file]), args.format)


def _configure_registry_keys(parser: ArgumentParser) -> None:
    parser.add_argument("namespace", metavar="NAME", help="the namespace")
    for option, meaning in (
        ("--add-owner", "keys that may publish and change keys"),
        ("--add-publisher", "keys that may publish"),
        ("--remove", "keys to remove"),
    ):
        parser.add_argument(option, nargs="+", action="extend", default=[], metavar="DID", help=meaning)
    _add_change_arguments(parser)


@command(_configure_registry_keys)
def registry_keys(args: Namespace) -> int:
    r"""Change which keys may publish in a namespace. One of its owners has to sign the change.

    To rotate a key, add the new one and remove the old one in a single call. A namespace below your own that does not
    exist yet is created, so that you can hand over a part of yours. A namespace always keeps at least one owner.

    Examples:
      pinwarden registry keys acme --key release.pem --registry https://registry.example.org \
        --add-publisher did:key:z6MktwupdmLXVVqTzCw4i46r4uGyosGXRnR3XjN4Zq7oMMsw
    """
    from pinwarden.registry.publish_client import build_keys_body
    from pinwarden.registry.registry_documents import KEYS

    body = build_keys_body(args.namespace, args.add_owner, args.add_publisher, args.remove)
    return emit(_request_change(args, "registry keys", KEYS, body), args.format)


def _configure_registry_object(parser: ArgumentParser) -> None:
    parser.add_argument("namespace", metavar="NAME", help="the namespace")
    parser.add_argument("--reason", required=True, metavar="TEXT", help=_REASON_HELP)
    _add_change_arguments(parser)


@command(_configure_registry_object)
def registry_object(args: Namespace) -> int:
    """Object to the recovery of a namespace, which ends it. Every key of the namespace may object.

    The operator announces in the log that a namespace will get another owner, and waits. pinwarden log monitor reports
    the announcement to everyone who watches the namespace.

    Examples:
      pinwarden registry object acme --reason "we have our key" --key release.pem --registry https://registry.example.org
    """
    from pinwarden.registry.registry_documents import OBJECT

    body = {"namespace": args.namespace, "reason": args.reason}
    return emit(_request_change(args, "registry object", OBJECT, body), args.format)


def _add_change_arguments(parser: ArgumentParser) -> None:
    add_signer_arguments(parser)
    add_publisher_arguments(parser)
    add_format_argument(parser)


def _request_change(args: Namespace, name: str, kind: str, body: dict[str, Any]) -> Report:
    """Sign a change and send it to the registry."""
    from pinwarden.registry.publish_client import ChangeOptions, request_change

    with open_writable_registry(args) as registry:
        options = ChangeOptions(registry=registry, signer=load_signer(args), registry_key=parse_registry_key(args))
        return request_change(options, name, kind, body)
