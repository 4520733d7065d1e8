"""Trust somebody: a registry by the key of its log, or a person who attests by their key and roles.

A registry is named by its verifier key (name+id+key), which pinwarden registry serve prints in its third line and which
holds the origin of the log, or by its registry.json, if you got that by a way that you trust. People are named by
did:key:… or a file, and count only in the roles that you give them. --replaces gives somebody a new key and revokes the
old one in the same step. The store is PINWARDEN_TRUST, or a file in your folder of settings; no project can change it.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from pinwarden.core.keys import PublicKey
    from pinwarden.core.note import NoteKey

_IDENTITY_BYTES = 64 * 1024
_REGISTRY_KEY = "A registry is given as name+id+key, which pinwarden registry serve prints, or as its registry.json."


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument(
        "key", metavar="KEY", help="did:key:…, a file with a public key, or a registry's name+id+key or registry.json"
    )
    parser.add_argument("--name", default="", metavar="NAME", help="what you call them")
    parser.add_argument(
        "--role",
        action="append",
        default=[],
        choices=("verifier", "maintainer", "auditor", "registry"),
        help="what they may speak as; may be given again",
    )
    parser.add_argument("--replaces", metavar="KEY", help="the key or name whose new key this is; the old is revoked")
    parser.add_argument("--why", default="", metavar="TEXT", help="why the old key is replaced")
    pinned = parser.add_argument_group("a registry")
    pinned.add_argument("--url", metavar="URL", help="where it is: an address, a folder, or oci://host/repository")
    pinned.add_argument("--pointer-key", metavar="KEY", help="the key of its pointers, if not that of its log")
    pinned.add_argument("--witness", action="append", default=[], metavar="VKEY", help="a witness of its log")
    pinned.add_argument("--witnesses-needed", type=int, metavar="N", help="how many of them must have signed (all)")
    pinned.add_argument(
        "--max-age-days", type=int, default=14, metavar="N", help="how old its word about its log may be (14)"
    )
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Trust and report."""
    from pinwarden.cli.install_arguments import trust_file
    from pinwarden.core.cosignature import WitnessKey
    from pinwarden.install.trust import Trusting, add_trust
    from pinwarden.system.clock import present

    key, log = _keys(args)
    witnesses = tuple(dict.fromkeys(WitnessKey.parse(each) for each in args.witness))
    needed = len(witnesses) if args.witnesses_needed is None else args.witnesses_needed
    if not 0 <= needed <= len(witnesses) or not 1 <= args.max_age_days <= 3650:
        raise PinwardenError("USAGE", "more witnesses are needed than are named, or the age is not from 1 to 3650 days")
    wanted = Trusting(
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
    return emit(add_trust(trust_file(), wanted, present()), args.format)


def _keys(args: Namespace) -> tuple[PublicKey | None, NoteKey | None]:
    """A registry has a key with a name in it; everybody else has a plain one."""
    from pinwarden.cli.key_arguments import public_keys

    pointer = next(iter(public_keys([args.pointer_key]).values())) if args.pointer_key else None
    if args.key.endswith(".json"):
        return pointer, _identity_key(args.key)
    if "+" in args.key and not args.key.startswith("did:") and not Path(args.key).exists():
        return pointer, _log_key(args.key)
    return next(iter(public_keys([args.key]).values())), None


def _identity_key(file: str) -> NoteKey:
    """The key of the log in a registry's own description of itself."""
    from pinwarden.cli.key_arguments import public_key_bytes
    from pinwarden.core.key_texts import shape_of
    from pinwarden.registry.version import parse_identity

    data = public_key_bytes(file, _IDENTITY_BYTES)
    try:
        return parse_identity(data).note_key
    except PinwardenError as err:
        what = "damaged JSON" if shape_of(data) == "JSON" and err.code.startswith("JSON_") else shape_of(data)
        message = f"{file[:200]!a} is {what}, not the registry.json of a registry: {err.message}"
        raise PinwardenError(err.code, message, hint=_REGISTRY_KEY) from err


def _log_key(text: str) -> NoteKey:
    """A registry's verifier key, as text."""
    from pinwarden.core.key_texts import refuse_private
    from pinwarden.core.note import NoteKey

    refuse_private(os.fsencode(text), "what was given")
    try:
        return NoteKey.parse(text)
    except PinwardenError as err:
        raise PinwardenError(
            err.code, f"not the verifier key of a registry: {err.message}", hint=_REGISTRY_KEY
        ) from err
