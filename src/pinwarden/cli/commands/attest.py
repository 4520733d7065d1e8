"""Check every byte of a bundle, then vouch for it: integrity, and with --claim also audit or compatibility.

The claim is signed and written as an envelope that installers count if they know the key and trust it in that role. It
holds until --expires, or for as long as --expires-in says: 90d, 12h.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from datetime import datetime, timedelta
from pathlib import Path

from pinwarden.cli.bundle_arguments import add_bundle_arguments, bundle_of
from pinwarden.cli.key_arguments import add_signer_arguments
from pinwarden.cli.output import add_format_argument, emit

_ROLES = ("verifier", "maintainer", "auditor")
_CLAIMS = ("integrity", "audit", "compatibility")
_SPAN = re.compile(r"([1-9][0-9]{0,4})([dh])")


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_bundle_arguments(parser)
    add_signer_arguments(parser)
    parser.add_argument("--role", required=True, choices=_ROLES, help="as what you vouch for it")
    parser.add_argument("--claim", nargs="+", action="extend", choices=_CLAIMS, help="what you say of it (integrity)")
    until = parser.add_mutually_exclusive_group()
    until.add_argument("--expires", metavar="MOMENT", help="until when it holds, such as 2027-01-31T00:00:00Z")
    until.add_argument("--expires-in", type=_span, metavar="SPAN", help="how long it holds: 90d, 12h")
    parser.add_argument("--output", "-o", metavar="FILE", help="(ARCHIVE.ROLE.attestation.json)")
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Check, vouch and report."""
    from pinwarden.bundle.attest import Attesting, attest
    from pinwarden.cli.key_arguments import signer_of
    from pinwarden.system.clock import now

    files, moment = bundle_of(args), now()
    beside = files.archive.with_name(f"{files.archive.name}.{args.role}.attestation.json")
    attesting = Attesting(
        files=files,
        signer=signer_of(args),
        role=args.role,
        claims=tuple(dict.fromkeys(args.claim or ("integrity",))),
        now=moment,
        expires=_after(moment, args.expires_in) if args.expires_in else args.expires,
        output=Path(args.output) if args.output else beside,
    )
    return emit(attest(attesting), args.format)


def _span(text: str) -> timedelta:
    found = _SPAN.fullmatch(text)
    if not found:
        raise ArgumentTypeError(f"{text[:40]!a} is not a number of days or hours, such as 90d or 12h")
    number = int(found[1])
    return timedelta(days=number) if found[2] == "d" else timedelta(hours=number)


def _after(moment: str, span: timedelta) -> str:
    return (datetime.fromisoformat(moment) + span).strftime("%Y-%m-%dT%H:%M:%SZ")
