#!/usr/bin/env bash
# build.sh NAME: builds the program in the directory of that name beside this file, with which the relay takes turns in the benchmarks,
# unless it is built; says in its last line in which directory it is. A Rust program is resolved when it is built: a lock file would name
# the registry. The one that was made is kept beside the program.
set -euo pipefail
export LC_ALL=C

what=${1:?NAME is missing}
sources=$(cd "$(dirname "${BASH_SOURCE[0]}")/$what" && pwd)
# shellcheck source=tools/cached.sh
source "$sources/../../../tools/cached.sh"

build_go() {
  local go
  go=$("$here/go.sh") || die "Go $(awk '$1 == "go" { print $2 }' "$sources/go.mod") or newer is needed, and none could be got"
  export PATH="${go:+$go:}$PATH" GOTOOLCHAIN=${GOTOOLCHAIN:-local}
  plain_go
  attempt build go build -C "$sources" -o "$work/made/$what" .
}

build_rust() {
  command -v cargo >/dev/null || die "Cargo (Rust) is needed"
  cp "$sources"/{Cargo.toml,main.rs} "$work/"
  attempt build cargo build --release --manifest-path "$work/Cargo.toml" --target-dir "$work/target" || return 1
  mv "$work/target/release/$what" "$work/Cargo.lock" "$work/made/"
}

if [ -f "$sources/go.mod" ]; then language=go files=(main.go go.mod go.sum); else language=rust files=(main.rs Cargo.toml); fi
directory=$(cached "$what" "${files[@]/#/../tests/bench/$what/}")
if [ ! -d "$directory" ]; then
  (
    claim "$directory" ".$what-lock" ".building-$what"
    mkdir "$work/made"
    "build_$language" || die "it was not built: $(tail -n 1 "$work/build.log")"
    mv -T "$work/made" "$directory"
  ) >&2
fi
echo "$directory"
