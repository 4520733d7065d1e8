"""The server author's lock: the contract of a server, the entitlements of its code, and the token cost of its tools.

Start with ``contract.py`` (the types), ``lockfile.py`` (the format, compatible with ``mcp-fusion.lock``) and
``check.py``, which compares a server with its lock. ``observation.py`` observes a server, from source or as a client,
and derives its contracts. ``diff.py`` compares two contracts, ``server_diff.py`` two lockfiles. ``*_report.py`` and
``lock_command.py`` are the commands. ``entitlements/`` analyses source code without running it.

Types, digests, ``check.py``, ``diff.py``, ``server_diff.py``, ``normal_form.py``, ``surface_contracts.py`` and
``entitlements/`` are pure; ``python_server.py`` and ``introspector.py`` run a server in a separate process. Nothing
here imports ``project``, ``install``, ``gateway`` or ``cli``.
"""
