"""A registry of bundles: publishing, a transparency log, a client that verifies it, and an HTTP server.

Start with ``publish.py`` for the server side and ``log_client.py`` for the client side. ``registry.py`` opens a
registry; ``store/`` contains its SQL; ``http/`` serves it; ``search.py`` searches it. ``takedowns.py``,
``ownership.py`` and ``requirements.py`` are the actions of its operator.

Pure modules: ``registry_documents``, ``operator_documents``, ``names``, ``search_terms`` and ``log_verification``,
which decides whether a log and a pointer are valid. This package must not import ``project``, ``install`` or
``gateway``.
"""
