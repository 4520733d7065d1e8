"""What ``pinwarden --help`` shows: the commands in chapters, families of commands as one line."""

from __future__ import annotations

from collections.abc import Mapping

from pinwarden.cli.layout import definitions, told

CHAPTERS: Mapping[str, tuple[str, ...]] = {
    "start here": ("init", "ci", "inspect", "diff", "scan"),
    "lock what was approved": (
        "lock", "add", "remove", "approve", "update", "outdated", "list", "explain", "verify", "doctor", "secrets",
        "policy", "init-ci",
    ),
    "prove the bytes, run exactly those": ("prove", "fetch", "run", "enforce", "sbom", "advisories"),
    "enforce at run time": ("gateway", "review", "audit"),
    "write servers": ("contract",),
    "distribute servers": ("install", "trust", "bundle", "sign", "attest", "publish", "registry", "log"),
    "plain tools": ("canonicalize", "digest", "cid", "keygen", "completion"),
}  # fmt: skip
"""The first word of every command, where a reader would look for it."""

FAMILIES: Mapping[str, str] = {
    "secrets": "secrets that lie open in configurations",
    "policy": "what servers must fulfil",
    "audit": "what the gateway saw and did",
    "contract": "the lock of a server of your own",
    "trust": "whom you trust",
    "bundle": "servers packed as bundles",
    "registry": "a registry of bundles",
    "log": "the transparency log of a registry",
}
"""What the commands have in common that share a first word which is no command itself."""


def overview(commands: Mapping[str, str]) -> str:
    """All commands, and how to go on."""
    chapters = "".join(
        f"\n{title}:\n{definitions({name: _line(name, commands) for name in names if _known(name, commands)})}"
        for title, names in CHAPTERS.items()
    )
    return told("usage: pinwarden COMMAND [arguments]") + chapters + "\n" + _closing("")


def family(name: str, commands: Mapping[str, str]) -> str:
    """The commands that share a first word."""
    return told(f"usage: pinwarden {name} COMMAND [arguments]") + f"\n{definitions(commands)}\n" + _closing(f"{name} ")


def _known(name: str, commands: Mapping[str, str]) -> bool:
    return name in commands or any(each.startswith(f"{name} ") for each in commands)


def _line(name: str, commands: Mapping[str, str]) -> str:
    below = ", ".join(each.partition(" ")[2] for each in commands if each.startswith(f"{name} "))
    if name not in commands:
        return f"{FAMILIES[name]}: {below}"
    return commands[name] + (f"; also: {below}" if below else "")


def _closing(group: str) -> str:
    return told(
        f"pinwarden {group}COMMAND --help tells about one command; pinwarden --version prints the version."
    ) + told("exit codes: 0 clean, 1 drift or refusal, 2 usage, 3 could not check")
