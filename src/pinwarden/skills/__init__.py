"""Skills: folders with a ``SKILL.md`` whose text an agent obeys, locked and compared like the tools of a server.

Start with ``skill.py`` (the model: files, their kinds, the digest of a folder) and ``skill_drift.py`` (what differs
from the approved text). ``powers.py`` finds what acts without being asked, ``skill_scan.py`` finds text that looks like
an attack, and ``skills_file.py`` reads and writes ``mcp-lock.skills.json``.

``skill_reader.py`` reads the folders of the clients, and ``instructions.py`` reads ``AGENTS.md`` and other instruction
files. Only these two do I/O; everything else is pure.
Imports ``artifacts``, ``lock``, ``clients``, ``surface``, ``system`` and ``core`` only.
"""
