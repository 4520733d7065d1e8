"""The server author's lock: what a server promises, what its code can reach, and what it costs.

Start with ``lockfile.py`` and ``contract.py`` (compatible with ``mcp-fusion.lock``), ``observation.py`` (a server as
it is now) and ``check.py``. ``entitlements/`` analyses source code without running it. Formats, digests, ``diff.py``
and ``entitlements/`` are pure; ``python_server.py`` and ``introspector.py`` import a server in a process of its own.
"""
