"""The options of commands about a registry: its operator's, its publishers', and those of whoever reads its log."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from pinwarden.core.keys import PublicKey
    from pinwarden.registry.files import HttpRegistry, RegistryFiles
    from pinwarden.registry.log_client import Following
    from pinwarden.registry.registry import Registry
    from pinwarden.registry.setup import RegistrySettings
    from pinwarden.system.net.fetch import Fetcher

TOKEN_VARIABLE = "PINWARDEN_REGISTRY_TOKEN"  # noqa: S105  # the name of a variable, not its value


def add_operator_arguments(parser: ArgumentParser) -> None:
    """Where a registry keeps what it knows."""
    kept = parser.add_argument_group("the registry")
    kept.add_argument("--data", metavar="DIR", help="its folder: key, database, archives (the user's data folder)")
    kept.add_argument(
        "--database", metavar="URL", help="postgresql://…, or PINWARDEN_REGISTRY_DATABASE (a file in the folder)"
    )
    kept.add_argument("--blobs", metavar="URL", help="oci://host/repository for archives (a folder in the folder)")
    kept.add_argument("--key", metavar="FILE", help="the registry's private key (made in the folder)")
    kept.add_argument("--key-env", metavar="NAME", help="the variable that holds that key as PEM")


def settings_of(args: Namespace) -> RegistrySettings:
    """The settings that the options name."""
    from pinwarden.registry.setup import DATABASE_VARIABLE, RegistrySettings, default_folder

    return RegistrySettings(
        folder=Path(args.data) if args.data else default_folder(),
        database=args.database or os.environ.get(DATABASE_VARIABLE) or None,
        blobs=args.blobs,
    )


@contextmanager
def operated_registry(args: Namespace, settings: RegistrySettings | None = None) -> Iterator[Registry]:
    """The registry that the options name, open until the command is done."""
    from pinwarden.registry.setup import open_registry

    signer = None
    if args.key or args.key_env:
        from pinwarden.cli.key_arguments import signer_of

        signer = signer_of(args)
    registry = open_registry(settings or settings_of(args), signer)
    try:
        yield registry
    finally:
        registry.close()


def add_publisher_arguments(parser: ArgumentParser) -> None:
    """Which registry is written to, and with which token."""
    asked = parser.add_argument_group("the registry")
    asked.add_argument("--registry", required=True, metavar="URL", help="its address")
    asked.add_argument("--registry-key", metavar="KEY", help="its key (did:key:…); any other is refused")
    asked.add_argument(
        "--token-env",
        default=TOKEN_VARIABLE,
        metavar="NAME",
        help=f"the variable with the token ({TOKEN_VARIABLE})",
    )
    asked.add_argument("--allow-plain-http", action="store_true", help="allow an address without encryption")


@contextmanager
def writable_registry(args: Namespace) -> Iterator[HttpRegistry]:
    """The registry that the options name, with the token that is for it alone."""
    from pinwarden.registry.files import HttpRegistry

    token = os.environ.get(args.token_env)
    if not token:
        raise PinwardenError(
            "VARIABLE_MISSING",
            f"the variable {args.token_env[:80]!a} is not set, or empty",
            hint="Put your publish token into it. The registry's operator makes one: pinwarden registry token add.",
        )
    if not token.isascii() or not token.isprintable() or " " in token:
        raise PinwardenError("VARIABLE_MISSING", f"the variable {args.token_env[:80]!a} holds no token")
    fetcher = _fetcher(args)
    try:
        yield HttpRegistry(args.registry, fetcher, token)
    finally:
        fetcher.close()


def registry_key_of(args: Namespace) -> PublicKey | None:
    """The key that the registry must have, if one is named."""
    from pinwarden.core.keys import PublicKey

    return PublicKey.parse(args.registry_key) if args.registry_key else None


def add_log_arguments(parser: ArgumentParser) -> None:
    """Whose log is read, and who must have seen it."""
    parser.add_argument("registry", metavar="REGISTRY", help="the address of a registry, or the folder of an export")
    parser.add_argument("--registry-key", metavar="KEY", help="its key (did:key:…); without it the first seen counts")
    parser.add_argument("--witness", action="append", default=[], metavar="VKEY", help="the verifier key of a witness")
    parser.add_argument("--witnesses-needed", type=int, metavar="N", help="how many of them must have signed (all)")
    parser.add_argument("--allow-plain-http", action="store_true", help="allow an address without encryption")


@contextmanager
def readable_registry(args: Namespace) -> Iterator[RegistryFiles]:
    """The registry that the options name: an address, or a folder."""
    from pinwarden.registry.files import FolderRegistry, HttpRegistry

    if "://" not in args.registry:
        if not Path(args.registry).is_dir():
            raise PinwardenError("FILE_UNREADABLE", f"{args.registry} is neither an address nor a folder")
        yield FolderRegistry(Path(args.registry))
        return
    fetcher = _fetcher(args)
    try:
        yield HttpRegistry(args.registry, fetcher)
    finally:
        fetcher.close()


def following_of(args: Namespace) -> Following:
    """What the options demand of a log."""
    from pinwarden.core.cosignature import WitnessKey
    from pinwarden.registry.log_client import Following

    witnesses = tuple(dict.fromkeys(WitnessKey.parse(each) for each in args.witness))
    needed = len(witnesses) if args.witnesses_needed is None else args.witnesses_needed
    if not 0 <= needed <= len(witnesses):
        raise PinwardenError("USAGE", f"{needed} witnesses cannot have signed, if {len(witnesses)} are known")
    key = registry_key_of(args)
    _refuse_revoked([each.key for each in witnesses] + ([key] if key else []))
    return Following(key=key, witnesses=witnesses, quorum=needed)


def _refuse_revoked(keys: list[PublicKey]) -> None:
    """A key that this user revoked counts for nothing, though a script still names it."""
    from pinwarden.bundle.trust_files import load_trust
    from pinwarden.bundle.trust_store import refuse_revoked
    from pinwarden.cli.install_arguments import trust_file

    if keys:
        refuse_revoked(load_trust(trust_file()), *(key.did for key in keys))


def _fetcher(args: Namespace) -> Fetcher:
    from pinwarden.system.net.fetch import Fetcher, FetchRules

    return Fetcher(FetchRules(allow_plain_http=args.allow_plain_http), os.environ)
