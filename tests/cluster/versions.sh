# What the test cluster is made of, and where its built parts are kept. Sourced, not run.
# A part's directory carries its version, so that a new version never meets an old file.

KUBE_VERSION=1.37.2
CONTAINERD_24_VERSION=2.4.2
CONTAINERD_21_VERSION=2.1.9
RUNC_VERSION=1.5.3
CNI_VERSION=1.9.1
# what a guest's kernel loads, in this order, where it is not built in
GUEST_MODULES="virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci failover net_failover virtio_net
overlay llc stp bridge veth"

CACHE=${CACHE:-$HOME/.cache/dracpu}
PARTS=$CACHE/cluster

CLUSTER_SRC=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

say() { echo "cluster: $*" >&2; }
die() { say "$*"; exit 1; }

# The directory of a runtime's binaries; RUNTIME's default is the newest.
RUNTIME=${RUNTIME:-containerd-2.4}
runtime_version() {
    case $1 in
        containerd-2.4) echo "$CONTAINERD_24_VERSION" ;;
        containerd-2.1) echo "$CONTAINERD_21_VERSION" ;;
        *) die "RUNTIME=$1 is none of containerd-2.4, containerd-2.1" ;;
    esac
}
