"""The project: its folder, its lock, its policies, and the client configurations that belong to it and to the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.system.files import read_file

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfigFile
    from pinwarden.clients.table import System
    from pinwarden.lock.mcp_registry import Registries
    from pinwarden.lock.policy import Policy, ToolPinPolicy
    from pinwarden.lock.policy_rules import PolicyFinding

TOOLPIN_POLICY = Path(".toolpin/policy.json")
OWN_POLICY = Path("pinwarden.toml")
RECORDED_EVIDENCE = (
    "evidence that the policy requires is only recorded in the lock for {count}: --bytes verifies it again, "
    "--public-key checks who signed the record"
)
"""A note for reports of checks that did not verify the evidence themselves."""
_Parsed = TypeVar("_Parsed")


class Project(Record):
    """Where the files of a project and its user are. All other code finds them through this value."""

    root: Path
    lock: Path
    home: Path
    system: System = "linux"
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment, for the paths of client configurations. Its values are never stored."""
    policy: Path | None = None
    """A policy file in place of the project's own ``pinwarden.toml``."""
    restricting_root: Path | None = None
    """Another repository, whose policy can make this project's policy stricter, but never looser."""

    def find_configs(self) -> list[ConfigFile]:
        """Every client configuration that exists for this project and user."""
        from pinwarden.clients.files import discover

        return discover(self.root, self.home, self.system, self.variables)

    def find_install_paths(self) -> dict[tuple[str, str], str]:
        """The file that each client and scope is installed to."""
        from pinwarden.clients.files import installation_paths

        return installation_paths(self.root, self.home, self.system, self.variables)

    def load_registries(self, *, offline: bool) -> Registries:
        """The registries that this project names."""
        from pinwarden.lock.mcp_registry import load_registries

        cache = self.variables.get("XDG_CACHE_HOME")
        folder = (Path(cache) if cache else self.home / ".cache") / "pinwarden" / "registry"
        return load_registries(self.root, offline=offline, cache_folder=folder)

    def display_path(self, path: str | Path) -> str:
        """A path for people and files: relative to the project, or to the home folder as ``~``."""
        for folder, prefix in ((self.root, ""), (self.home, "~/")):
            try:
                return prefix + Path(path).resolve().relative_to(folder.resolve()).as_posix()
            except (ValueError, OSError, RuntimeError):  # outside, or a loop of links
                continue
        return str(path)


def locate_store(project: Project) -> Path:
    """The folder of verified files and built environments: ``PINWARDEN_STORE``, or in the user's data folder."""
    named = project.variables.get("PINWARDEN_STORE")
    if named:
        return Path(named)
    data = project.variables.get("XDG_DATA_HOME")
    return (Path(data) if data else project.home / ".local" / "share") / "pinwarden" / "store"


class Policies(Record):
    """The policies of a project: its own, and ToolPin's."""

    own: Policy | None = None
    toolpin: ToolPinPolicy | None = None
    environment: str = "default"
    today: date = field(default_factory=lambda: datetime.now(UTC).date())
    """From the system clock; SOURCE_DATE_EPOCH does not change it."""

    @property
    def has_policy(self) -> bool:
        """Whether the project has a policy."""
        return self.own is not None or self.toolpin is not None

    def digest_with_seal(self, seal: str) -> str:
        """The digest to keep outside the repository. It covers the lock and the policies; without policies, it is the
        seal of the lock itself."""
        if not self.has_policy:
            return seal
        from pinwarden.core.canonical import canonicalize
        from pinwarden.core.digest import Digest

        present = {"pinwarden": self.own, "toolpin": self.toolpin}
        policies = {name: str(policy.digest) for name, policy in present.items() if policy is not None}
        return Digest.of_bytes(canonicalize({"lock": seal, "policies": policies})).sri


def load_policies(project: Project, environment: str = "default") -> Policies:
    """Read the policy files of a project. A file that cannot be read or parsed is an error."""
    if project.restricting_root is not None:
        return _load_restricted_policies(project, project.restricting_root, environment)
    toolpin, own = project.root / TOOLPIN_POLICY, project.policy or project.root / OWN_POLICY
    if not (_exists(toolpin) or _exists(own) or project.policy is not None):
        return Policies(environment=environment)
    from pinwarden.lock.policy import parse_policy, parse_toolpin_policy

    return Policies(
        toolpin=parse_file(toolpin, parse_toolpin_policy) if _exists(toolpin) else None,
        own=parse_file(own, parse_policy) if _exists(own) or project.policy is not None else None,
        environment=environment,
    )


def parse_file(path: Path, parse: Callable[[bytes], _Parsed]) -> _Parsed:
    """Parse a file; an error names the file."""
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

        # Version 2 lets an entry leave out its manifest, its source or its tier; what is missing is not allowed.
        message = f"{plan.get('name')} lacks information that the policy needs (missing or unusable: {err})"
        return (PolicyFinding(code="entry_incomplete", message=message),)


def requires_evidence(policies: Policies) -> bool:
    """Whether a policy depends on evidence that the lock records."""
    own, toolpin = policies.own, policies.toolpin
    required = own.required_evidence if own is not None else ()
    return any(code.endswith("_verified") for code in required) or (
        toolpin is not None and toolpin.is_enabled("requireToolPinVerifiedEvidence")
    )


def _load_restricted_policies(project: Project, by: Path, environment: str) -> Policies:
    """The policies of a project, made stricter by the gateway and sandbox rules of another repository."""
    base = load_policies(replace(project, restricting_root=None), environment)
    other = load_policies(Project(root=by, lock=project.lock, home=project.home)).own
    if other is None:
        return base
    from pinwarden.lock.gateway_policy import DEFAULT_GATEWAY_POLICY, tighten

    gateway = (base.own.gateway if base.own is not None else None) or DEFAULT_GATEWAY_POLICY
    rules = tuple(
        replace(rule, read=_make_absolute(by, rule.read), write=_make_absolute(by, rule.write))
        for rule in other.sandbox_rules
    )
    own = replace(
        base.own or other,
        gateway=gateway if other.gateway is None else tighten(gateway, other.gateway),
        sandbox_rules=(*(base.own.sandbox_rules if base.own is not None else ()), *rules),
    )
    return replace(base, own=own)


def _make_absolute(root: Path, paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(path if path.startswith("~/") else str(root.resolve() / path) for path in paths)


def _exists(path: Path) -> bool:
    """Whether there is such a file. A broken link counts: reading it fails, so it cannot hide a policy."""
    return path.is_symlink() or path.exists()


def _evaluate_policies(
    policies: Policies,
    plan: Mapping[str, Any],
    now: str,
    published_at: str | None,
    verified_evidence: frozenset[str] | None,
) -> list[PolicyFinding]:
    rules: list[PolicyFinding] = []
    blocked = plan["trust"]["tier"] == "blocked"
    if not (blocked or policies.has_policy):
        return rules
    from pinwarden.lock.policy_rules import PolicyFinding, ReleaseStatus, evaluate_policy, evaluate_toolpin_policy

    if blocked:
        reasons = ", ".join(veto["code"] for veto in plan["trust"].get("vetoes", ())) or "no reason recorded"
        rules.append(PolicyFinding(code="verdict_blocked", message=f"{plan['name']} is blocked: {reasons}"))
    if policies.toolpin is not None:
        issues = evaluate_toolpin_policy(policies.toolpin, plan, now=now).issues
        rules += [PolicyFinding(code=issue.code, message=issue.message) for issue in issues]
    if policies.own is not None:
        from pinwarden.lock.extension import read_policy_members

        evidence, recorded_at = read_policy_members(plan)
        release = ReleaseStatus(published_at=published_at or recorded_at, proved_evidence=verified_evidence)
        evaluation = evaluate_policy(
            policies.own,
            _merge_recorded_evidence(plan, evidence),
            now=now,
            environment=policies.environment,
            release=release,
            today=policies.today,
        )
        rules += evaluation.findings
    return rules


def _merge_recorded_evidence(plan: Mapping[str, Any], verified_evidence: Sequence[Any]) -> Mapping[str, Any]:
    """The entry with the evidence that was recorded after it was locked and is not in its trust report."""
    if not verified_evidence:
        return plan
    trust = plan["trust"]
    return {**plan, "trust": {**trust, "evidence": [*trust["evidence"], *verified_evidence]}}
