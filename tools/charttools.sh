#!/usr/bin/env bash
# Gets the programs that check the chart, the alert rules and the dashboards: both Helms, helm-unittest, helm-docs, promtool and
# Prometheus (from Go modules), kubernetes-validate and checkov (from pinned Python requirements).
#
#   tools/charttools.sh          get what is missing; says in its last line where the programs are
#   tools/charttools.sh --path   print that directory and get nothing
set -euo pipefail
export LC_ALL=C

what="chart tools"
# shellcheck source=tools/cached.sh
source "$(dirname "${BASH_SOURCE[0]}")/cached.sh"

version_of() { awk -v module="$2" '$1 == module && $2 ~ /^v/ { print $2 } $1 == "require" && $2 == module { print $3 }' "$here/$1/go.mod"; }

build_go() {
  local helm3 helm4 prometheus capabilities
  helm3=$(version_of chart helm.sh/helm/v3)
  helm4=$(version_of chart helm.sh/helm/v4)
  prometheus=$(version_of prometheus github.com/prometheus/prometheus)
  # Helm 3 without these believes that `helm template` speaks to Kubernetes 1.20, and kubeVersion refuses it.
  capabilities="-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36"
  plain_go
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

tools=$(cached chart charttools.sh chart/go.mod chart/go.sum chart/requirements.txt prometheus/go.mod prometheus/go.sum)
case "${1:-}" in
  --path) printf '%s\n' "$tools"; exit 0 ;;
  "") ;;
  *) die "usage: tools/charttools.sh [--path]" ;;
esac

claim "$tools" .chart-lock .getting
find_go || die "Go $(wanted_go chart) or newer is needed and there is no go on the PATH"
rm -rf "$tools.venv"  # of a run that was killed
mkdir -p "$work/tools/bin"
export GOTOOLCHAIN=${GOTOOLCHAIN:-local}
began=$SECONDS
install_python
build_go
mv -T "$work/tools" "$tools"
say "ready in $tools ($((SECONDS - began)) s)"
