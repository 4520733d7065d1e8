#!/usr/bin/env bash
# Installs what the tests need from npm, pinned with hashes: the MCP servers that are probed (tests/npm), the npm
# registry that the npm adapter is tested against (tests/verdaccio) and the official program for MCPB bundles
# (tests/mcpb-cli), and a client of the gateway (tests/inspector).
# A second run does nothing. Without npm it says so; the tests that need one of them are then skipped with the reason
# (and fail where CI=true).
set -euo pipefail
cd "$(dirname "$0")/../tests"

install() {
  echo "==> npm ci in tests/$1"
  # No package of ours runs code while it is installed.
  (cd "$1" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error)
  cp "$1/package-lock.json" "$1/node_modules/.installed-from"
}

running=()
for folder in npm verdaccio mcpb-cli inspector; do
  if cmp -s "$folder/node_modules/.installed-from" "$folder/package-lock.json"; then
    continue
  fi
  if ! command -v npm >/dev/null; then
    echo "note: npm is not installed, so the tests have nothing from npm in tests/$folder" >&2
    echo "hint: tools/system-packages.sh npm" >&2
    continue
  fi
  install "$folder" &
  running+=($!)
done
for each in "${running[@]}"; do
  wait "$each"
done
