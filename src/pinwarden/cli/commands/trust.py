"""``trust add``, ``trust remove`` and ``trust list``: the registries and keys that you trust."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.bundle_arguments import find_trust_file
from pinwarden.cli.commands import command
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.registry_arguments import add_witness_arguments
from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from pinwarden.core.keys import PublicKey
    from pinwarden.core.signed_note import NoteKey

_MAX_IDENTITY_BYTES = 64 * 1024
_REGISTRY_KEY = "Give a registry as name+id+key, which pinwarden registry serve prints, or as its registry.json."


def _configure_trust_add(parser: ArgumentParser) -> None:
    from pinwarden.bundle.trust import MAX_AGE_DAYS

    parser.add_argument(
        "key", metavar="KEY", help="did:key:…, a public key file, a registry's verifier key, or its registry.json"
    )
    parser.add_argument("--name", default="", metavar="NAME", help="your name for the key")
    parser.add_argument(
        "--role",
        action="append",
        default=[],
        choices=("verifier", "maintainer", "auditor", "registry"),
        help="role in which you trust the key; repeatable",
    )
    parser.add_argument("--replaces", metavar="KEY", help="key or name that this key replaces; the old key is revoked")
    parser.add_argument("--why", default="", metavar="TEXT", help="with --replaces: the reason to record")
    registry = parser.add_argument_group("for a registry")
    registry.add_argument(
        "--url", metavar="URL", help="the registry's location: a URL, a folder, or oci://host/repository"
    )
    registry.add_argument(
        "--pointer-key", metavar="KEY", help="key that signs its pointers, if it is not the log's key"
    )
    add_witness_arguments(registry)
    registry.add_argument(
        "--max-age-days",
        type=int,
        default=MAX_AGE_DAYS,
        metavar="N",
        help=f"refuse a log whose newest checkpoint is older than N days (default: {MAX_AGE_DAYS})",
    )
    add_format_argument(parser)


@command(_configure_trust_add)
def trust_add(args: Namespace) -> int:
    """Trust a registry, or the key of a person or service that signs attestations.

    A registry is given by the verifier key of its log (name+id+key, the third line that pinwarden registry serve
    prints) or by its registry.json, if you got that from a source you trust. Any other key is given as did:key:… or as
    a file, and counts only in the roles that you name. The trust store is your own file (PINWARDEN_TRUST, or in your
    settings folder); projects cannot change it.

    Examples:
      pinwarden trust add release.pem.pub --name release --role maintainer
      pinwarden trust add export/registry.json --role registry --url export
    """
    from pinwarden.core.signed_note import WitnessKey
    from pinwarden.install.trust_commands import TrustRequest, add_trust
    from pinwarden.system.clock import wall_clock

    key, log = _read_keys(args)
    witnesses = tuple(dict.fromkeys(WitnessKey.parse(text) for text in args.witness))
    needed = len(witnesses) if args.witnesses_needed is None else args.witnesses_needed
    if not 0 <= needed <= len(witnesses):
        raise PinwardenError("USAGE", f"--witnesses-needed is {needed}, but {len(witnesses)} witnesses are given")
    if not 1 <= args.max_age_days <= 3650:
        raise PinwardenError("USAGE", "--max-age-days must be from 1 to 3650")
    request = TrustRequest(
        name=args.name,
        roles=tuple(dict.fromkeys(args.role)),
        key=key,
        log=log,
        url=args.url,
        witnesses=witnesses,
        witnesses_needed=needed,
        max_age_days=args.max_age_days,
        replaces=args.replaces,
        why=args.why,
    )
    return emit(add_trust(find_trust_file(), request, wall_clock()), args.format)


def _configure_trust_remove(parser: ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="did:key:…, or the name you gave the key")
    parser.add_argument(
        "--revoke", action="store_true", help="also revoke the key, so that it can never be trusted again"
    )
    parser.add_argument("--why", default="", metavar="TEXT", help="with --revoke: the reason to record")
    add_format_argument(parser)


@command(_configure_trust_remove)
def trust_remove(args: Namespace) -> int:
    """Stop trusting a registry or key. With --revoke, it cannot be added again.

    Revoke a key that was stolen or lost. pinwarden update then reports what was installed because of it.

    Examples:
      pinwarden trust remove release --revoke --why "laptop stolen"
    """
    from pinwarden.install.trust_commands import remove_trust
    from pinwarden.system.clock import wall_clock

    report = remove_trust(find_trust_file(), args.key, wall_clock(), revoked=args.revoke, why=args.why)
    return emit(report, args.format)


def _configure_trust_list(parser: ArgumentParser) -> None:
    add_format_argument(parser)


@command(_configure_trust_list)
def trust_list(args: Namespace) -> int:
    """List the registries and keys you trust, with their roles, and the keys that no longer count.

    These are the keys that you revoked, and the keys that a registry replaced, with the log entry that replaced them.

    Examples:
      pinwarden trust list
    """
    from pinwarden.install.trust_commands import list_trust

    report = list_trust(find_trust_file())
    facts = report.facts
    if args.format == "text" and any(facts.values()):
        from pinwarden.cli.render.text import render_table

        rows = [(root["name"] or "-", ", ".join(root["roles"]), root["key_id"]) for root in facts["registries"]]
        rows += [
            (root["name"] or "-", f"replaced by entry {ended['log_index']}", ended["key_id"])
            for root in facts["registries"]
            for ended in root["ended_keys"]
        ]
        rows += [(key["name"] or "-", ", ".join(key["roles"]), key["key_id"]) for key in facts["keys"]]
        rows += [(key["name"] or "-", "revoked", key["key_id"]) for key in facts["revoked"]]
        sys.stdout.write(render_table(("NAME", "ROLES", "KEY"), rows))
    return emit(report, args.format)


def _read_keys(args: Namespace) -> tuple[PublicKey | None, NoteKey | None]:
    """Return the public key and the log key. Only a registry has a log key."""
    from pinwarden.cli.key_arguments import read_public_keys

    pointer = next(iter(read_public_keys([args.pointer_key]).values())) if args.pointer_key else None
    if args.key.endswith(".json"):
        return pointer, _read_identity_key(args.key)
    if "+" in args.key and not args.key.startswith("did:") and not Path(args.key).exists():
        return pointer, _parse_log_key(args.key)
    return next(iter(read_public_keys([args.key]).values())), None


def _read_identity_key(file: str) -> NoteKey:
    """Return the log key in a registry's registry.json."""
    from pinwarden.cli.key_arguments import read_public_key_file
    from pinwarden.core.keys import describe_key_data
    from pinwarden.registry.registry_documents import parse_identity

    data = read_public_key_file(file, _MAX_IDENTITY_BYTES)
    try:
        return parse_identity(data).note_key
    except PinwardenError as err:
        content = (
            "damaged JSON"
            if describe_key_data(data) == "JSON" and err.code.startswith("JSON_")
            else describe_key_data(data)
        )
        message = f"{file[:200]!a} is {content}, not the registry.json of a registry: {err.message}"
        raise PinwardenError(err.code, message, hint=_REGISTRY_KEY) from err


def _parse_log_key(text: str) -> NoteKey:
    """Parse the verifier key of a registry, which has the form name+id+key."""
    from pinwarden.core.keys import refuse_private_key
    from pinwarden.core.signed_note import NoteKey

    refuse_private_key(os.fsencode(text), "the given key")
    try:
        return NoteKey.parse(text)
    except PinwardenError as err:
        raise PinwardenError(err.code, f"not a registry's verifier key: {err.message}", hint=_REGISTRY_KEY) from err
