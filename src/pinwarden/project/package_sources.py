"""The registries that this user's package clients are set to, each looked up once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # starting a server asks only where the store is
    from pinwarden.project.project import Project
    from pinwarden.system.net.endpoint import Endpoint, Origin, Settings


class Sources:
    """Endpoints by name of package."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._npm: dict[str, Endpoint] = {}
        self._pypi: Endpoint | None = None

    @classmethod
    def of(cls, project: Project) -> Sources:
        """Those of the project at hand."""
        from pinwarden.system.net.endpoint import Settings

        return cls(settings=Settings(home=project.home, project=project.root, variables=project.variables))

    def npm(self, name: str) -> Endpoint:
        """Where npm would look for a package."""
        from pinwarden.artifacts.endpoints.npm import registry_for

        scope = name.partition("/")[0] if name.startswith("@") else ""
        if scope not in self._npm:
            self._npm[scope] = registry_for(name, self.settings).endpoint
        return self._npm[scope]

    def npm_scopes(self) -> tuple[str, ...]:
        """The scopes for which the project names a registry."""
        from pinwarden.artifacts.endpoints.npm import project_scopes

        return project_scopes(self.settings)

    def pypi(self) -> Endpoint:
        """The index that Python packages come from. Extra indexes are never asked: they could serve any name."""
        from pinwarden.artifacts.endpoints.pypi import indexes

        if self._pypi is None:
            self._pypi = indexes(self.settings).main
        return self._pypi

    def pypi_files(self) -> Endpoint:
        """Where that index has its files, which clients send the same credential to."""
        from pinwarden.artifacts.endpoints.pypi import above_simple

        return above_simple(self.pypi())

    def image(self, reference: str, *, by_project: bool) -> Endpoint:
        """The registry of a container image; ``by_project`` says that a repository names the image."""
        from pinwarden.artifacts.endpoints.docker import registry_endpoint
        from pinwarden.artifacts.oci_reference import parse_reference

        said_by: Origin = "project" if by_project else "user"
        return registry_endpoint(parse_reference(reference), self.settings, said_by=said_by)

    def nuget(self) -> Endpoint:
        """The NuGet source that packages come from."""
        from pinwarden.artifacts.endpoints.nuget import sources

        return sources(self.settings).main

    def cargo(self) -> Endpoint:
        """The index that crates come from."""
        from pinwarden.artifacts.endpoints.cargo import registry_for

        return registry_for(self.settings)


def store_folder(project: Project) -> Path:
    """Where verified files and built environments are: ``PINWARDEN_STORE``, or the user's own data folder."""
    named = project.variables.get("PINWARDEN_STORE")
    if named:
        return Path(named)
    data = project.variables.get("XDG_DATA_HOME")
    return (Path(data) if data else project.home / ".local" / "share") / "pinwarden" / "store"
