#!/usr/bin/env bash
# Prints the directory to put before the PATH so that `go` is new enough for every go.mod here: nothing where the PATH's own is, else that of
# /usr/local/go, else that of a pinned Python wheel, which is kept in the cache outside the tree.
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
wanted=$(awk '$1 == "go" { print $2 }' "$here"/*/go.mod | sort -V | tail -n 1)

new_enough() {
  local found
  found=$(cd / && GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) || return 1
  [ "$(printf '%s\n' "$wanted" "${found#go}" | sort -V | head -n 1)" = "$wanted" ]
}

if new_enough go; then exit 0; fi
if new_enough /usr/local/go/bin/go; then echo /usr/local/go/bin; exit 0; fi

pins=$here/go-requirements.txt
root=${WATCHRELAY_TOOLS:-${XDG_CACHE_HOME:-${HOME:?set HOME or WATCHRELAY_TOOLS}/.cache}/watchrelay}
venv=$root/go-$(sha256sum <"$pins" | cut -c1-16)
if [ ! -e "$venv/.done" ]; then
  mkdir -p "$root"
  exec 9>"$root/.go-lock"
  flock 9 # another run may be at it
  if [ ! -e "$venv/.done" ]; then
    echo "go: none of $wanted or newer here: getting one into $venv" >&2
    "${PYTHON:-python3}" -m venv --clear "$venv"
    "$venv/bin/pip" --disable-pip-version-check -q install --require-hashes -r "$pins" >&2
    touch "$venv/.done"
  fi
  exec 9>&-
fi
go=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/go/bin
new_enough "$go/go" || { echo "go: $go/go does not run, or is older than $wanted" >&2; exit 1; }
echo "$go"
