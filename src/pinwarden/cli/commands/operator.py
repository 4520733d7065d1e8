"""Actions of a registry's operator, which are all in the log; and backup and restore."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from pathlib import Path

from pinwarden.cli.commands import command
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.registry_arguments import add_operator_arguments, build_registry_settings, open_registry_storage
from pinwarden.core.errors import PinwardenError

_REASON_HELP = "reason to record in the public log"


def _configure_registry_takedown(parser: ArgumentParser) -> None:
    parser.add_argument("tool", metavar="TOOL", help="name of the bundle")
    parser.add_argument("version", nargs="?", metavar="VERSION", help="the version (default: the whole bundle)")
    parser.add_argument("--reason", required=True, metavar="TEXT", help=_REASON_HELP)
    parser.add_argument("--undo", action="store_true", help="reinstate it")
    _add_storage_arguments(parser)


@command(_configure_registry_takedown)
def registry_takedown(args: Namespace) -> int:
    """Take down a version or a whole bundle: no pointer, no archive, no new versions. The log records the reason.

    Installing it fails with the reason, and users who locked it get an error from ci, fetch and update. --undo
    reinstates it; the publisher then points the channels to it again.

    Examples:
      pinwarden registry takedown acme.notes 1.0.0 --reason "it sends notes to a third party" --data registry-data
      pinwarden registry takedown acme.notes 1.0.0 --undo --reason "a false alarm" --data registry-data
    """
    from pinwarden.registry.takedowns import reinstate, take_down

    run = reinstate if args.undo else take_down
    with open_registry_storage(args) as registry:
        return emit(run(registry, args.tool, args.version, args.reason), args.format)


def _configure_registry_transfer(parser: ArgumentParser) -> None:
    parser.add_argument("namespace", metavar="NAME", help="the namespace")
    parser.add_argument("--to", required=True, metavar="KEY", help="public key of the new owner, a file or did:key:…")
    parser.add_argument("--reason", required=True, metavar="TEXT", help=_REASON_HELP)
    _add_storage_arguments(parser)


@command(_configure_registry_transfer)
def registry_transfer(args: Namespace) -> int:
    """Give a namespace to another key at once. Its other keys and all its tokens stop working.

    Use it when the owner asks for it. If the owner's key is lost, use pinwarden registry recover, which waits for
    objections. Users who locked a bundle of the namespace get a warning.

    Examples:
      pinwarden registry transfer acme --to release.pem.pub --reason "sold to Globex" --data registry-data
    """
    from pinwarden.registry.ownership import transfer_namespace

    with open_registry_storage(args) as registry:
        return emit(transfer_namespace(registry, args.namespace, _read_key(args.to), args.reason), args.format)


def _configure_registry_recover(parser: ArgumentParser) -> None:
    from pinwarden.registry.ownership import DEFAULT_WAIT_DAYS

    parser.add_argument(
        "action",
        choices=("start", "complete", "cancel", "list"),
        help="announce a recovery, complete it after the waiting period, cancel it, or list those that wait",
    )
    parser.add_argument("namespace", nargs="?", metavar="NAME", help="the namespace")
    parser.add_argument("--to", metavar="KEY", help="with start: public key of the new owner, a file or did:key:…")
    parser.add_argument("--reason", default="", metavar="TEXT", help=_REASON_HELP)
    parser.add_argument(
        "--wait-days",
        type=int,
        default=DEFAULT_WAIT_DAYS,
        metavar="N",
        help=f"waiting period (default: {DEFAULT_WAIT_DAYS})",
    )
    _add_storage_arguments(parser)


@command(_configure_registry_recover)
def registry_recover(args: Namespace) -> int:
    """Recover a namespace whose owner lost the key. The log announces it, and the namespace's members can object.

    During the waiting period the old keys keep working, and each of them can end the recovery with pinwarden registry
    object. After it, complete makes the new key the only one of the namespace. Followers of the log refuse a recovery
    that was completed too early.

    Examples:
      pinwarden registry recover start acme --to release.pem.pub --reason "key lost" --data registry-data
      pinwarden registry recover list --data registry-data
      pinwarden registry recover cancel acme --reason "key found" --data registry-data
    """
    from pinwarden.registry import ownership

    if args.action != "list" and (not args.namespace or not args.reason):
        raise PinwardenError("USAGE", f"registry recover {args.action} needs a namespace and --reason")
    if args.action == "start" and not args.to:
        raise PinwardenError("USAGE", "registry recover start needs --to with the key of the new owner")
    with open_registry_storage(args) as registry:
        if args.action == "list":
            report = ownership.list_recoveries(registry)
        elif args.action == "start":
            key = _read_key(args.to)
            report = ownership.start_recovery(registry, args.namespace, key, args.reason, args.wait_days)
        elif args.action == "complete":
            report = ownership.complete_recovery(registry, args.namespace, args.reason)
        else:
            report = ownership.cancel_recovery(registry, args.namespace, args.reason)
    return emit(report, args.format)


def _configure_registry_require(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=("set", "remove", "list"), help="set or remove requirements, or list all")
    parser.add_argument("name", nargs="?", metavar="NAME", help="a namespace or a bundle")
    parser.add_argument("--channel", metavar="NAME", help="only for this channel (default: for all channels)")
    parser.add_argument(
        "--min-attestations", type=int, default=1, metavar="N", help="attestations by how many signers (default: 1)"
    )
    parser.add_argument(
        "--signer",
        action="append",
        default=[],
        metavar="KEY",
        help="public key of a signer, a file or did:key:…; one of the signers must have attested; repeatable",
    )
    parser.add_argument("--verifier", action="store_true", help="require an attestation by a verifier")
    parser.add_argument("--reason", default="", metavar="TEXT", help=_REASON_HELP)
    _add_storage_arguments(parser)


@command(_configure_registry_require)
def registry_require(args: Namespace) -> int:
    """Require attestations of the bundles in a namespace, or of one bundle, on all channels or on one.

    The registry writes the requirements into its signed pointers, and every installer checks them (acceptance step 7).
    The most specific requirements count: the longest name, then the named channel.

    Examples:
      pinwarden registry require set acme --channel stable --min-attestations 2 --reason "audited" --data registry-data
      pinwarden registry require list --data registry-data
    """
    from pinwarden.bundle.log_documents import Constraints
    from pinwarden.registry.requirements import list_requirements, set_requirements

    if args.action == "list":
        with open_registry_storage(args) as registry:
            return emit(list_requirements(registry), args.format)
    if not args.name or not args.reason:
        raise PinwardenError("USAGE", f"registry require {args.action} needs a name and --reason")
    constraints = Constraints(
        min_attestations=args.min_attestations,
        require_signers=tuple(map(_read_key, args.signer)),
        require_verifier_attestation=args.verifier,
    )
    with open_registry_storage(args) as registry:
        report = set_requirements(
            registry, args.name, args.channel, constraints if args.action == "set" else None, args.reason
        )
    return emit(report, args.format)


def _configure_registry_backup(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="the backup folder; it is created if it does not exist")
    parser.add_argument("--keep", type=int, metavar="N", help="keep only the newest N snapshots (default: keep all)")
    parser.add_argument(
        "--include-key", action="store_true", help="copy the registry's private key into the backup as well"
    )
    _add_storage_arguments(parser)


@command(_configure_registry_backup)
def registry_backup(args: Namespace) -> int:
    """Back up a registry while it runs: database, archives and signed checkpoint, verified against its log.

    Each run adds a snapshot and the archives that are new. A snapshot does not depend on the kind of database. Anyone
    with the private key can sign for the registry, so it is only included on request.

    Examples:
      pinwarden registry backup registry-backup --keep 14 --data registry-data
    """
    from pinwarden.registry.backup import BackupOptions, back_up

    settings = build_registry_settings(args)
    if args.include_key and (args.key or args.key_env):
        raise PinwardenError("USAGE", "--include-key copies the key in the data folder, not another --key")
    with open_registry_storage(args, settings) as registry:
        options = BackupOptions(
            folder=Path(args.folder), keep=args.keep, key_folder=settings.folder if args.include_key else None
        )
        return emit(back_up(registry, options), args.format)


def _configure_registry_restore(parser: ArgumentParser) -> None:
    parser.add_argument("backup", metavar="BACKUP", help="a backup folder, or the folder of one snapshot in it")
    parser.add_argument(
        "--seen",
        action="append",
        default=[],
        metavar="FILE",
        help="what others have seen of the log: a checkpoint, the --state of log monitor, an export, or the address of "
        "another copy of the registry; repeatable",
    )
    parser.add_argument("--allow-plain-http", action="store_true", help="allow an unencrypted http:// address")
    _add_storage_arguments(parser)


@command(_configure_registry_restore)
def registry_restore(args: Namespace) -> int:
    """Restore a registry from a backup into empty storage, and verify it against its log.

    A backup whose log is shorter than others have seen is refused, because the restored registry would fork the log.
    Name what others have seen with --seen; the checkpoint in the data folder is always compared.

    Examples:
      pinwarden registry restore registry-backup --data restored-data --key registry.key --seen monitor.json
    """
    from pinwarden.cli.registry_arguments import open_readable_registry
    from pinwarden.registry.registry_client import RegistryReader
    from pinwarden.registry.restore import RestoreOptions, restore

    signer = None
    if args.key or args.key_env:
        from pinwarden.cli.key_arguments import load_signer

        signer = load_signer(args)
    with ExitStack() as stack:
        seen: list[RegistryReader | Path] = []
        for text in args.seen:
            if "://" in text:
                address = Namespace(registry=text, allow_plain_http=args.allow_plain_http)
                seen.append(stack.enter_context(open_readable_registry(address)))
            else:
                seen.append(Path(text))
        options = RestoreOptions(
            backup=Path(args.backup), settings=build_registry_settings(args), signer=signer, seen=tuple(seen)
        )
        return emit(restore(options), args.format)


def _add_storage_arguments(parser: ArgumentParser) -> None:
    add_operator_arguments(parser)
    add_format_argument(parser)


def _read_key(text: str) -> str:
    from pinwarden.cli.key_arguments import read_public_keys

    return next(iter(read_public_keys([text]).values())).did
