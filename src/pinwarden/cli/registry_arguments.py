"""Options of commands about a bundle registry: for its operator, its publishers, and readers of its log."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from argparse import _ActionsContainer

    from pinwarden.core.keys import PublicKey
    from pinwarden.registry.log_client import FollowOptions
    from pinwarden.registry.registry import Registry, RegistrySettings
    from pinwarden.registry.registry_client import HttpRegistry, RegistryReader
    from pinwarden.system.net.fetch import Fetcher

TOKEN_VARIABLE = "PINWARDEN_REGISTRY_TOKEN"  # noqa: S105  # the name of a variable, not its value


def add_operator_arguments(parser: ArgumentParser) -> None:
    """Add the options for the location of a registry's data."""
    storage = parser.add_argument_group("the registry's storage")
    storage.add_argument(
        "--data", metavar="DIR", help="folder for key, database and archives (default: in your data folder)"
    )
    storage.add_argument(
        "--database",
        metavar="URL",
        help="PostgreSQL database, postgresql://… (default: PINWARDEN_REGISTRY_DATABASE, or a file in the data folder)",
    )
    storage.add_argument(
        "--blobs",
        metavar="URL",
        help="OCI repository for the archives, oci://host/repository (default: the data folder)",
    )
    storage.add_argument(
        "--key", metavar="FILE", help="the registry's private key (default: created in the data folder)"
    )
    storage.add_argument("--key-env", metavar="NAME", help="environment variable with the private key in PEM format")


def build_registry_settings(args: Namespace) -> RegistrySettings:
    """Return where the key, database and archives of the registry are, from the options or their defaults."""
    from pinwarden.registry.registry import DATABASE_VARIABLE, RegistrySettings, find_default_folder

    return RegistrySettings(
        folder=Path(args.data) if args.data else find_default_folder(),
        database=args.database or os.environ.get(DATABASE_VARIABLE) or None,
        blobs=args.blobs,
    )


@contextmanager
def open_registry_storage(args: Namespace, settings: RegistrySettings | None = None) -> Iterator[Registry]:
    """Open the registry in the operator's storage. It is closed when the command ends."""
    from pinwarden.registry.registry import open_registry
    from pinwarden.registry.search import add_missing_packages

    signer = None
    if args.key or args.key_env:
        from pinwarden.cli.key_arguments import load_signer

        signer = load_signer(args)
    registry = open_registry(settings or build_registry_settings(args), signer)
    try:
        add_missing_packages(registry)
        yield registry
    finally:
        registry.close()


def add_publisher_arguments(parser: ArgumentParser) -> None:
    """Add the options for the registry to publish to, and the token."""
    registry = parser.add_argument_group("the registry")
    registry.add_argument("--registry", required=True, metavar="URL", help="the registry's address")
    registry.add_argument("--registry-key", metavar="KEY", help="public key that the registry must have, did:key:…")
    registry.add_argument(
        "--token-env",
        default=TOKEN_VARIABLE,
        metavar="NAME",
        help=f"environment variable with your publish token (default: {TOKEN_VARIABLE})",
    )
    registry.add_argument("--allow-plain-http", action="store_true", help="allow an unencrypted http:// address")


@contextmanager
def open_writable_registry(args: Namespace) -> Iterator[HttpRegistry]:
    """Open the registry to publish to, with the token, which is sent to no other address."""
    from pinwarden.registry.registry_client import HttpRegistry

    token = os.environ.get(args.token_env)
    if not token:
        raise PinwardenError(
            "VARIABLE_MISSING",
            f"the variable {args.token_env[:80]!a} is not set, or empty",
            hint="Set it to your publish token. The registry's operator creates one: pinwarden registry token add.",
        )
    if not token.isascii() or not token.isprintable() or " " in token:
        raise PinwardenError("VARIABLE_MISSING", f"the variable {args.token_env[:80]!a} does not contain a token")
    fetcher = _open_fetcher(args)
    try:
        yield HttpRegistry(args.registry, fetcher, token)
    finally:
        fetcher.close()


def parse_registry_key(args: Namespace) -> PublicKey | None:
    """Return the key that the registry must have, if one is given."""
    from pinwarden.core.keys import PublicKey

    return PublicKey.parse(args.registry_key) if args.registry_key else None


def add_transparency_log_arguments(parser: ArgumentParser) -> None:
    """Add the options for the log to read, and for the witnesses that must have signed it."""
    parser.add_argument("registry", metavar="REGISTRY", help="a registry's address, or the folder of an export")
    parser.add_argument(
        "--registry-key",
        metavar="KEY",
        help="public key that the registry must have, did:key:… (default: trust the key on first use)",
    )
    add_witness_arguments(parser)
    parser.add_argument("--allow-plain-http", action="store_true", help="allow an unencrypted http:// address")


def add_witness_arguments(parser: _ActionsContainer) -> None:
    """Add ``--witness`` and ``--witnesses-needed``."""
    parser.add_argument(
        "--witness",
        action="append",
        default=[],
        metavar="VKEY",
        help="verifier key of a witness that must have signed the log; repeatable",
    )
    parser.add_argument(
        "--witnesses-needed", type=int, metavar="N", help="how many of the witnesses must have signed (default: all)"
    )


@contextmanager
def open_readable_registry(args: Namespace) -> Iterator[RegistryReader]:
    """Open the registry to read from: an address, or a folder."""
    from pinwarden.registry.registry_client import FolderRegistry, HttpRegistry

    if "://" not in args.registry:
        if not Path(args.registry).is_dir():
            raise PinwardenError("FILE_UNREADABLE", f"{args.registry} is neither an address nor a folder")
        yield FolderRegistry(Path(args.registry))
        return
    fetcher = _open_fetcher(args)
    try:
        yield HttpRegistry(args.registry, fetcher)
    finally:
        fetcher.close()


def build_log_requirements(args: Namespace) -> FollowOptions:
    """Return the key and the witnesses that the options require of a log."""
    from pinwarden.core.signed_note import WitnessKey
    from pinwarden.registry.log_client import FollowOptions

    witnesses = tuple(dict.fromkeys(WitnessKey.parse(text) for text in args.witness))
    needed = len(witnesses) if args.witnesses_needed is None else args.witnesses_needed
    if not 0 <= needed <= len(witnesses):
        raise PinwardenError("USAGE", f"--witnesses-needed is {needed}, but {len(witnesses)} witnesses are given")
    key = parse_registry_key(args)
    _refuse_revoked([witness.key for witness in witnesses] + ([key] if key else []))
    return FollowOptions(key=key, witnesses=witnesses, quorum=needed)


def _refuse_revoked(keys: list[PublicKey]) -> None:
    """Refuse keys that this user revoked, even if a script still names them."""
    from pinwarden.bundle.trust import check_not_revoked
    from pinwarden.bundle.trust_files import load_trust
    from pinwarden.cli.bundle_arguments import find_trust_file

    if keys:
        check_not_revoked(load_trust(find_trust_file()), *(key.did for key in keys))


def _open_fetcher(args: Namespace) -> Fetcher:
    from pinwarden.system.net.fetch import Fetcher, FetchRules

    return Fetcher(FetchRules(allow_plain_http=args.allow_plain_http), os.environ)
