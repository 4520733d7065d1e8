"""``mcp-lock.json``: the format, Pinwarden's extension, verification, signatures, policies and trust tiers.

Start with ``lockfile.py`` (parse, write, update, verify) and ``entry.py``: ToolPin's lockfileVersion 2, byte for byte.
``extension.py`` has every member that Pinwarden adds, typed. ``install_plan.py`` makes an entry from a registry's
``server.json`` (``server_entry.py``), and ``trust_tiers.py`` computes its tier. ``policy.py`` and ``gateway_policy.py``
read ``pinwarden.toml``; ``policy_rules.py`` applies it.

``lock_store.py`` (disk) and ``mcp_registry.py`` (network) do I/O; everything else is pure. Imports ``clients``,
``surface``, ``system`` and ``core`` only.
"""
