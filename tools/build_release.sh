#!/usr/bin/env bash
# Usage: tools/build_release.sh FOLDER [TAG]. Builds wheel and source archive into the folder, twice, and fails if the
# bytes differ. Adds a CycloneDX SBOM of what the wheel installs, and SHA256SUMS of everything. With a tag, fails unless
# it is the version and the changelog has a section for it. Run it with the virtual environment of `make demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "$1") tag=${2:-}
version=$(.venv/bin/python -c 'from pinwarden import __version__; print(__version__)')

if [ -n "$tag" ]; then
  [ "$tag" = "v$version" ] || { echo "error: the tag is $tag, and the version is $version" >&2; exit 1; }
  grep -q "^## \[$version\]" CHANGELOG.md || { echo "error: CHANGELOG.md has no section for $version" >&2; exit 1; }
fi
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
again=$(mktemp -d)
trap 'rm -rf "$again"' EXIT
for target in "$folder" "$again"; do
  .venv/bin/python -m hatchling build -t wheel -t sdist -d "$target" >&2
done
for file in "$again"/*; do
  cmp "$file" "$folder/${file##*/}"
done
.venv/bin/python -m tools.release_sbom > "$folder/pinwarden-$version.cdx.json"
(cd "$folder" && sha256sum -- *.whl *.tar.gz *.cdx.json > SHA256SUMS)
cat "$folder/SHA256SUMS"
