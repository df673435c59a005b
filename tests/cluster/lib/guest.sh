# A second node: a guest in QEMU, with more CPUs than this machine may have, two NUMA nodes, SMT, and cgroup v2. Sourced.
#
# QEMU emulates (no KVM is needed). It runs in the cluster's namespaces and cgroup and its disk is in the cluster's
# directory, so that it ends and goes away with the cluster.

GUEST=dracpu-guest
GATEWAY_IP=10.98.$number.1         # the cluster's end of the cable
GUEST_IP=10.98.$number.2
GUEST_POD_NET=10.99.$number.0/24
GUEST_SHELL=22                     # a shell listens there; nothing but the cluster reaches it

# A directory tree with the cluster's own parts and files at the paths that they have here.
guest_tree() { # DIRECTORY
    local root=$1 bin=$1/bin parts=$1$DIR/parts part
    mkdir -p "$root"/{bin,proc,sys,dev,run,tmp,etc/cni,root,images,modules} "$root"/var/{log,tmp,lib/{kubelet,containerd,nri/plugins,nri/conf.d}} \
        "$root$DIR"/{parts,pki,cni}
    ln -s /run "$root/var/run"
    for part in "kubelab-$KUBE_VERSION" "containerd-$(runtime_version "$RUNTIME")" "runc-$RUNC_VERSION" "cni-$CNI_VERSION"; do
        cp -a "$PARTS/$part" "$parts/"
    done
    cp "$(command -v busybox)" "$bin/busybox"
    for part in $(busybox --list); do [ "$part" = busybox ] || ln -s busybox "$bin/$part"; done
    for part in "kubelab-$KUBE_VERSION/kubelet" "containerd-$(runtime_version "$RUNTIME")"/{containerd,ctr}; do
        ln -sf "$DIR/parts/$part" "$bin/${part##*/}"
    done
    cp "$CLUSTER_SRC/guest/init" "$root/init"
    cp "$PARTS"/guest-kernel/*.ko* "$root/modules/"
    cp "$DIR"/images/*.tar ${IMAGES:-} "$root/images/"

    # Emulated CPUs are slow: a hook may take its time.
    sed "/^\[plugins.'io.containerd.nri.v1.nri'\]/a\\  plugin_registration_timeout = '20s'\\n  plugin_request_timeout = '20s'" \
        "$DIR/containerd.toml" >"$root$DIR/containerd.toml"
    sed "s/$NODE_IP/$GUEST_IP/; /^cgroupRoot:/d" "$DIR/kubelet.yaml" >"$root$DIR/kubelet.yaml"
    sed "s|$POD_NET|$GUEST_POD_NET|" "$DIR/cni/10-dracpu-test.conflist" >"$root$DIR/cni/10-dracpu-test.conflist"
    kubeconfig guest >"$root$DIR/guest.kubeconfig"
    cp "$DIR/pki/ca.crt" "$root$DIR/pki/"
    for part in crt key; do cp "$DIR/pki/guest-server.$part" "$root$DIR/pki/kubelet-server.$part"; done
    echo 'root:x:0:0::/root:/bin/sh' >"$root/etc/passwd"
    echo 'root:x:0:' >"$root/etc/group"
    echo "127.0.0.1 localhost $GUEST" >"$root/etc/hosts"
    printf 'ID=dracpu-test\nPRETTY_NAME="dracpu test guest"\n' >"$root/etc/os-release"
    cksum <<<"$DIR" | md5sum | cut -d' ' -f1 >"$root/etc/machine-id"
    touch "$root/etc/resolv.conf"
    cat >"$root/etc/guest" <<V
DIR=$DIR NODE=$GUEST ADDRESS=$GUEST_IP GATEWAY=$GATEWAY_IP SHELL_PORT=$GUEST_SHELL MODULES="$GUEST_MODULES"
V
}

# Two sockets, each a NUMA node with a last-level cache, of two cores with two threads.
# An old model of CPU: programs that find no vector instructions do without, and are many times faster than these emulated.
start_guest() {
    start_inside guest qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot -M q35 \
        -accel tcg,thread=single -cpu Nehalem -smp 8,sockets=2,cores=2,threads=2 -m 2560M \
        -object memory-backend-ram,id=m0,size=1280M -numa node,nodeid=0,memdev=m0,cpus=0-3 \
        -object memory-backend-ram,id=m1,size=1280M -numa node,nodeid=1,memdev=m1,cpus=4-7 \
        -drive "file=$DIR/guest.disk,if=none,id=disk,format=raw,cache=unsafe" -device nvme,drive=disk,serial=1 \
        -netdev tap,id=net,ifname=guest,script=no,downscript=no -device virtio-net-pci,netdev=net,romfile= \
        -serial "file:$DIR/log/guest-console.log" -kernel "$PARTS/guest-kernel/vmlinuz" \
        -append "console=ttyS0 panic=-1 quiet mitigations=off nokaslr tsc=reliable no_timer_check rcupdate.rcu_expedited=1 random.trust_cpu=on audit=0 net.ifnames=0 root=/dev/nvme0n1 rw init=/init"
}

join() {
    need_root
    alive holder || die "no cluster is up in $DIR"
    ! alive guest || die "the guest is up"
    local begin=$EPOCHREALTIME
    "$CLUSTER_SRC/guest/build.sh"
    rm -rf "$DIR/guest"
    guest_tree "$DIR/guest"
    rm -f "$DIR/guest.disk"
    mke2fs -q -t ext4 -O ^has_journal -d "$DIR/guest" "$DIR/guest.disk" 2500M >/dev/null
    rm -rf "$DIR/guest"
    inside sh -ec "ip link show guest >/dev/null 2>&1 || ip tuntap add guest mode tap; ip addr replace $GATEWAY_IP/30 dev guest
        ip link set guest up; ip route replace $GUEST_POD_NET via $GUEST_IP dev guest onlink"
    start_guest
    wait_for 6000 "the guest to be ready" node_ready "$GUEST"
    kubectl label node "$GUEST" node-role.kubernetes.io/worker= --overwrite >/dev/null
    say "the guest $GUEST has joined in $(since "$begin") s"
}

# guest COMMAND...: runs it in the guest; what it says, and its exit code.
guest() {
    local said
    said=$(inside bash -c 'exec 3<>"/dev/tcp/$0/$1" && echo "$2" >&3 && cat <&3' "$GUEST_IP" "$GUEST_SHELL" \
        "( $(printf '%q ' "$@")) </dev/null 2>&1; printf '\n%s' \$?; exit")
    printf '%s' "${said%$'\n'*}"
    return "${said##*$'\n'}"
}
