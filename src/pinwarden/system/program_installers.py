"""How to install a program that servers need, with a package manager that this machine has."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec

from pinwarden.system.files import find_program

_AS_ROOT = frozenset({"apt-get", "dnf", "apk", "pacman"})
_COMMANDS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "uv": (
        ("brew", "brew install uv"),
        ("pipx", "pipx install uv"),
        ("apk", "apk add uv"),
        ("pacman", "pacman -S uv"),
        ("winget", "winget install astral-sh.uv"),
    ),
    "node": (
        ("brew", "brew install node"),
        ("apt-get", "apt-get install nodejs npm"),
        ("dnf", "dnf install nodejs npm"),
        ("apk", "apk add nodejs npm"),
        ("pacman", "pacman -S nodejs npm"),
        ("winget", "winget install OpenJS.NodeJS"),
    ),
    "docker": (
        ("brew", "brew install --cask docker"),
        ("apt-get", "apt-get install docker.io"),
        ("dnf", "dnf install podman"),
        ("apk", "apk add docker"),
        ("pacman", "pacman -S docker"),
        ("winget", "winget install Docker.DockerDesktop"),
    ),
    "podman": (
        ("brew", "brew install podman"),
        ("apt-get", "apt-get install podman"),
        ("dnf", "dnf install podman"),
        ("apk", "apk add podman"),
        ("pacman", "pacman -S podman"),
        ("winget", "winget install RedHat.Podman"),
    ),
}
"""By program, the package managers in order of preference, and the command of each."""
_PAGES = {
    "uv": "https://docs.astral.sh/uv/getting-started/installation/",
    "node": "https://nodejs.org/en/download",
    "docker": "https://docs.docker.com/get-started/get-docker/",
    "podman": "https://podman.io/docs/installation",
}
_PACKAGES = {"uvx": "uv", "npm": "node", "npx": "node"}
"""Programs without a row of their own in `_COMMANDS` and `_PAGES`, with the program whose row they use."""


def describe_installation(program: str, variables: Mapping[str, str]) -> str | None:
    """Return a command that installs a program, or the page that says how; None for an unknown program."""
    package = _PACKAGES.get(program, program)
    search_path = variables.get("PATH", "")
    for manager, command in _COMMANDS.get(package, ()):
        if find_program(manager, search_path) is not None:
            return _with_rights(manager, command, search_path)
    if program == "uv" and find_spec("pip") is not None:
        return f"{sys.executable} -m pip install uv"  # Pinwarden also finds uv in its own environment
    return f"see {_PAGES[package]}" if package in _PAGES else None


def _with_rights(manager: str, command: str, search_path: str) -> str:
    is_root = not hasattr(os, "geteuid") or os.geteuid() == 0
    needs_sudo = manager in _AS_ROOT and not is_root and find_program("sudo", search_path) is not None
    return f"sudo {command}" if needs_sudo else command
