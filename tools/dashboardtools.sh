#!/usr/bin/env bash
# Gets Grafana's own components, which draw the dashboards for their pictures, into the cache outside the tree (needs npm; 0.4 GB).
#
#   tools/dashboardtools.sh          get them when they are missing; says in its last line where they are
set -euo pipefail
export LC_ALL=C

die() { printf 'dashboard tools: %s\n' "$*" >&2; exit 1; }

here=$(cd "$(dirname "$0")/.." && pwd)/tests/dashboards/render
root=${WATCHRELAY_TOOLS:-${XDG_CACHE_HOME:-${HOME:?set HOME or WATCHRELAY_TOOLS}/.cache}/watchrelay}
hash=$(cat "$here/package.json" "$here/package-lock.json" | sha256sum)
tools=$root/dashboards-${hash:0:16}

if [ ! -d "$tools" ]; then
  command -v npm >/dev/null || die "npm is needed to get Grafana's components and there is none on the PATH"
  mkdir -p "$root"
  work=$(mktemp -d "$root/.dashboards-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  cp "$here/package.json" "$here/package-lock.json" "$work"
  # Peers are not all met by what is pinned, and no package has a script to run that is needed here.
  (cd "$work" && npm ci --legacy-peer-deps --ignore-scripts --no-audit --no-fund >/dev/null) || die "what package-lock.json names cannot be got"
  mv -T "$work" "$tools" 2>/dev/null || [ -d "$tools" ]  # another run may have been quicker
  trap - EXIT
fi
printf 'dashboard tools: ready in %s\n' "$tools"
