"""``ci``, the check for pipelines."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.commands import command
from pinwarden.cli.key_arguments import add_gate_signature_arguments, build_signature_check
from pinwarden.cli.output import add_report_arguments, emit_report
from pinwarden.cli.project_arguments import add_repeatable_project_arguments, add_scope_argument, find_projects
from pinwarden.cli.server_arguments import add_probe_arguments
from pinwarden.core.digest import Digest
from pinwarden.core.errors import EXIT_USAGE, PinwardenError
from pinwarden.project.project import Project, load_policies

if TYPE_CHECKING:
    from pinwarden.project.gate.gate_report import GateResult


def _configure_ci(parser: ArgumentParser) -> None:
    add_repeatable_project_arguments(parser)
    add_scope_argument(parser)
    add_report_arguments(parser)
    parser.add_argument(
        "--expect-digest",
        metavar="DIGEST",
        help="digest that the lock must have (from pinwarden lock digest --sealed), kept outside the repository",
    )
    parser.add_argument(
        "--require-lock", action="store_true", help="fail without a lock, even if no MCP server is configured"
    )
    parser.add_argument(
        "--require-extension", action="store_true", help="fail if a lock entry lacks Pinwarden's extension fields"
    )
    parser.add_argument(
        "--environment",
        default="default",
        metavar="NAME",
        help="apply the minimum trust tier that the policy sets for this environment (default: default)",
    )
    parser.add_argument("--require-policy", action="store_true", help="fail if the project has no policy")
    parser.add_argument("--no-configs", action="store_true", help="do not compare client configurations with the lock")
    parser.add_argument("--registry", action="store_true", help="look up each locked version in its registry again")
    parser.add_argument("--offline", action="store_true", help="with --registry: use only local files and caches")
    parser.add_argument("--bytes", action="store_true", help="download the locked packages and compare their hashes")
    parser.add_argument(
        "--osv", metavar="PATH", help="check locked packages against OSV records in this folder or ZIP file"
    )
    parser.add_argument("--trust-root", metavar="FILE", help="with --bytes: sigstore trusted root to use")
    parser.add_argument(
        "--live",
        action="store_true",
        help="connect to the servers and compare their tools with the approved ones; also turns on --registry",
    )
    add_gate_signature_arguments(parser)
    add_probe_arguments(parser)


@command(_configure_ci)
def ci(args: Namespace) -> int:
    """Check that everything is as you approved it, and fail if it is not.

    Always checks the lockfile, the approved surfaces next to it, the client configurations, and the policy. Options add
    slower checks: --live connects to the servers, --registry looks up the locked versions, --bytes downloads and hashes
    the packages, --public-key requires a signature. The command changes nothing in the project; outside it, it records
    when each server was checked, for pinwarden status (last-checked.json).

    In a repository, all folders are searched for client configurations: a server that no lock covers fails the check. A
    repository without MCP servers passes.

    Examples:
      pinwarden ci
      pinwarden ci --live --allow-execute
      pinwarden ci --format github --format sarif=pinwarden.sarif --format junit=pinwarden.xml
      pinwarden ci --project services/search --project services/mail
    """
    from pinwarden.project.gate.gate_report import add_locations, build_gate_report
    from pinwarden.project.gate.repository_check import add_coverage, check_coverage
    from pinwarden.project.project import project_in_scope
    from pinwarden.system.repository import find_repository_root

    projects = tuple(project_in_scope(project, args.scope or "project") for project in find_projects(args))
    _refuse_single_project_options(args, projects)
    root = find_repository_root(projects[0].root)
    single = len(projects) == 1
    checked = [add_locations(project, _check(args, project, single=single), root, alone=single) for project in projects]
    if root is not None and not args.no_configs and projects[0].scope == "project":
        # Reports have one section per project and none for the repository, so the first project gets these rows.
        policies = load_policies(projects[0], args.environment)
        checked[0] = add_coverage(checked[0], check_coverage(root, projects, policies))
    return emit_report(build_gate_report(checked), args)


def _check(args: Namespace, project: Project, *, single: bool) -> GateResult:
    """Check one project. With several projects, an error in one becomes part of the report."""
    try:
        return _run_checks(args, project)
    except PinwardenError as err:
        if single or err.exit_code == EXIT_USAGE:
            raise
        from pinwarden.project.gate.gate_report import build_unchecked_result

        return build_unchecked_result(project, err)


def _run_checks(args: Namespace, project: Project) -> GateResult:
    from pinwarden.project.gate.check import GateOptions, check_project
    from pinwarden.system.clock import now

    probe = None
    if args.live:
        from pinwarden.cli.server_arguments import probe_options

        probe = probe_options(args)
    gate = GateOptions(
        now=now(),
        registries=project.load_registries(offline=args.offline) if args.registry or args.live else None,
        registry_requested=args.registry,
        probe=probe,
        configs=not args.no_configs,
        expect_digest=_parse_digest(args.expect_digest),
        require_lock=args.require_lock or bool(args.file),
        require_extension=args.require_extension,
        require_policy=args.require_policy,
        signatures=build_signature_check(args, project),
        osv=Path(args.osv) if args.osv else None,
    )
    policies = load_policies(project, args.environment)
    if not args.bytes:
        return check_project(project, policies, gate)
    from pinwarden.cli.fetch_arguments import DownloadOptions, open_fetch_context
    from pinwarden.core.record import replace

    downloads = DownloadOptions(
        offline=args.offline,
        allow_private=args.allow_private,
        trust_root=Path(args.trust_root) if args.trust_root else None,
    )
    with open_fetch_context(downloads, project, "downloading and hashing") as context:
        return check_project(project, policies, replace(gate, fetch_context=context))


def _refuse_single_project_options(args: Namespace, projects: Sequence[Project]) -> None:
    for option, value in (("--expect-digest", args.expect_digest), ("--signature", args.signature)):
        if value and len(projects) > 1:
            raise PinwardenError(
                "USAGE",
                f"{option} applies to one project, but {len(projects)} are given",
                hint=f"Run pinwarden ci once per project: pinwarden ci --project DIR {option} VALUE",
            )


def _parse_digest(text: str | None) -> str | None:
    """Return the digest in the lock's format. A malformed digest is a usage error, not a sign of an edited lock."""
    if text is None:
        return None
    try:
        return Digest.parse(text).sri
    except PinwardenError as err:
        raise PinwardenError("USAGE", f"--expect-digest: {err.message}", hint=err.hint) from err
