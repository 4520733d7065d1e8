"""Choose which package or remote of a registry entry is launched, and the command that launches it.

Unless the user names a kind, ToolPin's rule applies: the first Streamable HTTP remote, else the first remote, else the
first container image, else the first MCPB bundle, else the first package.

There are two dialects of commands. ``toolpin`` is what ToolPin 0.5.4 writes, because lockfiles hash it. ``modern``
supports all of ``server.json`` and explains every difference in a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Literal

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.lock.server_entry import DeclaredArgument, DeclaredPackage, Input, Remote, ServerEntry

Dialect = Literal["toolpin", "modern"]
LaunchTarget = DeclaredPackage | Remote

PACKAGE_TYPES = ("npm", "pypi", "oci", "mcpb", "nuget", "cargo")
REMOTE = "remote"
TARGET_KINDS = (*PACKAGE_TYPES, REMOTE)

REMOTE_NOTE = "Remote server selected; no local runtime install is required."
_COMMAND_NOTE = "Uses the command declared by registry metadata; review generated arguments before running."
_DOCKER_NOTE = "Requires Docker-compatible runtime. Review mounts and network policy before running."
_VARIABLE = re.compile(r"\{([^{}]+)\}")
_TAG = re.compile(r":[^/]+\Z")  # a colon before the last slash belongs to a port


class InstallCommand(Record):
    """A program with its arguments, and a note for the user."""

    program: str
    arguments: tuple[str, ...]
    note: str
    differences: tuple[str, ...] = ()
    """The differences from ToolPin's command, one sentence each."""


def choose_target(entry: ServerEntry, kind: str | None = None) -> LaunchTarget | None:
    """Return the target to launch; None if the entry has none. Raises if the entry has no target of this ``kind``."""
    if kind is None:
        return _choose_default_target(entry)
    if kind not in TARGET_KINDS:
        raise PinwardenError(
            "USAGE", f"{kind[:40]!a} is not a kind of target", hint=f"Use one of: {', '.join(TARGET_KINDS)}"
        )
    offered: LaunchTarget | None
    if kind == REMOTE:
        offered = _choose_remote(entry)
    else:
        offered = next((package for package in entry.packages if package.registry_type == kind), None)
    if offered is None:
        kinds = [*entry.package_types, *([REMOTE] if entry.remotes else [])]
        raise PinwardenError(
            "NO_INSTALL_TARGET",
            f"{entry.name[:120]} offers no {kind}; it offers {', '.join(kinds) or 'nothing'}",
            data={"offered": kinds},
        )
    return offered


def require_target(entry: ServerEntry, kind: str | None = None) -> LaunchTarget:
    """Return the target to launch. Raises NO_INSTALL_TARGET if the entry has none."""
    target = choose_target(entry, kind)
    if target is None:
        raise PinwardenError("NO_INSTALL_TARGET", f"{entry.name[:120]} has no package and no remote")
    return target


def _choose_default_target(entry: ServerEntry) -> LaunchTarget | None:
    remote = _choose_remote(entry)
    if remote is not None:
        return remote
    for kind in ("oci", "mcpb"):
        for package in entry.packages:
            if package.registry_type == kind:
                return package
    return entry.packages[0] if entry.packages else None


def _choose_remote(entry: ServerEntry) -> Remote | None:
    for remote in entry.remotes:
        if remote.type == "streamable-http":
            return remote
    return entry.remotes[0] if entry.remotes else None


def target_to_json(target: LaunchTarget) -> dict[str, Any]:
    """Return the target as a lockfile records it."""
    if isinstance(target, Remote):
        return {"kind": "remote", "type": target.type, "url": target.url}
    recorded = {
        "kind": "package",
        "registryType": target.registry_type,
        "identifier": target.identifier,
        "version": target.version,
        "fileSha256": target.file_sha256,
        "transport": target.transport,
    }
    return {name: value for name, value in recorded.items() if value is not None}


# Commands as ToolPin writes them


def build_toolpin_command(package: DeclaredPackage) -> InstallCommand:
    """Return ToolPin 0.5.4's command. Like ToolPin, it drops arguments, except plain text for npm and unknown types."""
    if package.command:
        return _build_declared_command(package)
    plain = tuple(argument.value or "" for argument in package.package_arguments if argument.kind == "text")
    program, fixed, separator, note = _get_launcher(package)
    if package.registry_type == "oci":
        return InstallCommand(
            program=program, arguments=(*fixed, *_build_docker_env_options(package), package.identifier), note=note
        )
    if package.registry_type == "cargo":
        return InstallCommand(program=package.identifier, arguments=(), note=note)
    if package.registry_type not in PACKAGE_TYPES:
        return InstallCommand(program=package.identifier, arguments=plain, note=note)
    versioned = package.identifier + (f"{separator}{package.version}" if separator and package.version else "")
    arguments = (*fixed, versioned, *(plain if package.registry_type == "npm" else ()))
    return InstallCommand(program=program, arguments=arguments, note=note)


def _build_declared_command(package: DeclaredPackage) -> InstallCommand:
    match package.runtime_hint:
        case None | "":
            note = _COMMAND_NOTE
        case "bun":
            note = "Requires Bun on PATH."
        case "docker":
            note = _DOCKER_NOTE
        case runtime:
            note = f"Requires {runtime} on PATH."
    return InstallCommand(program=package.command or "", arguments=package.args, note=note)


def _get_launcher(package: DeclaredPackage) -> tuple[str, tuple[str, ...], str, str]:
    """Return program, fixed arguments, the separator of identifier and version, and ToolPin's note."""
    match package.registry_type:
        case "npm" if package.runtime_hint == "bun":
            return "bunx", (), "@", "Requires Bun and bunx on PATH."
        case "npm":
            return "npx", ("-y",), "@", "Requires Node.js and npm/npx on PATH."
        case "pypi":
            return "uvx", (), "==", "Requires uv/uvx on PATH."
        case "nuget":
            return "dnx", (), "@", "Requires .NET SDK dnx support on PATH."
        case "cargo":
            return "", (), "", "Requires a prior `cargo install` and compiled binary on PATH."
        case "oci":
            return "docker", ("run", "--rm", "-i"), "", _DOCKER_NOTE
        case "mcpb":
            return "mcpb", ("run",), "", "MCPB bundle requires a compatible MCPB installer/runtime."
        case other:
            return "", (), "", f"Unknown registry type {other}; generated a placeholder command."


def _build_docker_env_options(package: DeclaredPackage) -> tuple[str, ...]:
    names = dict.fromkeys(variable.name for variable in package.environment_variables)
    return tuple(word for name in names for word in ("-e", name))


# Commands that support all of server.json


def build_modern_command(package: DeclaredPackage, placeholder: Callable[[str], str]) -> InstallCommand:
    """Return the command with all arguments of ``server.json``. ``placeholder`` formats a variable for the client."""
    if package.command:
        return _build_declared_command(package)
    runtime = format_arguments(package.runtime_arguments, placeholder)
    own = format_arguments(package.package_arguments, placeholder)
    program, fixed, separator, note = _get_launcher(package)
    versioned = package.identifier + (f"{separator}{package.version}" if separator and package.version else "")
    match package.registry_type:
        case "oci":
            image = _add_image_tag(package)
            arguments = (*fixed, *_build_docker_env_options(package), *runtime, image, *own)
        case "cargo":
            program, arguments = package.identifier, own
        case "nuget":
            # dnx prompts before it downloads, and a client cannot answer; words after -- are the server's.
            arguments = (versioned, *_remove_words(runtime, "--yes"), "--yes", *(("--", *own) if own else ()))
        case "npm":
            arguments = (*fixed, *_remove_words(runtime, *fixed), versioned, *own)
        case "pypi" | "mcpb":
            arguments = (*fixed, *runtime, versioned, *own)
        case _:
            program, arguments = package.identifier, own
    command = InstallCommand(program=program, arguments=arguments, note=note)
    return InstallCommand(
        program=command.program,
        arguments=command.arguments,
        note=note,
        differences=tuple(_describe_command_differences(package, command)),
    )


def format_arguments(arguments: Iterable[DeclaredArgument], placeholder: Callable[[str], str]) -> tuple[str, ...]:
    """Return the command-line words of arguments. Optional arguments without a value are left out."""
    names: list[str] = []
    for argument in arguments:
        value = _format_argument_value(argument, placeholder)
        if argument.kind == "named":
            if value is not None:
                names += [argument.name or "", value] if value else [argument.name or ""]
        elif value is not None:
            names.append(value)
    return tuple(names)


def _format_argument_value(argument: DeclaredArgument, placeholder: Callable[[str], str]) -> str | None:
    """Return the value of an argument: empty for a flag, None if the argument is left out."""
    if argument.kind == "text":
        return argument.value
    value = argument.value if argument.value is not None else argument.default
    if value is not None:
        return fill_template(format_value(value), argument.variables, placeholder)
    if argument.value_hint is None and argument.kind == "named":
        # A named argument without value and hint is a flag, which is passed unless it is optional.
        return "" if argument.is_required or "isRequired" not in argument.raw else None
    if argument.is_required:
        return placeholder(argument.value_hint or argument.name or "value")
    return None


def fill_template(template: str, variables: Iterable[Input], placeholder: Callable[[str], str]) -> str:
    """Return a template with each declared ``{variable}`` replaced by its value, its default, or a placeholder."""
    declared = {variable.name: variable for variable in variables}

    def fill(match: re.Match[str]) -> str:
        variable = declared.get(match[1])
        if variable is None:
            return match[0]  # not declared: the braces are literal
        text = variable.value if variable.value is not None else variable.default
        return placeholder(variable.name) if text is None else format_value(text)

    return _VARIABLE.sub(fill, template)


def format_value(value: Any) -> str:
    """Return a default value as a string. Registry entries write 8080 and true as well as "8080" and "true"."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def _add_image_tag(package: DeclaredPackage) -> str:
    image = package.identifier
    if package.version and "@" not in image and not _TAG.search(image):
        return f"{image}:{package.version}"
    return image


def _remove_words(words: tuple[str, ...], *unwanted: str) -> tuple[str, ...]:
    return tuple(word for word in words if word not in unwanted)


def _describe_command_differences(package: DeclaredPackage, command: InstallCommand) -> Iterable[str]:
    old = build_toolpin_command(package)
    kind = package.registry_type
    if package.runtime_arguments:
        yield "The command includes the runtime arguments (runtimeArguments); ToolPin drops them."
    if any(argument.kind != "text" for argument in package.package_arguments):
        yield "The command includes arguments that are objects, as in the official schema; ToolPin drops them."
    elif package.package_arguments and kind in ("pypi", "oci", "nuget", "cargo", "mcpb"):
        yield f"The command includes the server's arguments (packageArguments); ToolPin drops them for {kind}."
    if kind == "oci" and _add_image_tag(package) != package.identifier:
        yield "The image has the declared version as its tag; without one, docker uses the tag latest."
    if kind == "nuget":
        yield "dnx gets --yes, because a client cannot answer its prompt."
    if kind == "cargo" and package.version:
        yield f"This command does not pin version {package.version}: it runs the installed binary."
    if package.transport not in (None, "stdio"):
        at_url = f" at {package.endpoint.url}" if package.endpoint else ""
        yield f"The package serves {package.transport}{at_url}; a client that only starts it cannot reach it."
    if kind == "mcpb":
        yield "The official mcpb program has no command named run; install the bundle in a client that supports MCPB."
    if kind not in PACKAGE_TYPES and (old.program, old.arguments) != (command.program, command.arguments):
        yield "The command has all declared arguments."
