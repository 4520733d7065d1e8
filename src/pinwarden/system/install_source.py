"""Where this copy of Pinwarden was installed from, as another machine can install it: a git commit or an archive."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
_SSH_ADDRESS = re.compile(r"(?:ssh://)?git@([A-Za-z0-9.-]+)(?::(?!\d+/)|/)([A-Za-z0-9._/~-]+)\Z")


class InstallSource(Record):
    """How Pinwarden was installed here."""

    spec: str | None
    """The argument of ``pip install`` that installs exactly this version on another machine; None if unknown."""
    is_recorded: bool
    """Whether the installer recorded ``spec``. Otherwise it was derived from the checkout that was installed."""
    checkout: Path | None = None
    """The folder that Pinwarden was installed from, if it was a folder."""


def find_install_source(variables: Mapping[str, str]) -> InstallSource:
    """Read what the installer recorded about Pinwarden (PEP 610); for a checkout, what git knows about it."""
    recorded = _read_recorded_source()
    url, vcs, archive = recorded.get("url"), recorded.get("vcs_info"), recorded.get("archive_info")
    if not isinstance(url, str):
        return InstallSource(spec=None, is_recorded=False)
    if isinstance(vcs, dict) and vcs.get("vcs") == "git" and _COMMIT.match(str(vcs.get("commit_id"))):
        return InstallSource(spec=_build_git_spec(url, str(vcs["commit_id"])), is_recorded=True)
    if isinstance(archive, dict):
        return InstallSource(spec=_build_archive_spec(url, archive), is_recorded=True)
    if urlsplit(url).scheme == "file":
        checkout = Path(url2pathname(urlsplit(url).path))
        return InstallSource(spec=_find_pushed_commit(checkout, variables), is_recorded=False, checkout=checkout)
    return InstallSource(spec=None, is_recorded=False)


def _read_recorded_source() -> dict[str, Any]:
    try:
        text = distribution("pinwarden").read_text("direct_url.json")
        recorded = json.loads(text) if text else {}
    except (PackageNotFoundError, ValueError, OSError):
        return {}
    return recorded if isinstance(recorded, dict) else {}


def _build_git_spec(url: str, commit: str) -> str | None:
    address = _to_https(url)
    return None if address is None else f"git+{address}@{commit}"


def _build_archive_spec(url: str, archive: Mapping[str, Any]) -> str | None:
    """Return the address of an archive with its digest; None without a digest, as the content could change later."""
    hashes = archive.get("hashes")
    digest = hashes.get("sha256") if isinstance(hashes, dict) else None
    address = _to_https(url)
    if address is None or not isinstance(digest, str) or not re.fullmatch(r"[0-9a-f]{64}", digest):
        return None
    return f"{address}#sha256={digest}"


def _to_https(url: str) -> str | None:
    """Return the HTTPS address of a repository or archive; None for a local path or an address with credentials."""
    ssh = _SSH_ADDRESS.match(url)
    if ssh is not None:
        return f"https://{ssh[1]}/{ssh[2]}"
    parts = urlsplit(url)
    is_public = parts.scheme == "https" and parts.hostname and "@" not in parts.netloc
    return url if is_public and url.isascii() and url.isprintable() and not parts.query and not parts.fragment else None


def _find_pushed_commit(checkout: Path, variables: Mapping[str, str]) -> str | None:
    """Return a git spec of the commit that a checkout has; None if no branch of its remote contains the commit."""
    from pinwarden.system.repository import run_git

    try:
        url = run_git(checkout, variables, "config", "--get", "remote.origin.url").strip()
        commit = run_git(checkout, variables, "rev-parse", "--verify", "HEAD").strip()
        branches = run_git(
            checkout, variables, "for-each-ref", "--contains", commit, "--count=1", "refs/remotes/origin"
        )
    except (PinwardenError, OSError):
        return None
    return _build_git_spec(url, commit) if branches.strip() and _COMMIT.match(commit) else None
