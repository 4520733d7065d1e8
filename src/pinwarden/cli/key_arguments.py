"""Keys that a user names on the command line: private ones in files, public ones in files or as did:key."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace

if TYPE_CHECKING:
    from datetime import datetime

    from pinwarden.core.keys import PrivateKey, PublicKey, Signer
    from pinwarden.lock.signature import RequiredSigners
    from pinwarden.project.lock_signatures import SignatureCheck
    from pinwarden.project.project import Project

SIGNATURE_FILE = "mcp-lock.sig"
MAX_PUBLIC_KEY = 64 * 1024
"""Bytes of a file with a public key, which has about a hundred."""

PASSPHRASE_VARIABLE = "PINWARDEN_KEY_PASSPHRASE"  # noqa: S105  # the name of a variable, not its value


def private_keys(names: Sequence[str]) -> tuple[PrivateKey, ...]:
    """The keys in these files; an encrypted one is opened with the variable, or by asking on a terminal."""
    return tuple(_private_key(Path(name)) for name in names)


def add_signer_arguments(parser: ArgumentParser) -> None:
    """The options that name a signing key."""
    signer = parser.add_mutually_exclusive_group(required=True)
    signer.add_argument("--key", metavar="FILE", help="the private key to sign with")
    signer.add_argument("--key-env", metavar="NAME", help="the variable that holds the private key as PEM")


def signer_of(args: Namespace) -> Signer:
    """The signer that the options name; an encrypted key is opened as ``private_keys`` does."""
    if args.key is not None:
        return _private_key(Path(args.key))
    from pinwarden.system.signers import environment_signer

    given = os.environ.get(PASSPHRASE_VARIABLE)
    return environment_signer(args.key_env, os.fsencode(given) if given else None)


def public_keys(texts: Sequence[str]) -> dict[str, PublicKey]:
    """Keys by name. ``NAME=KEY`` names one; else a file is named by its stem, and did:key by itself."""
    keys: dict[str, PublicKey] = {}
    for text in texts:
        name, key = _named_key(text)
        if name in keys:
            raise PinwardenError("USAGE", f"two public keys are named {name[:80]!a}", hint="Name them: NAME=FILE.")
        keys[name] = key
    return keys


def passphrase_in(variable: str) -> bytes:
    """The passphrase that a named environment variable holds; an empty one is not one."""
    value = os.environ.get(variable)
    if not value:
        raise PinwardenError("VARIABLE_MISSING", f"the variable {variable[:80]!a} is not set, or empty")
    return os.fsencode(value)


def _private_key(path: Path) -> PrivateKey:
    from pinwarden.system.key_files import load_key_file

    given = os.environ.get(PASSPHRASE_VARIABLE)
    try:
        return load_key_file(path, os.fsencode(given) if given else None)
    except PinwardenError as err:
        if err.code != "KEY_PASSPHRASE_REQUIRED":
            raise
        if given or not sys.stdin.isatty():
            hint = f"Put the passphrase into {PASSPHRASE_VARIABLE}, or run this on a terminal."
            raise PinwardenError(err.code, f"{path}: {err.message}", hint=hint) from err
    from getpass import getpass

    return load_key_file(path, os.fsencode(getpass(f"passphrase of {path}: ")))


def add_gate_signature_arguments(parser: ArgumentParser) -> None:
    """The options with which a gate demands signatures."""
    signed = parser.add_argument_group("demanding signatures of the lock")
    signed.add_argument(
        "--signature", nargs="+", action="extend", metavar="FILE", help=f"detached signatures ({SIGNATURE_FILE})"
    )
    signed.add_argument(
        "--public-key", nargs="+", action="extend", default=[], metavar="KEY", help="[NAME=]FILE or [NAME=]did:key:…"
    )
    signed.add_argument(
        "--require-signer",
        dest="require",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="keys that must all have signed",
    )
    signed.add_argument(
        "--require-signatures",
        dest="threshold",
        type=count,
        default=1,
        metavar="N",
        help="how many different keys at least (1)",
    )
    signed.add_argument(
        "--signed-policy", metavar="FILE", help="the policy that the signature must name (the project's own)"
    )
    signed.add_argument(
        "--signed-since",
        metavar="TIME",
        help="refuse older signatures; the time of the newest one you know, kept outside the repository",
    )
    signed.add_argument(
        "--signed-since-ref",
        metavar="REF",
        help="refuse signatures older than that of this git revision, for example origin/main",
    )
    signed.add_argument(
        "--accept-partial",
        action="store_true",
        help="let ToolPin's envelope count for a lock that holds more than it covers",
    )


def signature_check_of(args: Namespace, project: Project) -> SignatureCheck | None:
    """The signatures that the options demand; None if they demand none."""
    if not args.public_key:
        options = (args.signature, args.require, args.signed_policy, args.signed_since, args.signed_since_ref)
        if any(options) or args.threshold > 1 or args.accept_partial:
            raise PinwardenError("USAGE", NO_KEYS)
        return None
    from pinwarden.project.lock_signatures import SignatureCheck

    keys = public_keys(args.public_key)
    files = signature_files(args, project)
    return SignatureCheck(
        files=files,
        keys=keys,
        required=replace(required_signers(args, keys), signed_since=_signed_since(args, files, keys)),
        policy=Path(args.signed_policy) if args.signed_policy else None,
    )


def _signed_since(args: Namespace, files: Sequence[Path], keys: Mapping[str, PublicKey]) -> datetime | None:
    """The moment of the newest signature that is known: as it was given, or as a git revision has it."""
    from pinwarden.core.timestamps import moment_of
    from pinwarden.lock.signature import newest_signature
    from pinwarden.system.repository import file_at

    given = None
    if args.signed_since:
        given = moment_of(args.signed_since)
        if given is None:
            raise PinwardenError("USAGE", "--signed-since needs a time with its zone, such as 2026-07-20T12:00:00Z")
    if not args.signed_since_ref:
        return given
    earlier = [file_at(file, args.signed_since_ref, os.environ) for file in files]
    found = newest_signature([data for data in earlier if data is not None], keys)
    return max((each for each in (given, found) if each is not None), default=None)


NO_KEYS = "name the keys to trust with --public-key; a signature does not vouch for its own"


def signature_files(args: Namespace, project: Project) -> tuple[Path, ...]:
    """The signatures that the options name, or the one that lies in the project's folder."""
    return tuple(Path(name) for name in args.signature or [project.root / SIGNATURE_FILE])


def required_signers(args: Namespace, keys: Mapping[str, PublicKey]) -> RequiredSigners:
    """Who must have signed, as the options say."""
    from pinwarden.lock.signature import RequiredSigners

    unknown = next((name for name in args.require if name not in keys), None)
    if unknown is not None:
        raise PinwardenError("USAGE", f"no public key is named {unknown[:80]!a}; named are: {', '.join(keys)}")
    return RequiredSigners(names=tuple(args.require), threshold=args.threshold, accept_partial=args.accept_partial)


def count(text: str) -> int:
    """A number of signatures."""
    number = int(text)
    if not 1 <= number <= 1000:
        raise ValueError
    return number


def public_key_bytes(text: str, max_bytes: int = MAX_PUBLIC_KEY) -> bytes:
    """The file that is said to hold a public key. A private key is refused, in a file or in place of its name."""
    from pinwarden.core.key_texts import EXPECTED, refuse_private
    from pinwarden.system.files import read_file

    refuse_private(os.fsencode(text), "what was given")
    path, shown = Path(text), f"{text[:200]!a}"
    if path.is_dir():
        raise PinwardenError("KEY_INVALID", f"{shown} is a folder, not a key", hint=EXPECTED)
    if not path.exists():
        raise PinwardenError("FILE_UNREADABLE", f"there is no file {shown}", hint=EXPECTED)
    try:
        data = read_file(path, max_bytes)
    except PinwardenError as err:
        if "larger" not in err.message:
            raise
        raise PinwardenError("KEY_INVALID", f"{shown} is too large for a key", hint=EXPECTED) from err
    refuse_private(data, shown, f"{text[:200]}.pub" if Path(f"{text}.pub").is_file() else "")
    return data


def _named_key(text: str) -> tuple[str, PublicKey]:
    from pinwarden.core.key_texts import not_a_key
    from pinwarden.core.keys import PublicKey

    name, mark, rest = text.partition("=")
    if not mark or Path(text).is_file():
        name, rest = "", text
    if rest.startswith("did:"):
        key = PublicKey.from_did(rest)
        return name or key.did, key
    data = public_key_bytes(rest)
    try:
        key = PublicKey.parse(data.decode("ascii").strip())
    except (UnicodeDecodeError, PinwardenError) as err:
        raise not_a_key(data, f"{rest[:200]!a}") from err
    return name or Path(rest).stem, key
