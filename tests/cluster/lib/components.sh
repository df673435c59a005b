# The programs of the cluster: how each is configured, started, and seen to be ready. Sourced.

COMPONENTS="etcd kube-apiserver kube-controller-manager kube-scheduler containerd kubelet"
NODE=dracpu-node                   # not the host's name: a driver must not take one for the other
GATES=${GATES:-DRANodeAllocatableResources=true,DRAListTypeAttributes=true${GUEST:+,DRAOptionalNodeOperations=true}}

is_component() { [[ " $COMPONENTS " == *" $1 "* ]]; }

start_inside() { # name command...
    start_process "$1" nsenter --net="/proc/$(pid_of holder)/ns/net" --mount="/proc/$(pid_of holder)/ns/mnt" -- "${@:2}"
}

kube() { start_inside "$1" "$DIR/parts/kubelab-$KUBE_VERSION/$1" "${@:2}"; } # name arguments...: a program of kubelab

kubectl() { "$PARTS/kubelab-$KUBE_VERSION/kubectl" --kubeconfig="$DIR/kubeconfig" "$@"; }
ctr() {
    timeout "${CTR_SECONDS:-300}" "$PARTS/containerd-$(runtime_version "$RUNTIME")/ctr" \
        -a "$DIR/host/run/containerd/containerd.sock" -n k8s.io "$@"
}

write_config() {
    local parts=$DIR/parts
    cat >"$DIR/audit.yaml" <<'Y'
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
Y
    # nothing reserved, nothing evicted, no long wait before a container that ended starts again, and what a machine
    # without systemd or with cgroup v1 needs
    cat >"$DIR/kubelet.yaml" <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $NODE_IP
healthzBindAddress: $NODE_IP
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $DIR/pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $DIR/pki/kubelet-server.crt
tlsPrivateKeyFile: $DIR/pki/kubelet-server.key
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
clusterDNS: [10.96.0.10]
cgroupDriver: cgroupfs
cgroupRoot: /$SPACE
cgroupsPerQOS: true
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
volumePluginDir: /var/lib/kubelet/volume-plugins
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
featureGates: {$(sed 's/=/: /g; s/,/, /g' <<<"$GATES")}
Y
    # version 3 is read by both containerds. restrict_oom_score_adj: without CAP_SYS_RESOURCE runc could not give a
    # sandbox its -998.
    cat >"$DIR/containerd.toml" <<T
version = 3
imports = []
disabled_plugins = ['io.containerd.snapshotter.v1.btrfs', 'io.containerd.snapshotter.v1.zfs', 'io.containerd.snapshotter.v1.devmapper',
  'io.containerd.snapshotter.v1.blockfile', 'io.containerd.snapshotter.v1.erofs', 'io.containerd.differ.v1.erofs',
  'io.containerd.tracing.processor.v1.otlp', 'io.containerd.internal.v1.tracing']
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = 'localhost/dracpu-test/pause:1'
[plugins.'io.containerd.cri.v1.runtime']
  cdi_spec_dirs = ['/var/run/cdi']
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['$parts/cni-$CNI_VERSION']
    conf_dir = '$DIR/cni'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    runtime_path = '$parts/containerd-$(runtime_version "$RUNTIME")/containerd-shim-runc-v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = '$parts/runc-$RUNC_VERSION/runc'
      SystemdCgroup = false
[plugins.'io.containerd.nri.v1.nri']
  plugin_path = '/var/lib/nri/plugins'
  plugin_config_path = '/var/lib/nri/conf.d'
T
    # Pods may name plugins without which their containers are refused; the older runtime knows no such thing.
    [ "$RUNTIME" = containerd-2.1 ] || cat >>"$DIR/containerd.toml" <<T
  [plugins.'io.containerd.nri.v1.nri'.default_validator]
    enable = true
T
    mkdir -p "$DIR/cni"
    cat >"$DIR/cni/10-dracpu-test.conflist" <<C
{"cniVersion": "1.0.0", "name": "dracpu-test", "plugins": [
  {"type": "bridge", "bridge": "pods", "isGateway": true, "isDefaultGateway": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$POD_NET"}]]}}]}
C
}

start_component() {
    local pki=$DIR/pki
    case $1 in
        etcd)
            kube etcd --data-dir "$DIR/etcd" --listen-client-urls http://127.0.0.1:2379 --unsafe-no-fsync --log-level warn \
                --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
            ;;
        kube-apiserver)
            kube kube-apiserver --etcd-servers=http://127.0.0.1:2379 --secure-port=443 --bind-address=0.0.0.0 \
                --advertise-address="$NODE_IP" --endpoint-reconciler-type=none --service-cluster-ip-range=10.96.0.0/24 \
                --client-ca-file="$pki/ca.crt" --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
                --kubelet-client-certificate="$pki/apiserver-kubelet.crt" --kubelet-client-key="$pki/apiserver-kubelet.key" \
                --kubelet-certificate-authority="$pki/ca.crt" --kubelet-preferred-address-types=InternalIP \
                --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$pki/sa.pub" \
                --service-account-signing-key-file="$pki/sa.key" --authorization-mode=Node,RBAC \
                --requestheader-client-ca-file="$pki/ca.crt" --requestheader-allowed-names=front-proxy \
                --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
                --requestheader-extra-headers-prefix=X-Remote-Extra- \
                --enable-admission-plugins=NodeRestriction --allow-privileged=true --feature-gates="$GATES" \
                --shutdown-watch-termination-grace-period=1s \
                --audit-policy-file="$DIR/audit.yaml" --audit-log-path="$DIR/log/audit.log"
            ;;
        kube-controller-manager)
            kube kube-controller-manager --kubeconfig="$DIR/controller-manager.kubeconfig" --leader-elect=false \
                --authentication-kubeconfig="$DIR/controller-manager.kubeconfig" --use-service-account-credentials \
                --authorization-kubeconfig="$DIR/controller-manager.kubeconfig" --root-ca-file="$pki/ca.crt" \
                --service-account-private-key-file="$pki/sa.key" --bind-address=127.0.0.1 --feature-gates="$GATES"
            ;;
        kube-scheduler)
            kube kube-scheduler --kubeconfig="$DIR/scheduler.kubeconfig" --leader-elect=false \
                --authentication-kubeconfig="$DIR/scheduler.kubeconfig" \
                --authorization-kubeconfig="$DIR/scheduler.kubeconfig" --bind-address=127.0.0.1 --feature-gates="$GATES"
            ;;
        containerd)
            # what a killed one left behind would look ready
            alive containerd || rm -f "$DIR"/host/run/{containerd/containerd,nri/nri}.sock
            start_inside containerd "$DIR/parts/containerd-$(runtime_version "$RUNTIME")/containerd" -c "$DIR/containerd.toml"
            ;;
        kubelet)
            kube kubelet --kubeconfig="$DIR/kubelet.kubeconfig" --config="$DIR/kubelet.yaml" --hostname-override="$NODE" \
                --node-ip="$NODE_IP" --cert-dir=/var/lib/kubelet/pki
            ;;
    esac
}

healthz() { # address port: an answer of 200 over plain HTTP
    local line
    exec 3<>"/dev/tcp/$1/$2" && printf 'GET /healthz HTTP/1.0\r\n\r\n' >&3 && read -r line <&3 && exec 3>&- && [[ $line == *" 200 "* ]]
}

# api PATH: prints what the API server answers, with 200, to the admin. While the server starts it needs the time that
# a kubectl for each look would take.
api() {
    local answer
    answer=$(printf 'GET %s HTTP/1.0\r\n\r\n' "$1" | timeout 10 openssl s_client -quiet -connect "$NODE_IP:443" -verify_return_error \
        -CAfile "$DIR/pki/ca.crt" -cert "$DIR/pki/admin.crt" -key "$DIR/pki/admin.key" 2>/dev/null)
    [[ $answer == HTTP/1.?" 200 "* ]] && printf '%s\n' "$answer"
}

is_ready() {
    case $1 in
        etcd) (inside bash -c 'exec 3<>/dev/tcp/127.0.0.1/2379') ;;
        kube-apiserver) api /readyz ;;
        containerd) [ -S "$DIR/host/run/nri/nri.sock" ] && ctr version ;;
        kubelet) (healthz "$NODE_IP" 10248) ;;
        *) alive "$1" ;;
    esac
}

start_and_wait() { start_component "$1" && wait_for 600 "$1" is_ready "$1"; }

node_ready() { api "/api/v1/nodes/${1:-$NODE}" | grep -q '"type":"Ready","status":"True"'; }
