#!/usr/bin/env bash
# Builds one containerd (with shim and ctr), runc and the three CNI plugins of a one-node network, unless cached.
# build.sh [containerd-2.4|containerd-2.1]
# Three minutes on two cores from nothing; 100 MB stay. Fails, and says what on, rather than do without a part.
set -euo pipefail
. "$(dirname "$0")/../versions.sh"
. "$CLUSTER_SRC/lib/go.sh"

build_containerd() {
    local version=$1 v=github.com/containerd/containerd/v2/version
    [ -d "$PARTS/containerd-$version" ] && return
    say "building containerd $version"
    go_begin
    go_copy "github.com/containerd/containerd/v2@v$version"
    for program in containerd containerd-shim-runc-v2 ctr; do
        go build -trimpath -o "$GOTMP/bin/" -ldflags "-s -w -X $v.Version=v$version" \
            -tags "no_btrfs no_devmapper no_zfs no_aufs nri_no_wasm" "./cmd/$program"
    done
    keep "$GOTMP"/bin/* "$PARTS/containerd-$version"
}

# With seccomp, or RuntimeDefault pods would not start; static, so that it also runs in guests.
build_runc() {
    [ -d "$PARTS/runc-$RUNC_VERSION" ] && return
    "$CLUSTER_SRC/lib/apt.sh" gcc:gcc pkg-config:pkg-config /usr/include/seccomp.h:libseccomp-dev
    say "building runc $RUNC_VERSION"
    go_begin
    go_copy "github.com/opencontainers/runc@v$RUNC_VERSION"
    CGO_ENABLED=1 go build -trimpath -o "$GOTMP/bin/" -tags "seccomp netgo osusergo" \
        -ldflags "-s -w -X main.version=$RUNC_VERSION -linkmode external -extldflags -static" .
    keep "$GOTMP/bin/runc" "$PARTS/runc-$RUNC_VERSION"
}

build_cni() {
    [ -d "$PARTS/cni-$CNI_VERSION" ] && return
    say "building CNI plugins $CNI_VERSION"
    go_begin
    go_copy "github.com/containernetworking/plugins@v$CNI_VERSION"
    go build -trimpath -o "$GOTMP/bin/" -ldflags "-s -w" ./plugins/main/bridge ./plugins/main/loopback ./plugins/ipam/host-local
    keep "$GOTMP"/bin/* "$PARTS/cni-$CNI_VERSION"
}

containerd_version=$(runtime_version "${1:-$RUNTIME}")
# Each in a shell of its own, whose end removes the build's temporary directory.
(build_containerd "$containerd_version")
(build_runc)
(build_cni)
