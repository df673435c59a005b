#!/usr/bin/env bash
# Prints what a cluster could leave behind on the host: host_state.sh. Two outputs, before `up` and after `down`, must
# not differ. It looks at the host, not at what cluster.sh knows of its own.
set -euo pipefail

sed 's/^/mount /; s/ [0-9]* [0-9]*$//' /proc/self/mounts | sort
find /sys/fs/cgroup -mindepth 1 -type d \( -name '*dracpu*' -o -name 'kubepods*' \) | sort | sed 's/^/cgroup /'
ip -o link show | awk '{ print "interface", $2 }' | sort
ip route show | sed 's/^/route /'
# network namespaces that some process holds
{ readlink /proc/[0-9]*/ns/net 2>/dev/null || true; } | sort -u | sed 's/^/namespace /'
(cd /proc/sys && grep -H . vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
    kernel/keys/root_maxkeys kernel/keys/root_maxbytes net/ipv4/ip_forward | sed 's/^/sysctl /')
ls -d /run/* /var/lib/{kubelet,containerd,cni,nri,etcd}* /var/log/{pods,containers}* /var/run/kubernetes* /etc/{cni,cdi,nri,kubernetes}* \
    /opt/{cni,nri}* /run/containerd/* /usr/libexec/kubernetes* 2>/dev/null | sort | sed 's/^/path /' || true
for d in /proc/[0-9]*; do
    name=$({ tr '\0' ' ' <"$d/cmdline"; } 2>/dev/null | cut -d' ' -f1) || continue
    case ${name##*/} in
        containerd* | runc | etcd | kube-* | kubelet | kubelab | pause | dracpu-cluster-*) echo "process ${name##*/}" ;;
    esac
done | sort
