# Sourced by the scripts that fill a directory of the cache outside the tree: its name, the one run that may make it, and steps that
# are tried again. A script sets `what`, by which it calls itself in messages, before it sources this.
#
# The directory is named by a hash of everything that decides its content, so a finished one is never made again and never stale; old
# ones may be deleted at any time.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

say() { printf '%s: %s\n' "$what" "$*"; }
die() { printf '%s: %s\n' "$what" "$*" >&2; exit 1; }

# cached NAME FILE...: the directory of that name for these files of tools/, and this one, as they are.
cached() {
  local root=${WATCHRELAY_TOOLS:-${XDG_CACHE_HOME:-${HOME:?set HOME or WATCHRELAY_TOOLS}/.cache}/watchrelay} name=$1 hash
  shift
  hash=$(cd "$here" && sha256sum "$@" cached.sh | sha256sum | cut -c1-16)
  printf '%s/%s-%s\n' "$root" "$name" "$hash"
}

# claim DIRECTORY LOCK PREFIX: ends the program if the directory is there; else this is the only run that makes it, and `work` is an
# empty directory beside it, removed at the end of the program in any case.
claim() {
  local root
  root=$(dirname "$1")
  command -v flock >/dev/null || die "missing: flock (package util-linux)"
  mkdir -p "$root"
  exec 9>"$root/$2"
  flock -n 9 || { say "another run is at it, waiting for it"; flock 9; }
  if [ -d "$1" ]; then say "ready in $1"; exit 0; fi
  rm -rf "$root/$3"-*  # of runs that were killed: the lock is ours
  work=$(mktemp -d "$root/$3-XXXXXX")
  trap 'rm -rf "$work"' EXIT
}

# attempt NAME COMMAND...: up to three times, as registries fail now and then; output only when all fail.
attempt() {
  local name=$1 try
  local log="$work/$name.log"
  shift
  for try in 1 2 3; do
    if "$@" >"$log" 2>&1 </dev/null; then return 0; fi
    say "$name: attempt $try failed: $(tail -n 1 "$log")"
  done
  tail -n 30 "$log" >&2
  return 1
}

# step NAME COMMAND...: one part, with the time it took.
step() {
  local name=$1 began=$SECONDS
  say "$name: begun"
  attempt "$@" || die "$name: failed, see above"
  say "$name: done in $((SECONDS - began)) s"
}

# find_go: puts Go on the PATH where its own installer leaves it; false when there is none.
find_go() {
  if ! command -v go >/dev/null && [ -x /usr/local/go/bin/go ]; then PATH=$PATH:/usr/local/go/bin; fi
  command -v go >/dev/null
}

# wanted_go MODULE: the version that tools/MODULE/go.mod asks for.
wanted_go() { awk '$1 == "go" { print $2 }' "$here/$1/go.mod"; }

# How every Go program here is built: from the pinned modules alone, the same bytes on any machine.
plain_go() { export CGO_ENABLED=0 GOWORK=off GOFLAGS="-mod=readonly -trimpath -buildvcs=false"; }
