#!/usr/bin/env bash
# Prints what a cluster could leave behind on the host: host_state.sh DIR. Two outputs, before `up` and after `down`, must
# not differ. It looks at the host, not at what cluster.sh remembers. Other clusters that are up are left out: they come
# and go as they like.
set -euo pipefail
DIR=$1
. "$(dirname "$0")/versions.sh"
. "$CLUSTER_SRC/lib/space.sh"

without_others() { awk -v ours="$SPACE" '!match($0, /dracpu-[0-9]+/) || substr($0, RSTART, RLENGTH) == ours'; }

# the processes of nobody's cluster, and of ours
pids() {
    local d cgroup
    for d in /proc/[0-9]*; do
        cgroup=$(grep -o '/dracpu-[0-9]*' "$d/cgroup" 2>/dev/null | sort -u) || true
        if [ -z "$cgroup" ] || [ "$cgroup" = "/$SPACE" ]; then echo "${d#/proc/}"; fi
    done
}

sed 's/^/mount /; s/ [0-9]* [0-9]*$//' /proc/self/mounts | sort
find /sys/fs/cgroup -mindepth 1 -type d \( -name 'dracpu-*' -o -name 'kubepods*' \) | sort | sed 's/^/cgroup /' | without_others
ip -o link show | awk '{ print "interface", $2 }' | sort | without_others
ip route show | sed 's/^/route /' | without_others
for pid in $(pids); do readlink "/proc/$pid/ns/net" || true; done | sort -u | sed 's/^/namespace /'
(cd /proc/sys && grep -H . $SYSCTLS net/ipv4/ip_forward | sed 's/^/sysctl /')
ls -d /run/* /run/containerd/* /var/lib/{kubelet,containerd,cni,nri,etcd}* /var/log/{pods,containers}* \
    /etc/{cni,cdi,nri,kubernetes}* /opt/{cni,nri}* /usr/libexec/kubernetes* 2>/dev/null | sort | sed 's/^/path /' || true
for pid in $(pids); do
    name=$({ tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null | cut -d' ' -f1) || continue
    case ${name##*/} in
        containerd* | runc | etcd | kube-* | kubelet | kubelab | pause | dracpu-cluster-*) echo "process ${name##*/}" ;;
    esac
done | sort
