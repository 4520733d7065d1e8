"""MCP clients' configuration files: where they are, the entry format of each client, and how to edit them in place.

Start with ``table.py`` (one row per client) and ``config.py`` (reading). ``files.py`` finds and writes the files.
``documents.py`` edits one server in a document and leaves every other byte alone, with an editor per format:
``jsonc.py``, ``toml_text.py`` and ``yaml_text.py``. ``command_line.py`` and ``launchers.py`` parse commands.
``drift.py`` compares configurations with approved ones; ``findings.py`` checks them without an approved state.

Everything but ``files.py`` is pure. Must not import ``lock``: a client's file means the same with and without a lock.
"""
