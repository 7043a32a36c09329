#!/usr/bin/env bash
# Builds the real parts that the integration tests run against: kube-apiserver, kube-controller-manager,
# kubectl, etcd (from Go modules) and Apache Kafka 3.9 and 4.1 (from Maven artifacts).
#
#   tools/build.sh          build what is missing; says in its last line where the parts are
#   tools/build.sh --path   print that directory and build nothing
#
# Proxies, mirrors and credentials are taken from wherever go, mvn and apt keep theirs.
set -euo pipefail
export LC_ALL=C

what="real parts"
# shellcheck source=tools/cached.sh
source "$(dirname "${BASH_SOURCE[0]}")/cached.sh"
go_modules=(etcd kube)
kafkas=(kafka39 kafka41)

parts_directory() {
  local files=(build.sh) part
  for part in "${go_modules[@]}"; do files+=("$part/go.mod" "$part/go.sum"); done
  for part in "${kafkas[@]}"; do files+=("$part/pom.xml"); done
  cached real "${files[@]}"
}

# True when version $1 is at least version $2.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

need_go() {
  local wanted found
  wanted=$(wanted_go kube)
  find_go || die "Go $wanted or newer is needed and there is no go on the PATH: install it from your package manager or go.dev"
  found=$(cd / && go env GOVERSION) || die "'go env GOVERSION' failed: is this Go complete?"
  at_least "${found#go}" "$wanted" ||
    die "Go $wanted or newer is needed and $(command -v go) is ${found#go}: upgrade it, or set GOTOOLCHAIN=go$wanted to let it fetch that version"
}

java_version() { java -XshowSettings:properties -version 2>&1 | awk '$1 == "java.specification.version" { print $3 }'; }

# What Kafka needs and this machine lacks, in words; nothing when all is there.
java_gaps() {
  if ! command -v java >/dev/null; then
    echo "a Java runtime (17 or newer)"
  elif ! at_least "$(java_version)" 17; then
    echo "Java 17 or newer ($(command -v java) is $(java_version))"
  fi
  command -v mvn >/dev/null || echo "Maven"
}

apt_install() {
  apt-get -o DPkg::Lock::Timeout=120 update -q
  DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 install -q -y "$@"
}

need_java() {
  local gaps packages=(maven openjdk-17-jre-headless)
  local how="apt-get install -y ${packages[*]}"
  gaps=$(java_gaps | paste -sd ,)
  [ -n "$gaps" ] || return 0
  if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    say "missing: $gaps; trying $how"
    attempt apt apt_install "${packages[@]}" || true
    gaps=$(java_gaps | paste -sd ,)
  fi
  [ -z "$gaps" ] || die "missing: $gaps; on Debian 12 or Ubuntu: $how"
}

build_kafka() {
  step "$1" mvn -q -B -Dstyle.color=never -f "$here/$1/pom.xml" dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$work/parts/$1"
}

build_go() {
  plain_go
  step etcd go build -C "$here/etcd" -ldflags "-s -w" -o "$work/parts/bin/etcd" go.etcd.io/etcd/server/v3
  # Without these the server calls itself v0.0.0-master, and clients that check versions refuse it.
  local version minor package flags="-s -w"
  version=$(awk '$1 == "k8s.io/kubernetes" && $2 ~ /^v/ { print $2 }' "$here/kube/go.mod")
  minor=$(cut -d. -f2 <<<"$version")
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$minor"
    flags+=" -X $package.gitTreeState=clean -X $package.buildDate=1970-01-01T00:00:00Z"
  done
  local commands=(kube-apiserver kube-controller-manager kubectl)
  step kube go build -C "$here/kube" -tags grpcnotrace -ldflags "$flags" -o "$work/parts/bin/" \
    "${commands[@]/#/k8s.io/kubernetes/cmd/}"
}

parts=$(parts_directory)
case "${1:-}" in
  --path) printf '%s\n' "$parts"; exit 0 ;;
  "") ;;
  *) die "usage: tools/build.sh [--path]" ;;
esac

[ "$(uname -s)" = Linux ] || die "the real parts are built and run on Linux only"
claim "$parts" .lock .building
mkdir -p "$work/parts/bin"
export GOTOOLCHAIN=${GOTOOLCHAIN:-local}
need_go
need_java
began=$SECONDS
for part in "${kafkas[@]}"; do build_kafka "$part"; done
build_go
mv -T "$work/parts" "$parts"
say "ready in $parts ($((SECONDS - began)) s)"
