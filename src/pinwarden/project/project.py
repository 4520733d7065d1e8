"""The project at hand: its folder, its lock, and the client configurations that belong to it and to this user."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.system.files import read_file

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfigFile
    from pinwarden.clients.table import System
    from pinwarden.lock.mcp_registry import Registries
    from pinwarden.lock.policy import Policy, ToolPinPolicy

TOOLPIN_POLICY = Path(".toolpin/policy.json")
OWN_POLICY = Path("pinwarden.toml")
_Parsed = TypeVar("_Parsed")


class Project(Record):
    """Where things are. Everything outside is reached through this value, so that tests can give another world."""

    root: Path
    lock: Path
    home: Path
    system: System = "linux"
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment, for the paths of client configurations. Its values are never stored."""
    policy: Path | None = None
    """A policy file in place of the project's own ``pinwarden.toml``."""
    tightened_by: Path | None = None
    """A repository that the server does not belong to: its policy makes this one stricter, never looser."""

    def configs(self) -> list[ConfigFile]:
        """Every client configuration that exists for this project and user."""
        from pinwarden.clients.files import discover

        return discover(self.root, self.home, self.system, self.variables)

    def config_paths(self) -> dict[tuple[str, str], str]:
        """The file that each client and scope is installed to."""
        from pinwarden.clients.files import installation_paths

        return installation_paths(self.root, self.home, self.system, self.variables)

    def registries(self, *, offline: bool) -> Registries:
        """The registries that this project names."""
        from pinwarden.lock.mcp_registry import load_registries

        cache = self.variables.get("XDG_CACHE_HOME")
        folder = (Path(cache) if cache else self.home / ".cache") / "pinwarden" / "registry"
        return load_registries(self.root, offline=offline, cache_folder=folder)

    def shown(self, path: str | Path) -> str:
        """A path for people and files: relative to the project, or to the home folder as ``~``."""
        for folder, prefix in ((self.root, ""), (self.home, "~/")):
            try:
                return prefix + Path(path).resolve().relative_to(folder.resolve()).as_posix()
            except (ValueError, OSError, RuntimeError):  # outside, or a loop of links
                continue
        return str(path)


class Policies(Record):
    """The policies that hold here: ToolPin's file as it is, our own, and what always holds."""

    own: Policy | None = None
    toolpin: ToolPinPolicy | None = None
    environment: str = "default"
    today: date = field(default_factory=lambda: datetime.now(UTC).date())
    """By the clock, whatever SOURCE_DATE_EPOCH says."""

    @property
    def any(self) -> bool:
        """Whether somebody wrote a policy down."""
        return self.own is not None or self.toolpin is not None

    def sealed_with(self, seal: str) -> str:
        """The digest that is kept outside of the repository: of the lock, and of the policies if there are any. That of
        the lock alone says that there are none."""
        if not self.any:
            return seal
        from pinwarden.core.canonical import canonicalize
        from pinwarden.core.digest import Digest

        stated = {"pinwarden": self.own, "toolpin": self.toolpin}
        policies = {name: str(policy.digest) for name, policy in stated.items() if policy is not None}
        return Digest.of_bytes(canonicalize({"lock": seal, "policies": policies})).sri


def load_policies(project: Project, environment: str = "default") -> Policies:
    """The policy files of a project. A file that cannot be read or understood is an error, never no policy."""
    if project.tightened_by is not None:
        return _tightened(project, project.tightened_by, environment)
    toolpin, own = project.root / TOOLPIN_POLICY, project.policy or project.root / OWN_POLICY
    if not (_exists(toolpin) or _exists(own) or project.policy is not None):
        return Policies(environment=environment)
    from pinwarden.lock.policy import parse_policy, parse_toolpin_policy

    return Policies(
        toolpin=parse_file(toolpin, parse_toolpin_policy) if _exists(toolpin) else None,
        own=parse_file(own, parse_policy) if _exists(own) or project.policy is not None else None,
        environment=environment,
    )


def _tightened(project: Project, by: Path, environment: str) -> Policies:
    """The policies of a project with what is stricter in that of a repository. Of the repository's policy only what the
    gateway and the sandbox use counts."""
    base = load_policies(replace(project, tightened_by=None), environment)
    other = load_policies(Project(root=by, lock=project.lock, home=project.home)).own
    if other is None:
        return base
    from pinwarden.lock.gateway_policy import DEFAULT_POLICY, tightened

    gateway = (base.own.gateway if base.own is not None else None) or DEFAULT_POLICY
    rules = tuple(
        replace(rule, read=_absolute(by, rule.read), write=_absolute(by, rule.write)) for rule in other.sandboxes
    )
    own = replace(
        base.own or other,
        gateway=gateway if other.gateway is None else tightened(gateway, other.gateway),
        sandboxes=(*(base.own.sandboxes if base.own is not None else ()), *rules),
    )
    return replace(base, own=own)


def _absolute(root: Path, paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(path if path.startswith("~/") else str(root.resolve() / path) for path in paths)


def parse_file(path: Path, parse: Callable[[bytes], _Parsed]) -> _Parsed:
    """What a file says. Whoever has several policies is told which of them is wrong."""
    data = read_file(path)
    try:
        return parse(data)
    except PinwardenError as err:
        raise PinwardenError(
            err.code, f"{path}: {err.message}", hint=err.hint, data={**err.data, "file": str(path)}
        ) from err


def _exists(path: Path) -> bool:
    """Whether something has that name. A link to nowhere is there, and reading it fails: it is not "no policy"."""
    return path.is_symlink() or path.exists()


def store_folder(project: Project) -> Path:
    """Where verified files and built environments are: ``PINWARDEN_STORE``, or the user's own data folder."""
    named = project.variables.get("PINWARDEN_STORE")
    if named:
        return Path(named)
    data = project.variables.get("XDG_DATA_HOME")
    return (Path(data) if data else project.home / ".local" / "share") / "pinwarden" / "store"
