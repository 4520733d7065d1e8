"""A project: its folder, its locks, its policies, and the client configurations of the project and the user.

A project has up to three locks, one for the servers of each scope:

- ``project``: the servers in the project's own files, locked in the project's ``mcp-lock.json``, which is committed.
- ``user``: the servers in the user's own client files, locked in the configuration folder of the user.
- ``local``: the servers that a file of the user has for this one project, as Claude Code's ``.claude.json`` does. Their
  lock is in the configuration folder of the user, one per project.

So no path of a home folder and no server of a user ever gets into a committed file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.system.files import read_file
from pinwarden.system.repository import is_repository_root

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfigFile, ConfiguredServer
    from pinwarden.clients.skill_folders import SkillRoots
    from pinwarden.clients.table import FileScope, System
    from pinwarden.lock.entry import ToolPinScope
    from pinwarden.lock.gateway_policy import GatewayPolicy
    from pinwarden.lock.mcp_registry import Registries
    from pinwarden.lock.policy import Policy, ToolPinPolicy
    from pinwarden.lock.policy_rules import PolicyFinding

TOOLPIN_POLICY = Path(".toolpin/policy.json")
OWN_POLICY = Path("pinwarden.toml")
RECORDED_EVIDENCE = (
    "for {count}, the evidence that the policy requires is recorded in the lock but was not verified now: --bytes "
    "verifies it again, --public-key checks who signed the lock"
)
"""A note for reports of checks that did not verify the evidence themselves."""
LockScope = Literal["project", "local", "user"]
"""Whose servers a lock covers."""
LOCK_NAME = "mcp-lock.json"
SCOPES: tuple[LockScope, ...] = ("project", "local", "user")
_Parsed = TypeVar("_Parsed")


class Project(Record):
    """The paths of a project's files and of its user's files. Other modules find all files through a ``Project``."""

    root: Path
    lock: Path
    home: Path
    system: System = "linux"
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment variables. Pinwarden uses them to find client configurations, and never stores their values."""
    policy: Path | None = None
    """A policy file to use instead of the project's ``pinwarden.toml``."""
    restricting_root: Path | None = None
    """The root of another repository. Its policy can only make this project's policy stricter."""
    policy_folder: Path | None = None
    """The folder of ``pinwarden.toml``, if it is not the project's: a project must not loosen the user's own policy."""
    scope: LockScope = "project"
    """Which client configurations belong to the lock."""

    def find_configs(self) -> list[ConfigFile]:
        """Read every client configuration of this scope that exists, with the servers of this scope."""
        from pinwarden.clients.files import discover_in_scope

        if self.scope == "project" and self.root.resolve() == self.home.resolve():
            return []  # the files of a home folder are the user's own
        location: FileScope = "project" if self.scope == "project" else "global"
        files = discover_in_scope(self.root, self.home, self.system, self.variables, location)
        if self.scope == "local":
            found = (
                replace(file, servers=tuple(server for server in file.servers if self._is_local(server)))
                for file in files
            )
            return [file for file in found if file.servers]
        return [
            replace(file, servers=tuple(server for server in file.servers if server.folder is None)) for file in files
        ]

    def find_servers(self) -> tuple[ConfiguredServer, ...]:
        """List every configured server of this scope."""
        return tuple(server for file in self.find_configs() for server in file.servers)

    def find_all_configs(self) -> list[ConfigFile]:
        """Read every client configuration that exists for this project and user, whatever its scope."""
        from pinwarden.clients.files import discover_configs

        return discover_configs(self.root, self.home, self.system, self.variables)

    @property
    def skill_roots(self) -> SkillRoots:
        """Where the skills of the project and its user are."""
        from pinwarden.clients.skill_folders import SkillRoots

        return SkillRoots(project=self.root, home=self.home, system=self.system, variables=self.variables)

    def has_skills(self) -> bool:
        """Whether there are skills in the folders of this scope. Reads only the names of the folders."""
        return self.scope != "local" and self.skill_roots.has_skills(user=self.scope == "user")

    @property
    def policy_file(self) -> Path:
        """The file of Pinwarden's own policy, which need not exist."""
        return self.policy or (self.policy_folder or self.root) / OWN_POLICY

    def _is_local(self, server: ConfiguredServer) -> bool:
        """Whether the user's file has this server for this project only."""
        if server.folder is None:
            return False
        try:
            return Path(server.folder).resolve() == self.root.resolve()
        except (ValueError, OSError, RuntimeError):  # not a path, or a loop of links: it must not hide a server
            return True

    def find_install_paths(self) -> dict[tuple[str, str], str]:
        """Map each client and scope to the configuration file that Pinwarden installs servers into."""
        from pinwarden.clients.files import list_installation_paths

        return list_installation_paths(self.root, self.home, self.system, self.variables)

    def find_install_path(self, client: str, scope: ToolPinScope) -> Path:
        """Return the file into which a client's servers of this scope are written. Raises USAGE if there is none."""
        from pinwarden.lock.entry import to_toolpin_scope

        paths = self.find_install_paths()
        if (client, scope) in paths:
            return Path(paths[client, scope])
        other: LockScope = "user" if scope == "project" else "project"
        hint = f"Repeat with --scope {other}." if (client, to_toolpin_scope(other)) in paths else None
        message = f"{client} has no file for servers of {'a project' if scope == 'project' else 'the user'}"
        raise PinwardenError("USAGE", message, hint=hint)

    def build_run_command(self, name: str, client: str, scope: str, *, approved: bool = False) -> list[str]:
        """Build the ``pinwarden run`` command for a client. With an ``approved`` surface, it has ``--require-lock``.

        A file of the project is committed, so its command is ``pinwarden`` without a path. A file of the user has the
        path of the running program, because a desktop program rarely has the search path of a shell.
        """
        from pinwarden.clients.command_line import PROGRAM
        from pinwarden.clients.table import get_client
        from pinwarden.system.own_program import find_own_program
        from pinwarden.system.target import PROJECT_FOLDER

        program = PROGRAM if self.scope == "project" else find_own_program(self.variables.get("PATH", ""))
        words = [program, "run", name, *(("--require-lock",) if approved else ())]
        if self.scope != "project":
            words += ["--scope", self.scope]
            if self.scope == "local":
                words += ["--project", str(self.root.resolve())]
        elif scope == "global":
            words += ["--project", str(self.root.resolve())]
        elif get_client(client).starts_in_any_folder:
            words += ["--project", PROJECT_FOLDER]
        return words

    def load_registries(self, *, offline: bool) -> Registries:
        """Load the MCP registries that this project is configured with."""
        from pinwarden.lock.mcp_registry import load_registries

        cache = self.variables.get("XDG_CACHE_HOME")
        folder = (Path(cache) if cache else self.home / ".cache") / "pinwarden" / "registry"
        return load_registries(self.root, offline=offline, cache_folder=folder)

    def display_path(self, path: str | Path) -> str:
        """Shorten a path for reports and the lock: relative to the project, or to the home folder as ``~/``."""
        for folder, prefix in ((self.root, ""), (self.home, "~/")):
            try:
                return prefix + Path(path).resolve().relative_to(folder.resolve()).as_posix()
            except (ValueError, OSError, RuntimeError):  # outside, or a loop of links
                continue
        return str(path)


def find_project_root(start: Path, home: Path) -> Path:
    """Return the project around a folder: the nearest folder with a lock, or else the root of the repository.

    The search ends at the root of the repository, below the home folder, and at a folder of another user, who could
    otherwise place a lock above this user's folders. If it finds neither, the folder itself is returned.
    """
    folder = start.resolve()
    root: Path | None = None
    for candidate in (folder, *folder.parents):
        if candidate != folder and (candidate == home.resolve() or not _is_owned(candidate)):
            break
        if (candidate / LOCK_NAME).exists():
            return candidate
        if is_repository_root(candidate):
            root = candidate
            break
    return root or folder


def find_user_folder(project: Project) -> Path:
    """Return the folder for the lock and policy of this user's own servers, in the platform's configuration folder."""
    variables, home = project.variables, project.home
    if project.system == "windows":
        parent = Path(variables.get("APPDATA") or home / "AppData" / "Roaming")
    elif project.system == "mac" and not variables.get("XDG_CONFIG_HOME"):
        parent = home / "Library" / "Application Support"
    else:
        parent = Path(variables.get("XDG_CONFIG_HOME") or home / ".config")
    return parent / "pinwarden"


def project_in_scope(project: Project, scope: LockScope) -> Project:
    """Return the same project and user, with the lock and the client configurations of a scope."""
    if scope == "project":
        return project
    folder = find_user_folder(project)
    if scope == "user":
        return replace(project, scope="user", root=folder, lock=folder / LOCK_NAME)
    root = project.root.resolve()
    name = "".join(char if char.isalnum() else "-" for char in root.name)[:40]
    digest = Digest.of_bytes(os.fsencode(root)).hex[:16]
    lock = folder / "projects" / f"{name}-{digest}" / LOCK_NAME
    return replace(project, scope="local", lock=lock, policy_folder=folder)


def _is_owned(folder: Path) -> bool:
    """Whether a folder belongs to this user or to root. Always true on systems without POSIX owners."""
    if os.name != "posix":
        return True
    try:
        return folder.stat().st_uid in (os.geteuid(), 0)
    except OSError:
        return False


def locate_store(project: Project) -> Path:
    """Find the folder for verified files and built environments.

    This is ``PINWARDEN_STORE`` if set, else a folder in the user's data folder.
    """
    named = project.variables.get("PINWARDEN_STORE")
    if named:
        return Path(named)
    data = project.variables.get("XDG_DATA_HOME")
    return (Path(data) if data else project.home / ".local" / "share") / "pinwarden" / "store"


class Policies(Record):
    """The policies of a project: ``pinwarden.toml`` and ToolPin's ``.toolpin/policy.json``."""

    own: Policy | None = None
    toolpin: ToolPinPolicy | None = None
    environment: str = "default"
    today: date = field(default_factory=lambda: datetime.now(UTC).date())
    """The date of the system clock. ``SOURCE_DATE_EPOCH`` does not change it, so waivers expire on time."""

    @property
    def has_policy(self) -> bool:
        """Whether the project has at least one policy."""
        return self.own is not None or self.toolpin is not None

    @property
    def gateway(self) -> GatewayPolicy:
        """The gateway policy; without one the default, which blocks every change."""
        from pinwarden.lock.gateway_policy import DEFAULT_GATEWAY_POLICY

        return (self.own.gateway if self.own is not None else None) or DEFAULT_GATEWAY_POLICY

    @property
    def requires_locked_skills(self) -> bool:
        """Whether a policy has ``skills = "locked"``."""
        return self.own is not None and self.own.requires_locked_skills

    @property
    def requires_locked_instructions(self) -> bool:
        """Whether a policy has ``instructions = "locked"``."""
        return self.own is not None and self.own.requires_locked_instructions

    @property
    def has_entry_rules(self) -> bool:
        """Whether a rule of a policy reads what the lock records about a server."""
        return self.toolpin is not None or (self.own is not None and self.own.has_entry_rules)

    def digest_with_seal(self, seal: str) -> str:
        """Combine the seal of the lock with the policies into one digest, to be kept outside the repository.

        For a project without policies, this is the seal of the lock.
        """
        if not self.has_policy:
            return seal
        from pinwarden.core.canonical import canonicalize

        present = {"pinwarden": self.own, "toolpin": self.toolpin}
        policies = {name: str(policy.digest) for name, policy in present.items() if policy is not None}
        return Digest.of_bytes(canonicalize({"lock": seal, "policies": policies})).sri


def load_policies(project: Project, environment: str = "default") -> Policies:
    """Read the policy files of a project. Raises if a file cannot be read or parsed."""
    if project.restricting_root is not None:
        return _load_restricted_policies(project, project.restricting_root, environment)
    toolpin, own = project.root / TOOLPIN_POLICY, project.policy_file
    if not (_path_exists(toolpin) or _path_exists(own) or project.policy is not None):
        return Policies(environment=environment)
    from pinwarden.lock.policy import parse_policy_file, parse_toolpin_policy

    return Policies(
        toolpin=parse_file(toolpin, parse_toolpin_policy) if _path_exists(toolpin) else None,
        own=parse_file(own, parse_policy_file) if _path_exists(own) or project.policy is not None else None,
        environment=environment,
    )


def parse_file(path: Path, parse: Callable[[bytes], _Parsed]) -> _Parsed:
    """Parse a file. Errors are raised with the path of the file in their message."""
    data = read_file(path)
    try:
        return parse(data)
    except PinwardenError as err:
        raise PinwardenError(
            err.code, f"{path}: {err.message}", hint=err.hint, data={**err.data, "file": str(path)}
        ) from err


def find_broken_rules(
    policies: Policies,
    plan: Mapping[str, Any],
    now: str,
    *,
    published_at: str | None = None,
    verified_evidence: frozenset[str] | None = None,
) -> tuple[PolicyFinding, ...]:
    """Find every policy rule that an install plan or lock entry breaks, including waived rules.

    ``published_at`` is the release date for an entry that does not record one. ``verified_evidence`` has the codes of
    the evidence that this run verified itself; with None, the evidence recorded in the lock counts.
    """
    try:
        return tuple(dict.fromkeys(_evaluate_policies(policies, plan, now, published_at, verified_evidence)))
    except (KeyError, TypeError, AttributeError) as err:
        from pinwarden.lock.policy_rules import PolicyFinding

        # lockfileVersion 2 allows entries without manifest, source or tier. A policy cannot allow such an entry.
        message = f"{plan.get('name')} lacks information that the policy needs (missing or unusable: {err})"
        return (PolicyFinding(code="entry_incomplete", message=message),)


def requires_evidence(policies: Policies) -> bool:
    """Whether a policy requires evidence that the lock may record, such as verified bytes."""
    own, toolpin = policies.own, policies.toolpin
    required = own.required_evidence if own is not None else ()
    return any(code.endswith("_verified") for code in required) or (
        toolpin is not None and toolpin.is_enabled("requireToolPinVerifiedEvidence")
    )


def _load_restricted_policies(project: Project, by: Path, environment: str) -> Policies:
    """Load a project's policies, and add the stricter gateway and sandbox rules of another repository."""
    base = load_policies(replace(project, restricting_root=None), environment)
    other = load_policies(Project(root=by, lock=project.lock, home=project.home)).own
    if other is None:
        return base
    from pinwarden.lock.gateway_policy import tighten

    rules = tuple(
        replace(rule, read=_make_absolute(by, rule.read), write=_make_absolute(by, rule.write))
        for rule in other.sandbox_rules
    )
    own = replace(
        base.own or other,
        gateway=base.gateway if other.gateway is None else tighten(base.gateway, other.gateway),
        sandbox_rules=(*(base.own.sandbox_rules if base.own is not None else ()), *rules),
    )
    return replace(base, own=own)


def _make_absolute(root: Path, paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(path if path.startswith("~/") else str(root.resolve() / path) for path in paths)


def _path_exists(path: Path) -> bool:
    """Whether a file exists. A broken link counts too, so that reading it fails instead of hiding a policy."""
    return path.is_symlink() or path.exists()


def _evaluate_policies(
    policies: Policies,
    entry_or_plan: Mapping[str, Any],
    now: str,
    published_at: str | None,
    verified_evidence: frozenset[str] | None,
) -> list[PolicyFinding]:
    rules: list[PolicyFinding] = []
    blocked = entry_or_plan["trust"]["tier"] == "blocked"
    if not (blocked or policies.has_entry_rules):
        return rules
    from pinwarden.lock.policy_rules import PolicyFinding, ReleaseStatus, evaluate_policy, evaluate_toolpin_policy

    if blocked:
        reasons = ", ".join(veto["code"] for veto in entry_or_plan["trust"].get("vetoes", ())) or "no reason recorded"
        rules.append(PolicyFinding(code="verdict_blocked", message=f"{entry_or_plan['name']} is blocked: {reasons}"))
    if policies.toolpin is not None:
        issues = evaluate_toolpin_policy(policies.toolpin, entry_or_plan, now=now).issues
        rules += [PolicyFinding(code=issue.code, message=issue.message) for issue in issues]
    if policies.own is not None:
        from pinwarden.lock.extension import read_evidence_and_publication_time

        evidence, recorded_publication_time = read_evidence_and_publication_time(entry_or_plan)
        release = ReleaseStatus(
            published_at=published_at or recorded_publication_time, proved_evidence=verified_evidence
        )
        evaluation = evaluate_policy(
            policies.own,
            _merge_recorded_evidence(entry_or_plan, evidence),
            now=now,
            environment=policies.environment,
            release=release,
            today=policies.today,
        )
        rules += evaluation.findings
    return rules


def _merge_recorded_evidence(plan: Mapping[str, Any], verified_evidence: Sequence[Any]) -> Mapping[str, Any]:
    """Add the evidence that was recorded after the entry was locked, and so is missing in its trust report."""
    if not verified_evidence:
        return plan
    trust = plan["trust"]
    return {**plan, "trust": {**trust, "evidence": [*trust["evidence"], *verified_evidence]}}
