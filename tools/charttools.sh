#!/usr/bin/env bash
# Gets the programs that check the chart, the alert rules and the dashboards: both Helms, helm-unittest, helm-docs, promtool and
# Prometheus (from Go modules), kubernetes-validate and checkov (from pinned Python requirements).
#
#   tools/charttools.sh          get what is missing; says in its last line where the programs are
#   tools/charttools.sh --path   print that directory and get nothing
#
# As with tools/build.sh, the directory is named by a hash of everything that decides its content.
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

say() { printf 'chart tools: %s\n' "$*"; }
die() { printf 'chart tools: %s\n' "$*" >&2; exit 1; }

tools_directory() {
  local root=${WATCHRELAY_TOOLS:-${XDG_CACHE_HOME:-${HOME:?set HOME or WATCHRELAY_TOOLS}/.cache}/watchrelay} hash
  hash=$(cd "$here" && sha256sum charttools.sh chart/go.mod chart/go.sum chart/requirements.txt prometheus/go.mod prometheus/go.sum |
    sha256sum | cut -c1-16)
  printf '%s/chart-%s\n' "$root" "$hash"
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

# step NAME COMMAND...: one program, with the time it took.
step() {
  local name=$1 began=$SECONDS
  attempt "$@" || die "$name: cannot be got, see above"
  say "$name: done in $((SECONDS - began)) s"
}

version_of() { awk -v module="$2" '$1 == module && $2 ~ /^v/ { print $2 } $1 == "require" && $2 == module { print $3 }' "$here/$1/go.mod"; }

build_go() {
  local helm3 helm4 prometheus capabilities
  helm3=$(version_of chart helm.sh/helm/v3)
  helm4=$(version_of chart helm.sh/helm/v4)
  prometheus=$(version_of prometheus github.com/prometheus/prometheus)
  # Helm 3 without these believes that `helm template` speaks to Kubernetes 1.20, and kubeVersion refuses it.
  capabilities="-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36"
  export CGO_ENABLED=0 GOWORK=off GOFLAGS="-mod=readonly -trimpath -buildvcs=false"
  step helm4 go build -C "$here/chart" -ldflags "-s -w -X helm.sh/helm/v4/internal/version.version=$helm4" -o "$work/tools/bin/helm4" helm.sh/helm/v4/cmd/helm
  step helm3 go build -C "$here/chart" -ldflags "-s -w $capabilities -X helm.sh/helm/v3/internal/version.version=$helm3" -o "$work/tools/bin/helm3" helm.sh/helm/v3/cmd/helm
  step helm-unittest go build -C "$here/chart" -ldflags "-s -w" -o "$work/tools/bin/" github.com/helm-unittest/helm-unittest/cmd/helm-unittest
  step helm-docs go build -C "$here/chart" -ldflags "-s -w" -o "$work/tools/bin/" github.com/norwoodj/helm-docs/cmd/helm-docs
  # remove_all_sd: static and file discovery stay, the clients of a dozen clouds do not.
  step prometheus go build -C "$here/prometheus" -tags remove_all_sd,netgo -ldflags "-s -w -X github.com/prometheus/common/version.Version=3.${prometheus#v0.3}" \
    -o "$work/tools/bin/" github.com/prometheus/prometheus/cmd/promtool github.com/prometheus/prometheus/cmd/prometheus
}

install_python() {
  step venv "${PYTHON:-python3}" -m venv "$tools.venv"
  step requirements "$tools.venv/bin/pip" --disable-pip-version-check -q install --require-hashes -r "$here/chart/requirements.txt"
}

tools=$(tools_directory)
case "${1:-}" in
  --path) printf '%s\n' "$tools"; exit 0 ;;
  "") ;;
  *) die "usage: tools/charttools.sh [--path]" ;;
esac

command -v flock >/dev/null || die "missing: flock (package util-linux)"
root=$(dirname "$tools")
mkdir -p "$root"
exec 9>"$root/.chart-lock"
flock -n 9 || { say "another run is getting them, waiting for it"; flock 9; }

if [ -d "$tools" ]; then say "ready in $tools"; exit 0; fi
if ! command -v go >/dev/null && [ -x /usr/local/go/bin/go ]; then PATH=$PATH:/usr/local/go/bin; fi
command -v go >/dev/null || die "Go $(awk '$1 == "go" { print $2 }' "$here/chart/go.mod") or newer is needed and there is no go on the PATH"
rm -rf "$root"/.getting-* "$tools.venv"  # of runs that were killed: the lock is ours
work=$(mktemp -d "$root/.getting-XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tools/bin"
export GOTOOLCHAIN=${GOTOOLCHAIN:-local}
began=$SECONDS
install_python
build_go
mv -T "$work/tools" "$tools"
say "ready in $tools ($((SECONDS - began)) s)"
