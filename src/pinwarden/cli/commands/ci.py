"""Check that everything is as it was approved, and fail if it is not. Nothing is resolved anew; nothing is written.

Checks the lock and the approved texts beside it, every client configuration that exists, and the policy. --public-key
demands a signature of the lock as well. --registry looks each locked version up again; --bytes fetches and hashes what
was locked; --live asks the servers and compares what they tell the model.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pinwarden.cli.key_arguments import add_gate_signature_arguments, signature_check_of
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.probe_arguments import add_probe_arguments
from pinwarden.cli.project_arguments import add_project_arguments, add_scope_argument, project_of
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_project_arguments(parser)
    add_scope_argument(parser)
    add_format_argument(parser)
    parser.add_argument("--expect-digest", metavar="DIGEST", help="the lock's digest, from where nobody can edit both")
    parser.add_argument("--require-extension", action="store_true", help="refuse entries without our record")
    parser.add_argument(
        "--environment", default="default", metavar="NAME", help="whose minimum tier of the policy counts"
    )
    parser.add_argument("--require-policy", action="store_true", help="fail where no policy is written down")
    parser.add_argument("--no-configs", action="store_true", help="do not look at client configurations")
    parser.add_argument("--registry", action="store_true", help="look each locked version up again")
    parser.add_argument("--offline", action="store_true", help="with --registry: only local sources and caches")
    parser.add_argument("--bytes", action="store_true", help="fetch the locked artifacts again and hash them")
    parser.add_argument("--osv", metavar="PATH", help="look locked packages up in this export of OSV records")
    parser.add_argument("--trust-root", metavar="FILE", help="with --bytes: a sigstore trusted root of your own")
    parser.add_argument("--live", action="store_true", help="ask the live servers, and the registry")
    add_gate_signature_arguments(parser)
    add_probe_arguments(parser)


def run(args: Namespace) -> int:
    """Check and report."""
    from pinwarden.adapters.clock import now
    from pinwarden.flows.gate.check import check
    from pinwarden.flows.gate.gate import Gate
    from pinwarden.flows.project import load_policies

    project = project_of(args)
    probe = None
    if args.live:
        from pinwarden.cli.targets import options_of

        probe = options_of(args)
    gate = Gate(
        now=now(),
        registries=project.registries(offline=args.offline) if args.registry or args.live else None,
        registry_wanted=args.registry,
        probe=probe,
        configs=not args.no_configs,
        scope=args.scope,
        expect_digest=_digest(args.expect_digest),
        require_extension=args.require_extension,
        require_policy=args.require_policy,
        signatures=signature_check_of(args, project),
        osv=Path(args.osv) if args.osv else None,
    )
    policies = load_policies(project, args.environment)
    if not args.bytes:
        return emit(check(project, policies, gate), args.format)
    from pinwarden.cli.fetch_arguments import workshop
    from pinwarden.core.record import replace

    with workshop(args, project, "hashing") as shop:
        report = check(project, policies, replace(gate, workshop=shop))
    return emit(report, args.format)


def _digest(text: str | None) -> str | None:
    """The digest in the spelling of a lock. Half a digest is a slip of the hand, and no sign of an edited lock."""
    if text is None:
        return None
    try:
        return Digest.parse(text).sri
    except PinwardenError as err:
        raise PinwardenError("USAGE", f"--expect-digest: {err.message}", hint=err.hint) from err
