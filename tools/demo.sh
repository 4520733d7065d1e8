#!/usr/bin/env bash
# What Pinwarden does today, on a real server's listing. Called by `make demo` with pinwarden on the PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
listing=examples/mcp-server-time.tools.json

say() { printf '\n%s\n' "$1"; }
show() { printf '$ %s\n' "$*"; "$@"; }

say "1. A real server's answer to tools/list. One digest per tool, over every member it sent:"
show pinwarden digest "$listing"

say "2. The same tools as MCP Hangar would pin them (four members only):"
show pinwarden digest "$listing" --profile hangar

say "3. One word added to a description, and only that tool's digest moves:"
sed 's/Get current time in a specific timezone/& and mail it/' "$listing" | show pinwarden digest -

say "4. The whole listing under one content identifier, independent of spelling:"
show pinwarden cid "$listing"

say "5. Canonical forms have names, because they differ:"
for profile in jcs rulebook toolpin hangar-1.2; do
  printf '$ pinwarden canonicalize - --profile %s\n' "$profile"
  printf '{"10": 1.0, "9": "caf\\u00e9"}' | pinwarden canonicalize - --profile "$profile"
  echo
done

say "6. Text that two readers would understand differently is refused, with a code and a hint:"
printf '$ pinwarden canonicalize -\n'
printf '{"tool": "safe", "tool": "other"}' | pinwarden canonicalize - || echo "(exit code $?)"
