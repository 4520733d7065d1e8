#!/usr/bin/env bash
# Usage: tools/system-packages.sh [PACKAGE…]. Installs Debian packages that are missing: the given ones, or those
# that the tests use. Without root or sudo it says what is missing; tests that need it are then skipped with the
# reason (and fail where CI=true).
set -euo pipefail

missing=()
need() { command -v "$1" >/dev/null || missing+=("${@:2}"); }

if [ $# -gt 0 ]; then
  missing=("$@")
else
  need node nodejs
  need npm npm
  need bwrap bubblewrap
  need zsh zsh
  need fish fish
  need docker-registry docker-registry
  need skopeo skopeo
  need htpasswd apache2-utils
  need openssl openssl
  need groff groff-base
  need docker-compose docker-compose
  need systemd-analyze systemd
  need buildah buildah
  need debootstrap debootstrap
  need chromedriver chromium chromium-driver
  ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || need postgres postgresql
fi
[ ${#missing[@]} -eq 0 ] && exit 0

root=()
if [ "$(id -u)" -ne 0 ]; then
  if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    root=(sudo -n)
  else
    echo "note: not installed, and not permitted to install: ${missing[*]}" >&2
    echo "hint: sudo apt-get install ${missing[*]}" >&2
    exit 0
  fi
fi
if ! command -v apt-get >/dev/null; then
  echo "note: please install with your package manager: ${missing[*]}" >&2
  exit 0
fi
echo "==> apt-get install ${missing[*]}"
"${root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
