#!/usr/bin/env bash
# Builds go-raw, with which the relay takes turns in the benchmarks, unless it is built; says in its last line in which directory it is.
set -euo pipefail
export LC_ALL=C

what=go-raw
sources=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tools/cached.sh
source "$sources/../../../tools/cached.sh"

directory=$(cached goraw ../tests/bench/goraw/{main.go,go.mod,go.sum})
if [ ! -d "$directory" ]; then
  (
    go=$("$here/go.sh") || die "Go $(awk '$1 == "go" { print $2 }' "$sources/go.mod") or newer is needed, and none could be got"
    export PATH="${go:+$go:}$PATH" GOTOOLCHAIN=${GOTOOLCHAIN:-local}
    claim "$directory" .goraw-lock .building-goraw
    plain_go
    mkdir "$work/made"
    attempt build go build -C "$sources" -o "$work/made/goraw" . || die "it was not built: $(tail -n 1 "$work/build.log")"
    mv -T "$work/made" "$directory"
  ) >&2
fi
echo "$directory"
