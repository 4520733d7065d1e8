"""The server author's lock: what a server promises, what its code can reach, and what its tools cost.

Start with ``contract.py`` (the types), ``lockfile.py`` (the format, compatible with ``mcp-fusion.lock``) and
``check.py`` (a server against its lock). ``observation.py`` reads a server from source or over the wire and derives its
contracts; ``diff.py`` and ``server_diff.py`` compare two of them. ``*_report.py`` and ``lock_command.py`` are the
commands. ``entitlements/`` analyses source code without running it.

Types, digests, ``check.py``, ``diff.py``, ``server_diff.py``, ``normal_form.py``, ``surface_contracts.py`` and
``entitlements/`` are pure; ``python_server.py`` and ``introspector.py`` run a server in a separate process. Nothing
here imports ``project``, ``install``, ``gateway`` or ``cli``.
"""
