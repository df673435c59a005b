#!/usr/bin/env bash
# Keeps the cluster's namespaces, in which it is started: holder.sh DIR PARTS. See space.sh.
set -euo pipefail
dir=$1 parts=$2
h=$dir/host

mkdir -p "$h"/run/{containerd,nri,cdi,lock} "$h"/var/{lib,log,tmp,cache}
mkdir -p "$h"/var/lib/{kubelet,containerd,nri/plugins,nri/conf.d,cni}
ln -sfn /run "$h/var/run"
ln -sfn /run/lock "$h/var/lock"
[ ! -e /run/systemd/resolve ] || { mkdir -p "$h/run/systemd" && cp -r /run/systemd/resolve "$h/run/systemd/"; }

mount --bind "$parts" "$dir/parts"
mount --bind "$h/run" /run
mount --bind "$h/var" /var
mount --make-rshared /
touch /run/ready
exec -a "dracpu-cluster-holder $dir/" sleep infinity
