#!/usr/bin/env bash
# Usage: tools/venv.sh FOLDER NAME. Creates the virtual environment FOLDER if it is not there, installs
# requirements/NAME.txt (pinned, with hashes) and, unless it is a client for the tests, this package into it.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1 name=$2

python=
for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
  if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "error: Python 3.11 or newer is needed" >&2
  echo "hint: apt-get install python3 python3-venv" >&2
  exit 1
fi

if [ ! -x "$folder/bin/pip" ]; then
  echo "==> creating $folder with $("$python" --version)"
  rm -rf "$folder"
  if ! "$python" -m venv "$folder" >/dev/null 2>&1; then
    # Debian ships venv apart from Python.
    tools/system-packages.sh python3-venv
    "$python" -m venv "$folder"
  fi
fi

echo "==> installing requirements/$name.txt into $folder"
pip=("$folder/bin/python" -m pip --disable-pip-version-check --no-input)
install=(--quiet --require-hashes -r "requirements/$name.txt")
with_uv() {
  "${pip[@]}" install --quiet --require-hashes -r requirements/uv.txt &&
    UV_SYSTEM_CERTS=1 UV_NATIVE_TLS=1 "$folder/bin/python" -m uv pip install --python "$folder/bin/python" "${install[@]}"
}
# uv takes a tenth of the time, but does not know an index that only pip's settings name.
if [ "$name" = base ] || ! with_uv 2>/dev/null; then
  "${pip[@]}" install "${install[@]}"
fi
if [ "$name" = bench ]; then
  "${pip[@]}" install --quiet --require-hashes --no-deps -r requirements/bench-rules.txt
  "${pip[@]}" install --quiet --no-deps --no-build-isolation --force-reinstall .
elif [ "$name" != old-client ]; then
  "${pip[@]}" install --quiet --no-deps --no-build-isolation --editable .
fi
