"""Finds the registries, and credentials for them, in the settings of npm, pip, uv, Cargo, NuGet, docker and podman."""
