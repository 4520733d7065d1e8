"""Check that everything is as it was approved, and fail if it is not. Nothing is resolved or written.

Checks the lock and the approved texts beside it, every client configuration that exists, and the policy. --public-key
demands a signature of the lock as well. --registry looks each locked version up again; --bytes fetches and hashes what
was locked; --live asks the servers and compares what they tell the model.

In a version-control repository, every folder of it is searched: MCP servers that are configured where no lock covers
them fail the run. A repository without any MCP configuration is clean.

  pinwarden ci --format github --format sarif=pinwarden.sarif --format junit=pinwarden.xml
  pinwarden ci --project services/search --project services/mail
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.key_arguments import add_gate_signature_arguments, signature_check_of
from pinwarden.cli.output import add_report_arguments, emit_report
from pinwarden.cli.probe_arguments import add_probe_arguments
from pinwarden.cli.project_arguments import add_projects_arguments, add_scope_argument, projects_of
from pinwarden.core.digest import Digest
from pinwarden.core.errors import EXIT_USAGE, PinwardenError
from pinwarden.project.project import Project, load_policies

if TYPE_CHECKING:
    from pinwarden.project.gate.report import Checked


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    add_projects_arguments(parser)
    add_scope_argument(parser)
    add_report_arguments(parser)
    parser.add_argument("--expect-digest", metavar="DIGEST", help="expected lock digest, kept outside the repository")
    parser.add_argument(
        "--require-lock", action="store_true", help="fail without a lock, also where no MCP server is configured"
    )
    parser.add_argument("--require-extension", action="store_true", help="refuse entries without our record")
    parser.add_argument(
        "--environment", default="default", metavar="NAME", help="apply this environment's minimum tier"
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
    from pinwarden.project.gate.report import gate_report
    from pinwarden.project.gate.repository import coverage_rows, in_repository, with_coverage
    from pinwarden.system.repository import repository_root

    projects = projects_of(args)
    _refuse_single_project_options(args, projects)
    root = repository_root(projects[0].root)
    alone = len(projects) == 1
    checked = [in_repository(project, _check(args, project, alone=alone), root, alone=alone) for project in projects]
    if root is not None and not args.no_configs and args.scope != "global":
        policies = load_policies(projects[0], args.environment)
        checked[0] = with_coverage(checked[0], coverage_rows(root, projects, policies))
    return emit_report(gate_report(checked), args)


def _check(args: Namespace, project: Project, *, alone: bool) -> Checked:
    """One project. An error ends the command, unless there are other projects to report."""
    try:
        return _checked(args, project)
    except PinwardenError as err:
        if alone or err.exit_code == EXIT_USAGE:
            raise
        from pinwarden.project.gate.repository import unchecked_project

        return unchecked_project(project, err)


def _checked(args: Namespace, project: Project) -> Checked:
    from pinwarden.project.gate.check import Gate, check_project
    from pinwarden.system.clock import now

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
        require_lock=args.require_lock or bool(args.file),
        require_extension=args.require_extension,
        require_policy=args.require_policy,
        signatures=signature_check_of(args, project),
        osv=Path(args.osv) if args.osv else None,
    )
    policies = load_policies(project, args.environment)
    if not args.bytes:
        return check_project(project, policies, gate)
    from pinwarden.cli.fetch_arguments import workshop
    from pinwarden.core.record import replace

    with workshop(args, project, "hashing") as shop:
        return check_project(project, policies, replace(gate, workshop=shop))


def _refuse_single_project_options(args: Namespace, projects: Sequence[Project]) -> None:
    for option, value in (("--expect-digest", args.expect_digest), ("--signature", args.signature)):
        if value and len(projects) > 1:
            raise PinwardenError(
                "USAGE",
                f"{option} belongs to one project, and there are {len(projects)}",
                hint=f"Run pinwarden ci once per project: pinwarden ci --project DIR {option} VALUE",
            )


def _digest(text: str | None) -> str | None:
    """The digest in the spelling of a lock. Half a digest is a slip of the hand, and no sign of an edited lock."""
    if text is None:
        return None
    try:
        return Digest.parse(text).sri
    except PinwardenError as err:
        raise PinwardenError("USAGE", f"--expect-digest: {err.message}", hint=err.hint) from err
