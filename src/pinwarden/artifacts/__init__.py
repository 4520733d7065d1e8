"""The bytes of servers: npm, PyPI, OCI, MCPB, NuGet and Cargo, with provenance, dependencies and environments.

Start with ``npm.py``, ``pypi.py`` or ``oci.py``: ``fetch_facts`` in each fetches, hashes and verifies one kind of
artifact and returns ``ArtifactFacts`` (``artifact.py``). ``evidence.py`` evaluates the facts, ``artifact_drift.py`` and
``provenance_drift.py`` compare them with the lock. ``endpoints/`` reads the registry settings of the user's clients,
``resolvers.py`` runs uv and npm, ``archives/`` reads untrusted archives, ``environments/`` builds and audits the
environments that servers start in, ``sbom/`` writes SBOMs.

Pure: the parsers (``*_package.py``, ``pypi_index.py``, ``oci_manifest.py``, ``provenance.py`` ...), the
drift modules, ``evidence.py`` and ``sbom/``. They must not touch network, disk or clock (see ``pyproject.toml``).
"""
