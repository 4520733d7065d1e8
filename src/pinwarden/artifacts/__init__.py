"""The bytes of servers: npm, PyPI, OCI, MCPB, NuGet and Cargo, with provenance, dependencies and environments.

Start with ``npm.py``, ``pypi.py`` or ``oci.py``: each fetches, hashes and verifies one kind of artifact.
``endpoints/`` finds the registry that the user's own client is set to, ``resolvers/`` runs npm and uv to pin
dependencies, ``archives/`` reads hostile archives, ``environments/`` builds and audits what is started. Parsers
(``*_package.py``, ``oci_manifest.py``, ``provenance.py`` ...) are pure.
"""
