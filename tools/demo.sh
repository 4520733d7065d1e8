#!/usr/bin/env bash
# What Pinwarden does today. Called by `make demo` with pinwarden on the PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { printf '\n\033[1m%s\033[0m\n' "$1"; }
show() { printf '$ %s\n' "${*//$work\//}"; "$@" 2>&1 || printf '(exit code %s)\n' "$?"; }
[ -t 1 ] || say() { printf '\n%s\n' "$1"; }

say "1. Ask a server for everything it tells the model, and write it down. Running it needs your consent:"
show pinwarden inspect -- python3 examples/notes_server.py
show pinwarden inspect --allow-execute -o "$work/approved.json" -- python3 examples/notes_server.py

say "2. Later the same server, same version number, says something else. What changed, and does it matter?"
show pinwarden diff "$work/approved.json" --allow-execute -- python3 examples/notes_server.py --update

say "3. An honest upgrade of a real server raises no alarm: nothing critical, the noise folded together:"
real=tests/vectors/real-servers
show pinwarden diff "$real/server-memory@2025.9.25.json" "$real/server-memory@2026.8.31.json" | tail -n 12

say "4. Digests have names, because tools disagree about what to hash. Ours covers every member:"
show pinwarden digest examples/mcp-server-time.tools.json
show pinwarden digest examples/mcp-server-time.tools.json --profile hangar

say "5. The whole listing under one content identifier, independent of spelling:"
show pinwarden cid examples/mcp-server-time.tools.json

say "6. Text that two readers would understand differently is refused, with a code and a hint:"
printf '{"tool": "safe", "tool": "other"}' > "$work/twice.json"
show pinwarden canonicalize "$work/twice.json"
