"""Every command: its name, the function that implements it, and one line of help. Grouped by task, as ``--help`` shows.

One module holds one family of commands. A command is a function decorated with ``command``; its docstring is what
``pinwarden COMMAND --help`` prints, and the decorator's argument declares the options. A module is imported only when
one of its commands runs, so heavy imports belong inside these functions.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from pinwarden.cli.global_arguments import add_global_arguments
from pinwarden.core.errors import PinwardenError

_CATALOG = {
    "Get started": {
        "demo": ("demo", "demo", "Watch a server being pinned, approved, changed and blocked, in under a minute"),
        "setup": ("setup", "setup", "Pin, verify, review and enforce all servers, with one question per decision"),
        "status": ("status", "status", "Show every server: pinned, approved, verified, enforced, and what to do next"),
        "init": ("init", "init", "Find the MCP servers configured here and lock them"),
        "pin": ("pin", "pin", "Write exact releases into client configurations in place of floating ones"),
        "approve": (
            "approve",
            "approve",
            "Review the current tools, prompts and instructions of a locked server, and approve them",
        ),
        "ci": ("ci", "ci", "Check that servers, configurations and tools are still as approved"),
        "init-ci": ("init_ci", "init_ci", "Write a CI workflow that runs pinwarden ci"),
    },
    "Inspect a server": {
        "inspect": ("surface", "inspect", "Show a server's tools, prompts, resources and instructions"),
        "diff": ("surface", "diff", "Show what changed between two versions of a server, and how much it matters"),
        "scan": ("scan", "scan", "Find text that tries to manipulate the model"),
        "verify": ("artifacts", "verify", "Check a server from a registry before you lock it"),
    },
    "Manage the lock": {
        "lock": ("lock", "lock", "Lock a server from an MCP registry"),
        "lock digest": ("digest", "lock_digest", "Print the digest of the lockfile"),
        "lock sign": ("signature", "lock_sign", "Sign the lockfile"),
        "lock publish": ("signature", "lock_publish", "Publish the lock for gateways with one database"),
        "lock verify-signature": ("signature", "lock_verify_signature", "Check that trusted keys signed the lockfile"),
        "add": ("lock", "add", "Lock a server and add it to client configurations"),
        "remove": ("lock", "remove", "Remove a server from the lock and from client configurations"),
        "update": ("lock", "update", "Show what newer releases would change; with --yes, lock them"),
        "outdated": ("lock", "outdated", "List locked servers that have a newer release"),
        "list": ("status", "status", "The same as pinwarden status"),
        "explain": ("status", "explain", "Explain what is locked for a server, and why it has its trust tier"),
        "doctor": ("status", "doctor", "Compare client configurations with the lock"),
        "secrets audit": ("status", "secrets_audit", "Find secrets stored as plain text in client configurations"),
        "config check": ("config", "config_check", "Check pinwarden.toml for mistakes"),
        "config explain": ("config", "config_explain", "Show the settings that apply, and where each is from"),
        "policy init": ("policy", "policy_init", "Write a policy to start from"),
        "policy check": ("policy", "policy_check", "Check the locked servers against the policy"),
        "policy digest": ("policy", "policy_digest", "Print the digest of the policy"),
        "policy explain": ("policy", "policy_explain", "Explain which rule decides whether a client may call a tool"),
        "policy what-if": ("policy", "policy_what_if", "Try another policy on the calls of the last days"),
        "policy generate": ("policy", "policy_generate", "Propose a gateway policy from what the gateway recorded"),
    },
    "Pin, verify and run exact bytes": {
        "prove": ("artifacts", "prove", "Download and hash locked servers with their dependencies, and pin the hashes"),
        "fetch": ("artifacts", "fetch", "Download the pinned bytes and build the environments that servers run in"),
        "run": ("run", "run", "Start a server behind the gateway, from verified bytes if it is locked"),
        "enforce": ("enforce", "enforce", "Make clients start locked servers through pinwarden run"),
        "sbom": ("sbom", "sbom", "Export the locked servers and their dependencies as CycloneDX or SPDX"),
        "advisories": ("sbom", "advisories", "Check locked versions against a local export of known vulnerabilities"),
    },
    "Block unapproved changes at run time": {
        "gateway": ("gateway", "gateway", "Serve all locked servers over HTTP and block what is not approved"),
        "gateway token": ("gateway", "gateway_token", "Add, list or revoke the access tokens of gateway clients"),
        "gateway backup": ("gateway_backup", "gateway_backup", "Back up the gateway's database while gateways run"),
        "gateway restore": ("gateway_backup", "gateway_restore", "Restore the gateway's database from a backup"),
        "identity check": ("identity", "identity_check", "Check the issuer whose access tokens the gateway accepts"),
        "identity login": ("identity", "identity_login", "Log in at the issuer, and show your role in the dashboard"),
        "remote connect": ("remote", "remote_connect", "Connect a remote server with your account there"),
        "remote list": ("remote", "remote_list", "List the connected remote servers"),
        "remote forget": ("remote", "remote_forget", "Delete the tokens for a remote server"),
        "dashboard": ("dashboard", "dashboard", "Review the blocked changes in a browser"),
        "fleet device": ("fleet", "fleet_device", "Add a machine to the fleet, or revoke its token"),
        "fleet join": ("fleet", "fleet_join", "Let this machine follow the company's gateway"),
        "fleet leave": ("fleet", "fleet_leave", "Stop following the company's gateway"),
        "fleet sync": ("fleet", "fleet_sync", "Exchange everything with the company's gateway now"),
        "fleet status": ("fleet", "fleet_status", "Show which machine runs which server at which version"),
        "review": ("review", "review", "Review the blocked changes one by one"),
        "review list": ("review", "review_list", "List the blocked changes"),
        "review show": ("review", "review_show", "Show what approving a blocked change would change"),
        "review approve": ("review", "review_approve", "Approve blocked changes"),
        "review reject": ("review", "review_reject", "Reject blocked changes"),
        "review reopen": ("review", "review_reopen", "Undo decisions about changes"),
        "alerts run": (
            "alerts",
            "alerts_run",
            "Send alerts about what needs a decision: webhook, Slack, Teams, e-mail",
        ),
        "alerts test": ("alerts", "alerts_test", "Check the destinations of alerts, and send a test to each"),
        "alerts list": ("alerts", "alerts_list", "List alerts that are waiting for their delivery, or failed"),
        "alerts retry": ("alerts", "alerts_retry", "Send alerts again that failed"),
        "audit verify": ("audit", "audit_verify", "Verify that the audit log is complete and unchanged"),
        "audit tail": ("audit", "audit_tail", "Show the newest events of the audit log"),
        "audit export": ("audit", "audit_export", "Export the audit log as JSON Lines"),
        "audit archive": ("audit", "audit_archive", "Move the oldest entries of the audit log into a file"),
    },
    "Write your own server": {
        "contract lock": ("contract", "contract_lock", "Record what your server offers and what its code can access"),
        "contract check": ("contract", "contract_check", "Check in CI that your server still matches its contract"),
        "contract diff": ("contract", "contract_diff", "Compare two contracts of a server and rate the changes"),
        "contract verify-signature": (
            "contract",
            "contract_verify_signature",
            "Check that a trusted key signed a contract",
        ),
        "contract tokens": ("contract", "contract_tokens", "Show how many tokens each tool costs per conversation"),
        "contract init": ("contract", "contract_init", "Write a CI job or commit hook that checks the contract"),
        "contract explain": ("contract", "contract_explain", "Show the facts about each tool, with the evidence"),
    },
    "Publish and install signed bundles": {
        "search": ("search", "search", "Find bundles in a registry by words"),
        "install": ("install", "install", "Install a server from a registry of signed bundles"),
        "trust add": ("trust", "trust_add", "Trust a registry, or a key that signs attestations"),
        "trust remove": ("trust", "trust_remove", "Stop trusting a key, or revoke it"),
        "trust list": ("trust", "trust_list", "List the registries and keys you trust"),
        "bundle pack": ("bundle", "bundle_pack", "Pack a server's folder into a reproducible bundle"),
        "bundle inspect": ("bundle", "bundle_inspect", "Show the files, start command and permissions of a bundle"),
        "bundle verify": ("bundle", "bundle_verify", "Check every byte of a bundle against its documents"),
        "bundle accept": ("bundle", "bundle_accept", "Check offline whether a bundle would be accepted for install"),
        "bundle push": ("bundle", "bundle_push", "Upload a bundle to an OCI registry"),
        "bundle pull": ("bundle", "bundle_pull", "Download a bundle from an OCI registry"),
        "sign": ("signature", "sign", "Sign a pointer, attestation or log document"),
        "attest": ("signature", "attest", "Check a bundle and sign an attestation for it"),
        "publish": ("publish", "publish", "Publish a bundle in a registry"),
        "registry serve": ("registry", "registry_serve", "Serve a registry of bundles with its transparency log"),
        "registry export": ("registry", "registry_export", "Export a registry as static files"),
        "registry namespace": ("registry", "registry_namespace", "Assign a namespace to a key, or list namespaces"),
        "registry token": ("registry", "registry_token", "Create, list or revoke publish tokens"),
        "registry rotate-key": ("registry", "registry_rotate_key", "Replace the registry's key"),
        "registry audit": (
            "registry",
            "registry_audit",
            "List the requests to change a registry, and their outcome",
        ),
        "registry takedown": ("operator", "registry_takedown", "Take down a version or a bundle, or undo it"),
        "registry transfer": ("operator", "registry_transfer", "Give a namespace to another key"),
        "registry recover": (
            "operator",
            "registry_recover",
            "Recover a namespace whose key is lost, after a waiting period",
        ),
        "registry require": ("operator", "registry_require", "Require attestations of a namespace or channel"),
        "registry backup": ("operator", "registry_backup", "Back up a registry while it runs"),
        "registry restore": ("operator", "registry_restore", "Restore a registry from a backup"),
        "registry point": ("publish", "registry_point", "Move a channel to another published version"),
        "registry yank": ("publish", "registry_yank", "Yank a published version, or undo a yank"),
        "registry attest": ("publish", "registry_attest", "Add attestations to a published bundle"),
        "registry keys": ("publish", "registry_keys", "Change which keys may publish in a namespace"),
        "registry object": ("publish", "registry_object", "Object to the recovery of a namespace"),
        "witness serve": ("witness", "witness_serve", "Serve a witness of transparency logs"),
        "witness cosign": ("witness", "witness_cosign", "Cosign the checkpoint of a registry's log once"),
        "log verify": ("registry", "log_verify", "Verify a registry's complete transparency log"),
        "log show": ("registry", "log_show", "Show the entries of a registry's log about a name"),
        "log monitor": (
            "registry",
            "log_monitor",
            "Report new entries in a registry's log, and prove that it only grew",
        ),
    },
    "Observe many servers": {
        "census run": ("census", "census_run", "Observe every server of a source, and compare it with the last run"),
        "census worker": ("census", "census_worker", "Work on the runs of a census, on this machine"),
        "census status": ("census", "census_status", "Show how far a run is, what failed, and what was found"),
        "census diff": ("census", "census_diff", "Show which servers differ between two runs"),
        "census report": ("census", "census_report", "Write the report of a run as a static site with feeds"),
        "census export": ("census", "census_export", "Export the results of a run as CSV or Parquet"),
    },
    "Low-level tools": {
        "canonicalize": ("digest", "canonicalize", "Print JSON in canonical form"),
        "digest": ("digest", "digest", "Print the digest of each tool in a list"),
        "cid": ("digest", "cid", "Print the content identifier (CID) of a document, manifest or file"),
        "keygen": ("signature", "keygen", "Create an Ed25519 key pair for signing"),
        "completion": ("completion", "completion", "Print a completion script for your shell"),
    },
}
"""For each task, its commands by name, each with its module, the function in it, and one line of help."""

COMMANDS = {name: summary for commands in _CATALOG.values() for name, (_, _, summary) in commands.items()}
"""One line of help by the name of the command."""

TASKS = {task: tuple(dict.fromkeys(name.split()[0] for name in commands)) for task, commands in _CATALOG.items()}
"""The first word of every command, by task."""

FAMILIES = {
    "secrets": "Find plaintext secrets in client configurations",
    "config": "Check and explain pinwarden.toml",
    "policy": "Write and check rules for locked servers",
    "identity": "Try the issuer of access tokens and logins",
    "remote": "Connect remote servers that need a token of the person who uses them",
    "census": "Observe every server of a source, again and again",
    "alerts": "Tell people what needs a decision",
    "fleet": "Let machines follow the company's gateway, and see what they run",
    "audit": "Read, verify and export the gateway's audit log",
    "contract": "Lock and check the tools of a server you write",
    "trust": "Manage the registries and keys you trust",
    "bundle": "Pack, check and transfer bundles of servers",
    "registry": "Run a registry of bundles, or manage what you publish in one",
    "log": "Check a registry's transparency log",
    "witness": "Watch the logs of other registries, so that they cannot show two histories",
}
"""One line of help for each first word that is not a command itself."""


class CliCommand:
    """A command: its help text, its options, and the function that runs it."""

    def __init__(
        self,
        run: Callable[[argparse.Namespace], int],
        configure: Callable[[argparse.ArgumentParser], None],
        *,
        takes_command: bool,
        writes: str,
        prints_report: bool,
    ) -> None:
        self.run = run
        self.configure = configure
        self.takes_command = takes_command
        """Whether a command to start may follow after ``--``."""
        self.writes = writes
        """The kind of project file that ``--output`` may name; every other kind is refused."""
        self.prints_report = prints_report
        """Whether its stdout can go to a file. Not for commands that serve, ask questions or run until stopped."""

    @property
    def description(self) -> str:
        """The help text, without the indentation of the source."""
        first, *rest = (self.run.__doc__ or "").strip().split("\n")
        margin = min((len(line) - len(line.lstrip()) for line in rest if line.strip()), default=0)
        return "\n".join([first, *(line[margin:] for line in rest)])


def command(
    configure: Callable[[argparse.ArgumentParser], None],
    *,
    takes_command: bool = False,
    writes: str = "",
    prints_report: bool = True,
) -> Callable[[Callable[[argparse.Namespace], int]], CliCommand]:
    """Decorate a function as a command. ``configure`` adds its options to a parser."""
    return lambda run: CliCommand(
        run, configure, takes_command=takes_command, writes=writes, prints_report=prints_report
    )


def find_command(arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the command that the first words name, and the other words. The longest name wins."""
    for count in (2, 1):
        name = " ".join(arguments[:count])
        if len(arguments) >= count and name in COMMANDS:
            return name, arguments[count:]
    family = f"{arguments[0]} " if list_subcommands(arguments[0]) else ""
    raise PinwardenError("USAGE", _describe_unknown_command(arguments[0]), hint=f"run: pinwarden {family}--help")


def list_subcommands(name: str) -> dict[str, str]:
    """Return the commands of two words whose first word is the name, with one line of help each."""
    return {command: summary for command, summary in COMMANDS.items() if command.startswith(f"{name} ")}


def create_command_parser(name: str) -> tuple[CliCommand, argparse.ArgumentParser]:
    """Return a command, and the parser of its arguments. Imports the module of the command."""
    command = load_command(name)
    # No abbreviations: --env would mean --environment, until a new option --env changes the meaning of scripts.
    # argparse creates a formatter for every argument; only the one that prints has to measure the terminal.
    parser = _Parser(
        prog=f"pinwarden {name}",
        description=command.description,
        formatter_class=_create_fixed_width_formatter,
        allow_abbrev=False,
    )
    parser.takes_command = command.takes_command
    command.configure(parser)
    add_global_arguments(parser, prints_report=command.prints_report)
    return command, parser


def load_command(name: str) -> CliCommand:
    """Import the module of a command, and return the command."""
    from importlib import import_module

    for commands in _CATALOG.values():
        if name in commands:
            module, function, _ = commands[name]
            loaded: CliCommand = getattr(import_module(f"pinwarden.cli.commands.{module}"), function)
            return loaded
    raise KeyError(name)


def _describe_unknown_command(name: str) -> str:
    family = list_subcommands(name)
    if family:
        return f"{name} needs one of these commands: {', '.join(command.split()[1] for command in family)}"
    if name.startswith("-"):
        from pinwarden.cli.global_arguments import GLOBAL_OPTIONS, describe_unknown_arguments

        return describe_unknown_arguments([name], [*GLOBAL_OPTIONS, "--help", "--version"])
    from difflib import get_close_matches

    near = get_close_matches(name, (*COMMANDS, *_OTHER_NAMES), n=1)
    meant = f", did you mean {_OTHER_NAMES.get(near[0], near[0])}?" if near else ""
    return f"unknown command {name[:80]!a}{meant}"


_OTHER_NAMES = {
    **dict.fromkeys(("undo", "revert", "restore", "uninstall"), "enforce --undo"),
    **dict.fromkeys(("check", "gate"), "ci"),
    "accept": "approve",
    "upgrade": "update",
    "wrap": "enforce",
}
"""Words that people type, and the command that does what they mean."""


class _Parser(argparse.ArgumentParser):
    takes_command = False

    def error(self, message: str) -> NoReturn:
        raise PinwardenError("USAGE", message, hint=f"run: {self.prog} --help")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            from pinwarden.cli.global_arguments import describe_unknown_arguments

            self.error(describe_unknown_arguments(unknown, self._option_string_actions))
        return parsed

    def format_help(self) -> str:
        from pinwarden.cli.help import HelpFormatter, format_usage

        self.usage = format_usage(self, takes_command=self.takes_command)
        self.formatter_class = HelpFormatter
        self._positionals.title = "arguments"
        return super().format_help()


def _create_fixed_width_formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, width=80)
