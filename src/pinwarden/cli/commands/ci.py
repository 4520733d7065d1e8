"""``ci``, the check for pipelines, and ``init-ci``, which writes the pipeline."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.commands import command
from pinwarden.cli.key_arguments import add_gate_signature_arguments, build_signature_check
from pinwarden.cli.output import add_report_arguments, emit_report
from pinwarden.cli.project_arguments import add_projects_arguments, add_scope_argument, find_projects
from pinwarden.cli.server_arguments import add_probe_arguments
from pinwarden.cli.workflow_files import add_install_argument
from pinwarden.core.digest import Digest
from pinwarden.core.errors import EXIT_CLEAN, EXIT_USAGE, PinwardenError
from pinwarden.project.project import Project, load_policies

if TYPE_CHECKING:
    from pinwarden.project.gate.gate_report import GateResult

_WORKFLOW_FILES = {"github": ".github/workflows/pinwarden.yml", "gitlab": ".gitlab/pinwarden.gitlab-ci.yml"}

_GITHUB = """\
{mark}
# Fails when a client's configuration is not as approved in mcp-lock.json, when the lock or an approved surface next to
# it was edited, or when the policy is violated. No server is started: pinwarden ci --live also compares their tools.
name: pinwarden
{job}{install}
      - run: |
          pinwarden ci{project} --format github
"""

_GITLAB = """\
{mark}
# Include this file from .gitlab-ci.yml.
pinwarden:
  image: {image}
  script:
{install}
    - |
      pinwarden ci{project} --format junit=pinwarden.xml
  artifacts:
    when: always
    reports:
      junit: pinwarden.xml
"""


def _configure_ci(parser: ArgumentParser) -> None:
    add_projects_arguments(parser)
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
    parser.add_argument("--no-configs", action="store_true", help="do not check client configurations")
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
    from pinwarden.project.gate.gate_report import build_gate_report, locate_in_repository
    from pinwarden.project.gate.repository_check import add_coverage, check_coverage
    from pinwarden.project.project import project_in_scope
    from pinwarden.system.repository import find_repository_root

    projects = tuple(project_in_scope(project, args.scope or "project") for project in find_projects(args))
    _refuse_single_project_options(args, projects)
    root = find_repository_root(projects[0].root)
    single = len(projects) == 1
    checked = [
        locate_in_repository(project, _check(args, project, single=single), root, alone=single) for project in projects
    ]
    if root is not None and not args.no_configs and projects[0].scope == "project":
        # Reports have one section per project and none for the repository, so the first project gets these rows.
        policies = load_policies(projects[0], args.environment)
        checked[0] = add_coverage(checked[0], check_coverage(root, projects, policies))
    return emit_report(build_gate_report(checked), args)


def _configure_init_ci(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--for", dest="kind", default="github", choices=list(_WORKFLOW_FILES), help="CI system (default: github)"
    )
    add_install_argument(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the file instead of writing it")
    parser.add_argument("--force", action="store_true", help="replace an existing file, after showing the change")
    add_projects_arguments(parser)


@command(_configure_init_ci)
def init_ci(args: Namespace) -> int:
    """Write a CI workflow that runs pinwarden ci on every pull request and on pushes to the default branch.

    The file goes into the root of the repository, and the project needs a lock. The job installs Pinwarden from where
    it was installed here, in exactly this version; if that is a folder of this machine, you are asked, and without a
    terminal --install is needed. A file that init-ci wrote earlier is updated: the change is shown, then you are asked.

    Examples:
      pinwarden init-ci --install git+https://git.example.org/you/pinwarden@COMMIT
      pinwarden init-ci --install git+https://git.example.org/you/pinwarden@COMMIT --for gitlab --dry-run
    """
    import os
    import sys

    from pinwarden.cli.commit_line import build_commit_command
    from pinwarden.cli.render.text import render_command
    from pinwarden.cli.workflow_files import choose_install_source, update_workflow
    from pinwarden.system.repository import find_repository_root

    projects = find_projects(args)
    root = find_repository_root(projects[0].root) or projects[0].root.resolve()
    options = "".join(_project_option(project, root) for project in projects)
    command = _repeat_command(args)
    if not args.dry_run:
        _refuse_missing_locks(projects)
    spec = choose_install_source(args.install, root, command)
    text = _render_workflow(args.kind, spec, root, options)
    if args.dry_run:
        sys.stdout.write(text)
        return EXIT_CLEAN
    path = root / _WORKFLOW_FILES[args.kind]
    done = update_workflow(root, path, text, force=args.force, command=[*command, "--install", spec])
    sys.stdout.write(f"{done} {os.path.relpath(path)}\n")
    commit = build_commit_command(projects, (path, *_find_wheel(spec, root)))
    sys.stdout.write(render_command("Commit", commit) if commit else "")
    return EXIT_CLEAN


def _find_wheel(spec: str, root: Path) -> tuple[Path, ...]:
    """Return the wheel in the repository that the job installs Pinwarden from; empty if it installs from a URL."""
    return () if "://" in spec else (root / spec,)


def _render_workflow(kind: str, spec: str, root: Path, options: str) -> str:
    from pinwarden.cli.workflow_files import MARK, github_job, gitlab_image, install_step

    text = _GITHUB.replace("{job}", github_job("pinwarden", root)) if kind == "github" else _GITLAB
    text = text.replace("{mark}", MARK).replace("{image}", gitlab_image(spec))
    return text.replace("{install}", install_step(kind, spec)).replace("{project}", options)


def _refuse_missing_locks(projects: Sequence[Project]) -> None:
    for project in projects:
        if not project.lock.is_file():
            raise PinwardenError(
                "LOCK_MISSING", f"there is no {project.display_path(project.lock)} for the workflow to check"
            )


def _repeat_command(args: Namespace) -> list[str]:
    """Return the words of this command line, for a hint that adds ``--install`` or other options."""
    options = [word for folder in args.project or () for word in ("--project", folder)]
    options += ["--file", args.file] if args.file else []
    return ["pinwarden", "init-ci", *(["--for", args.kind] if args.kind != "github" else []), *options]


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


def _project_option(project: Project, root: Path) -> str:
    """Return the options with which the workflow, in the repository's root, names this project."""
    import shlex

    folder = _relative_path(project.root, root)
    option = "" if folder == "." else f" --project {shlex.quote(folder)}"
    if project.lock.resolve() != (project.root / "mcp-lock.json").resolve():
        option += f" --file {shlex.quote(_relative_path(project.lock, root))}"
    return option


def _relative_path(path: Path, root: Path) -> str:
    try:
        relative = path.resolve().relative_to(root).as_posix()
    except ValueError:
        raise PinwardenError("USAGE", f"{path} is not in the repository {root}") from None
    if not relative.isprintable() or "${{" in relative:  # an expression that GitHub would evaluate
        raise PinwardenError("USAGE", f"{relative!a} has characters that are not allowed in a workflow file")
    return relative
