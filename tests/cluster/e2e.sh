#!/usr/bin/env bash
# Tells the stories of e2e/ on a cluster of its own for each runtime: e2e.sh [STORY...]
#
# Environment: RUNTIMES    (containerd-2.4 containerd-2.1)
#              ARCHIVE     the driver's image, from `make image`
#              IMAGE       its name
#              COMPONENT   the component file of examples/highest-first
#              HELM, KUBECTL, CACHE, SOAK
#              GUEST       when set: a guest joins, and the stories of guest_stories.py are told on it
#              LOGS        where the logs of the cluster's parts are left    (target/e2e)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export CLUSTER_DIR=${CLUSTER_DIR:-/tmp/dracpu-e2e} CLUSTER=$here/cluster.sh
export STRATEGY=$COMPONENT STRATEGY_IMAGE=localhost/dracpu-test/highest-first:1
[ -z "${GUEST:-}" ] || export BOOK=guest_stories NODE=dracpu-guest PATIENCE=${PATIENCE:-5}
logs=${LOGS:-$here/../../target/e2e}

[ "$(id -u)" -eq 0 ] || { echo "e2e: a real node needs root (namespaces, cgroups, mounts): run it with sudo" >&2; exit 1; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"; LOGS=$logs "$CLUSTER" down' EXIT
python3 "$here/images/mkimage.py" "$scratch/strategy.tar" "$STRATEGY_IMAGE" "highest-first.wasm=$COMPONENT"

failed=()
for RUNTIME in ${RUNTIMES:-containerd-2.4 containerd-2.1}; do
    export RUNTIME
    echo "== $RUNTIME"
    "$CLUSTER" down >/dev/null 2>&1
    export IMAGES="$ARCHIVE $scratch/strategy.tar"
    "$CLUSTER" up
    [ -z "${GUEST:-}" ] || "$CLUSTER" join
    KUBECONFIG=$CLUSTER_DIR/kubeconfig python3 "$here/e2e/run.py" "$@" || failed+=("$RUNTIME")
    LOGS=$logs/$RUNTIME "$CLUSTER" down
done
[ "${#failed[@]}" -eq 0 ] || { echo "e2e: stories failed on ${failed[*]}; the logs of the cluster: $logs" >&2; exit 1; }
