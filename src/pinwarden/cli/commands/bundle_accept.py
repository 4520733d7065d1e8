"""Tell whether a bundle would be accepted for an install, from its documents alone: no registry, no network.

The nine steps of the verifier rulebook are taken in their order, and the first that fails is the answer. --policy is
what the installer allows: {"network": "deny", "filesystem": "read_only", "exec": "deny", "allow_legacy": false}.
--trust has the keys: {"trusted_registry_keys": [...], "known_keys": [...]}. Without --tool and --channel the first
pointer of the document counts. --literal takes the rulebook to the letter, with its holes.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.output import add_format_argument, emit


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("--pointer", required=True, metavar="FILE", help="what the registry signed")
    parser.add_argument("--descriptor", required=True, metavar="FILE", help="what the bundle is")
    parser.add_argument("--manifest", required=True, metavar="FILE", help="what files it has")
    parser.add_argument(
        "--attestation", nargs="+", action="extend", default=[], metavar="FILE", help="who vouches for it"
    )
    parser.add_argument("--policy", required=True, metavar="FILE", help="what the installer allows")
    parser.add_argument("--trust", required=True, metavar="FILE", help="whose keys count, and for what")
    parser.add_argument("--now", metavar="MOMENT", help="the moment to judge at (this one)")
    parser.add_argument("--tool", metavar="NAME", help="the tool that was asked for")
    parser.add_argument("--channel", metavar="NAME", help="the channel that was asked for")
    parser.add_argument("--literal", action="store_true", help="the rulebook to the letter, with its holes")
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Judge and report."""
    from pinwarden.bundle.accept import AcceptanceFiles, judge
    from pinwarden.system.clock import present

    files = AcceptanceFiles(
        pointer=Path(args.pointer),
        descriptor=Path(args.descriptor),
        manifest=Path(args.manifest),
        attestations=tuple(Path(name) for name in args.attestation),
        policy=Path(args.policy),
        trust=Path(args.trust),
    )
    moment = present() if args.now is None else args.now
    report = judge(files, moment, tool=args.tool, channel=args.channel, literal=args.literal)
    return emit(report, args.format)
