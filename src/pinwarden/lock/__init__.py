"""``mcp-lock.json``: the format, Pinwarden's extension fields, signatures, policy and trust tiers.

Start with ``lockfile.py`` and ``entry.py`` (ToolPin's lockfileVersion 2, byte for byte), then ``extension.py`` (what
Pinwarden adds) and ``verification.py`` (every problem of a lock). ``policy.py`` reads ``pinwarden.toml``;
``policy_rules.py`` applies it. ``lock_store.py`` and ``mcp_registry.py`` touch disk and network; the rest is pure.
"""
