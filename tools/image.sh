#!/usr/bin/env bash
# Builds the image with buildah, without Docker and without a daemon.
#
#   tools/image.sh [TAG]     default: watchrelay:<version>
#
# PYTHON_IMAGE   the base image, pulled as usual. Unset: a stand-in made of Debian packages (mmdebstrap), for machines that reach a mirror
#                of Debian and no registry of images. Releases are built on python:3.13-slim.
# IMAGE_DIR      where the OCI layout is written too. Default: dist/image
# The environment's SOURCE_DATE_EPOCH, else the time of the last commit, dates all files, so that the same commit on the same base gives
# the same digest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'image: %s\n' "$*"; }
die() { printf 'image: %s\n' "$*" >&2; exit 1; }
for program in buildah git; do
  command -v "$program" >/dev/null || die "missing: $program; on Debian 12 or Ubuntu: apt-get install -y --no-install-recommends buildah mmdebstrap"
done

version=$(awk -F'"' '/^__version__/ { print $2 }' watchrelay/__init__.py)
tag=${1:-watchrelay:$version}
revision=$(git rev-parse HEAD)
[ -z "$(git status --porcelain -- Dockerfile .dockerignore LICENSE README.md pyproject.toml requirements watchrelay)" ] || revision+=-changed
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
created=$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)
directory=${IMAGE_DIR:-dist/image}

build=(buildah --storage-driver "${STORAGE_DRIVER:-overlay}")
began=$SECONDS
if [ -z "${PYTHON_IMAGE:-}" ]; then
  PYTHON_IMAGE=localhost/watchrelay-python:3.11-bookworm
  if ! "${build[@]}" inspect --type image "$PYTHON_IMAGE" >/dev/null 2>&1; then
    command -v mmdebstrap >/dev/null || die "missing: mmdebstrap; or set PYTHON_IMAGE"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    say "making a base image of Debian packages"
    SOURCE_DATE_EPOCH=0 mmdebstrap -q --variant=minbase --include=ca-certificates,python3,python3-venv --format=tar bookworm "$work/base.tar"
    printf 'FROM scratch\nADD base.tar /\n' > "$work/Dockerfile"
    "${build[@]}" bud -q --timestamp 0 -t "$PYTHON_IMAGE" "$work" >/dev/null
  fi
fi

# Never from the cache: its layers carry the time of the commit that they were made at, which would be part of the digest. What pip got is
# kept all the same (the cache mount). Without --layers the files of the first stage would keep the times of today.
arguments=(--isolation chroot --layers --no-cache --timestamp "$epoch" --build-arg "PYTHON_IMAGE=$PYTHON_IMAGE" --build-arg "SOURCE_DATE_EPOCH=$epoch")
arguments+=(--build-arg "VERSION=$version" --build-arg "REVISION=$revision" --build-arg "CREATED=$created")
# pip inside the build sees the index and the authorities of this machine; nothing of that stays in the image.
for file in /etc/ssl/certs/ca-certificates.crt /etc/pip.conf; do
  [ ! -e "$file" ] || arguments+=(-v "$file:$file:ro")
done
"${build[@]}" bud -q "${arguments[@]}" -t "$tag" . >/dev/null
mkdir -p "$(dirname "$directory")"
rm -rf "$directory"
"${build[@]}" push -q "$tag" "oci:$directory:$version"
digest=$(sed -E 's/.*"digest":"(sha256:[0-9a-f]+)".*/\1/' "$directory/index.json")
say "$tag $digest ($((SECONDS - began)) s), also in $directory"
