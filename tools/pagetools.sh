#!/usr/bin/env bash
# Gets axe-core, which says what is hard to use with a screen reader or a keyboard, into the cache outside the tree (needs npm).
#
#   tools/pagetools.sh          get it when it is missing; says in its last line where it is
#   tools/pagetools.sh --path   print the path of axe.min.js and get nothing
set -euo pipefail
export LC_ALL=C

version=4.14.1
integrity=FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==  # SHA-512, as the registry gives it

die() { printf 'page tools: %s\n' "$*" >&2; exit 1; }

root=${WATCHRELAY_TOOLS:-${XDG_CACHE_HOME:-${HOME:?set HOME or WATCHRELAY_TOOLS}/.cache}/watchrelay}
tools=$root/page-axe-$version
case "${1:-}" in
  --path) printf '%s\n' "$tools/axe.min.js"; exit 0 ;;
  "") ;;
  *) die "usage: tools/pagetools.sh [--path]" ;;
esac

if [ ! -f "$tools/axe.min.js" ]; then
  command -v npm >/dev/null || die "npm is needed to get axe-core and there is none on the PATH"
  mkdir -p "$root"
  work=$(mktemp -d "$root/.page-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  (cd "$work" && npm pack --silent "axe-core@$version" >/dev/null) || die "axe-core $version cannot be got"
  [ "$(openssl dgst -sha512 -binary "$work"/axe-core-*.tgz | base64 -w 0)" = "$integrity" ] || die "axe-core $version is not what was pinned"
  mkdir "$work/tools"
  tar -xzf "$work"/axe-core-*.tgz -C "$work/tools" --strip-components=1 package/axe.min.js package/LICENSE
  mv -T "$work/tools" "$tools" 2>/dev/null || [ -f "$tools/axe.min.js" ]  # another run may have been quicker
fi
printf 'page tools: ready in %s\n' "$tools"
