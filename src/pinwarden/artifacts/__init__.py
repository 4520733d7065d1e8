"""The bytes of servers: npm, PyPI, OCI, MCPB, NuGet and Cargo, with provenance, dependencies and environments.

Start with ``fetch_artifact`` in ``npm.py``, ``pypi.py`` or ``oci.py``: it downloads one kind of artifact, hashes it and
returns a ``FetchedArtifact`` (``artifact.py``). ``evidence.py`` derives the evidence for the lock from it,
``artifact_drift.py`` and ``provenance_drift.py`` compare it with the lock. ``endpoints/`` reads the registry settings
of the user's package clients, ``resolvers.py`` runs uv and npm, ``archives/`` reads untrusted archives,
``environments/`` builds and audits the environments that servers start in, ``sbom/`` writes SBOMs.

Pure: the parsers (``*_package.py``, ``pypi_index.py``, ``oci_manifest.py``, ``provenance.py`` ...), the
drift modules, ``evidence.py`` and ``sbom/``. They must not touch network, disk or clock (see ``pyproject.toml``).
"""
