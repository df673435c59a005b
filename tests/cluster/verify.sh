#!/usr/bin/env bash
# Shows that the test cluster itself works, without the driver: verify.sh [RUNTIME...] (default: both).
# Each check is printed with its time; the first that fails ends it, leaves the cluster up and says where its logs are.
# For its own cluster it takes a directory of its own, so that one that people play with stays as it is.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export CLUSTER_DIR=${CLUSTER_DIR:-/tmp/dracpu-verify}
NODE=dracpu-node

cluster() { "$here/cluster.sh" "$@"; }
kubectl() { cluster kubectl "$@"; }

check() { # words command...
    local words=$1 begin=$EPOCHREALTIME
    shift
    # in the background, because bash takes no errors inside a function that is called before a ||
    (set -e; "$@") >"$CLUSTER_DIR.out" 2>&1 &
    wait $! || { echo "FAILED $words"; cat "$CLUSTER_DIR.out"; exit 1; }
    awk -v a="$begin" -v b="$EPOCHREALTIME" -v w="$words" 'BEGIN { printf "ok  %6.2f s  %s\n", b - a, w }'
    sed 's/^/              /' "$CLUSTER_DIR.out" | grep -v 'cluster: ' | tail -2 || true
}

up() { cluster up; }
plain_pod() {
    kubectl apply -f - <<'Y'
apiVersion: v1
kind: Pod
metadata: {name: plain}
spec:
  containers:
  - name: main
    image: localhost/dracpu-test/tools:1
    command: [sleep, infinity]
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
      seccompProfile: {type: RuntimeDefault}
Y
    kubectl wait --for=condition=Ready pod/plain --timeout=30s
}
masks() { kubectl exec plain -- grep -E '^(Cpus_allowed_list|Seccomp):' /proc/self/status; }
seccomp_on() { kubectl exec plain -- grep -E '^Seccomp:.2$' /proc/self/status; }
logs() {
    kubectl run talker --image=localhost/dracpu-test/tools:1 --restart=Never -- echo words
    kubectl wait --for=jsonpath='{.status.phase}'=Succeeded pod/talker --timeout=30s >/dev/null
    [ "$(kubectl logs talker)" = words ]
}
pod_reaches_api() { kubectl exec plain -- sh -c 'echo | nc -w 2 "$KUBERNETES_SERVICE_HOST" 443'; }
host_reaches_pod() {
    kubectl run server --image=localhost/dracpu-test/tools:1 --restart=Never -- nc -ll -p 8080 -e echo hello
    kubectl wait --for=condition=Ready pod/server --timeout=30s >/dev/null
    local ip
    ip=$(kubectl get pod server -o 'jsonpath={.status.podIP}')
    for _ in 1 2 3 4 5; do [ "$( (cat <"/dev/tcp/$ip/8080") 2>/dev/null)" = hello ] && return; sleep 0.2; done
    return 1
}
slice() {
    kubectl apply -f - <<Y
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: by-hand}
spec:
  driver: example.com
  nodeName: $NODE
  pool: {name: by-hand, generation: 1, resourceSliceCount: 1}
  devices:
  - name: cpus
    allowMultipleAllocations: true
    attributes: {cores: {ints: [0, 1]}}
    capacity: {example.com/cpu: {value: "2"}}
Y
    # a gate that is off would drop the list without a word
    [ "$(kubectl get resourceslice by-hand -o 'jsonpath={.spec.devices[0].attributes.cores.ints}')" = '[0,1]' ]
    kubectl delete resourceslice by-hand
}
image_volume() {
    kubectl apply -f - <<'Y'
apiVersion: v1
kind: Pod
metadata: {name: volume}
spec:
  containers:
  - name: main
    image: localhost/dracpu-test/tools:1
    command: [sleep, infinity]
    volumeMounts: [{name: strategy, mountPath: /strategy, readOnly: true}]
    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
  volumes:
  - name: strategy
    image: {reference: "localhost/dracpu-test/pause:1", pullPolicy: Never}
Y
    kubectl wait --for=condition=Ready pod/volume --timeout=30s
    kubectl exec volume -- ls -l /strategy/pause
}
same_start() { kubectl get pod plain -o 'jsonpath={.status.containerStatuses[0].state.running.startedAt} {.status.containerStatuses[0].restartCount}'; }
still_runs() { # component gone and back: the pod must not have noticed
    local before
    before=$(same_start)
    cluster "$1" "$2"
    ! cluster status | grep -q "^$2 .*pid" || return 1
    cluster start "$2"
    kubectl wait --for=condition=Ready "node/$NODE" --timeout=60s
    for _ in $(seq 20); do kubectl exec plain -- true && break; sleep 0.5; done    # a new kubelet learns of its pods first
    [ "$(same_start)" = "$before" ]
}
delete_pods() { kubectl delete pod --all --grace-period=1 --timeout=30s; }
nothing_left() { diff <(echo "$state") <("$here/host_state.sh" "$CLUSTER_DIR"); }

cluster down 2>/dev/null
[ $# -gt 0 ] || set -- containerd-2.4 containerd-2.1
for runtime in "$@"; do
    export RUNTIME=$runtime
    echo "$runtime"
    cluster build
    state=$("$here/host_state.sh" "$CLUSTER_DIR")
    check "up, node Ready" up
    check "up again changes nothing" up
    check "a pod runs: no capabilities, read-only root, RuntimeDefault" plain_pod
    check "its masks by exec" masks
    check "its system calls are filtered" seccomp_on
    check "logs" logs
    check "a pod reaches the API server's address" pod_reaches_api
    check "the host reaches a pod's address" host_reaches_pod
    check "a slice with a list attribute is stored whole, and deleted" slice
    check "an image volume" image_volume
    for signal in stop kill; do
        for component in kubelet containerd kube-apiserver kube-scheduler kube-controller-manager etcd; do
            check "$signal and start $component: the pod runs on" still_runs $signal $component
        done
    done
    check "pods deleted" delete_pods
    check "down, with nothing of its own left" cluster down
    check "nothing left on the host" nothing_left
    check "half up (killed after 2 s), then down" bash -c "timeout -s KILL 2 '$here/cluster.sh' up; '$here/cluster.sh' down"
    check "nothing left on the host" nothing_left
    rm -f "$CLUSTER_DIR.out"
done
