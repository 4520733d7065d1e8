"""``mcp-lock.json``: the format, Pinwarden's extension, verification, signatures, policies and trust tiers.

Start with ``lockfile.py`` and ``entry.py`` (ToolPin's lockfileVersion 2, byte for byte), then ``extension.py`` (every
member that Pinwarden adds, typed) and ``verification.py`` (every problem of a lock). ``install_plan.py`` makes an entry
from a registry's ``server.json`` (``server_entry.py``); ``relock.py`` updates a lock. ``policy.py`` and
``gateway_policy.py`` read ``pinwarden.toml``, ``policy_rules.py`` applies it; ``trust_tiers.py`` computes tiers.

``lock_store.py`` (disk) and ``mcp_registry.py`` (network) do I/O; everything else is pure. Imports ``clients``,
``surface``, ``system`` and ``core`` only.
"""
