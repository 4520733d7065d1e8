"""MCP clients' configuration files: where they are, the entry format of each client, and how to edit them in place.

Start with ``table.py`` (one row per client) and ``config.py`` (reading). ``files.py`` finds and writes the files.
``documents.py`` edits one server in a document and leaves every other byte alone, with an editor per format:
``jsonc.py``, ``toml_text.py`` and ``yaml_text.py``. ``command_line.py`` and ``launchers.py`` parse commands.
``drift.py`` compares a server's entry with the approved one. ``findings.py`` reports risks without a comparison.

Everything but ``files.py`` is pure. The package must not import ``lock``: the meaning of a client's file does not
depend on a lock.
"""
