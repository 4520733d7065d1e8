"""``pinwarden run``: start a locked server from its approved bytes, without downloading anything.

A command without bytes to verify, such as a script of the project, is started as it was approved.

1. Find the entry in the lock, and verify the lock (`find_entry`).
2. Parse the locked command, and read the closure that the lock pins.
3. Build the environment from verified files, or check the one that was built before.
4. Assemble the command line and the variables that were approved (`prepare_locked_launch`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.artifacts.environments.store import Store
from pinwarden.clients.command_line import split_command
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.core.text import lazy_pattern
from pinwarden.lock import closure as closure_document
from pinwarden.lock import lock_store
from pinwarden.lock.closure import Closure, list_approved_digests
from pinwarden.lock.entry import Entry, is_for_client
from pinwarden.lock.extension import read_extension
from pinwarden.lock.locked_launch import LockedLaunch, is_remote, read_locked_launch, starts_local_command
from pinwarden.project.project import Project, locate_store
from pinwarden.project.remote_access import may_be_connected
from pinwarden.project.server_environments import ScriptPermissions, ensure_environment, is_mcpb, plan_environment
from pinwarden.project.server_target import find_probe_target
from pinwarden.system.environment_variables import build_child_environment
from pinwarden.system.secret_variables import (
    SECRETS_FILE,
    add_secrets,
    fill_in_references,
    find_open_reference,
    read_secret_variables,
)
from pinwarden.system.target import PROJECT_FOLDER, HttpTarget, expand_placeholders

if TYPE_CHECKING:
    from pinwarden.bundle.bundle_pin import BundlePin
    from pinwarden.lock.policy import SandboxRule
    from pinwarden.system.sandbox import Sandbox

_BRIDGE = "pinwarden.gateway.remote_bridge"
_REMOTE_URL = "PINWARDEN_REMOTE_URL"
_REMOTE_HEADER = "PINWARDEN_REMOTE_HEADER_"
_ADDRESS_PLACEHOLDER = lazy_pattern(r"\$\{[^}]*\}|\{env:[^}]*\}|%[A-Za-z_]+%|<[^<>]*>")
_PLACEHOLDER = lazy_pattern(r"\$\{[^}]*\}|\$[A-Za-z_]|%[A-Za-z_]+%")


class ServerLaunch(Record):
    """The command of a server, its environment, and its sandbox."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    cwd: str | None = None
    readable: tuple[str, ...] = ()
    """Paths outside the system folders that the command must be able to read in a sandbox."""
    sandbox: Sandbox | None = None
    """The sandbox of an installed bundle. The bundle was accepted for this sandbox and always runs in it."""


def prepare_locked_launch(
    project: Project, entry: Entry, *, arguments_given: Sequence[str], notify: Callable[[str], None]
) -> ServerLaunch:
    """Prepare the command that starts a locked server. Pass an entry from ``find_entry``, which verifies the lock."""
    inherited = inherit_environment(project)
    project = replace(project, variables=add_secrets(project.variables, project.home))
    if is_remote(entry):
        return _prepare_remote(project, entry, arguments_given)
    launch = read_locked_launch(entry)
    if is_mcpb(entry):
        return _prepare_mcpb(project, entry, launch, arguments_given, notify)
    if is_bundle(entry):
        return _prepare_bundle(project, entry, launch, arguments_given, notify)
    if starts_local_command(entry):
        _remove_open_references(inherited, launch.variables, notify)
        return replace(_prepare_local_command(project, entry, launch, arguments_given), environment=inherited)
    wrapper_words = launch.parsed.wrapper_words
    if wrapper_words is None:
        raise _nothing_to_run_error(
            entry.name, f"is started by {launch.parsed.wrappers[0]} in a form that Pinwarden cannot reproduce"
        )
    runs = launch.parsed.via or launch.parsed  # for a package that connects to an address, start the package
    arguments = tuple(arguments_given) or runs.arguments
    _refuse_other_arguments(runs.arguments, arguments)
    arguments = tuple(_expand_placeholders(word, project) for word in arguments)
    if wrapper_words:  # a wrapper uses variables that the entry does not name, such as the token of a password manager
        wrapper_words = _find_command_program(project, wrapper_words)
        environment = inherited
    else:
        environment = build_child_environment({}, project.variables, launch.variables)
    _remove_open_references(environment, launch.variables, notify)
    if runs.kind == "oci":
        line = _build_engine_command(entry, launch, project, environment, notify)
        return ServerLaunch(command=(*wrapper_words, *line, *arguments), environment=environment)
    if runs.kind not in ("npm", "pypi"):
        raise _nothing_to_run_error(entry.name, f"starts {runs.identity[:120]!a}, which is not a package")
    closure, digest = read_pinned_closure(project, entry)
    store = Store(locate_store(project))
    scripts = ScriptPermissions(approved=list_approved_digests(read_extension(entry)))
    built = plan_environment(closure, digest, store, project.variables.get("PATH", ""), scripts)
    folder = ensure_environment(built, store, notify=notify)
    return ServerLaunch(
        command=(*wrapper_words, *built.build_command(folder, runs.program), *arguments),
        environment=environment,
        cwd=_resolve_folder(project, launch.cwd),
        readable=(str(folder), *built.readable_folders),
    )


def _remove_open_references(environment: dict[str, str], names: Sequence[str], notify: Callable[[str], None]) -> None:
    """Remove variables that the client left as a reference, so that no server takes the reference for its secret."""
    for name in names:
        missing = find_open_reference(environment.get(name, ""))
        if missing is not None:
            del environment[name]
            notify(f"the server gets no {name}: set {missing}, or put {missing}=VALUE into {SECRETS_FILE}")


def is_bundle(entry: Entry) -> bool:
    """Whether an entry is a bundle that was installed from a bundle registry."""
    extension = read_extension(entry)
    return extension is not None and extension.bundle is not None


def find_entry(project: Project, name: str, client: str | None) -> Entry:
    """Verify the lock and find the entry of a server. Raises if clients have different servers of that name."""
    lock = lock_store.read_verified(project.lock)
    entries = [entry for entry in lock.entries if entry.name == name and is_for_client(entry, client)]
    if len(entries) == 1:
        return entries[0]  # the usual case, without comparing servers
    from pinwarden.project.locked_servers import find_locked_server

    return find_locked_server(lock.entries, name, client, "run").entry


def read_pinned_closure(project: Project, entry: Entry) -> tuple[Closure, Digest]:
    """Read the closure that an entry pins. Returns it with the digest of its file."""
    extension = read_extension(entry)
    if extension is None or extension.closure is None:
        raise PinwardenError("BYTES_NOT_LOCKED", f"the bytes of {entry.name[:120]!a} are not locked yet")
    pin = extension.closure
    data = lock_store.read_pinned_file(project.lock, pin)
    if data is None or Digest.of_bytes(data) != pin.file_digest:
        raise PinwardenError("LOCK_TAMPERED", f"{pin.path} is not the file that the lock pins")
    return closure_document.parse(data), pin.file_digest


def build_container_command(
    project: Project, entry: Entry, notify: Callable[[str], None], *, options: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Build the command that starts a locked container image by its digest.

    ``options`` replace those of the entry, which may give the container folders and privileges.
    """
    launch = read_locked_launch(entry)
    environment = build_child_environment({}, project.variables, launch.variables)
    if options is not None:
        launch = replace(launch, parsed=replace(launch.parsed, options=tuple(options)))
    return (*_build_engine_command(entry, launch, project, environment, notify), *launch.parsed.arguments)


def inherit_environment(project: Project) -> dict[str, str]:
    """Return all variables that the client passes on, without those of Pinwarden, for a command without own bytes.

    A reference to one of the user's secrets is filled in. Other secrets are not passed on.
    """
    given = fill_in_references(project.variables, read_secret_variables(project.home))
    return {name: value for name, value in given.items() if not name.startswith("PINWARDEN_")}


def _prepare_local_command(
    project: Project, entry: Entry, launch: LockedLaunch, arguments_given: Sequence[str]
) -> ServerLaunch:
    """Prepare a command without bytes to verify, word by word as it was approved. The caller adds its environment.

    Arguments that the client passes are used as they are, and a text for a shell too: the shell fills in variables
    itself, and would read the value of one as commands.
    """
    from pinwarden.project.locked_servers import refuse_own_program

    refuse_own_program(entry.name, launch.command)
    words = tuple(split_command(launch.command))
    arguments = tuple(arguments_given) or words[1:]
    _refuse_other_arguments(words[1:], arguments)
    if not arguments_given and launch.parsed.kind != "shell":
        arguments = tuple(_expand_placeholders(word, project) for word in arguments)
    folder = _resolve_folder(project, launch.cwd)
    if folder is None and project.scope != "user":
        folder = str(project.root.resolve())  # relative paths in a project's file are meant from there
    return ServerLaunch(
        command=_find_command_program(project, (_expand_placeholders(words[0], project), *arguments)),
        environment={},
        cwd=folder,
    )


def _find_command_program(project: Project, words: Sequence[str]) -> tuple[str, ...]:
    """Return the command with the path of its program, if it is named without one."""
    from pinwarden.system.files import find_program

    program = words[0] if "/" in words[0] else find_program(words[0], project.variables.get("PATH", ""))
    if program is None:
        raise PinwardenError("PROGRAM_UNKNOWN", f"there is no program {words[0][:200]!a}")
    return (str(program), *words[1:])


def _resolve_folder(project: Project, folder: str | None) -> str | None:
    """Return the working folder that an entry names, as a path. A relative one is meant from the project's folder."""
    if folder is None:
        return None
    return str(project.root.resolve() / Path(_expand_placeholders(folder, project)).expanduser())


def _prepare_remote(project: Project, entry: Entry, arguments_given: Sequence[str]) -> ServerLaunch:
    """Prepare the bridge to a remote server. Its environment has the address and headers, which may be secret."""
    _refuse_other_arguments((), arguments_given)
    target = find_remote_target(project, entry)
    values = {_REMOTE_URL: target.url}
    words = [sys.executable, "-m", _BRIDGE, f"${{{_REMOTE_URL}}}", "--transport", target.transport]
    for number, (name, value) in enumerate(target.headers.items()):
        variable = f"{_REMOTE_HEADER}{number}"
        values[variable] = value
        words += ["--header", f"{name}: ${{{variable}}}"]
    filled_in = {name: expand_placeholders(value, project.variables) for name, value in values.items()}
    own: tuple[str, ...] = ()
    if may_be_connected(project, target):
        words += ["--connected-as", entry.name, "--settings", str(project.policy_file.absolute())]
        own = tuple(name for name in project.variables if name.startswith(("PINWARDEN_", "XDG_STATE_HOME")))
    return ServerLaunch(command=tuple(words), environment=build_child_environment(filled_in, project.variables, own))


def find_remote_target(project: Project, entry: Entry) -> HttpTarget:
    """Return the approved address, with the header values that the client passes in variables or has in its file.

    Both may have placeholders.
    """
    from pinwarden.clients.enforceable import name_header_variable
    from pinwarden.lock.locked_launch import build_remote_target, find_remote_launch

    launch = find_remote_launch(entry)
    given = project.variables
    needed = () if launch is None else (*launch.headers.values(), *filter(None, (launch.url_variable,)))
    if launch is not None and all(name in given for name in needed):
        target = build_remote_target(launch, given)
        _refuse_other_address(launch.url, target.url)
        return target
    found = find_probe_target(entry, project.find_configs())
    if not isinstance(found, HttpTarget):
        raise _nothing_to_run_error(entry.name, "is not a remote server in its client's file")
    headers = {name: given.get(name_header_variable(name), value) for name, value in found.headers.items()}
    return replace(found, headers=headers)


def _refuse_other_address(locked: str, url: str) -> None:
    """Raise ARGUMENTS_CHANGED unless the address is the approved one. Placeholders match any value."""
    fixed = _ADDRESS_PLACEHOLDER.split(locked)
    if re.fullmatch(".*".join(map(re.escape, fixed)), url, re.DOTALL) is None:
        raise PinwardenError("ARGUMENTS_CHANGED", "the address is not the approved one", data={"approved": [locked]})


def _prepare_mcpb(
    project: Project, entry: Entry, launch: LockedLaunch, arguments_given: Sequence[str], notify: Callable[[str], None]
) -> ServerLaunch:
    """Prepare an MCPB bundle. Its manifest has the complete command line, so other arguments are refused."""
    from pinwarden.project.server_environments import build_mcpb_start, find_pinned_mcpb, plan_mcpb_environment

    _refuse_other_arguments((), arguments_given)
    store = Store(locate_store(project))
    folder = ensure_environment(plan_mcpb_environment(find_pinned_mcpb(entry), store), store, notify=notify)
    start = build_mcpb_start(folder, project.home, project.variables)
    environment = build_child_environment(start.env, project.variables, launch.variables)
    reads = (str(folder), sys.base_prefix)
    return ServerLaunch(command=start.command, environment=environment, cwd=launch.cwd, readable=reads)


def _prepare_bundle(
    project: Project, entry: Entry, launch: LockedLaunch, arguments_given: Sequence[str], notify: Callable[[str], None]
) -> ServerLaunch:
    """Prepare an installed bundle: verify its unpacked files, and choose the sandbox that it was accepted with."""
    from pinwarden.bundle import environment as bundle_environment
    from pinwarden.bundle.bundle_pin import find_bundle_pin
    from pinwarden.project.installed_bundles import build_bundle_sandbox, ensure_bundle

    pin = find_bundle_pin(entry)
    if pin is None:
        raise PinwardenError("LOCK_INVALID", f"the lock entry of {entry.name[:120]!a} lacks the record of its bundle")
    _refuse_other_arguments((), arguments_given)
    _warn_if_revoked(project, pin, notify)
    _warn_if_yanked(project, entry, notify)
    folder = ensure_bundle(pin, Store(locate_store(project)), notify=notify)
    rule = _find_sandbox_rule(project, entry.name)
    sandbox, cwd = build_bundle_sandbox(project, pin, folder, rule)
    if pin.policy.filesystem == "read_write" and (rule is None or not rule.write):
        notify(
            f"{entry.name} may write files, but no folder is named for it, so it can only read. Name folders in "
            f'pinwarden.toml: [[policy.sandbox]] server = "{entry.name}" write = ["FOLDER"]'
        )
    return ServerLaunch(
        command=bundle_environment.build_start_command(folder, pin, project.variables.get("PATH", "")),
        environment=build_child_environment({}, project.variables, launch.variables),
        cwd=cwd,
        readable=(str(folder), *bundle_environment.list_readable_folders(pin)),
        sandbox=sandbox,
    )


def _warn_if_revoked(project: Project, pin: BundlePin, notify: Callable[[str], None]) -> None:
    """Warn if an attestation key was revoked. The server still starts, because replaced keys are revoked as well."""
    from pinwarden.bundle.trust_files import load_trust, trust_path

    trusted = load_trust(trust_path(project.home, project.variables))
    for key_id in dict.fromkeys(pin.provenance.get("attestations_used", ())):
        revoked = trusted.find_revoked_key(str(key_id))
        if revoked is not None:
            notify(
                f"{pin.tool} was attested with {revoked.name or key_id}, a key that was revoked ({revoked.why}); "
                "run: pinwarden update"
            )


def _warn_if_yanked(project: Project, entry: Entry, notify: Callable[[str], None]) -> None:
    """Warn if the locked version was yanked. The server still starts, because the version was approved."""
    from pinwarden.project.installed_bundles import check_yanked_bundles

    for row in check_yanked_bundles(project, (entry,)):
        notify(f"{row.message}; run: pinwarden update")


def _nothing_to_run_error(name: str, why: str) -> PinwardenError:
    hint = f"Give its command: pinwarden run --name {name:.120} --project . -- COMMAND. Its surface is still checked."
    return PinwardenError("NOTHING_TO_RUN", f"{name[:120]!a} {why}", hint=hint)


def _build_engine_command(
    entry: Entry, launch: LockedLaunch, project: Project, environment: Mapping[str, str], notify: Callable[[str], None]
) -> tuple[str, ...]:
    from pinwarden.artifacts.environments.images import ContainerEngine
    from pinwarden.project.server_environments import choose_image, find_locked_digest
    from pinwarden.system.files import find_program

    runs = launch.parsed
    find_locked_digest(entry, runs)  # raises if the image is not locked, even if no container engine is installed
    for runner in (runs.runner, "docker", "podman"):
        program = find_program(runner, project.variables.get("PATH", ""))
        if program is not None:
            options = tuple(_expand_placeholders(word, project) for word in runs.options)
            engine = ContainerEngine(program=program, variables=environment)
            name = choose_image(entry, runs, engine, Store(locate_store(project)), notify)
            return (str(program), "run", *options, name)
    from pinwarden.system.program_installers import describe_installation

    raise PinwardenError(
        "PROGRAM_UNKNOWN",
        "docker or podman is needed to start this server, and neither is installed",
        hint=f"To install one: {describe_installation('docker', project.variables)}",
    )


def _refuse_other_arguments(locked: Sequence[str], arguments_given: Sequence[str]) -> None:
    """Raise ARGUMENTS_CHANGED if the arguments differ from the approved ones. Placeholders match any value."""
    same = len(locked) == len(arguments_given) and all(map(_matches_approved, locked, arguments_given))
    if not same:
        raise PinwardenError(
            "ARGUMENTS_CHANGED",
            "the arguments are not the approved ones",
            data={"approved": list(locked)},
        )


def _matches_approved(locked: str, arguments_given: str) -> bool:
    if locked == arguments_given:
        return True
    fixed = _PLACEHOLDER.split(locked)
    return len(fixed) > 1 and re.fullmatch(".*".join(map(re.escape, fixed)), arguments_given, re.DOTALL) is not None


def _expand_placeholders(word: str, project: Project) -> str:
    if PROJECT_FOLDER in word and project.scope != "user":
        word = word.replace(PROJECT_FOLDER, str(project.root.resolve()))
    return expand_placeholders(word, project.variables) if "${" in word else word


def _find_sandbox_rule(project: Project, name: str) -> SandboxRule | None:
    from pinwarden.project.project import load_policies

    own = load_policies(project).own
    return None if own is None else own.find_sandbox_rule(name)
