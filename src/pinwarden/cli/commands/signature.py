"""``keygen``, ``sign``, ``attest``, ``lock sign`` and ``lock verify-signature``: keys and signatures."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.bundle_arguments import add_bundle_arguments, get_bundle_files
from pinwarden.cli.commands import command
from pinwarden.cli.key_arguments import (
    KEYS_REQUIRED,
    SIGNATURE_FILE,
    add_partial_argument,
    add_signature_file_arguments,
    add_signer_arguments,
    build_required_signers,
    find_signature_files,
    load_signer,
    parse_signature_count,
    read_passphrase,
    read_private_keys,
    read_public_keys,
)
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import (
    add_approval_arguments,
    add_database_argument,
    add_project_arguments,
    approver_from,
    open_database,
    project_from,
)
from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from pinwarden.project.project import Project

_ROLES = ("verifier", "maintainer", "auditor")
_CLAIMS = ("integrity", "audit", "compatibility")
_DURATION = re.compile(r"([1-9][0-9]{0,4})([dh])")


def _configure_keygen(parser: ArgumentParser) -> None:
    parser.add_argument("file", help="where to write the private key")
    parser.add_argument(
        "--passphrase-env", metavar="NAME", help="encrypt the key with the passphrase in this environment variable"
    )
    add_format_argument(parser)


@command(_configure_keygen)
def keygen(args: Namespace) -> int:
    """Create an Ed25519 key pair: FILE is the private key, readable only by you; FILE.pub is the public key.

    Existing files are not overwritten.

    Examples:
      pinwarden keygen new.pem
    """
    from pinwarden.project.lock_signatures import create_key_pair

    passphrase = read_passphrase(args.passphrase_env) if args.passphrase_env else None
    return emit(create_key_pair(Path(args.file), passphrase), args.format)


def _configure_sign(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the document to sign")
    add_signer_arguments(parser)
    parser.add_argument(
        "--output", "-o", metavar="FILE", help="where to write the signed document (default: replace the document)"
    )
    add_format_argument(parser)


@command(_configure_sign)
def sign(args: Namespace) -> int:
    """Sign a document of a bundle or of a transparency log: a pointer, an attestation, an event or a checkpoint.

    The signature is added to the document; an earlier signature by the same key is replaced. To sign a lockfile, use
    pinwarden lock sign.

    Examples:
      pinwarden sign notes.attestation.json --key release.pem --output signed.attestation.json
    """
    from pinwarden.bundle.signed_documents import sign_file

    path = Path(args.file)
    return emit(sign_file(path, load_signer(args), Path(args.output) if args.output else path), args.format)


def _configure_attest(parser: ArgumentParser) -> None:
    add_bundle_arguments(parser)
    add_signer_arguments(parser)
    parser.add_argument("--role", required=True, choices=_ROLES, help="the role in which you sign")
    parser.add_argument(
        "--claim", nargs="+", action="extend", choices=_CLAIMS, help="what you attest (default: integrity)"
    )
    expiry = parser.add_mutually_exclusive_group()
    expiry.add_argument("--expires", metavar="TIME", help="when the attestation expires, e.g. 2027-01-31T00:00:00Z")
    expiry.add_argument(
        "--expires-in", type=_parse_duration, metavar="DURATION", help="how long it is valid, e.g. 90d or 12h"
    )
    parser.add_argument(
        "--output", "-o", metavar="FILE", help="where to write the attestation (default: ARCHIVE.ROLE.attestation.json)"
    )
    add_format_argument(parser)


@command(_configure_attest)
def attest(args: Namespace) -> int:
    """Check every byte of a bundle, then sign an attestation for it.

    The attestation counts for every user who trusts your key in the role given with --role (pinwarden trust add).

    Examples:
      pinwarden attest acme.notes-1.0.0.car --key release.pem --role maintainer --expires-in 90d
    """
    from pinwarden.bundle.signed_documents import AttestOptions, attest
    from pinwarden.system.clock import now

    files, time = get_bundle_files(args), now()
    default_output = files.archive.with_name(f"{files.archive.name}.{args.role}.attestation.json")
    options = AttestOptions(
        files=files,
        signer=load_signer(args),
        role=args.role,
        claims=tuple(dict.fromkeys(args.claim or ("integrity",))),
        now=time,
        expires=_add_duration(time, args.expires_in) if args.expires_in else args.expires,
        output=Path(args.output) if args.output else default_output,
    )
    return emit(attest(options), args.format)


def _configure_lock_sign(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--key", action="append", required=True, metavar="FILE", help="private key; repeatable with --dsse"
    )
    parser.add_argument(
        "--policy", metavar="FILE", help="policy whose digest the signature includes (default: the project's policy)"
    )
    parser.add_argument(
        "--dsse",
        action="store_true",
        help="sign the complete file in a DSSE envelope, which may have several signatures",
    )
    parser.add_argument("--add", action="store_true", help="with --dsse: keep the existing signatures")
    parser.add_argument(
        "--output",
        "-o",
        metavar="FILE",
        help=f"where to write the signature (default: {SIGNATURE_FILE} in the project folder)",
    )
    add_project_arguments(parser)
    add_format_argument(parser)


@command(_configure_lock_sign, writes="signature")
def lock_sign(args: Namespace) -> int:
    """Sign the lockfile with an Ed25519 key, in a separate file.

    The default is ToolPin's format, which covers only the fields of lockfileVersion 2. --dsse signs the complete file.
    A lock that was changed outside Pinwarden is not signed. The passphrase of an encrypted key is read from
    PINWARDEN_KEY_PASSPHRASE or from the terminal.

    Examples:
      pinwarden lock sign --key release.pem
      pinwarden lock sign --key release.pem --dsse --output mcp-lock.dsse.json
    """
    if (len(args.key) > 1 or args.add) and not args.dsse:
        raise PinwardenError(
            "USAGE", "ToolPin's format can contain only one signature", hint="Use --dsse for several signatures."
        )
    from pinwarden.project.lock_signatures import SigningRequest, sign_lock
    from pinwarden.system.clock import now

    project = project_from(args)
    request = SigningRequest(
        lock=project.lock,
        output=Path(args.output) if args.output else project.root / SIGNATURE_FILE,
        keys=read_private_keys(args.key),
        now=now(),
        policy=_find_signed_policy(args, project),
        dsse=args.dsse,
        add=args.add,
    )
    return emit(sign_lock(request), args.format)


def _configure_lock_verify_signature(parser: ArgumentParser) -> None:
    add_signature_file_arguments(parser)
    parser.add_argument(
        "--require",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="names of keys that must all have signed",
    )
    parser.add_argument(
        "--threshold",
        type=parse_signature_count,
        default=1,
        metavar="N",
        help="minimum number of distinct keys that must have signed (default: 1)",
    )
    parser.add_argument(
        "--policy", metavar="FILE", help="policy that the signature must cover (default: the project's policy)"
    )
    add_partial_argument(parser)
    add_project_arguments(parser)
    add_format_argument(parser)


@command(_configure_lock_verify_signature)
def lock_verify_signature(args: Namespace) -> int:
    """Check that enough of the given keys signed the lockfile.

    Without --require and --threshold, one signature by any of the keys is enough. An invalid signature among valid
    ones is reported and ignored. The exit code is 1 if a required signature is missing or the lock was changed.

    Examples:
      pinwarden lock verify-signature --public-key release.pem.pub
      pinwarden lock verify-signature --public-key ada=release.pem.pub --require ada
    """
    if not args.public_key:
        raise PinwardenError("USAGE", KEYS_REQUIRED)
    from pinwarden.project.lock_signatures import verify_lock_signatures

    keys = read_public_keys(args.public_key)
    required = build_required_signers(args, keys)
    project = project_from(args)
    signatures = find_signature_files(args, project)
    policy = _find_signed_policy(args, project)
    return emit(verify_lock_signatures(project.lock, signatures, keys, required, policy), args.format)


def _configure_lock_publish(parser: ArgumentParser) -> None:
    parser.add_argument("--name", default="default", metavar="NAME", help="name to publish under (default: default)")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--key", action="append", default=[], metavar="FILE", help="private key to sign with; repeatable"
    )
    source.add_argument(
        "--signature", metavar="FILE", help="signature from pinwarden lock sign --dsse, instead of signing now"
    )
    add_approval_arguments(parser)
    add_database_argument(parser)
    add_project_arguments(parser)
    add_format_argument(parser)


@command(_configure_lock_publish)
def lock_publish(args: Namespace) -> int:
    """Publish the lock, its approved surfaces and the project's pinwarden.toml in the gateways' database.

    Gateways that were started with --published NAME apply it within two seconds. They continue with the lock before if
    it lacks a signature that they require, or is older. Run it in CI, after the checks of the main branch have passed.

    Examples:
      pinwarden lock publish --key release.pem
    """
    from pinwarden.gateway.published_lock import Publication, publish_lock
    from pinwarden.gateway.store.published_locks import check_name
    from pinwarden.lock.entry import LOCK_LIMITS
    from pinwarden.system.clock import now
    from pinwarden.system.files import read_file

    project = project_from(args)
    publication = Publication(
        name=check_name(args.name),
        keys=read_private_keys(args.key),
        envelope=read_file(Path(args.signature), LOCK_LIMITS.max_bytes) if args.signature else None,
        by=approver_from(args).by,
        now=now(),
    )
    with open_database(args, project) as state:
        return emit(publish_lock(lambda: state.published_locks, project, publication), args.format)


def _find_signed_policy(args: Namespace, project: Project) -> Path | None:
    """Return the policy file that the signature covers: ``--policy``, or the project's; None if there is none."""
    from pinwarden.project.policy_commands import find_policy_to_sign

    return Path(args.policy) if args.policy else find_policy_to_sign(project)


def _parse_duration(text: str) -> timedelta:
    match = _DURATION.fullmatch(text)
    if not match:
        raise ArgumentTypeError(f"{text[:40]!a} is not a number of days or hours, such as 90d or 12h")
    count = int(match[1])
    return timedelta(days=count) if match[2] == "d" else timedelta(hours=count)


def _add_duration(start: str, duration: timedelta) -> str:
    return (datetime.fromisoformat(start) + duration).strftime("%Y-%m-%dT%H:%M:%SZ")
