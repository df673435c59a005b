#!/usr/bin/env bash
# A real one-node Kubernetes on this machine, for tests and for people, without Docker or kind.
#
#   cluster.sh up                    build what is not cached, bring it up, print the kubeconfig's path
#   cluster.sh down                  take it down, after a failed `up` too; leaves nothing
#   cluster.sh status                what runs
#   cluster.sh check                 fail and list it if anything of the cluster is left
#   cluster.sh start|stop|kill|restart COMPONENT
#                                    stop is SIGTERM, kill SIGKILL; returns when it is ready, or gone
#   cluster.sh import ARCHIVE...     OCI image archives into the node's containerd
#   cluster.sh kubectl|ctr ARGUMENTS
#   cluster.sh inside COMMAND        in the node's network and mount namespaces
#   cluster.sh join                  a second node joins: a QEMU guest with 8 CPUs and 2 NUMA nodes
#   cluster.sh guest COMMAND         in that guest
#   cluster.sh build                 only build what is not cached
#
# Environment: CLUSTER_DIR   everything is under it            (/tmp/dracpu-cluster)
#              RUNTIME       containerd-2.4 or containerd-2.1  (containerd-2.4)
#              IMAGES        archives for `up` and `join` to import  (none)
#              LOGS          where `down` leaves the logs      (nowhere)
#              CACHE         where built parts are kept        (~/.cache/dracpu)
set -euo pipefail
DIR=$(realpath -m "${CLUSTER_DIR:-/tmp/dracpu-cluster}")
asked=${RUNTIME:-}
. "$(dirname "$(realpath "$0")")/versions.sh"
for lib in process space pki components guest; do . "$CLUSTER_SRC/lib/$lib.sh"; done
# A cluster that is up knows its runtime.
if alive holder && [ -e "$DIR/runtime" ]; then RUNTIME=$(<"$DIR/runtime"); fi

usage() { sed -n '2,/^set/s/^# \?//p' "$0"; exit 2; }

need_root() {
    [ "$(id -u)" -eq 0 ] || die "a node needs root (namespaces, cgroups, mounts): run it with sudo"
}

build() {
    "$CLUSTER_SRC/lib/apt.sh" openssl:openssl ip:iproute2 nsenter:util-linux python3:python3
    "$CLUSTER_SRC/kubelab/build.sh"
    "$CLUSTER_SRC/runtime/build.sh" "$RUNTIME"
}

import() {
    local archive
    for archive in "$@"; do
        ctr images import "$archive" >>"$DIR/log/import.log" 2>&1 || die "containerd does not take $archive: see $DIR/log/import.log"
    done
}

up() {
    need_root
    case $DIR/ in /var/* | /run/*) die "CLUSTER_DIR=$DIR: must not be under /var or /run, the cluster has its own" ;; esac
    [ "${#DIR}" -le 60 ] || die "CLUSTER_DIR=$DIR: longer than 60 characters, sockets under it would have no valid path"
    [ -z "$asked" ] || [ "$asked" = "$RUNTIME" ] || die "a cluster with $RUNTIME is up: take it down first"
    [ ! -d "$DIR" ] || [ -e "$DIR/$MARK" ] || [ -z "$(ls -A "$DIR")" ] || die "CLUSTER_DIR=$DIR exists and is not ours"
    runtime_version "$RUNTIME" >/dev/null
    build
    # what a reboot or a killed holder left is no cluster any more
    alive holder || [ ! -e "$DIR/$MARK" ] || down
    local begin=$EPOCHREALTIME c
    trap 'say "not up; what there is goes away by: ${CLUSTER_DIR:+CLUSTER_DIR=$DIR }$0 down"' EXIT
    make_space
    echo "$RUNTIME" >"$DIR/runtime"
    make_pki
    write_config
    "$CLUSTER_SRC/images/build.sh" "$DIR/images"
    for c in etcd kube-apiserver containerd; do start_component "$c"; done
    wait_for 600 containerd is_ready containerd
    import "$DIR"/images/*.tar ${IMAGES:-}
    wait_for 600 kube-apiserver is_ready kube-apiserver
    for c in kube-controller-manager kube-scheduler kubelet; do start_component "$c"; done
    wait_for 600 "the node to be ready" node_ready
    wait_for 300 "the default service account" api /api/v1/namespaces/default/serviceaccounts/default
    kubectl label node "$NODE" node-role.kubernetes.io/worker= --overwrite >/dev/null
    trap - EXIT
    say "up in $(since "$begin") s: Kubernetes $KUBE_VERSION, containerd $(runtime_version "$RUNTIME")"
    say "take it down with: ${CLUSTER_DIR:+CLUSTER_DIR=$DIR }$0 down"
    echo "export KUBECONFIG=$DIR/kubeconfig"
}

since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'; }

down() {
    need_root
    local id begin=$EPOCHREALTIME
    end_process kubelet TERM 5
    if alive containerd; then
        CTR_SECONDS=5                                     # it may hang: the rest ends without its help
        for id in $(ctr tasks ls -q || true); do ctr tasks delete --force "$id" || break; done >/dev/null 2>&1
        end_process containerd TERM 5
    fi
    for id in guest kube-scheduler kube-controller-manager kube-apiserver etcd holder; do end_process $id KILL; done
    if [ -n "${LOGS:-}" ] && [ -d "$DIR/log" ]; then mkdir -p "$LOGS" && cp "$DIR"/log/* "$LOGS"; fi
    remove_space
    check
    say "down in $(since "$begin") s"
}

check() {
    local left
    left=$(remains)
    [ -z "$left" ] || die "left of the cluster:"$'\n'"$left"
}

status() {
    local c
    [ -e "$DIR/$MARK" ] || die "no cluster in $DIR"
    for c in $COMPONENTS; do
        printf '%-26s%s\n' "$c" "$(alive "$c" && echo "pid $(pid_of "$c")" || echo "not running")"
    done
    printf '%-26s%s\n' runtime "$RUNTIME" kubeconfig "$DIR/kubeconfig"
}

verb=${1:-} what=${2:-}
case $verb in
    up | down | status | check | build | join) [ $# -eq 1 ] || usage; "$verb" ;;
    start | stop | kill | restart)
        need_root
        is_component "$what" || die "$verb: one of $COMPONENTS"
        alive holder || die "no cluster is up in $DIR"
        case $verb in
            start) start_and_wait "$what" ;;
            stop) end_process "$what" TERM 60 ;;
            kill) end_process "$what" KILL ;;
            restart) end_process "$what" TERM 60 && start_and_wait "$what" ;;
        esac
        ;;
    import | kubectl | ctr | inside | guest) shift; "$verb" "$@" ;;
    *) usage ;;
esac
