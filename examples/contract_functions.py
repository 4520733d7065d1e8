"""The six functions of the capability lockfile: generate, serialize, parse, write, read and check."""

from pathlib import Path

import pinwarden

SEARCH = {"name": "search", "description": "Search the notes.", "inputSchema": {"type": "object"}}
SUMMARY = {"name": "summary", "description": "Summarize a note.", "arguments": [{"name": "note", "required": True}]}

# Generate a lockfile from what the server lists, and write it.
surface = pinwarden.surface_from_listing({"serverInfo": {"name": "notes", "version": "1.0.0"}, "tools": [SEARCH]})
lockfile = pinwarden.generate_lockfile(
    "notes", pinwarden.derive_contracts(surface), pinwarden.derive_prompts(surface), generated_at="2026-01-01T00:00:00Z"
)
path = Path("mcp-fusion.lock")
pinwarden.write_lockfile(path, lockfile)

# Serializing is deterministic, and parsing is strict: it raises PinwardenError for a file that is not a lockfile.
print("same bytes:", path.read_bytes() == pinwarden.serialize_lockfile(lockfile))
print("same value:", pinwarden.parse_lockfile(path.read_bytes()) == lockfile)

# Later, compare a changed server with the file.
changed = pinwarden.surface_from_listing({"tools": [{**SEARCH, "description": "Search it all."}], "prompts": [SUMMARY]})
if locked := pinwarden.read_lockfile(path):
    result = pinwarden.check_lockfile(locked, pinwarden.derive_contracts(changed), pinwarden.derive_prompts(changed))
    print("tools changed:", *result.changed)
    print("prompts added:", *result.added_prompts)

# A file whose readable part was edited is not trusted.
path.write_text(path.read_text().replace("Search the notes.", "Search nothing."))
try:
    edited = pinwarden.parse_lockfile(path.read_bytes())
    pinwarden.check_lockfile(edited, pinwarden.derive_contracts(surface), pinwarden.derive_prompts(surface))
except pinwarden.PinwardenError as err:
    print("the file was edited:", err.code)
