#!/usr/bin/env bash
# Installs the MCP servers from npm that the live tests probe: tests/npm/package-lock.json, pinned with hashes.
# A second run does nothing. Without npm it says so; the tests that need a server are then skipped with the reason
# (and fail where CI=true).
set -euo pipefail
cd "$(dirname "$0")/../tests/npm"

done_file=node_modules/.installed-from
if [ -f "$done_file" ] && cmp -s "$done_file" package-lock.json; then
  exit 0
fi
if ! command -v npm >/dev/null; then
  echo "note: npm is not installed, so the live tests have no servers from npm" >&2
  echo "hint: tools/system-packages.sh npm" >&2
  exit 0
fi
echo "==> npm ci in tests/npm"
# No package of ours runs code while it is installed.
npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
cp package-lock.json "$done_file"
