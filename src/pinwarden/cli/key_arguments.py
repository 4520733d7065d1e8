"""Keys on the command line: private keys in files or variables, public keys in files or as did:key."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace

if TYPE_CHECKING:
    from argparse import _ActionsContainer
    from datetime import datetime

    from pinwarden.core.keys import PrivateKey, PublicKey, Signer
    from pinwarden.lock.signature import RequiredSigners
    from pinwarden.project.lock_signatures import SignatureOptions
    from pinwarden.project.project import Project

SIGNATURE_FILE = "mcp-lock.sig"
MAX_PUBLIC_KEY = 64 * 1024
"""Maximum size of a public key file in bytes; most have about a hundred."""
PASSPHRASE_VARIABLE = "PINWARDEN_KEY_PASSPHRASE"  # noqa: S105  # the name of a variable, not its value
PUBLIC_KEY_HELP = "trusted public key: [NAME=]FILE or [NAME=]did:key:…; repeatable"
KEYS_REQUIRED = "a signature check needs at least one trusted key: --public-key KEY"


def add_signer_arguments(parser: ArgumentParser) -> None:
    """Add ``--key`` and ``--key-env``: the key to sign with."""
    signer = parser.add_mutually_exclusive_group(required=True)
    signer.add_argument("--key", metavar="FILE", help="file with the private key to sign with")
    signer.add_argument("--key-env", metavar="NAME", help="environment variable with the private key in PEM format")


def load_signer(args: Namespace) -> Signer:
    """Return the signing key that the options name. An encrypted key is decrypted as in ``read_private_keys``."""
    if args.key is not None:
        return _read_private_key(Path(args.key))
    from pinwarden.system.key_files import load_environment_signer

    passphrase = os.environ.get(PASSPHRASE_VARIABLE)
    return load_environment_signer(args.key_env, os.fsencode(passphrase) if passphrase else None)


def read_private_keys(names: Sequence[str]) -> tuple[PrivateKey, ...]:
    """Return the keys in these files. The passphrase of an encrypted key comes from a variable or the terminal."""
    return tuple(_read_private_key(Path(name)) for name in names)


def read_public_keys(texts: Sequence[str]) -> dict[str, PublicKey]:
    """Read keys by name: the NAME of ``NAME=KEY``, else the stem of the file, else the did:key itself."""
    keys: dict[str, PublicKey] = {}
    for text in texts:
        name, key = _read_public_key(text)
        if name in keys:
            raise PinwardenError("USAGE", f"two public keys are named {name[:80]!a}", hint="Name them: NAME=FILE.")
        keys[name] = key
    return keys


def read_passphrase(variable: str) -> bytes:
    """Return the passphrase in an environment variable, which must not be empty."""
    value = os.environ.get(variable)
    if not value:
        raise PinwardenError("VARIABLE_MISSING", f"the variable {variable[:80]!a} is not set, or empty")
    return os.fsencode(value)


def add_gate_signature_arguments(parser: ArgumentParser) -> None:
    """Add the options with which ``ci`` requires signatures of the lock."""
    signed = parser.add_argument_group("requiring a signed lock")
    add_signature_file_arguments(signed)
    signed.add_argument(
        "--require-signer",
        dest="require",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="names of keys that must all have signed",
    )
    signed.add_argument(
        "--require-signatures",
        dest="threshold",
        type=parse_signature_count,
        default=1,
        metavar="N",
        help="minimum number of distinct keys that must have signed (default: 1)",
    )
    signed.add_argument(
        "--signed-policy", metavar="FILE", help="policy that the signature must cover (default: the project's policy)"
    )
    signed.add_argument(
        "--signed-since",
        metavar="TIME",
        help="refuse signatures older than this time, such as that of the newest known signature; keep it outside the "
        "repository",
    )
    signed.add_argument(
        "--signed-since-ref",
        metavar="REF",
        help="refuse signatures older than the one in this git revision, for example origin/main",
    )
    add_partial_argument(signed)


def add_signature_file_arguments(parser: _ActionsContainer) -> None:
    """Add ``--signature`` and ``--public-key``."""
    parser.add_argument(
        "--signature",
        nargs="+",
        action="extend",
        metavar="FILE",
        help=f"files with detached signatures (default: {SIGNATURE_FILE})",
    )
    parser.add_argument("--public-key", nargs="+", action="extend", default=[], metavar="KEY", help=PUBLIC_KEY_HELP)


def add_partial_argument(parser: _ActionsContainer) -> None:
    """Add ``--accept-partial``."""
    parser.add_argument(
        "--accept-partial",
        action="store_true",
        help="accept a ToolPin signature although it does not cover Pinwarden's own fields in the lock",
    )


def build_signature_check(args: Namespace, project: Project) -> SignatureOptions | None:
    """Return the signatures that the options require; None if they require none."""
    if not args.public_key:
        options = (args.signature, args.require, args.signed_policy, args.signed_since, args.signed_since_ref)
        if any(options) or args.threshold > 1 or args.accept_partial:
            raise PinwardenError("USAGE", KEYS_REQUIRED)
        return None
    from pinwarden.project.lock_signatures import SignatureOptions

    keys = read_public_keys(args.public_key)
    files = find_signature_files(args, project)
    return SignatureOptions(
        files=files,
        keys=keys,
        required=replace(build_required_signers(args, keys), signed_since=_find_signed_since(args, files, keys)),
        policy=Path(args.signed_policy) if args.signed_policy else None,
    )


def find_signature_files(args: Namespace, project: Project) -> tuple[Path, ...]:
    """Return the signatures that the options name, or the one in the project's folder."""
    return tuple(Path(name) for name in args.signature or [project.root / SIGNATURE_FILE])


def build_required_signers(args: Namespace, keys: Mapping[str, PublicKey]) -> RequiredSigners:
    """Return which keys, and how many, must have signed."""
    from pinwarden.lock.signature import RequiredSigners

    unknown = next((name for name in args.require if name not in keys), None)
    if unknown is not None:
        raise PinwardenError("USAGE", f"no public key is named {unknown[:80]!a}; known names: {', '.join(keys)}")
    return RequiredSigners(names=tuple(args.require), threshold=args.threshold, accept_partial=args.accept_partial)


def parse_signature_count(text: str) -> int:
    """Return a number of signatures, 1 to 1000."""
    if not text.isascii() or not text.isdigit() or len(text) > 4 or not 1 <= int(text) <= 1000:
        raise ArgumentTypeError(f"{text[:40]!a} is not a number from 1 to 1000")
    return int(text)


def read_public_key_file(text: str, max_bytes: int = MAX_PUBLIC_KEY) -> bytes:
    """Return the bytes of a public key file. Refuses a private key, in the file or pasted instead of a file name."""
    from pinwarden.core.keys import EXPECTED_KEY_FORMS, refuse_private_key
    from pinwarden.system.files import read_file

    refuse_private_key(os.fsencode(text), "the given key")
    path, quoted = Path(text), f"{text[:200]!a}"
    if path.is_dir():
        raise PinwardenError("KEY_INVALID", f"{quoted} is a folder, not a key", hint=EXPECTED_KEY_FORMS)
    if not path.exists():
        raise PinwardenError("FILE_UNREADABLE", f"there is no file {quoted}", hint=EXPECTED_KEY_FORMS)
    try:
        data = read_file(path, max_bytes)
    except PinwardenError as err:
        if "larger" not in err.message:
            raise
        raise PinwardenError("KEY_INVALID", f"{quoted} is too large for a key", hint=EXPECTED_KEY_FORMS) from err
    refuse_private_key(data, quoted, f"{text[:200]}.pub" if Path(f"{text}.pub").is_file() else "")
    return data


def _read_private_key(path: Path) -> PrivateKey:
    from pinwarden.system.key_files import load_key_file

    passphrase = os.environ.get(PASSPHRASE_VARIABLE)
    try:
        return load_key_file(path, os.fsencode(passphrase) if passphrase else None)
    except PinwardenError as err:
        if err.code != "KEY_PASSPHRASE_REQUIRED":
            raise
        if passphrase or not sys.stdin.isatty():
            hint = f"Set {PASSPHRASE_VARIABLE} to the passphrase, or run the command on a terminal."
            raise PinwardenError(err.code, f"{path}: {err.message}", hint=hint) from err
    from getpass import getpass

    return load_key_file(path, os.fsencode(getpass(f"passphrase of {path}: ")))


def _read_public_key(text: str) -> tuple[str, PublicKey]:
    from pinwarden.core.keys import PublicKey, not_a_key_error

    name, separator, rest = text.partition("=")
    if not separator or Path(text).is_file():
        name, rest = "", text
    if rest.startswith("did:"):
        key = PublicKey.from_did(rest)
        return name or key.did, key
    data = read_public_key_file(rest)
    try:
        key = PublicKey.parse(data.decode("ascii").strip())
    except (UnicodeDecodeError, PinwardenError) as err:
        raise not_a_key_error(data, f"{rest[:200]!a}") from err
    return name or Path(rest).stem, key


def _find_signed_since(args: Namespace, files: Sequence[Path], keys: Mapping[str, PublicKey]) -> datetime | None:
    """Return the time of the newest known signature: from the option or from a git revision, whichever is later."""
    from pinwarden.core.text import parse_timestamp
    from pinwarden.lock.signature import find_newest_signing_time
    from pinwarden.system.repository import read_file_at_revision

    since = None
    if args.signed_since:
        since = parse_timestamp(args.signed_since)
        if since is None:
            raise PinwardenError("USAGE", "--signed-since needs a time with its zone, such as 2026-07-20T12:00:00Z")
    if not args.signed_since_ref:
        return since
    earlier = [read_file_at_revision(file, args.signed_since_ref, os.environ) for file in files]
    newest = find_newest_signing_time([data for data in earlier if data is not None], keys)
    return max((time for time in (since, newest) if time is not None), default=None)
