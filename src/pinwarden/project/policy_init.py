"""A policy to start from: ours with every rule explained, or ToolPin's."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.javascript import encode_javascript_json
from pinwarden.core.report import Report
from pinwarden.lock.policy import RECOMMENDED, parse_policy, parse_toolpin_policy
from pinwarden.project.project import OWN_POLICY, TOOLPIN_POLICY
from pinwarden.system.files import create_file, read_file, write_atomically

if TYPE_CHECKING:
    from pinwarden.project.project import Project

_TEMPLATE = """\
[policy]
version = 1

# The least trust tier that is let in: verified, conditional or unverified. A blocked server is never let in.
# By environment (pinwarden policy check --environment production) it is a table:
#   minimum-tier = {{ default = "conditional", production = "verified" }}
minimum-tier = "conditional"

# The least overall score, 0 to 100.
# minimum-score = 50

# What has to be so.
{mark}[policy.require]
# Images named by digest: a tag can be moved to other bytes.
{mark}digest-pinned-images = true
# Bundles with a declared SHA-256.
{mark}bundle-hashes = true
# Nothing that is reached over the network.
# no-remotes = true
# Nothing that has to be given a secret.
# no-secrets = true

# Who may be let in. A star stands for anything but a slash, two stars for anything. Denial wins, and where there is
# an allow list, nothing else is allowed. The same is possible for namespaces, hosts, registries, clients,
# package-types and transports.
# [policy.servers]
# allow = ["io.github.your-team/*"]
# deny = ["io.github.your-team/experimental-*"]

# Evidence that has to be there; artifact_verified is any fresh proof of the bytes.
# [policy.evidence]
# require = ["package_pin", "artifact_verified"]
# With this, a proof counts only if ci --bytes made it in the same run, or if ci --public-key verified the lock.
# proved = true

# How old a release must be: most poisoned releases are found within days. Unknown age counts as too young.
# [policy.release-age]
# minimum-days = 3
# exempt = ["io.github.your-team/*"]

# An exception has a reason, an owner and a last day. A blocked verdict has no exception.
# [[policy.waivers]]
# server = "io.github.partner/legacy"
# code = "tier_below_minimum"
# reason = "reviewed by hand, replacement planned"
# owner = "security@example.org"
# expires = 2027-01-31
"""
_MINIMAL = {"version": 1, "minTrustTier": "conditional"}


def init_policy(project: Project, *, recommended: bool, toolpin: bool = False, force: bool = False) -> Report:
    """The report of ``pinwarden policy init``. A policy that is there stays, unless its replacement is forced."""
    if toolpin:
        path = project.root / TOOLPIN_POLICY
        data = encode_javascript_json(RECOMMENDED if recommended else _MINIMAL)
        digest = parse_toolpin_policy(data).digest.sri
    else:
        path = project.root / OWN_POLICY
        data = _with_other_tables(path, _own_policy(recommended), force)
        digest = parse_policy(data).digest.sri
    action = _write(path, data, replace=force or not toolpin)
    shown = project.shown(path)
    return Report(
        command="policy init",
        subject=shown,
        summary=f"{shown} {action}; check the lock against it with pinwarden policy check",
        exit_code=EXIT_CLEAN,
        facts={"file": shown, "action": action, "recommended": recommended, "digest": digest},
    )


def _own_policy(recommended: bool) -> bytes:
    return _TEMPLATE.format(mark="" if recommended else "# ").encode()


def _with_other_tables(path: Path, policy: bytes, force: bool) -> bytes:
    """The new content of our file: other tables in it stay as they are, and so does a policy that nobody gave up."""
    if not (path.exists() or path.is_symlink()):
        return policy
    before = read_file(path)
    try:
        tables = tomllib.loads(before.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as err:
        raise PinwardenError("POLICY_INVALID", f"{path.name} is not TOML: {err}") from err
    if "policy" not in tables:
        return before.rstrip() + b"\n\n" + policy if before.strip() else policy
    if not force:
        raise PinwardenError("FILE_EXISTS", f"{path.name} states a policy already", hint="Replace it with --force.")
    if len(tables) > 1:
        hint = "Edit the table [policy] by hand."
        raise PinwardenError("FILE_EXISTS", f"{path.name} holds other tables besides the policy", hint=hint)
    return policy


def _write(path: Path, data: bytes, *, replace: bool) -> str:
    if path.is_symlink():
        raise PinwardenError("FILE_EXISTS", f"{path} is a symbolic link", hint="Replace the link by a file.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{path.parent}: {err.strerror or err}") from err
    if not path.exists():
        create_file(path, data)
        return "written"
    if not replace:
        raise PinwardenError("FILE_EXISTS", f"{path} exists already", hint="Replace it with --force.")
    write_atomically(path, data)
    return "changed"
