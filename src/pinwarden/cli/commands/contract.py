"""``contract``: the commands for authors of MCP servers."""

from __future__ import annotations

import os
import re
import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.commands import command
from pinwarden.cli.key_arguments import PUBLIC_KEY_HELP
from pinwarden.cli.output import add_format_argument, add_report_arguments, emit, emit_report
from pinwarden.cli.server_arguments import add_probe_arguments, mask_command
from pinwarden.cli.workflow_files import add_install_argument
from pinwarden.core.errors import EXIT_CLEAN, PinwardenError

if TYPE_CHECKING:
    from pinwarden.contract.observation import ObservedServer
    from pinwarden.core.keys import PrivateKey
    from pinwarden.core.report import Report

_DIALECTS = ("F1", "F2", "F3", "F4", "F5", "V")
_MAX_BAR = 40
_WORKFLOW_FILES = {
    "github": ".github/workflows/pinwarden-contract.yml",
    "gitlab": ".gitlab/pinwarden-contract.gitlab-ci.yml",
    "pre-commit": ".pre-commit-config.yaml",
}

_GITHUB = """\
# Fails when the server's contract differs from its lockfile; the job's summary shows the changes.
name: contract
{job}{build}
{install}
      - run: >-
          pinwarden contract check {server}
          >> "$GITHUB_STEP_SUMMARY"
"""

_GITLAB = """\
# Include this file from .gitlab-ci.yml.
contract:
  image: {image}
  script:
{build}
{install}
    - pinwarden contract check {server} > contract.xml
  artifacts:
    when: always
    reports:
      junit: contract.xml
"""

_PRE_COMMIT = """\
repos:
  - repo: local
    hooks:
      - id: pinwarden-contract
        name: the server matches its contract
        entry: pinwarden contract check {server}
        language: system
        types_or: {types}
        pass_filenames: false
"""

_BUILD_STEPS = {
    ("python", "github"): """\
      # Install the server with its packages here, as in your other jobs.
      - run: python3 -m pip install .""",
    ("python", "gitlab"): """\
    # Install the server with its packages here, as in your other jobs.
    - pip install .""",
    ("node", "github"): """\
      # Install and build the server here, as in your other jobs.
      - run: npm ci && npm run build --if-present""",
    ("node", "gitlab"): """\
    - apt-get update && apt-get install --yes nodejs npm
    # Install and build the server here, as in your other jobs.
    - npm ci && npm run build --if-present""",
}
_FILE_TYPES = {"python": "[python]", "node": "[javascript, ts]"}

_SAFE_SERVER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*(?::[A-Za-z0-9_.]+)?\Z")
_SAFE_WORD = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9_@./:=-]*\Z")
_SAFE_OPTION = re.compile(r"--?[A-Za-z0-9][A-Za-z0-9_@./:=-]*\Z")
_WORKFLOWS = {"github": _GITHUB, "gitlab": _GITLAB, "pre-commit": _PRE_COMMIT}


def _configure_contract_lock(parser: ArgumentParser) -> None:
    _add_lockfile_argument(parser)
    parser.add_argument(
        "--dialect",
        choices=_DIALECTS,
        help="write the format of an older release of mcp-fusion (F1 to F5) or of vurb (V) (default: F5, or V for "
        "vurb.lock)",
    )
    parser.add_argument("--name", help="the server's name in the contract (default: the name it reports)")
    parser.add_argument(
        "--sign", action="append", default=[], metavar="KEY", help="sign with this private key; repeatable"
    )
    _add_server_arguments(parser)
    add_format_argument(parser)


@command(_configure_contract_lock, takes_command=True, writes="contract")
def contract_lock(args: Namespace) -> int:
    """Record your server's contract: its tools, prompts and resources, their token costs, and what the code can access.

    The file has the format of mcp-fusion.lock, plus the texts and digests that others need to check it. A Python server
    is imported in a separate process: by naming its file, you allow Pinwarden to run it.

    Examples:
      pinwarden contract lock --server src/server.py
      pinwarden contract lock --command --lock command.lock -- python3 notes_server.py
    """
    from pinwarden.contract.dialect import get_dialect
    from pinwarden.contract.lock_command import load_lockfile, lock, sign
    from pinwarden.core.record import replace
    from pinwarden.system.clock import now

    keys: tuple[PrivateKey, ...] = ()
    if args.sign:
        from pinwarden.cli.key_arguments import read_private_keys

        keys = read_private_keys(args.sign)  # before anything is written
    dialect = None if args.dialect is None else get_dialect(args.dialect)
    stored = load_lockfile(args.lock, dialect)
    observed = _observe(args)
    report = lock(observed, stored, now=now(), dialect=dialect, name=args.name)
    if stored.lockfile is None:
        note = f"commit the file; to check it in CI, run: {_format_init_command(args)}"
        report = replace(report, notes=(note, *report.notes))
    if keys:
        sign(stored.path, keys)
        signed = f"signed by {', '.join(key.public_key.did for key in keys)}"
        report = replace(report, notes=(*report.notes, signed))
    return emit(report, args.format)


def _format_init_command(args: Namespace) -> str:
    """Return the command that checks this server in CI."""
    import shlex

    words = ["pinwarden", "contract", "init"]
    if args.command:
        words += ["--command", mask_command(args.command)]
    elif args.server:
        words += ["--server", args.server]
    return shlex.join(words)


def _configure_contract_check(parser: ArgumentParser) -> None:
    _add_lockfile_argument(parser)
    parser.add_argument(
        "--compat", action="store_true", help="compare only what mcp-fusion compares, which misses some changes"
    )
    _add_budget_arguments(parser)
    _add_server_arguments(parser)
    add_report_arguments(parser)


@command(_configure_contract_check, takes_command=True)
def contract_check(args: Namespace) -> int:
    """Check in CI that your server still matches its contract.

    The exit code is 1 after any change, and 3 if the server could not be checked.

    Examples:
      pinwarden contract check --server src/server.py
      pinwarden contract check --server src/server.py --format markdown --budget 5000
    """
    from pinwarden.contract.check_report import check
    from pinwarden.contract.costs import TokenBudget
    from pinwarden.contract.lock_command import load_lockfile, require_lockfile

    stored = load_lockfile(args.lock)
    require_lockfile(stored)
    observed = _observe(args)
    budget = TokenBudget(total=args.budget, tool=args.tool_budget)
    return emit_report(check(observed, stored, compat=args.compat, budget=budget), args, about=[stored.path])


def _configure_contract_diff(parser: ArgumentParser) -> None:
    parser.add_argument("before", metavar="BEFORE", help="the reviewed contract")
    parser.add_argument("after", metavar="AFTER", help="the new contract")
    parser.add_argument(
        "--compat", action="store_true", help="use mcp-fusion's severities, which rate changed descriptions as cosmetic"
    )
    add_format_argument(parser)


@command(_configure_contract_diff)
def contract_diff(args: Namespace) -> int:
    """Compare two contracts of a server: which texts changed, how severe that is, and what it costs in tokens.

    Each change is BREAKING, RISKY, SAFE or COSMETIC. The exit code is 1 if one is breaking or risky. --format markdown
    prints a comment for a pull request.

    Examples:
      pinwarden contract diff mcp-fusion.lock mcp-fusion.lock
    """
    from pinwarden.contract.diff_report import build_diff_report

    return emit(build_diff_report(Path(args.before), Path(args.after), compat=args.compat), args.format)


def _configure_contract_verify_signature(parser: ArgumentParser) -> None:
    _add_lockfile_argument(parser)
    parser.add_argument("--public-key", nargs="+", action="extend", required=True, metavar="KEY", help=PUBLIC_KEY_HELP)
    add_format_argument(parser)


@command(_configure_contract_verify_signature)
def contract_verify_signature(args: Namespace) -> int:
    """Check that one of the given keys signed a contract, and that the contract was not changed since.

    Examples:
      pinwarden contract verify-signature --lock signed.lock --public-key release.pem.pub
    """
    from pinwarden.cli.key_arguments import read_public_keys
    from pinwarden.contract.check_report import verify_signature
    from pinwarden.contract.lock_command import load_lockfile

    return emit(
        verify_signature(load_lockfile(args.lock), tuple(read_public_keys(args.public_key).values())), args.format
    )


def _configure_contract_tokens(parser: ArgumentParser) -> None:
    _add_budget_arguments(parser)
    _add_server_arguments(parser)
    add_format_argument(parser)


@command(_configure_contract_tokens, takes_command=True)
def contract_tokens(args: Namespace) -> int:
    """Show how many tokens each tool of your server costs in every conversation, before any is called.

    Tokens are counted with tiktoken if it is installed with its tables, else estimated as length / 3.5. With a budget,
    the exit code is 1 if it is exceeded.

    Examples:
      pinwarden contract tokens --server src/server.py
      pinwarden contract tokens --server src/server.py --tool-budget 2000
    """
    from pinwarden.contract.costs import TokenBudget, build_cost_report

    observed = _observe(args)
    report = build_cost_report(
        observed.name, observed.extension.surface, TokenBudget(total=args.budget, tool=args.tool_budget)
    )
    if args.format == "text":
        sys.stdout.write(_render_chart(report))
    return emit(report, args.format)


def _configure_contract_init(parser: ArgumentParser) -> None:
    server = parser.add_mutually_exclusive_group(required=True)
    server.add_argument("--server", metavar="FILE[:OBJECT]", help="Python file with the server")
    server.add_argument(
        "--command",
        dest="started",
        metavar="TEXT",
        help="command that starts a Node server: 'node dist/x.js'",
    )
    parser.add_argument(
        "--for", dest="kind", default="github", choices=list(_WORKFLOW_FILES), help="kind of file (default: github)"
    )
    add_install_argument(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the file instead of writing it")


@command(_configure_contract_init)
def contract_init(args: Namespace) -> int:
    """Write a CI job for GitHub or GitLab, or a pre-commit hook, that checks the contract.

    Existing files are not overwritten. The job installs Pinwarden from where it was installed here; if that is a folder
    of this machine, you are asked, and without a terminal --install is needed.

    Examples:
      pinwarden contract init --server src/server.py --install git+https://git.example.org/you/pinwarden@COMMIT
      pinwarden contract init --server src/server.py --for pre-commit --dry-run
      pinwarden contract init --command "node dist/server.js" --for pre-commit --dry-run
    """
    from pinwarden.cli.workflow_files import (
        choose_install_source,
        github_job,
        render_gitlab_image,
        render_install_step,
        with_extra,
        write_workflow,
    )

    language, server = _describe_checked_server(args)
    text = _WORKFLOWS[args.kind].replace("{server}", server).replace("{types}", _FILE_TYPES[language])
    root = Path.cwd()
    if args.kind != "pre-commit":
        named = ["--command", args.started] if args.started else ["--server", args.server]
        repeated = ["pinwarden", "contract", "init", *named, "--for", args.kind]
        spec = choose_install_source(args.install, root, repeated)
        image = render_gitlab_image(spec if language == "python" else "git+")  # the slim one has no apt lists
        text = text.replace("{job}", github_job("contract", root)).replace("{image}", image)
        text = text.replace("{build}", _BUILD_STEPS[language, args.kind])
        install = render_install_step(args.kind, with_extra(spec, "javascript", language == "node"))
        text = text.replace("{install}", install)
    if args.dry_run:
        sys.stdout.write(text)
        return EXIT_CLEAN
    write_workflow(root, root / _WORKFLOW_FILES[args.kind], text)
    sys.stdout.write(f"wrote {_WORKFLOW_FILES[args.kind]}\n")
    return EXIT_CLEAN


def _describe_checked_server(args: Namespace) -> tuple[str, str]:
    """Return the language of the server, and the options of ``contract check`` that name it.

    Raises ``USAGE`` for words that would have a meaning to a shell or in YAML.
    """
    output = {"github": " --format markdown", "gitlab": " --format junit"}.get(args.kind, "")
    if not args.started:
        from pinwarden.contract.python_server import parse_python_server

        parse_python_server(args.server)
        if not _SAFE_SERVER.match(args.server) or ".." in Path(args.server).parts:
            raise PinwardenError(
                "USAGE",
                f"--server: {args.server[:200]!a} has characters that are not safe in a workflow file",
                hint="Use a path below this folder with letters, digits and . _ - / only.",
            )
        interpreter = ' --python "$(command -v python3)"' if args.kind == "github" else ""
        return "python", f"--server {args.server}{interpreter}{output}"
    words = args.started.split(" ")
    is_safe = all(_SAFE_WORD.match(word) or _SAFE_OPTION.match(word) for word in words)
    if not is_safe or words[0].startswith("-") or any(".." in word.split("/") for word in words):
        raise PinwardenError(
            "USAGE",
            f"--command: {args.started[:200]!a} has characters that are not safe in a workflow file",
            hint="Use words of letters, digits and @ . _ - / : = only, with paths below this folder.",
        )
    from pinwarden.contract.javascript_server import find_source_of_command

    if find_source_of_command(words) is None:
        raise PinwardenError(
            "USAGE",
            f"--command: {args.started[:200]!a} does not start a JavaScript or TypeScript file that exists here",
            hint="Build the server first, then write: --command 'node dist/server.js'",
        )
    return "node", f"{output} --command -- {args.started}".strip()


def _configure_contract_explain(parser: ArgumentParser) -> None:
    parser.add_argument("--tool", action="append", default=[], metavar="NAME", help="only this tool; repeatable")
    _add_server_arguments(parser)
    add_format_argument(parser)


@command(_configure_contract_explain, takes_command=True)
def contract_explain(args: Namespace) -> int:
    """Show the facts about each tool of your server, and where each comes from: the source, the process or the wire.

    For each entitlement (such as network or file access), prints the line of code and the calls that lead to it.

    Examples:
      pinwarden contract explain --server src/server.py
    """
    from pinwarden.cli.render.text import wrap
    from pinwarden.contract.explain_report import explain, render_lines

    report = explain(_observe(args), tuple(args.tool))
    if args.format == "text":
        for line in render_lines(report):
            sys.stdout.write(wrap(line))
    return emit(report, args.format)


def _add_server_arguments(parser: ArgumentParser) -> None:
    """Add the argument for the server: a Python file, a command, or a URL."""
    server = parser.add_argument_group("the server (one of --server, --url and --command)")
    server.add_argument(
        "--server", metavar="FILE[:OBJECT]", help="Python file with the server, which Pinwarden imports"
    )
    server.add_argument("--url", metavar="URL", help="address of a running server")
    server.add_argument(
        "--command", dest="starts", action="store_true", help="start the server with the command given after --"
    )
    server.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="HTTP header for --url; ${VAR} is replaced by the environment variable; repeatable",
    )
    server.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="environment variable for the started server; repeatable",
    )
    source = parser.add_argument_group("analysing the source")
    source.add_argument("--python", metavar="PROGRAM", help="Python interpreter that has the server's packages")
    source.add_argument(
        "--source", metavar="DIR", help="with --command or --url: folder of the server's package (Python, JavaScript)"
    )
    source.add_argument(
        "--scan-packages",
        action=BooleanOptionalAction,
        default=True,
        help="also analyse installed packages that the server imports and Pinwarden does not know, but not what these "
        "import (default: yes)",
    )
    add_probe_arguments(parser)


def _add_lockfile_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--lock", metavar="FILE", help="contract file (default: mcp-fusion.lock, or vurb.lock if it exists)"
    )


def _add_budget_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--budget", type=int, metavar="TOKENS", help="fail if all tools together cost more than this")
    parser.add_argument("--tool-budget", type=int, metavar="TOKENS", help="fail if a single tool costs more than this")


def _observe(args: Namespace) -> ObservedServer:
    """Observe the server that the options name."""
    from pinwarden.cli.server_arguments import (
        build_command_target,
        is_url,
        parse_target,
        parse_variables,
        probe_options,
    )
    from pinwarden.cli.streams import Progress
    from pinwarden.contract.observation import observe_live, observe_python
    from pinwarden.core.record import replace

    if sum(map(bool, (args.server, args.url, args.command))) != 1:
        raise PinwardenError(
            "USAGE", "give exactly one server", hint="Use --server FILE, --url URL, or --command -- and the command."
        )
    if args.url and not is_url(args.url):
        raise PinwardenError("USAGE", "--url needs a URL", hint="Begin it with https://")
    _refuse_unused_options(args)
    options = probe_options(args, typed=True)
    if args.server:
        from pinwarden.contract.python_server import find_interpreter, parse_python_server

        server = parse_python_server(args.server)
        python = find_interpreter(server, os.environ, args.python)
        with Progress("importing the server and listing its tools"):
            return observe_python(
                server, python, options, variables=parse_variables(args), scan_packages=args.scan_packages
            )
    folder = None if args.source is None else Path(args.source)
    with Progress("connecting to the server"):
        if args.url:
            target = parse_target(args.url, Namespace(header=args.header, config=None))
            return observe_live(target, options, folder)
        start_options = replace(options, allow_execute=options.allow_execute or args.starts)
        target = build_command_target(args.command, args)
        return observe_live(target, start_options, folder, scan_packages=args.scan_packages)


def _refuse_unused_options(args: Namespace) -> None:
    """Refuse options that would have no effect."""
    dependencies = (
        ("--header", args.header and not args.url, "--url"),
        ("--env", args.env and args.url, "--server or --command"),
        ("--python", args.python and not args.server, "--server"),
        ("--source", args.source and args.server, "--command or --url"),
    )
    for option, used, required_option in dependencies:
        if used:
            raise PinwardenError(
                "USAGE", f"{option} can only be used with {required_option}", hint=f"Leave out {option}."
            )


def _render_chart(report: Report) -> str:
    """Return a bar for each tool, the most expensive first."""
    from pinwarden.cli.render.text import render_table

    costs: dict[str, int] = dict(report.facts["tools"])
    if report.facts["instructions"]:
        costs["(instructions)"] = report.facts["instructions"]
    highest = max(costs.values(), default=1) or 1
    total = sum(costs.values()) or 1
    return render_table(
        ("tool", "tokens", "share", ""),
        [
            (name, f"{cost:6}", f"{100 * cost / total:4.0f}%", "█" * max(1, round(_MAX_BAR * cost / highest)))
            for name, cost in costs.items()
        ],
    )
