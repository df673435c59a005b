# The cluster's own space: a network and a mount namespace, a cgroup in every hierarchy, one directory. Sourced.
#
# In the mount namespace /run and /var are directories of the cluster, so that kubelet, containerd and the driver run
# with the paths that they have everywhere (/var/lib/kubelet, /run/containerd, /var/run/nri, /var/run/cdi,
# /var/log/containers) and touch nothing of the host. One process, the holder, keeps both namespaces; they end, with
# every mount in them, when it and its companions do.

MARK=.dracpu-cluster               # says that a directory is ours to remove
SYSCTLS="vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes"

SYSCTLS_SAVED=/run/dracpu-sysctls  # forgotten at a reboot, as they are

# Everything with a name on the host is called after the directory, so that two clusters never meet, and so that
# `down` needs to remember nothing.
number=$(($(cksum <<<"$DIR" | cut -d' ' -f1) % 250 + 1))
SPACE=dracpu-$number               # cgroup, and network interface on the host
NODE_IP=10.97.$number.1            # the node, at the cluster's end of the cable
HOST_IP=10.97.$number.2            # the host's end
POD_NET=10.244.$number.0/24
SERVICE_IP=10.96.0.1               # the service "kubernetes"; there is no kube-proxy: the API server listens on it

# The hierarchies in which the cluster has its cgroup: one on cgroup v2; on v1 one for each controller, and the one of
# v2 beside them, in which runc makes cgroups too.
hierarchies() { awk '$3 == "cgroup" || $3 == "cgroup2" { print $2 }' /proc/self/mounts; }

# The one whose members tell which processes are ours: all start in it and none of their children leaves it.
tracker() {
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then echo "/sys/fs/cgroup/$SPACE"; else echo "/sys/fs/cgroup/pids/$SPACE"; fi
}

make_cgroups() {
    local h c
    for h in $(hierarchies); do
        if [ -e "$h/cgroup.controllers" ]; then
            for c in $(<"$h/cgroup.controllers"); do echo "+$c" >"$h/cgroup.subtree_control" || true; done
        fi
        mkdir -p "$h/$SPACE"
        for c in cpuset.cpus cpuset.mems; do              # v1: empty until written, and of no use while empty
            [ ! -e "$h/cgroup.controllers" ] && [ -e "$h/$c" ] && cat "$h/$c" >"$h/$SPACE/$c"
        done
        # The pods of the cluster together are not one process beside each that the machine is busy with.
        [ ! -e "$h/$SPACE/cpu.shares" ] || echo 8192 >"$h/$SPACE/cpu.shares"
        [ ! -e "$h/$SPACE/cpu.weight" ] || echo 800 >"$h/$SPACE/cpu.weight"
        if [ -e "$h/$SPACE/cgroup.controllers" ]; then
            for c in $(<"$h/$SPACE/cgroup.controllers"); do echo "+$c" >"$h/$SPACE/cgroup.subtree_control" || true; done
        fi
    done
    mkdir -p "$(tracker)/system"
}

members() { find "$(tracker)" -name cgroup.procs -exec cat {} + 2>/dev/null || true; }

# Kills all that is in the cluster's cgroups, and removes these.
remove_cgroups() {
    local h pid _
    for _ in $(seq 100); do
        for pid in $(members); do kill -KILL "$pid" 2>/dev/null || true; done
        for h in $(hierarchies); do
            [ ! -d "$h/$SPACE" ] || find "$h/$SPACE" -depth -type d -exec rmdir {} + 2>/dev/null || true
        done
        [ -z "$(cgroup_dirs)" ] && return
        sleep 0.1
    done
    say "these cgroups cannot be removed:" && cgroup_dirs >&2
    return 1
}

cgroup_dirs() { for h in $(hierarchies); do find "$h/$SPACE" -type d 2>/dev/null || true; done; }

# The kubelet changes these for the whole host. The first cluster to come up keeps what they were, the last to go
# restores it.
save_sysctls() {
    [ -e "$SYSCTLS_SAVED" ] && return
    for s in $SYSCTLS; do [ ! -e "/proc/sys/$s" ] || echo "$s $(<"/proc/sys/$s")"; done >"$SYSCTLS_SAVED"
}

restore_sysctls() {
    local others s value
    others=$(find "$(dirname "$(tracker)")" -maxdepth 1 -name 'dracpu-*' ! -name "$SPACE")
    [ -z "$others" ] && [ -e "$SYSCTLS_SAVED" ] || return 0
    while read -r s value; do [ "$(<"/proc/sys/$s")" = "$value" ] || echo "$value" >"/proc/sys/$s"; done <"$SYSCTLS_SAVED"
    rm "$SYSCTLS_SAVED"
}

# inside COMMAND...: in the cluster's namespaces.
inside() { nsenter --net="/proc/$(pid_of holder)/ns/net" --mount="/proc/$(pid_of holder)/ns/mnt" -- "$@"; }

make_space() {
    mkdir -p "$DIR"/{host/run,host/var,parts,pids,log}
    touch "$DIR/$MARK"
    save_sysctls
    make_cgroups
    if ! alive holder; then
        start_process holder unshare --net --mount --propagation private "$CLUSTER_SRC/lib/holder.sh" "$DIR" "$PARTS"
        wait_for 50 "the namespaces" test -e "$DIR/host/run/ready"
    fi
    if ! ip link show "$SPACE" >/dev/null 2>&1; then
        ip link add "$SPACE" type veth peer name eth0 netns "$(pid_of holder)"
        ip addr add "$HOST_IP/30" dev "$SPACE"
        ip link set "$SPACE" up
        ip route add "$POD_NET" via "$NODE_IP" dev "$SPACE" onlink
        inside sh -ec "ip link set lo up; ip addr add $SERVICE_IP/32 dev lo; ip addr add $NODE_IP/30 dev eth0
            ip link set eth0 up; echo 1 >/proc/sys/net/ipv4/ip_forward"
    fi
}

remove_space() {
    local failed=0 mount
    ip link del "$SPACE" 2>/dev/null || true
    remove_cgroups || failed=1
    restore_sysctls || failed=1
    { grep -o " $DIR/[^ ]*" /proc/self/mounts || true; } | sort -r | while read -r mount; do umount "$mount" || true; done
    if [ -e "$DIR/$MARK" ]; then
        rm -rf --one-file-system "$DIR" || failed=1
    fi
    return $failed
}

# Prints what there is of the cluster, nothing when it is down.
remains() {
    local pid d ours=" "
    pid=$$                                                # not ourselves, nor who called us
    while [ "$pid" -gt 1 ]; do
        ours+="$pid "
        pid=$(sed 's/.*) //' "/proc/$pid/stat" | cut -d' ' -f2)
    done
    members | sed 's/^/process /'
    for d in /proc/[0-9]*; do
        if [[ $ours != *" ${d#/proc/} "* ]] && tr '\0' ' ' <"$d/cmdline" | grep -qF "$DIR/"; then
            echo "process ${d#/proc/}: $(tr '\0' ' ' <"$d/cmdline" | cut -c1-100)"
        fi
    done 2>/dev/null
    cgroup_dirs | sed 's/^/cgroup /'
    grep -ho " $DIR/[^ ]*" /proc/[0-9]*/mounts 2>/dev/null | sort -u | sed 's/^/mount/' || true
    ip -o link show "$SPACE" 2>/dev/null | sed 's/^/interface /' || true
    ip route show | grep -F "$POD_NET" | sed 's/^/route /' || true
    [ ! -e "$DIR" ] || echo "directory $DIR"
}
